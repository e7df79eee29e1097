#include "sparsify/select_kernel.hpp"

namespace dr {
namespace {

template <class Bits>
constexpr uint32_t magnitude_mask = sizeof(Bits) == 4 ? 0x7fffffff : 0x7fff;

template <class Bits>
uint32_t collect(const void* values, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions, void* selected) {
  const auto* v = static_cast<const Bits*>(values);
  auto* out = static_cast<Bits*>(selected);
  uint32_t found = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const Bits x = v[i];
    positions[found] = first + i;
    out[found] = x;
    found += (x & magnitude_mask<Bits>) >= low;
  }
  return found;
}

template <class Bits>
uint64_t magnitudes(const void* values, uint64_t n, uint32_t low, uint32_t high, uint32_t* keys) {
  const auto* v = static_cast<const Bits*>(values);
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t key = v[i] & magnitude_mask<Bits>;
    keys[found] = key;
    found += key - low < high - low;
  }
  return found;
}

template <class Bits>
uint64_t cut(uint64_t from, uint64_t n, uint32_t above, uint64_t& ties, uint32_t* positions, void* selected) {
  auto* out = static_cast<Bits*>(selected);
  uint64_t found = 0;
  for (uint64_t i = from; i < from + n; ++i) {
    const uint32_t key = out[i] & magnitude_mask<Bits>;
    const bool tie = key == above && ties != 0;
    ties -= tie;
    positions[found] = positions[i];
    out[found] = out[i];
    found += key > above || tie;
  }
  return found;
}

template <class Bits>
uint64_t count(const void* values, uint64_t n, uint32_t low) {
  const auto* v = static_cast<const Bits*>(values);
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; ++i) found += (v[i] & magnitude_mask<Bits>) >= low;
  return found;
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
