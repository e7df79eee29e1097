// The values that a unit is selected from: the caller's, or sorted, or summed with the residual.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/versioned.hpp"
#include "feedback/residual.hpp"
#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// From so many elements on, the undo copy goes past the caches.
constexpr uint64_t undo_streams = 1 << 18;

// The state of a unit's tensor from its element `first` on, which is element `at` of the unit.
summed sum_of(const encoding& e, const unit& u, const unit_work& o, uint32_t tensor, uint64_t at, uint64_t first,
              const std::byte* values) {
  void* const state = e.tensors[tensor].state;
  velocity to{residual_of(state) + first, nullptr, e.may_fail ? o.undo + at : nullptr, nullptr};
  if (o.undo_u) {
    to.u = momentum_of(u.method->feedback_rule().kind, state, e.b.shapes[tensor].elements()) + first;
    to.undo_u = e.may_fail ? o.undo_u + at : nullptr;
  }
  const auto [beta, gamma] = weights_of(e, u, tensor);
  return {values, to, beta, gamma};
}

bool all_finite(const float* sums, uint64_t n) {
  uint32_t largest = 0;
  (void)select_at(cpu(), DR_F32).survey(sums, n, largest);
  return largest < f32_type::infinity;
}

}  // namespace

// The values to select from where they are not the caller's: sorted, or summed with the residual.
dr_status load_source(encoding& e, size_t i) {
  const unit& u = e.b.units[i];
  unit_work& o = e.w.units[i];
  const tensor_view& t = e.tensors[u.first_tensor];
  const bool sparse = e.b.shapes[u.first_tensor].sparse();
  o.source = u.width == 1 ? nullptr : t.values;
  o.rows = u.universe;
  if (sparse) {
    if (sort_indices(t.index_dtype, t.indices, t.count, u.universe, t.flags & DR_TENSOR_SUM_DUPLICATES, o.entries,
                     o.error)) {
      prefix(o.error, "tensor %u: ", u.first_tensor);
      o.error.tensor = u.first_tensor;
      return o.error.code;
    }
    o.rows = gather_entries(u.dtype, u.width, t.values, o.entries, t.count, o.indices, o.buffer);
    o.source = o.buffer;
  }
  if (!o.acc) return DR_OK;
  const uint64_t elements = u.universe * u.width;
  const void* const g = sparse ? o.source : t.values;
  const uint64_t* const indices = sparse ? o.indices : nullptr;
  const auto [beta, gamma] = weights_of(e, u, u.first_tensor);
  if (o.acc_u) {
    std::memcpy(o.acc, residual_of(t.state), 4 * elements);
    std::memcpy(o.acc_u, momentum_of(u.method->feedback_rule().kind, t.state, elements), 4 * elements);
    correct(u.dtype, g, indices, o.rows, u.width, beta, gamma, {o.acc, o.acc_u, nullptr, nullptr}, elements);
  } else {
    accumulate(u.dtype, g, indices, o.rows, u.width, beta, gamma, residual_of(t.state), elements, o.acc);
  }
  if (o.watched) o.unfinite = !all_finite(o.acc, elements);
  if (o.rounded) round_values(u.dtype, o.acc, elements, o.rounded);
  o.source = o.rounded ? o.rounded : o.acc;
  o.rows = u.universe;
  return DR_OK;
}

// Runs of values that belong to one tensor and one segment; of a sparse source, to one segment.
void cut_to_pieces(encoding& e, size_t i) {
  const unit& u = e.b.units[i];
  unit_work& o = e.w.units[i];
  const uint64_t size = value_size(u.dtype) * uint64_t{u.width};
  o.piece_count = 0;
  uint32_t tensor = u.first_tensor;
  uint64_t before = 0;  // elements of the tensors before it
  for (uint32_t k = 0; k < u.rows; ++k) {
    set_source(e, o, u, u.first_row + k);
    const row_work& row = e.w.rows[u.first_row + k];
    const uint64_t end = row.source_first + row.source_rows;
    if (o.source) {
      o.pieces[o.piece_count++] = {static_cast<const std::byte*>(o.source) + row.source_first * size,
                                   row.source_rows * u.width, 0, k, row.source_first * u.width};
      continue;
    }
    uint64_t at = row.source_first;
    do {
      for (; at == before + e.b.shapes[tensor].elements() && tensor + 1 < u.first_tensor + u.tensors; ++tensor)
        before += e.b.shapes[tensor].elements();
      const tensor_view& t = e.tensors[tensor];
      const uint64_t stop = std::min(end, before + e.b.shapes[tensor].elements());
      const std::byte* const values = static_cast<const std::byte*>(t.values) + (at - before) * size;
      if (o.sums) o.sums[o.piece_count] = sum_of(e, u, o, tensor, at, at - before, values);
      o.pieces[o.piece_count++] = {o.sums ? nullptr : values, stop - at, static_cast<uint32_t>(at - row.source_first),
                                   k, at};
      at = stop;
    } while (at < end);
  }
}

