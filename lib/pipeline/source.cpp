// The values from which a unit is selected: the caller's, or sorted, or summed with the residual.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/versioned.hpp"
#include "feedback/residual.hpp"
#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// From so many elements on, the undo copy is written past the caches.
constexpr uint64_t undo_streams = 1 << 18;

// The state of a unit's tensor from its element `first` on, which is element `at` of the unit.
summed sum_of(const encoding& e, const unit& u, const unit_sums& sums, uint32_t tensor, uint64_t at, uint64_t first,
              const std::byte* values) {
  void* const state = e.tensors[tensor].state;
  velocity to{residual_of(state) + first, nullptr, e.may_fail ? sums.undo + at : nullptr, nullptr};
  if (sums.undo_u) {
    to.u = momentum_of(u.method->feedback_rule().kind, state, e.b.shapes[tensor].elements()) + first;
    to.undo_u = e.may_fail ? sums.undo_u + at : nullptr;
  }
  return {values, to, weights_of(e, u, tensor)};
}

bool all_finite(const float* sums, uint64_t n) {
  uint32_t largest = 0;
  (void)select_at(cpu(), DR_F32).survey(sums, n, largest);
  return largest < f32_type::infinity;
}

}  // namespace

// Computes the values to select from, unless they are the caller's: sorted, or summed with the residual.
dr_status load_source(const encoding& e, size_t i, selected_rows& out) {
  const unit& u = e.b.units[i];
  unit_source& source = out.sources[i];
  unit_sums& sums = out.sums[i];
  const tensor_view& t = e.tensors[u.first_tensor];
  const bool sparse = e.b.shapes[u.first_tensor].sparse();
  source.values = u.width == 1 ? nullptr : t.values;
  source.rows = u.universe;
  if (sparse) {
    if (sort_indices(t.index_dtype, t.indices, t.count, u.universe, t.flags & DR_TENSOR_SUM_DUPLICATES, source.entries,
                     out.unsound[i])) {
      prefix(out.unsound[i], "tensor %u: ", u.first_tensor);
      out.unsound[i].tensor = u.first_tensor;
      return out.unsound[i].code;
    }
    source.rows = gather_entries(u.dtype, sums.acc ? DR_F32 : u.dtype, u.width, t.values, source.entries, t.count,
                                 source.indices, source.buffer);
    source.values = source.buffer;
  }
  if (!sums.acc) return DR_OK;
  const uint64_t elements = u.universe * u.width;
  const void* const g = sparse ? source.values : t.values;
  const uint32_t dtype = sparse ? uint32_t{DR_F32} : u.dtype;  // (of a sum of duplicates nothing is lost)
  const uint64_t* const indices = sparse ? source.indices : nullptr;
  const auto [beta, gamma] = weights_of(e, u, u.first_tensor);
  if (sums.acc_u) {
    std::memcpy(sums.acc, residual_of(t.state), 4 * elements);
    std::memcpy(sums.acc_u, momentum_of(u.method->feedback_rule().kind, t.state, elements), 4 * elements);
    correct(dtype, g, indices, source.rows, u.width, beta, gamma, {sums.acc, sums.acc_u, nullptr, nullptr}, elements);
  } else {
    accumulate(dtype, g, indices, source.rows, u.width, beta, gamma, residual_of(t.state), elements, sums.acc);
  }
  if (sums.watched) sums.unfinite = !all_finite(sums.acc, elements);
  if (sums.rounded) round_values(u.dtype, sums.acc, elements, sums.rounded);
  source.values = sums.rounded ? sums.rounded : sums.acc;
  source.rows = u.universe;
  return DR_OK;
}

// Cuts runs of values of one tensor and one segment; in a sparse source, of one segment.
void cut_to_pieces(const encoding& e, size_t i, selected_rows& out) {
  const unit& u = e.b.units[i];
  unit_source& source = out.sources[i];
  unit_sums& sums = out.sums[i];
  const uint64_t size = value_size(u.dtype) * uint64_t{u.width};
  source.piece_count = 0;
  sums.advanced = sums.pieces != nullptr;
  uint32_t tensor = u.first_tensor;
  uint64_t before = 0;  // elements of the tensors before it
  for (uint32_t k = 0; k < u.rows; ++k) {
    set_source(e, u.first_row + k, out);
    const auto [first, rows] = out.source_rows[u.first_row + k];
    if (source.values) {
      source.pieces[source.piece_count++] = {static_cast<const std::byte*>(source.values) + first * size,
                                             rows * u.width, 0, k, first * u.width};
      continue;
    }
    const uint64_t end = first + rows;
    uint64_t at = first;
    do {
      for (; at == before + e.b.shapes[tensor].elements() && tensor + 1 < u.first_tensor + u.tensors; ++tensor)
        before += e.b.shapes[tensor].elements();
      const tensor_view& t = e.tensors[tensor];
      const uint64_t stop = std::min(end, before + e.b.shapes[tensor].elements());
      const std::byte* const values = static_cast<const std::byte*>(t.values) + (at - before) * size;
      if (sums.pieces) sums.pieces[source.piece_count] = sum_of(e, u, sums, tensor, at, at - before, values);
      source.pieces[source.piece_count++] = {sums.pieces ? nullptr : values, stop - at,
                                             static_cast<uint32_t>(at - first), k, at};
      at = stop;
    } while (at < end);
  }
}

