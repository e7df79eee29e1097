#include "dct/dct.hpp"

#include <algorithm>

#include "dct/dct_kernel.hpp"
#include "dct/tiles.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

constexpr uint64_t tiles_of_item = 16;  // of the largest size: 256 KiB

// Runs of a vector: a group of whole pieces, or one of the others.
struct run_group {
  uint64_t first;
  uint32_t runs, n;
};
struct run_groups {
  tile_axis axis;

  uint64_t whole() const { return ceil_div(axis.whole, uint64_t{runs_at_once}); }
  uint64_t count() const { return whole() + axis.pieces() - axis.whole; }
  run_group operator[](uint64_t k) const {
    if (k < whole()) {
      const uint64_t first = k * runs_at_once;
      return {first * axis.size, static_cast<uint32_t>(std::min<uint64_t>(runs_at_once, axis.whole - first)),
              axis.size};
    }
    const tile_piece p = axis.piece(axis.whole + k - whole());
    return {p.first, 1, p.n};
  }
};

// Calls f(k) for all k below n, by all workers.
template <class F>
void each_on_all(uint64_t n, pool& workers, F&& f) {
  struct job {
    F& f;
    uint64_t n;
  } job{f, n};
  workers.run(
      static_cast<size_t>(ceil_div(n, tiles_of_item)),
      [](void* self, size_t item, size_t) {
        const auto& j = *static_cast<struct job*>(self);
        for (uint64_t k = item * tiles_of_item; k < std::min(j.n, (item + 1) * tiles_of_item); ++k) j.f(k);
      },
      &job);
}

}  // namespace

void to_coefficients(const tile_form& form, const float* x, uint64_t n, float* out, pool& workers, cpu_level level) {
  const dct_kernels& kernels = dct_at(level);
  if (!form.columns) {
    const run_groups groups{{n, form.size()}};
    return each_on_all(groups.count(), workers, [&](uint64_t k) {
      const run_group g = groups[k];
      kernels.forward_runs(x + g.first, g.runs, g.n, out + g.first);
    });
  }
  const tile_grid grid(n, form);
  each_on_all(grid.tiles(), workers, [&](uint64_t k) {
    const tile t = grid[k];
    kernels.forward(x + t.rows.first * form.columns + t.columns.first, form.columns, t.rows.n, t.columns.n, out + t.at);
  });
}

void from_coefficients(const tile_form& form, const float* coefficients, uint64_t n, pool& workers, put_values put,
                       void* self, cpu_level level) {
  const dct_kernels& kernels = dct_at(level);
  if (!form.columns) {
    const run_groups groups{{n, form.size()}};
    return each_on_all(groups.count(), workers, [&](uint64_t k) {
      alignas(64) float values[runs_at_once * tile_side_max];
      const run_group g = groups[k];
      kernels.inverse_runs(coefficients + g.first, g.runs, g.n, values);
      put(self, g.first, values, g.runs * g.n);
    });
  }
  const tile_grid grid(n, form);
  each_on_all(grid.tiles(), workers, [&](uint64_t k) {
    alignas(64) float values[tile_side_max * tile_side_max];
    const tile t = grid[k];
    kernels.inverse(coefficients + t.at, t.rows.n, t.columns.n, values);
    for (uint32_t r = 0; r < t.rows.n; ++r)
      put(self, (t.rows.first + r) * form.columns + t.columns.first, values + r * t.columns.n, t.columns.n);
  });
}

}  // namespace dr
