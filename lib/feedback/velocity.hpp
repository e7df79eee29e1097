// Deep Gradient Compression's memory (Lin et al. 2017): momentum correction, local accumulation, momentum factor
// masking and the norm that its gradient clipping needs.
#pragma once

#include <cstdint>

#include "feedback/state_layout.hpp"
#include "primitive/cpu.hpp"

namespace dr {

// u, its sum v, and the memory for their old values (nullptr: none).
struct velocity {
  float *v, *u, *undo_v, *undo_u;
};

// u[i] = momentum · u[i] + clip · g[i], v[i] += u[i] for n values, every product rounded, by an instruction set. If
// `streams`, the undo copies are written past the caches: call fence_streams before another thread reads them. An f32
// element moves 20 bytes (reads g, u, v; writes u, v), with undo copies 28.
using correct_fn = void (*)(const void* g, const velocity& to, uint64_t n, float momentum, float clip, bool streams);
correct_fn correct_at(cpu_level level, uint32_t dtype);

// The same for a sparse g, [n rows] at ascending `indices`; nullptr: all.
void correct(uint32_t dtype, const void* g, const uint64_t* indices, uint64_t rows, uint32_t width, float momentum,
             float clip, const velocity& to, uint64_t elements);

// u[support[i] - first] = 0, for rows of `width`; support nullptr: i.
void mask_sent(const uint32_t* support, uint64_t count, uint32_t width, float* u, uint32_t first = 0);

// Σ value² in f64: eight sums, of every eighth value, then their sum in order.
double squares_of(uint32_t dtype, const void* values, uint64_t n);

// Replaces values that are not finite, which would remain for ever, by 0.
void drop_unfinite(float* m, uint64_t n);

}  // namespace dr
