// value=fit_poly (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/fit_poly/fit_poly_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

enum { degree_, knots_, sign_, segments_ };
constexpr double usual_segments = 4;
constexpr dr_param params[] = {
    param_int("degree", "of the polynomial pieces", 0, fit_poly_degree_max, 5),
    param_choice(
        "knots",
        "where pieces end: at fractions of the curve; where it is farthest from its chord; at fractions, with pieces "
        "about zero; auto: jump if values come that were not selected, else fractions",
        "auto|fractions|chord|jump", 0),
    param_choice("sign", "split: one curve per sign; order: one curve of magnitudes, and a bit per value",
                 "split|order", 0),
    param_int("segments", "pieces of a curve with knots=chord; 0: by the paper's rule", 0, fit_poly_pieces_max,
              usual_segments)};
constexpr dr_field fields[] = {wire_field("degree", 0, fit_poly_degree_max, 5), wire_field("knots", 0, 2, 0),
                               wire_field("sign", 0, 1, 0)};

fit_poly_form form_of(const dr_params& p) {
  return {static_cast<unsigned>(p.fields[degree_]), static_cast<fit_poly_knots>(p.fields[knots_]),
          p.fields[sign_] == 1};
}

dr_status resolve(const dr_params* p, const dr_job*, uint64_t* fields, dr_fault* f) {
  const auto choice = static_cast<uint64_t>(param_value(*p, knots_).number);
  const bool strangers = (p->beside & DR_REPLACES_SUPPORT) != 0;
  fields[degree_] = static_cast<uint64_t>(param_value(*p, degree_).number);
  fields[knots_] = choice ? choice - 1 : uint64_t{strangers ? fit_poly_jump : fit_poly_fractions};
  fields[sign_] = static_cast<uint64_t>(param_value(*p, sign_).number);
  // (Given as the default, a plan's text leaves it out: two plans of one text are equal.)
  if (param_value(*p, segments_).number == usual_segments || fields[knots_] == fit_poly_chord) return DR_OK;
  f->message = "fit_poly: segments requires knots=chord";
  return f->code = DR_E_ARGUMENT;
}

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (job.width != 1) return false;
  const uint64_t n = job.count_max;
  need.payload = fit_poly_size_max(n, form_of(p));
  need.encode_scratch = n * sizeof(uint64_t);
  return true;
}

// The segments of the curves at the start of the payload, with equally many values per side.
struct layout {
  fit_poly_sides sides;
  uint64_t length[fit_poly_all_segments_max];
  unsigned segments = 0;
};

