// value=fit_poly (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/fit_poly/fit_poly_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

enum { degree_, knots_, sign_, segments_ };
constexpr dr_param params[] = {
    param_int("degree", "of the polynomial pieces", 0, fit_poly_degree_max, 5),
    param_choice("knots", "where pieces end: at fractions of the curve, or where it is farthest from its chord",
                 "fractions|chord", 0),
    param_choice("sign", "split: a curve for each sign; order: one of magnitudes, and a bit a value", "split|order", 0),
    param_int("segments", "pieces of a curve with knots=chord; 0: as many as the paper's rule gives", 0,
              fit_poly_pieces_max, 4)};
constexpr dr_field fields[] = {{"degree", 0, fit_poly_degree_max, 5}, {"knots", 0, 1, 0}, {"sign", 0, 1, 0}};

fit_poly_form form_of(const dr_params& p) {
  return {static_cast<unsigned>(p.fields[degree_]), p.fields[knots_] == 1, p.fields[sign_] == 1};
}

dr_status resolve(const dr_params* p, const dr_job* job, uint64_t* fields, dr_fault* f) {
  if (p->values[segments_].given && p->values[knots_].number == 0) {
    f->message = "fit_poly: segments goes with knots=chord";
    return f->code = DR_E_ARGUMENT;
  }
  return fields_are_params<3>(p, job, fields, f);
}

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (job.width != 1) return false;
  const uint64_t n = job.count_max;
  need.payload = fit_poly_size_max(n, form_of(p));
  need.encode_scratch = n * sizeof(uint64_t);
  return true;
}

// The segments of the curves that begin the payload: as many values on each side.
struct layout {
  uint64_t side[2], length[fit_poly_all_segments_max];
  unsigned segments = 0;
};

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
    if (!form.order) {
      store(at, static_cast<uint32_t>(positives));
      at += 4;
    }
    layout l{{positives, n - positives}, {}, 0};
    if (!form.chord) {
      l.segments = fit_poly_segments(n, positives, l.length);
    } else {
      uint64_t first = 0;
      for (const uint64_t total : l.side) {
        if (total == 0) continue;
        const auto own = [&](uint64_t x) { return y(first + x); };
        const auto given = static_cast<unsigned>(p.values[segments_].number);
        const unsigned wanted = given ? given : fit_poly_pieces_of_paper(total, form.degree, own);
        uint64_t* const length = l.length + l.segments;
        const unsigned pieces = fit_poly_chords(total, form.degree, wanted, own, length);
        *at++ = static_cast<uint8_t>(pieces);
        for (unsigned i = 0; i + 1 < pieces; ++i) at = put_varint(at, length[i]);
        l.segments += pieces;
        first += total;
      }
    }

    uint64_t first = 0;
    for (unsigned s = 0; s < l.segments; ++s) {
      float c[fit_poly_degree_max + 1];
      fit_poly_fit(
          l.length[s], form.degree, [&](uint64_t x) { return y(first + x); }, c);
      const size_t size = 4 * fit_poly_coefficients(l.length[s], form.degree);
      std::memcpy(at, c, size);
      at += size;
      first += l.length[s];
    }
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

// Reads what stands before the coefficients; nullptr after a fault.
const uint8_t* read_layout(const dr_job& job, const fit_poly_form& form, layout& l) {
  const uint64_t n = job_count(job), size = job_in_size(job);
  const auto* const in = job_in<uint8_t>(job);
  const uint8_t *at = in, *const end = in + size;
  const auto corrupt = [&](uint64_t what, const char* message) {
    fault(job, DR_E_CORRUPT, static_cast<uint64_t>(at - in), what, message);
    return nullptr;
  };
  l.side[0] = n;
  if (!form.order) {
    l.side[0] = size >= 4 ? load<uint32_t>(in) : n + 1;
    if (l.side[0] > n) return corrupt(l.side[0], "fit_poly: more positive values than values");
    at += 4;
  }
  l.side[1] = n - l.side[0];
  if (!form.chord) {
    l.segments = fit_poly_segments(n, l.side[0], l.length);
    return at;
  }
  for (uint64_t left : l.side) {
    if (left == 0) continue;
    const unsigned pieces = at < end ? *at : 0;
    if (pieces == 0 || pieces > fit_poly_pieces_max) return corrupt(pieces, "fit_poly: not 1 to 64 pieces");
    ++at;
    for (unsigned i = 0; i + 1 < pieces; ++i) {
      uint64_t length;
      const uint8_t* const behind = get_varint(at, end, length);
      if (!behind) return corrupt(i, "fit_poly: the length of a piece is cut off, or not the shortest form");
      if (length == 0 || length >= left) return corrupt(length, "fit_poly: a piece of no points, or none for the last");
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
  for (unsigned s = 0; s < l.segments; ++s) coefficients_end += 4 * fit_poly_coefficients(l.length[s], form.degree);
  const uint64_t expected = coefficients_end + (form.order ? ceil_div(n, 8) : 0);
  if (expected != size) {
    fault(job, DR_E_CORRUPT, size, expected, "fit_poly: not as long as its segments");
    return;
  }
  const uint8_t* const signs = in + coefficients_end;
  if (form.order && !padding_is_zero(signs, n)) {
    fault(job, DR_E_CORRUPT, size - 1, 0, "fit_poly: padding is not zero");
    return;
  }
  const bool good = with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    using bits = typename T::bits;
    auto* out = job_out<bits>(job);
    uint64_t first = 0;
    for (unsigned s = 0; s < l.segments; ++s) {
      float c[fit_poly_degree_max + 1];
      const unsigned coefficients = fit_poly_coefficients(l.length[s], form.degree);
      std::memcpy(c, at, 4 * coefficients);  // once: what is judged is what is used
      for (unsigned j = 0; j < coefficients; ++j)
        if (const auto bits = std::bit_cast<uint32_t>(c[j]); !is_finite<f32_type>(bits)) {
          fault(job, DR_E_CORRUPT, static_cast<uint64_t>(at - in) + 4 * j, bits,
                "fit_poly: a coefficient is not finite");
          return false;
        }
      at += 4 * coefficients;
      const bool positive = first < l.side[0];
      fit_poly_eval(l.length[s], form.degree, c, [&](uint64_t x, double y) {
        if (positive ? y < 0 : y > 0) y = 0;
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
  if (good) *job.out_size = n * value_size(job.dtype);
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode>(resolve);

}  // namespace

constinit const dr_codec fit_poly_codec =
    make_codec("fit_poly", "the sorted values as polynomial pieces; sends their order beside", 3, DR_ROLE_VALUE,
               DR_REORDERS | DR_NEEDS_FINITE, &cpu,
               {.dtypes = all_value_dtypes, .params = params, .fields = fields, .cuda = &fit_poly_cuda});

}  // namespace dr