std::span<const select_piece> pieces_of(const encoding& e, size_t row) {
  const uint32_t unit = e.b.rows[row].unit, range = static_cast<uint32_t>(row) - e.b.units[unit].first_row;
  const unit_source& source = e.w.selected.sources[unit];
  const select_piece* const end = source.pieces + source.piece_count;
  const select_piece* const first = std::partition_point(static_cast<const select_piece*>(source.pieces), end,
                                                         [range](const select_piece& p) { return p.range < range; });
  return {first, std::partition_point(first, end, [range](const select_piece& p) { return p.range == range; })};
}

const void* load_sums(void* self, size_t piece, uint64_t at, uint32_t n, select_load what, void* room) {
  const auto& [u, sums] = *static_cast<const sums_source*>(self);
  const summed& s = sums->pieces[piece];
  const auto [beta, gamma] = s.weights;
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
      correct_at(cpu(), u->dtype)(g, {few, few_u, nullptr, nullptr}, n, beta, gamma, false);
    } else {
      accumulate(u->dtype, g, nullptr, 0, 1, beta, gamma, m, n, few);
    }
  }
  float* const undo = s.to.undo_v ? s.to.undo_v + at : nullptr;
  const bool streams = u->universe >= undo_streams;
  if (what == select_load::first && momentum)
    correct_at(cpu(), u->dtype)(g, {m, momentum, undo, undo ? s.to.undo_u + at : nullptr}, n, beta, gamma, streams);
  else if (what == select_load::first)
    advance_at(cpu(), u->dtype)(g, m, n, beta, gamma, undo, streams);
  if (what == select_load::first && sums->watched && !all_finite(m, n)) std::atomic_ref(sums->unfinite) = 1;
  if (u->dtype == DR_F32 && !peeks) return m;
  if (u->dtype == DR_F32)
    std::memcpy(room, few, n * sizeof(float));
  else
    round_values(u->dtype, peeks ? few : m, n, room);
  return room;
}
float* place_of_sums(void* self, size_t piece) {
  return static_cast<const sums_source*>(self)->sums->pieces[piece].m();
}

// Sets the part of the source that belongs to a segment.
void set_source(const encoding& e, size_t row, selected_rows& out) {
  const batch_row& r = e.b.rows[row];
  source_row& part = out.source_rows[row] = {r.first, r.universe};
  if (!e.unit_of(row).sparse) return;
  const unit_source& source = out.sources[r.unit];
  const uint64_t* const end = source.indices + source.rows;
  const uint64_t* const low = std::lower_bound(static_cast<const uint64_t*>(source.indices), end, r.first);
  part.first = static_cast<uint64_t>(low - source.indices);
  part.rows = static_cast<uint64_t>(std::lower_bound(low, end, r.first + r.universe) - low);
}

// Gathers the source's values at ascending positions of a segment; nullptr: all values.
void gather_source(const encoding& e, size_t row, const uint32_t* positions, uint64_t n, void* out) {
  const unit& u = e.unit_of(row);
  const unit_source& source = e.w.selected.sources[e.b.rows[row].unit];
  const unit_sums& sums = e.w.selected.sums[e.b.rows[row].unit];
  const uint64_t bytes = e.row_bytes(row);
  if (source.values) {
    const auto* from = static_cast<const std::byte*>(source.values) + e.w.selected.source_rows[row].first * bytes;
    if (n && !positions)
      std::memcpy(out, from, n * bytes);
    else
      gather(bytes, from, positions, n, out);
    return;
  }
  uint64_t done = 0;
  for (const select_piece& piece : pieces_of(e, row)) {
    const float* const sum = sums.pieces ? sums.pieces[&piece - source.pieces].m() : nullptr;
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
