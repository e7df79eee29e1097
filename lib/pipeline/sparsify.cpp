// Selects the support of each row, ascending, and its values.
#include <algorithm>
#include <cstring>

#include "feedback/residual.hpp"
#include "pipeline/encoding.hpp"
#include "sparsify/source_walk.hpp"
#include "split/blocks.hpp"

namespace dr {
namespace {

// Whether the f32 values that a unit sends are decoded exactly, so that its residual is 0 there, and its state is only
// a residual.
bool leaves_nothing(const encoding& e, const unit& u) {
  if (u.method->keeps_momentum()) return false;
  const auto exact = [&](uint32_t plan) {
    return e.b.wire[plan].value().exact() && !e.b.wire[plan].replaces_support();
  };
  return u.dtype == DR_F32 &&
         std::all_of(&e.b.rows[u.first_row], &e.b.rows[u.first_row] + u.rows, [&](const batch_row& r) {
           return exact(r.plan) &&
                  std::all_of(r.choices.begin(), r.choices.end(), [&](const row_choice& c) { return exact(c.plan); });
         });
}

// Converts positions in a sparse source to the segment's indices.
void read_support(const encoding& e, size_t row, selected_rows& out) {
  const selected_row& selected = out.rows[row];
  const uint64_t* const indices = out.sources[e.b.rows[row].unit].indices + out.source_rows[row].first;
  for (uint64_t i = 0; i < selected.count; ++i)
    selected.support[i] =
        static_cast<uint32_t>(indices[selected.positions ? selected.positions[i] : i] - e.b.rows[row].first);
}

// Without a selection: all rows of a sparse source; the rows of a dense source that are not zeros.
void adopt_row(const encoding& e, size_t row, selected_rows& out) {
  set_source(e, row, out);
  const unit& u = e.unit_of(row);
  const unit_source& source = out.sources[e.b.rows[row].unit];
  const selected_unit& unit = out.units[e.b.rows[row].unit];
  selected_row& selected = out.rows[row];
  const auto [first, rows] = out.source_rows[row];
  const uint64_t bytes = e.row_bytes(row);
  if (u.sparse) {
    selected.positions = nullptr;
    selected.support = unit.support + first;
    selected.values = static_cast<std::byte*>(source.buffer) + first * bytes;
    selected.count = rows;
    read_support(e, row, out);
    return;
  }
  const void* const values = static_cast<const std::byte*>(source.values) + first * bytes;
  selected.positions = selected.support = unit.memory.positions + first;
  selected.values = static_cast<std::byte*>(unit.memory.values) + first * bytes;
  selected.count = compact_rows(u.dtype, values, rows, u.width, selected.positions);
  gather(bytes, values, selected.positions, selected.count, selected.values);
}

// The properties of values that are sent in place.
struct surveyed {
  uint64_t nonzero;
  uint32_t largest;
};

// For a unit that is sent whole: computes the sums, if any, and reads all values once. Values that are not contiguous
// are copied at the same time.
void survey_unit(const encoding& e, size_t i, const select_crew& crew, selected_rows& out) {
  const unit& u = e.b.units[i];
  selected_unit& selected = out.units[i];
  cut_to_pieces(e, i, out);
  const unit_source& source = out.sources[i];
  unit_sums& sums = out.sums[i];
  selected.cleared_from = 0;
  selected.block = 1;
  const uint64_t size = value_size(u.dtype);
  bool copies = false;
  for (uint32_t p = 0; p < source.piece_count; ++p) {
    selected_row& row = out.rows[u.first_row + source.pieces[p].range];
    copies = row.copies != nullptr;
    row.values = copies ? row.copies : sums.pieces ? sums.pieces[p].m() : const_cast<void*>(source.pieces[p].values);
    row.positions = row.support = nullptr;
    row.count = row.largest = 0;
  }
  const auto look = [&](surveyed& all, size_t piece, const void* v, uint64_t at, uint32_t n) {
    all.nonzero += select_at(crew.level, u.dtype).survey(v, n, all.largest);
    const select_piece& p = source.pieces[piece];
    auto* const to = static_cast<std::byte*>(out.rows[u.first_row + p.range].values);
    if (copies) std::memcpy(to + (p.position + at) * size, v, n * size);
  };
  const auto add = [&](size_t piece, const surveyed& part) {
    selected_row& row = out.rows[u.first_row + source.pieces[piece].range];
    row.count += part.nonzero;
    row.largest = std::max(row.largest, part.largest);
  };
  sums_source summing{&u, &sums};
  const select_source all{u.dtype, {source.pieces, source.piece_count}, load_sums, &summing};
  source_walk walk(all, crew);
  if (walk.shares())
    walk.each_block<surveyed>([](const select_piece&) {},
                              [&](surveyed& block, size_t, size_t piece, const void* v, uint64_t at, uint32_t n) {
                                look(block, piece, v, at, n);
                              },
                              [&](const surveyed& block, size_t, size_t piece, auto&& next) {
                                add(piece, block);
                                next();
                              });
  else
    walk.each_run([&](size_t piece, const void* v, uint64_t at, uint32_t n) {
      surveyed run{};
      look(run, piece, v, at, n);
      add(piece, run);
      return true;
    });
  fence_streams();
  uint64_t count = 0;
  for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) {
    selected_row& row = out.rows[k];
    const uint64_t rows = e.b.rows[k].universe;
    if (u.width != 1 && row.count == rows * u.width) {
      row.count = rows;
    } else if (u.width != 1) {
      row.count = 0;
      each_nonzero_run(u.dtype, row.values, rows, u.width, [&](uint64_t, uint64_t n) { row.count += n; });
    }
    count += row.count;
  }
  selected.dense_fallback = count > u.dense_above;
}

void sparsify_unit(const encoding& e, size_t i, const select_crew& crew, selected_rows& out) {
  const unit& u = e.b.units[i];
  unit_source& source = out.sources[i];
  unit_sums& sums = out.sums[i];
  selected_unit& selected = out.units[i];
  out.unsound[i].code = DR_OK;
  selected.dense_fallback = sums.advanced = false;
  if (u.patches()) {
    selected.dense_fallback = compare_unit(e, i, out) > u.dense_above;
    return find_history(e, i, out);
  }
  const wire_plan& plan = e.b.wire[e.b.rows[u.first_row].plan];
  sums.watched = !u.method->sparsifier().selects_by_magnitude() || (plan.replaces_support() && !plan.index().whole());
  sums.unfinite = 0;
  if (load_source(e, i, out)) return;
  if (u.whole) return survey_unit(e, i, crew, out);
  const bound_sparsifier sparsifier = u.method->sparsifier();
  if (u.width != 1 || (u.sparse && sparsifier.how.passes_on)) {
    for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) adopt_row(e, k, out);
    return;
  }
  cut_to_pieces(e, i, out);
  sums_source summing{&u, &sums};
  const bool nothing_left = sums.pieces && leaves_nothing(e, u);
  const select_source pieces{
      u.dtype, {source.pieces, source.piece_count}, load_sums, &summing, nothing_left ? place_of_sums : nullptr};
  const uint64_t key = sparsifier_key(e.w.keys[u.first_row].shared, sparsifier.how.entry);
  const select_memory& memory = selected.memory;
  const selection_result result =
      sparsifier.how.keep({sparsifier.params, pieces, u.universe, u.sparse ? source.indices : nullptr, key,
                           e.tensors[u.first_tensor].base, selected.scratch, memory, crew});
  fence_streams();
  selected.block = u.method->block ? u.method->block : result.block;
  selected.dense_fallback = result.count > u.dense_above;
  selected.cleared_from = nothing_left ? result.cleared_from : 0;
  uint64_t begin = 0;
  for (uint32_t k = 0; k < u.rows; ++k) {
    selected_row& row = out.rows[u.first_row + k];
    row.positions = row.support = memory.positions + begin;
    row.values = static_cast<std::byte*>(memory.values) + begin * value_size(u.dtype);
    row.count = memory.ends[k] - begin;
    if (u.sparse) {
      row.support = selected.support + begin;
      read_support(e, u.first_row + k, out);
    }
    if (selected.block > 1) row.block_count = list_blocks(row.support, row.count, selected.block, row.blocks);
    begin = memory.ends[k];
  }
}

// Whether a unit is large enough for all workers.
bool is_shared(const encoding& e, size_t i) {
  return e.workers.workers() > 1 && e.b.units[i].source_max >= select_shared;
}

}  // namespace

dr_status sparsify(const encoding& e, selected_rows& out) {
  trace_span span = e.span("sparsify");
  out.norm = out.squares ? measure_norm(e, out.squares) : 0;
  // Large units one after the other, by all workers; small ones in parallel, by one worker.
  for (size_t i = 0; i < e.b.units.size(); ++i)
    if (is_shared(e, i)) sparsify_unit(e, i, {out.scratch, &e.workers}, out);
  struct job {
    const encoding& e;
    selected_rows& out;
  } job{e, out};
  const auto one = [](void* self, size_t i, size_t worker) {
    const auto& [e, out] = *static_cast<struct job*>(self);
    if (!is_shared(e, i)) sparsify_unit(e, i, {out.scratch + worker}, out);
  };
  e.workers.run(e.b.units.size(), one, &job);
  if (const dr_status s = first_unsound(e)) return s;
  for (size_t i = 0; i < e.b.rows.size(); ++i) span.bytes += out.rows[i].count * (4 + e.row_bytes(i));
  return DR_OK;
}

}  // namespace dr