std::span<const select_piece> pieces_of(const encoding& e, size_t i) {
  const uint32_t unit = e.b.rows[i].unit, range = static_cast<uint32_t>(i) - e.b.units[unit].first_row;
  const unit_work& o = e.w.units[unit];
  const select_piece* const end = o.pieces + o.piece_count;
  const select_piece* const first = std::partition_point(static_cast<const select_piece*>(o.pieces), end,
                                                         [range](const select_piece& p) { return p.range < range; });
  return {first, std::partition_point(first, end, [range](const select_piece& p) { return p.range == range; })};
}

const void* load_sums(void* self, size_t piece, uint64_t at, uint32_t n, select_load what, void* room) {
  const auto& [u, o] = *static_cast<const sums_source*>(self);
  const summed& s = o->sums[piece];
  const std::byte* const g = s.g + at * value_size(u->dtype);
  float *m = s.m() + at, *const momentum = s.to.u ? s.to.u + at : nullptr;
  if (what == select_load::hint) {
    __builtin_prefetch(g);
    __builtin_prefetch(m);
    __builtin_prefetch(m + n);
    return nullptr;
  }
  float few[64], few_u[64];
  const bool peeks = what == select_load::peek;
  if (peeks) {
    if (momentum) {
      std::memcpy(few, m, n * sizeof(float));
      std::memcpy(few_u, momentum, n * sizeof(float));
      correct_at(cpu(), u->dtype)(g, {few, few_u, nullptr, nullptr}, n, s.beta, s.gamma, false);
    } else {
      accumulate(u->dtype, g, nullptr, 0, 1, s.beta, s.gamma, m, n, few);
    }
  }
  float* const undo = s.to.undo_v ? s.to.undo_v + at : nullptr;
  const bool streams = u->universe >= undo_streams;
  if (what == select_load::first && momentum)
    correct_at(cpu(), u->dtype)(g, {m, momentum, undo, undo ? s.to.undo_u + at : nullptr}, n, s.beta, s.gamma, streams);
  else if (what == select_load::first)
    advance_at(cpu(), u->dtype)(g, m, n, s.beta, s.gamma, undo, streams);
  if (what == select_load::first && o->watched && !all_finite(m, n)) std::atomic_ref(o->unfinite) = 1;
  if (u->dtype == DR_F32 && !peeks) return m;
  if (u->dtype == DR_F32)
    std::memcpy(room, few, n * sizeof(float));
  else
    round_values(u->dtype, peeks ? few : m, n, room);
  return room;
}
float* place_of_sums(void* self, size_t piece) { return static_cast<const sums_source*>(self)->o->sums[piece].m(); }

// The part of the source that belongs to a segment.
void set_source(encoding& e, const unit_work& o, const unit& u, uint32_t k) {
  const batch_row& r = e.b.rows[k];
  row_work& row = e.w.rows[k];
  row.fault = no_fault();
  row.source_first = r.first;
  row.source_rows = r.universe;
  if (!u.sparse) return;
  const uint64_t* const end = o.indices + o.rows;
  const uint64_t* const low = std::lower_bound(static_cast<const uint64_t*>(o.indices), end, r.first);
  row.source_first = static_cast<uint64_t>(low - o.indices);
  row.source_rows = static_cast<uint64_t>(std::lower_bound(low, end, r.first + r.universe) - low);
}

// Values of the source at ascending positions of a segment; nullptr: all of them.
void gather_source(const encoding& e, size_t i, const uint32_t* positions, uint64_t n, void* out) {
  const unit& u = e.b.units[e.b.rows[i].unit];
  const unit_work& o = e.w.units[e.b.rows[i].unit];
  const uint64_t bytes = e.row_bytes(i);
  if (o.source) {
    const auto* from = static_cast<const std::byte*>(o.source) + e.w.rows[i].source_first * bytes;
    if (n && !positions)
      std::memcpy(out, from, n * bytes);
    else
      gather(bytes, from, positions, n, out);
    return;
  }
  uint64_t done = 0;
  for (const select_piece& piece : pieces_of(e, i)) {
    const float* const sum = o.sums ? o.sums[&piece - o.pieces].m() : nullptr;
    auto* const to = static_cast<std::byte*>(out);
    if (!positions) {
      if (sum && u.dtype != DR_F32)
        round_values(u.dtype, sum, piece.n, to + done * bytes);
      else if (piece.n)
        std::memcpy(to + done * bytes, sum ? static_cast<const void*>(sum) : piece.values, piece.n * bytes);
      done += piece.n;
      continue;
    }
    for (; done < n && positions[done] - piece.position < piece.n; ++done) {
      const uint64_t at = positions[done] - piece.position;
      if (sum && u.dtype == DR_F32)
        std::memcpy(to + done * bytes, sum + at, bytes);
      else if (sum)
        round_values(u.dtype, sum + at, 1, to + done * bytes);
      else
        std::memcpy(to + done * bytes, static_cast<const std::byte*>(piece.values) + at * bytes, bytes);
    }
  }
}

}  // namespace dr
