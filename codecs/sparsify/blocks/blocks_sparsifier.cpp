#include <algorithm>
#include <bit>

#include "codecs/sparsifiers.hpp"
#include "sparsify/keep_blocks.hpp"

namespace dr {
namespace {

enum param : size_t { ratio, count, size };

constexpr dr_param blocks_params[] = {
    share_params[0], share_params[1],
    param_choice("block", "contiguous elements that are kept together; auto: as the data say", "1|2|4|8|16|32|auto",
                 block_sizes)};

uint32_t block_of(const dr_params& params) {
  const auto choice = static_cast<uint32_t>(param_value(params, size).number);
  return choice == block_sizes ? 0 : 1u << choice;
}

// Blocks of 2^k elements that are kept. auto: as many as cost about what single elements do, at 2 bits a value.
uint64_t target_blocks(const dr_params& params, uint64_t universe, uint32_t k) {
  const uint64_t block = 1u << k, all = ceil_div(universe, block);
  const double n = param_value(params, count).number;
  double wanted =
      n > 0 ? static_cast<double>(ceil_div(static_cast<uint64_t>(n), block))
            : param_value(params, ratio).number * static_cast<double>(universe) / static_cast<double>(block) + 1e-9;
  if (!block_of(params)) {
    const uint64_t single = share_target(params, universe);
    const uint64_t bits = static_cast<uint64_t>(std::bit_width(universe / std::max<uint64_t>(1, single))) + 3;
    wanted = static_cast<double>(single) * static_cast<double>(bits) /
             static_cast<double>(std::max<uint64_t>(bits, k + 3) - k + 2 * block - 2);
  }
  return wanted >= static_cast<double>(all) ? all : std::max<uint64_t>(1, static_cast<uint64_t>(wanted));
}

uint64_t target(const dr_params& params, uint64_t universe) {
  uint64_t most = 0;
  for (uint32_t k = 0; k < block_sizes; ++k)
    if (block_of(params) == 0 || block_of(params) == 1u << k)
      most = std::max(most, target_blocks(params, universe, k) << k);
  return std::min(universe, most);
}

uint64_t scratch(const dr_params&, uint64_t universe, uint64_t) { return keep_blocks_scratch(universe); }

kept_count keep(const keep_call& call) {
  uint32_t block = block_of(call.params);
  if (!block) {
    uint64_t targets[block_sizes];
    for (uint32_t k = 0; k < block_sizes; ++k) targets[k] = target_blocks(call.params, call.universe, k);
    block = 1u << choose_block(call.source, targets, call.scratch);
  }
  const auto k = static_cast<uint32_t>(std::countr_zero(block));
  return keep_blocks(call.source, call.universe, block, target_blocks(call.params, call.universe, k), call.memory,
                     call.crew, call.scratch);
}

}  // namespace

constinit const sparsifier blocks_sparsifier = {
    .entry = sparsifier_entry("blocks", "blocks of contiguous elements of the largest energy", 5, blocks_params,
                              DR_HOST_ONLY),
    .keep = keep,
    .target = target,
    .block = block_of,
    .scratch = scratch,
    .check = check_share};

}  // namespace dr
