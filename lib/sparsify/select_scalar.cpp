#include "sparsify/select_kernel.hpp"

namespace dr {
namespace {

template <class Bits>
uint32_t collect(const void* values, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions, void* selected) {
  return collect_each(static_cast<const Bits*>(values), 0, n, low, first, 0, positions, static_cast<Bits*>(selected));
}

template <class Bits>
uint64_t magnitudes(const void* values, uint64_t n, uint32_t low, uint32_t high, uint32_t* keys) {
  return magnitudes_each(static_cast<const Bits*>(values), 0, n, low, high, 0, keys);
}

template <class Bits>
uint64_t cut(uint64_t from, uint64_t n, uint32_t above, uint64_t& ties, uint32_t* positions, void* selected) {
  return cut_each(from, from + n, above, ties, 0, positions, static_cast<Bits*>(selected));
}

template <class Bits>
uint64_t count(const void* values, uint64_t n, uint32_t low) {
  return count_each(static_cast<const Bits*>(values), 0, n, low, 0);
}

template <class Bits>
uint64_t survey(const void* values, uint64_t n, uint32_t& largest) {
  return survey_with<Bits>(values, n, largest);
}

template <class Bits>
constexpr select_kernels kernels{collect<Bits>, magnitudes<Bits>, cut<Bits>, count<Bits>, survey<Bits>};

}  // namespace

const select_kernels select_scalar[2] = {kernels<uint32_t>, kernels<uint16_t>};

}  // namespace dr
