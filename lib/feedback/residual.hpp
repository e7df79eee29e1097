// Error feedback: the part that is not sent is added to the next step (Seide et al. 2014; Stich et al. 2018).
#pragma once

#include <cstdint>

#include "feedback/state_layout.hpp"
#include "primitive/cpu.hpp"

namespace dr {

// m[i] = gamma · g[i] + beta · m[i] for n values, every product rounded, by an instruction set; undo[i], unless
// nullptr: the old m[i]. If `streams`, undo is written past the caches: call fence_streams before another thread reads
// it.
using advance_fn = void (*)(const void* g, float* m, uint64_t n, float beta, float gamma, float* undo, bool streams);
advance_fn advance_at(cpu_level level, uint32_t dtype);

// acc = gamma · g + beta · m, in f32, every product rounded. Sparse g: [n rows] at ascending `indices`; dense: indices
// is nullptr. With indices, acc may be m.
void accumulate(uint32_t dtype, const void* g, const uint64_t* indices, uint64_t rows, uint32_t width, float beta,
                float gamma, const float* m, uint64_t elements, float* acc);

// Rounds acc to the tensor's type; finite values stay finite.
void round_values(uint32_t dtype, const float* acc, uint64_t elements, void* out);

// acc[support[i] - first] -= sent value i; support nullptr: i. A rest that is not finite becomes 0, so that later steps
// are not affected; returns whether there was one.
bool subtract_sent(uint32_t dtype, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
                   float* acc, uint32_t first = 0);

// subtract_sent for f32 values that are sent exactly, so the rest is 0; selection has cleared magnitudes from
// `cleared_from` on before.
bool clear_sent(const uint32_t* support, const void* values, uint64_t count, uint32_t cleared_from, float* acc,
                uint32_t first);

}  // namespace dr
