// The CPU's instruction set, and tables of one function for several sets. Scalar is the reference: every
// set gives the same bytes (tests/kernels).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

// Code between DR_AVX2_BEGIN or DR_AVX512_BEGIN and DR_ISA_END may use those instructions, whatever the build's flags;
// only functions written there do, so no function of a shared header is compiled for a CPU that may be absent. All
// #include lines come before.
#if defined(__x86_64__) && defined(__GNUC__)
#define DR_X86 1
#define DR_NEON 0
#include <cpuid.h>
#pragma GCC diagnostic push  // gcc 12 warns of its own header (PR 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#if defined(__clang__)
#define DR_ISA_PUSH(isa) DR_ISA_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define DR_ISA_END _Pragma("clang attribute pop")
#else
// (gcc 12 warns of its own headers where they are inlined, too.)
#define DR_ISA_PUSH(isa)                                                                    \
  _Pragma("GCC push_options") DR_ISA_PRAGMA(GCC target(isa)) _Pragma("GCC diagnostic push") \
      _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"")
#define DR_ISA_END _Pragma("GCC diagnostic pop") _Pragma("GCC pop_options")
#endif
#define DR_ISA_PRAGMA(x) _Pragma(#x)
#define DR_AVX2_BEGIN DR_ISA_PUSH("avx2,bmi,bmi2,lzcnt,popcnt,f16c,fma")
#define DR_AVX512_BEGIN                                                                                         \
  DR_ISA_PUSH(                                                                                                  \
      "avx2,bmi,bmi2,lzcnt,popcnt,f16c,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2," \
      "avx512bitalg,avx512vpopcntdq")
#else
#define DR_X86 0
// NEON is part of every aarch64: its code needs no mark. (neon_vectors.hpp has the instructions.)
#if defined(__aarch64__) && defined(__GNUC__)
#define DR_NEON 1
#else
#define DR_NEON 0
#endif
#endif

// Inlined into the function of every instruction set, so that its shifts use that set.
#if defined(__GNUC__)
#define DR_EVERYWHERE inline __attribute__((always_inline))
#else
#define DR_EVERYWHERE inline
#endif

namespace dr {

// avx2: Haswell, Zen (BMI2 too); avx512: Ice Lake, Zen 4 (with VBMI2); neon: aarch64.
enum class cpu_level : uint32_t { scalar, avx2, avx512, neon };
inline constexpr const char* cpu_level_names[] = {"scalar", "avx2", "avx512", "neon"};
// Those of this architecture, from the smallest to the largest.
#if DR_NEON
inline constexpr cpu_level cpu_levels[] = {cpu_level::scalar, cpu_level::neon};
#else
inline constexpr cpu_level cpu_levels[] = {cpu_level::scalar, cpu_level::avx2, cpu_level::avx512};
#endif

inline cpu_level cpu_detected() {
#if DR_X86
  // (clang 14 has no name for these two.)
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 29);
  const bool lzcnt = __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & 1u << 5);
  const bool avx2 = f16c && lzcnt && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
                      __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bitalg") &&
                      __builtin_cpu_supports("avx512vpopcntdq");
  return !avx2 ? cpu_level::scalar : avx512 ? cpu_level::avx512 : cpu_level::avx2;
#else
  return DR_NEON ? cpu_level::neon : cpu_level::scalar;
#endif
}

// Whether this CPU can run the functions of a level.
inline bool cpu_has(cpu_level level) {
  for (const cpu_level l : cpu_levels)
    if (l == level) return level <= cpu_detected();
  return false;
}

// The instruction set in use: the CPU's, or a smaller one that the environment variable
// DEEPREDUCE_CPU=scalar|avx2|avx512|neon names; one of another architecture says nothing. Read once.
inline cpu_level cpu() {
  static const cpu_level level = [] {
    const cpu_level found = cpu_detected();
    if (const char* requested = std::getenv("DEEPREDUCE_CPU"))
      for (const cpu_level l : cpu_levels)
        if (!std::strcmp(requested, cpu_level_names[static_cast<uint32_t>(l)])) return l < found ? l : found;
    return found;
  }();
  return level;
}

// Needed before other threads read data that was written past the caches.
inline void fence_streams() {
#if DR_X86
  _mm_sfence();
#endif
}

// The vector version of a scalar function, which exists on x86 only; elsewhere nullptr.
template <class F>
constexpr F* on_x86(F* twin) {
  return DR_X86 ? twin : nullptr;
}
// The same for aarch64.
template <class F>
constexpr F* on_arm(F* twin) {
  return DR_NEON ? twin : nullptr;
}

// A function pointer for every instruction set; a set without a version of its own uses that of the next smaller one.
template <class F>
struct cpu_table {
  F scalar, avx2 = nullptr, avx512 = nullptr, neon = nullptr;

  F at(cpu_level level) const {
    if constexpr (DR_NEON) return level == cpu_level::neon && neon ? neon : scalar;
    if (level >= cpu_level::avx512 && avx512) return avx512;
    if (level >= cpu_level::avx2 && avx2) return avx2;
    return scalar;
  }
  F best() const { return at(cpu()); }
};

}  // namespace dr
