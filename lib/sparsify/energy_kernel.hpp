// Energies of blocks: f32 sums of squares by a fixed tree, the same bits with every instruction set.
#pragma once

#include <cstdint>

#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t block_sizes = 6;  // of 1, 2, 4, …, 32 elements

// The energies of n consecutive blocks of s values. The squares q, rounded to f32, are added by halves: q[i] + q[i +
// s/2], then the halves of these sums, until one is left. A NaN becomes computed_nan, so energies have the order of
// their bits.
using energies_of = void (*)(const void* values, uint64_t n, float* energies);

// [type of values][log2 of a block's elements]
using energy_kernels = energies_of[3][block_sizes];
extern const energy_kernels energy_scalar;
#if DR_X86
extern const energy_kernels energy_avx2, energy_avx512;
#elif DR_NEON
extern const energy_kernels energy_neon;
#endif
// The table of an instruction set, whose file defines energies<type, block>.
#define DR_ENERGIES_OF(T) \
  { energies<T, 1>, energies<T, 2>, energies<T, 4>, energies<T, 8>, energies<T, 16>, energies<T, 32> }
#define DR_ENERGY_KERNELS \
  { DR_ENERGIES_OF(f32_type), DR_ENERGIES_OF(f16_type), DR_ENERGIES_OF(bf16_type) }

// block: a power of two up to 32.
inline energies_of energies_at(cpu_level level, uint32_t dtype, uint32_t block) {
#if DR_X86
  static constexpr cpu_table<const energy_kernels*> table{&energy_scalar, &energy_avx2, &energy_avx512};
#elif DR_NEON
  static constexpr cpu_table<const energy_kernels*> table{&energy_scalar, nullptr, nullptr, &energy_neon};
#else
  static constexpr cpu_table<const energy_kernels*> table{&energy_scalar};
#endif
  return (*table.at(level))[dtype == DR_F32 ? 0 : dtype == DR_F16 ? 1 : 2][bit_width(block) - 1];
}

}  // namespace dr
