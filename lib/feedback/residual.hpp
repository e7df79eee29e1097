// Error feedback: the part that is not sent is added to the next step (Seide et al. 2014; Stich et al. 2018).
#pragma once

#include <cstdint>

#include "feedback/state_layout.hpp"
#include "primitive/cpu.hpp"

namespace dr {

// m[i] = gamma · g[i] + beta · m[i] of n values, each product rounded, by an instruction set; undo[i], unless
// nullptr: the old m[i]. It goes past the caches if it `streams`: then fence_streams before another thread reads it.
using advance_fn = void (*)(const void* g, float* m, uint64_t n, float beta, float gamma, float* undo, bool streams);
advance_fn advance_at(cpu_level level, uint32_t dtype);

// acc = gamma · g + beta · m, in f32, each product rounded. Sparse: g is [n rows] at ascending `indices`, else indices
// is nullptr. With indices, acc may be m.
void accumulate(uint32_t dtype, const void* g, const uint64_t* indices, uint64_t rows, uint32_t width, float beta,
                float gamma, const float* m, uint64_t elements, float* acc);

// acc in the tensor's type; finite values stay finite.
void round_values(uint32_t dtype, const float* acc, uint64_t elements, void* out);

// acc[support[i] - first] -= sent value i; support nullptr: i. 0 where the rest is not finite, so that nothing poisons
// later steps; returns whether it was somewhere.
bool subtract_sent(uint32_t dtype, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
                   float* acc, uint32_t first = 0);

// As subtract_sent of f32 that arrive as they are, from all of which nothing remains; magnitudes from `taken_from` on
// have left before.
bool clear_sent(const uint32_t* support, const void* values, uint64_t count, uint32_t taken_from, float* acc,
                uint32_t first);

}  // namespace dr