// Calls f with the type of the coefficients.
template <class F>
auto with_coefficients(const fit_poly_form& form, F&& f) {
  return form.coefficient_size() == 2 ? f(bf16_type{}) : f(f32_type{});
}

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  const uint64_t n = job_count(job);
  const fit_poly_form form = form_of(p);
  auto* sorted = reinterpret_cast<uint64_t*>(scratch);  // key, position: ties by position
  auto* const out = job_out<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    using bits = typename T::bits;
    const auto* values = job_in<bits>(job);
    const bits magnitude_bits = form.order ? T::magnitude_mask : static_cast<bits>(~bits{0});
    uint64_t positives = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const bits v = values[i] & magnitude_bits;
      sorted[i] = uint64_t{fit_poly_sort_key<T>(v)} << 32 | i;
      positives += (v & ~T::magnitude_mask) == 0;
    }
    std::sort(sorted, sorted + n);
    const auto y = [&](uint64_t x) {
      const auto key = static_cast<bits>(sorted[x] >> 32);
      return double{T::to_f32(static_cast<bits>(fit_poly_sort_key<T>(key)))};
    };

    uint8_t* at = out;
    const auto put_count = [&](uint64_t count) {
      store(at, static_cast<uint32_t>(count));
      at += 4;
    };
    // Number of values about zero after a jump, per side.
    uint64_t above = 0, below = 0;
    if (form.knots != fit_poly_fractions) {
      const auto falling = [&](uint64_t x) { return -y(n - 1 - x); };
      if (positives) above = fit_poly_behind_jump(static_cast<uint32_t>(positives), y);
      if (positives < n) below = fit_poly_behind_jump(static_cast<uint32_t>(n - positives), falling);
    }
    layout l{{positives, 0, n - positives}, {}, 0};
    if (form.knots == fit_poly_jump) l.sides = {positives - above, above + below, n - positives - below};
    if (!form.order) put_count(l.sides.positives);
    if (form.knots == fit_poly_jump) put_count(l.sides.middle);
    if (form.knots != fit_poly_chord) {
      l.segments = fit_poly_segments(l.sides, form.knots == fit_poly_jump, l.length);
    } else {
      for (const bool positive : {true, false}) {
        const uint64_t first = positive ? 0 : positives, total = positive ? positives : n - positives;
        if (total == 0) continue;
        const auto own = [&](uint64_t x) { return y(first + x); };
        const auto given = static_cast<unsigned>(param_value(p, segments_).number);
        const unsigned requested = given ? given : fit_poly_pieces_of_paper(total, form.degree, own);
        const uint64_t jump = positive ? (above ? total - above : 0) : below;
        uint64_t* const length = l.length + l.segments;
        const unsigned pieces = fit_poly_chords(total, jump, form.degree, requested, own, length);
        *at++ = static_cast<uint8_t>(pieces);
        for (unsigned i = 0; i + 1 < pieces; ++i) at = put_varint(at, length[i]);
        l.segments += pieces;
      }
    }

    with_coefficients(form, [&](auto coefficient) {
      using C = decltype(coefficient);
      uint64_t first = 0;
      for (unsigned s = 0; s < l.segments; ++s) {
        typename C::bits c[fit_poly_degree_max + 1];
        fit_poly_fit<C>(
            l.length[s], form.degree, [&](uint64_t x) { return y(first + x); }, c);
        const size_t size = sizeof(typename C::bits) * fit_poly_coefficients(l.length[s], form.degree);
        std::memcpy(at, c, size);
        at += size;
        first += l.length[s];
      }
    });
    if (form.order) {
      bit_writer signs(at);
      for (uint64_t i = 0; i < n; ++i) signs.put(values[static_cast<uint32_t>(sorted[i])] > T::magnitude_mask, 1);
      at = signs.finish();
    }
    *job.out_size = static_cast<uint64_t>(at - out);
  });
  if (!job.tell) return;
  for (uint64_t i = 0; i < n; ++i) job_tell(job)[i] = static_cast<uint32_t>(sorted[i]);
  *job.tell_count = n;
}

