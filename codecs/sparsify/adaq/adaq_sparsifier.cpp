// Of positive and of negative values the largest (SPEC.md): topr's selection over values whose others read as zero.
#include <algorithm>
#include <cmath>

#include "codecs/sparsifiers.hpp"
#include "sparsify/source_walk.hpp"

namespace dr {
namespace {

struct sign_counts {
  uint64_t above, below;  // zero
};

template <class T>
sign_counts count_signs(const typename T::bits* v, uint64_t n) {
  uint32_t nonzero = 0, below = 0;  // n <= select_block
  for (uint64_t i = 0; i < n; ++i) {
    nonzero += (v[i] & T::magnitude_mask) != 0;
    below += v[i] > minus_zero<T>;
  }
  return {nonzero - below, below};
}

// Reads every value once; a source that makes its values makes them here.
sign_counts count_signs(const select_source& source, const select_crew& crew) {
  const auto of_run = [&](const void* v, uint64_t n) {
    return with_value_type(source.dtype, [&](auto type) {
      using T = decltype(type);
      return count_signs<T>(static_cast<const typename T::bits*>(v), n);
    });
  };
  sign_counts all{0, 0};
  const auto add = [](sign_counts& to, const sign_counts& some) {
    to.above += some.above;
    to.below += some.below;
  };
  source_walk walk(source, crew);
  if (walk.shares())
    walk.each_block<sign_counts>(
        [](const select_piece&) {},
        [&](sign_counts& block, size_t, size_t, const void* v, uint64_t, uint32_t n) { add(block, of_run(v, n)); },
        [&](const sign_counts& block, size_t, size_t, auto&& next) {
          add(all, block);
          next();
        });
  else
    walk.each_run([&](size_t, const void* v, uint64_t, uint32_t n) {
      add(all, of_run(v, n));
      return true;
    });
  return all;
}

// All pieces of a source as one, the values of one sign as they are, the others 0.
struct one_sign {
  const select_source& from;
  bool below;

  static const void* load(void* self, size_t, uint64_t at, uint32_t n, select_load what, void* room) {
    const auto& s = *static_cast<const one_sign*>(self);
    const uint64_t size = value_size(s.from.dtype);
    auto piece = static_cast<size_t>(std::upper_bound(s.from.pieces.begin(), s.from.pieces.end(), at,
                                                      [](uint64_t i, const select_piece& p) { return i < p.before; }) -
                                     s.from.pieces.begin() - 1);
    for (uint64_t done = 0; done < n; ++piece) {
      const select_piece& p = s.from.pieces[piece];
      const uint64_t first = at + done - p.before, some = std::min<uint64_t>(n - done, p.n - first);
      auto* const to = room ? static_cast<std::byte*>(room) + done * size : nullptr;  // a hint has none
      if (some == 0) continue;
      const void* const v = p.values ? static_cast<const std::byte*>(p.values) + first * size
                                     : s.from.load(s.from.self, piece, first, static_cast<uint32_t>(some), what, to);
      if (what == select_load::hint)
        __builtin_prefetch(v);
      else
        with_value_type(s.from.dtype, [&](auto type) { mask<decltype(type)>(v, some, s.below, to); });
      done += some;
    }
    return room;
  }

