// Feedback on a GPU: validates states, and subtracts the sent values.
#pragma once

#include <cstdint>

#include "feedback/feedback_kernel.hpp"
#include "primitive/bits.hpp"
#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/flat_table.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/unlisted.hpp"

namespace dr {

// Checks the states of feedback, and marks fresh ones as used.
template <class Args>
struct open_states {
  static constexpr const char* name = "open_states";
  static constexpr unsigned lanes = 64, grid_phases = 1;
  using args = Args;
  struct shared {};

  // job.out: the state; job.key: its elements; job.extra: its kind; job.tell_count: the row (as a pointer);
  // job.universe: the position of its tensor in the row. One tile per job.
  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = a.job[b.index()];
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      auto& state = *static_cast<residual_state*>(job.out);
      auto& row = *reinterpret_cast<device_row*>(job.tell_count);
      if (state.is_fresh())
        state = {residual_state::magic_value, job.extra, job.key};
      else if (!state.is_of(job.extra) || state.elements != job.key)
        return refuse(row, job, state.elements);
      atomic_add(&row.accumulates, 1u);
    });
  }

  // Of the states of a bucket the first is reported, in any order of blocks.
  DR_HD static void refuse(device_row& row, const tile_job& job, uint64_t elements) {
    atomic_max(&row.not_finite, ~uint64_t{job.universe});
    atomic_or(&row.accumulates, state_refused);
    raise(job.fault, DR_E_ARGUMENT, DR_STREAM_NONE, 0, elements);
  }
};

// acc[support[i]] -= sent value i; if the rest is not finite: 0, and `unfinite` is set. Without a frame nothing was
// sent, and the accumulator does not change. A second launch, after `failed` or `unfinite`, replaces values that are
// not finite, which would remain for ever, by 0.
struct subtract_job {
  float* acc;
  const flat_table* flat;    // of a bucket, in place of `acc`; otherwise NULL
  const uint32_t* reported;  // the support, in the order of the values that the receiver will see; NULL: all elements
  const void* values;
  const uint32_t* support;  // of a row that was sent dense: the selection; NULL: all elements that are not zero
  const void* selected;
  const device_row* row;
  uint32_t universe, reported_max, first_tile;
  uint32_t states;  // of the row
  uint32_t low;     // of a row that may be unlisted (device_row): the smallest selected magnitude
  uint32_t reserved;
};
static_assert(sizeof(subtract_job) == 80);

// `again` of a second launch that always tidies: the sent values may differ from the selected ones.
inline constexpr uint32_t tidies_always = 2;

template <size_t N>
struct subtract_rows {
  static constexpr const char* name = "subtract_rows";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const uint32_t* failed;
    uint32_t* unfinite;
    uint32_t jobs, tiles, dtype, again;
    subtract_job job[N];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const subtract_job& j = job_of_tile(a, b.index());
    if (a.again) return a.again == tidies_always || *a.failed || *a.unfinite ? tidy(b, j) : void();
    if (*a.failed) return;
    if (j.row->unlisted) return subtract_unlisted(b, j, a);
    const bool dense = j.row->mode == mode_dense, skips_zeros = dense && !j.support;
    const uint32_t* const list = dense ? j.support : j.reported;
    const uint64_t count = skips_zeros ? j.universe
                           : dense     ? j.row->count
                                       : j.row->support_count,
                   n = count < j.reported_max ? count : j.reported_max;
    const uint64_t begin = uint64_t{b.index() - j.first_tile} * row_tile;
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= n) continue;
        const uint32_t at = list ? list[i] : static_cast<uint32_t>(i);
        if (at >= j.universe) continue;
        const float sent = value_at(a.dtype, dense ? j.selected : j.values, i);
        if (skips_zeros && sent == 0) continue;
        bool unfinite = false;
        float& acc = acc_at(j, at);
        acc = remaining(acc, sent, unfinite);
        if (unfinite) atomic_or(a.unfinite, 1u);
      }
    });
  }

  DR_HD static float& acc_at(const subtract_job& j, uint32_t at) {
    if (!j.flat) return j.acc[at];
    const flat_piece& p = j.flat->at(at);
    return p.residual[at - p.first];
  }

  // Calls f(acc) for all sums of the row.
  template <class Block, class F>
  DR_HD static void each_sum(Block& b, const subtract_job& j, F&& f) {
    const uint64_t tiles = ceil_div(j.reported_max ? j.reported_max : 1, row_tile),
                   first = uint64_t{b.index() - j.first_tile} * lanes;
    b.phase([&](unsigned lane) {
      const auto of = [&](float* acc, uint32_t n) {
        for (uint64_t i = first + lane; i < n; i += tiles * lanes) f(acc[i]);
      };
      if (!j.flat) return of(j.acc, j.universe);
      for (const flat_piece* p = j.flat->begin(); p != j.flat->end(); ++p) of(p->residual, p[1].first - p->first);
    });
  }

  template <class Block>
  DR_HD static void subtract_unlisted(Block& b, const subtract_job& j, const args& a) {
    each_sum(b, j, [&](float& acc) {
      const uint32_t bits = bits_from(a.dtype, bits_of_sum(a.dtype, acc), j.low);
      bool unfinite = false;
      if (bits) acc = remaining(acc, value_of(a.dtype, bits), unfinite);
      if (unfinite) atomic_or(a.unfinite, 1u);
    });
  }

  template <class Block>
  DR_HD static void tidy(Block& b, const subtract_job& j) {
    // (Of a bucket of which one state is refused, none was added to.)
    if (j.row->accumulates != j.states) return;
    each_sum(b, j, [](float& acc) {
      if (!is_finite_residual(acc)) acc = 0;
    });
  }
};

}  // namespace dr
