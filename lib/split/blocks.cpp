#include "split/blocks.hpp"

namespace dr {
namespace {

// Backwards, so that no block is overwritten before it is read. (The size is a constant, so that the compiler emits
// vectors.)
template <uint32_t Block>
void expand(uint32_t* list, uint64_t n) {
  while (n-- > 0) {
    const uint32_t first = list[n] * Block;
    uint32_t* const to = list + n * Block;
    for (uint32_t i = 0; i < Block; ++i) to[i] = first + i;
  }
}

}  // namespace

uint64_t list_blocks(const uint32_t* elements, uint64_t n, uint32_t block, uint32_t* blocks) {
  const auto shift = static_cast<unsigned>(__builtin_ctz(block));
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; i += block) blocks[found++] = elements[i] >> shift;
  return found;
}

uint64_t expand_blocks(uint32_t* list, uint64_t n, uint32_t block, uint64_t universe) {
  if (block == 1 || n == 0) return n;
  const uint64_t elements = elements_of_blocks(list, n, block, universe), whole = elements / block;
  if (whole < n) {
    const uint32_t first = list[n - 1] * block;
    for (uint64_t at = whole * block; at < elements; ++at) list[at] = first + static_cast<uint32_t>(at - whole * block);
  }
  switch (block) {
    case 2: expand<2>(list, whole); break;
    case 4: expand<4>(list, whole); break;
    case 8: expand<8>(list, whole); break;
    case 16: expand<16>(list, whole); break;
    default: expand<32>(list, whole);
  }
  return elements;
}

}  // namespace dr