  template <class T>
  static void mask(const void* from, uint64_t n, bool below, void* to) {
    using bits = typename T::bits;
    const auto* const v = static_cast<const bits*>(from);
    auto* const out = static_cast<bits*>(to);
    const bits sign = minus_zero<T>, other = below ? 0 : sign;
    for (uint64_t i = 0; i < n; ++i) out[i] = (v[i] & sign) == other ? 0 : v[i];
  }
};

double ratio(const dr_params& p) { return param_value(p, 0).number; }
uint64_t sign_target(const dr_params& p, uint64_t count) {
  return count ? std::min(count, share_target(ratio(p), 0, count)) : 0;
}
// ⌊ratio·p + 1e-9⌋ + ⌊ratio·q + 1e-9⌋ with p + q <= d is at most one above ⌊ratio·d + 1e-9⌋, and so is it where one of
// them is 0 and becomes 1; where both are, they are 2 together.
uint64_t target(const dr_params& p, uint64_t universe) {
  return std::min(universe, static_cast<uint64_t>(std::floor(ratio(p) * static_cast<double>(universe) + 1e-9)) + 2);
}

// Selects the largest `count` of one sign to `memory`, by their positions among all values. Of so few values that nobody has
// scratch for them, all of the sign are listed first.
uint64_t keep_sign(const keep_call& call, bool below, uint64_t count, const select_memory& memory) {
  if (count == 0) return 0;
  one_sign sign{call.source, below};
  const select_piece whole{nullptr, call.source.elements(), 0, 0, 0};
  const select_source source{call.source.dtype, {&whole, 1}, one_sign::load, &sign};
  const bool has_scratch = target(call.params, call.universe) < whole.n;
  const uint64_t selected = keep_largest(source, has_scratch ? count : whole.n, memory, call.crew, true).count;
  if (selected <= count) return selected;
  selection s = select_largest(source.dtype, memory.values, selected, count);
  return select_at(call.crew.level, source.dtype).cut(0, selected, s.above, s.ties, memory.positions, memory.values);
}

// Pairs of two lists in the order of their positions; the first has room for all, and is the result.
template <class Bits>
void merge_pairs(uint32_t* a, Bits* a_values, uint64_t n, const uint32_t* b, const Bits* b_values, uint64_t m) {
  while (m) {
    const bool first = n && a[n - 1] > b[m - 1];
    const uint64_t to = n + m - 1, from = first ? --n : --m;
    a[to] = first ? a[from] : b[from];
    a_values[to] = first ? a_values[from] : b_values[from];
  }
}

// Places among all values become positions in ranges.
void cut_to_ranges(const select_source& source, uint64_t n, const select_memory& memory) {
  selected_pairs out{memory, source.dtype};
  for (const select_piece& p : source.pieces) {
    out.enter(p);
    for (; out.count < n && memory.positions[out.count] < p.before + p.n; ++out.count)
      memory.positions[out.count] = static_cast<uint32_t>(memory.positions[out.count] - p.before) + p.position;
  }
  out.close(source);
}

selection_result keep(const keep_call& call) {
  const sign_counts counts = count_signs(call.source, call.crew);
  const uint64_t present = call.source.elements();
  arena room(call.scratch, SIZE_MAX);
  const select_memory others =
      select_memory::lay_out(room, call.source.dtype, present, target(call.params, call.universe), 1);
  const uint64_t above = keep_sign(call, false, sign_target(call.params, counts.above), call.memory),
                 below = keep_sign(call, true, sign_target(call.params, counts.below), others);
  with_value_type(call.source.dtype, [&](auto type) {
    using bits = typename decltype(type)::bits;
    merge_pairs(call.memory.positions, static_cast<bits*>(call.memory.values), above, others.positions,
                static_cast<const bits*>(others.values), below);
  });
  cut_to_ranges(call.source, above + below, call.memory);
  return {above + below};
}

uint64_t scratch(const dr_params& p, uint64_t universe, uint64_t present) {
  arena memory;
  (void)select_memory::lay_out(memory, DR_F32, present, target(p, universe), 1);
  return memory.used();
}

dr_status check(const dr_codec&, const dr_params& params, dr_error& error) {
  if (ratio(params) > 0) return DR_OK;
  return fail(error, DR_E_ARGUMENT, "plan: adaq(ratio) must be above 0");
}

bool keeps_all(const dr_params& params) { return ratio(params) == 1; }

constexpr dr_param adaq_params[] = {{sizeof(dr_param), "ratio",
                                     "share of the positive values to keep, and of the negative ones", DR_PARAM_REAL, 1,
                                     0, 1, 0, nullptr}};

}  // namespace

constinit const sparsifier adaq_sparsifier = {
    .entry =
        sparsifier_entry("adaq", "the largest positive and the largest negative values, a share of either sign (AdaQ)",
                         6, adaq_params, DR_HOST_ONLY),
    .keep = keep,
    .target = target,
    .scratch = scratch,
    .check = check,
    .elements_max = UINT32_MAX,
    .keeps_all = keeps_all};

}  // namespace dr
