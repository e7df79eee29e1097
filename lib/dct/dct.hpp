// A tensor to the coefficients of its tiles, and back.
#pragma once

#include <cstdint>

#include "core/pool.hpp"
#include "primitive/cpu.hpp"
#include "primitive/tile_form.hpp"

namespace dr {

// out [n] = the coefficients of x [n], f32, in the order of FORMAT.md, by an instruction set: the same bits with each.
void to_coefficients(const tile_form& form, const float* x, uint64_t n, float* out, pool& workers,
                     cpu_level level = cpu());

// Calls put(self, first element, values, n) for runs that together are the inverse of coefficients [n], in any order and on
// all workers.
using put_values = void (*)(void* self, uint64_t first, const float* values, uint32_t n);
void from_coefficients(const tile_form& form, const float* coefficients, uint64_t n, pool& workers, put_values put,
                       void* self, cpu_level level = cpu());

}  // namespace dr