// Reads the fields before the coefficients; nullptr after a fault.
const uint8_t* read_layout(const dr_job& job, const fit_poly_form& form, layout& l) {
  const uint64_t n = job_count(job), size = job_in_size(job);
  const auto* const in = job_in<uint8_t>(job);
  const uint8_t *at = in, *const end = in + size;
  const auto corrupt = [&](uint64_t what, const char* message) {
    fault(job, DR_E_CORRUPT, static_cast<uint64_t>(at - in), what, message);
    return nullptr;
  };
  const auto get_count = [&](uint64_t limit) { return end - at >= 4 ? load<uint32_t>(at) : limit + 1; };
  const bool jump = form.knots == fit_poly_jump;
  uint64_t left = n;
  if (!form.order) {
    l.sides.positives = get_count(left);
    if (l.sides.positives > left) return corrupt(l.sides.positives, "fit_poly: more positive values than values");
    left -= l.sides.positives;
    at += 4;
  }
  if (jump) {
    l.sides.middle = get_count(left);
    if (l.sides.middle > left) return corrupt(l.sides.middle, "fit_poly: more values about zero than values");
    left -= l.sides.middle;
    at += 4;
  }
  (form.order ? l.sides.positives : l.sides.negatives) = left;
  if (form.knots != fit_poly_chord) {
    l.segments = fit_poly_segments(l.sides, jump, l.length);
    return at;
  }
  for (uint64_t left : {l.sides.positives, l.sides.negatives}) {
    if (left == 0) continue;
    const unsigned pieces = at < end ? *at : 0;
    if (pieces == 0 || pieces > fit_poly_pieces_max)
      return corrupt(pieces, "fit_poly: number of pieces is not in 1 … 64");
    ++at;
    for (unsigned i = 0; i + 1 < pieces; ++i) {
      uint64_t length;
      const uint8_t* const behind = get_varint(at, end, length);
      if (!behind) return corrupt(i, "fit_poly: piece length is truncated or not in shortest form");
      if (length == 0 || length >= left)
        return corrupt(length, "fit_poly: piece without points, or no points left for the last");
      l.length[l.segments++] = length;
      left -= length;
      at = behind;
    }
    l.length[l.segments++] = left;
  }
  return at;
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job), size = job_in_size(job);
  const fit_poly_form form = form_of(p);
  const auto* in = job_in<uint8_t>(job);
  layout l{};
  const uint8_t* at = read_layout(job, form, l);
  if (!at) return;
  auto coefficients_end = static_cast<uint64_t>(at - in);
  for (unsigned s = 0; s < l.segments; ++s)
    coefficients_end += form.coefficient_size() * fit_poly_coefficients(l.length[s], form.degree);
  const uint64_t expected = coefficients_end + (form.order ? ceil_div(n, 8) : 0);
  if (expected != size) {
    fault(job, DR_E_CORRUPT, size, expected, "fit_poly: payload size differs from that of its pieces");
    return;
  }
  const uint8_t* const signs = in + coefficients_end;
  if (form.order && !padding_is_zero(signs, n)) {
    fault(job, DR_E_CORRUPT, size - 1, 0, "fit_poly: padding is not zero");
    return;
  }
  const bool good = with_coefficients(form, [&](auto coefficient) {
    using C = decltype(coefficient);
    using word = typename C::bits;
    return with_value_type(job.dtype, [&](auto type) {
      using T = decltype(type);
      using bits = typename T::bits;
      auto* out = job_out<bits>(job);
      uint64_t first = 0;
      for (unsigned s = 0; s < l.segments; ++s) {
        float c[fit_poly_degree_max + 1];
        const unsigned count = fit_poly_coefficients(l.length[s], form.degree);
        for (unsigned j = 0; j < count; ++j) {
          const auto w = load<word>(at + j * sizeof(word));  // read once: the validated value is the one used
          if (!is_finite<C>(w))
            return fault(job, DR_E_CORRUPT, static_cast<uint64_t>(at - in) + j * sizeof(word), w,
                         "fit_poly: a coefficient is not finite");
          c[j] = C::to_f32(w);
        }
        at += count * sizeof(word);
        const bool positive = first < l.sides.positives || form.order;
        const bool negative = !positive && first >= l.sides.positives + l.sides.middle;
        fit_poly_eval(l.length[s], form.degree, c, [&](uint64_t x, double y) {
          if ((positive && y < 0) || (negative && y > 0)) y = 0;
          out[first + x] = T::from_f64(saturate<T>(y));
        });
        first += l.length[s];
      }
      if (!form.order) return true;
      constexpr bits sign = static_cast<bits>(T::magnitude_mask + bits{1});
      for (uint64_t i = 0; i < n; ++i)
        out[i] = static_cast<bits>((out[i] & T::magnitude_mask) | (signs[i / 8] >> (i % 8) & 1 ? sign : bits{0}));
      return true;
    });
  });
  if (good) *job.out_size = n * value_size(job.dtype);
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode>(resolve);

}  // namespace

constinit const dr_codec fit_poly_codec =
    make_codec("fit_poly", "the sorted values as polynomial pieces; sends their order beside", 3, DR_ROLE_VALUE,
               DR_REORDERS | DR_NEEDS_FINITE, &cpu,
               {.dtypes = all_value_dtypes, .params = params, .fields = fields, .cuda = &fit_poly_cuda});
constinit const codec_notes fit_poly_notes = {.codec = &fit_poly_codec, .reads_frames = true};

}  // namespace dr
