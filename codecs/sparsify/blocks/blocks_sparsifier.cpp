#include <cmath>

#include "codecs/sparsifiers.hpp"
#include "sparsify/block_size.hpp"
#include "sparsify/keep_blocks.hpp"
#include "sparsify/select_device.hpp"

namespace dr {
namespace {

enum param : size_t { ratio = share_ratio, count = share_count, size, value_bits };

constexpr dr_param params[] = {
    share_params[share_ratio], share_params[share_count],
    param_choice(
        "block",
        "elements of a block; auto: the size that holds the most energy for the bits of as many single elements",
        "1|2|4|8|16|32|auto", block_choices),
    param_real("value_bits", "bits of a value, for block=auto", 0, 32, 2)};

// 0: chosen per tensor.
uint32_t block(const dr_params& p) {
  const auto choice = static_cast<uint32_t>(param_value(p, size).number);
  return choice < block_choices ? 1u << choice : 0;
}

uint64_t target_blocks(const dr_params& p, uint64_t universe, uint32_t block) {
  const uint64_t blocks = ceil_div(universe, block);
  const double target = param_value(p, count).given
                            ? std::ceil(param_value(p, count).number / block)
                            : std::floor(param_value(p, ratio).number * static_cast<double>(universe) / block + 1e-9);
  return target >= static_cast<double>(blocks) ? blocks : std::max<uint64_t>(1, static_cast<uint64_t>(target));
}
// For block=auto, per size.
struct targets_by_size {
  uint64_t of[block_choices];

  targets_by_size(const dr_params& p, uint64_t universe) {
    const uint64_t single = share_target(p, universe);
    for (uint32_t k = 0; k < block_choices; ++k)
      of[k] = universe ? blocks_worth(universe, single, param_value(p, value_bits).number, 1u << k) : 0;
  }
};

template <class F>
uint64_t largest_of_sizes(const dr_params& p, uint64_t universe, F&& f) {
  if (const uint32_t s = block(p)) return f(s, target_blocks(p, universe, s));
  const targets_by_size targets(p, universe);
  uint64_t largest = 0;
  for (uint32_t k = 0; k < block_choices; ++k) largest = std::max<uint64_t>(largest, f(1u << k, targets.of[k]));
  return largest;
}

uint64_t max_selected(const dr_params& p, uint64_t universe) {
  return largest_of_sizes(p, universe, [&](uint32_t s, uint64_t m) { return std::min(universe, m * s); });
}
// (One size may select everything while another has to choose.)
uint64_t target(const dr_params& p, uint64_t universe) {
  const uint64_t elements = max_selected(p, universe);
  return block(p) || elements < universe || universe < 2 ? elements : universe - 1;
}
uint64_t scratch(const dr_params& p, uint64_t universe, uint64_t) {
  const uint64_t bytes =
      largest_of_sizes(p, universe, [&](uint32_t s, uint64_t m) { return keep_blocks_scratch(universe, s, m); });
  return block(p) ? bytes : std::max(bytes, block_size_scratch(universe));
}

selection_result keep(const keep_call& call) {
  uint32_t s = block(call.params);
  if (s) {
    const uint64_t m = target_blocks(call.params, call.universe, s);
    return keep_blocks(call.source, call.universe, s, m, call.memory, call.crew, call.scratch);
  }
  const targets_by_size targets(call.params, call.universe);
  s = choose_block(call.source, call.universe, targets.of, call.crew, call.memory.ends, call.scratch);
  return keep_blocks(call.source, call.universe, s, targets.of[bit_width(s) - 1], call.memory, call.crew, call.scratch);
}

void on_device(const dr_params& p, uint64_t universe, device_select_job& job) {
  job.kind = device_select_job::largest;
  job.block = block(p);
  job.target = target_blocks(p, universe, job.block);
}

}  // namespace

constinit const sparsifier blocks_sparsifier = {
    .entry = sparsifier_entry(
        "blocks", "blocks of contiguous elements, those of the largest energy; ties by lower index", 5, params),
    .keep = keep,
    .target = target,
    .selected_max = max_selected,
    .block = block,
    .scratch = scratch,
    .check = check_share,
    .on_device = on_device};

}  // namespace dr
