// Selects the support of each row, ascending, and its values.
#include <algorithm>
#include <cstring>

#include "feedback/residual.hpp"
#include "pipeline/draw_keys.hpp"
#include "pipeline/encoding.hpp"
#include "sparsify/source_walk.hpp"
#include "split/blocks.hpp"

namespace dr {
namespace {

// Whether the f32 values that a unit sends are decoded exactly, so that its residual is 0 there, and nothing but the
// residual is kept.
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

// Where positions in a sparse source are in the segment.
void read_support(const encoding& e, const unit_work& o, uint32_t k) {
  const row_work& row = e.w.rows[k];
  const uint64_t* const indices = o.indices + row.source_first;
  for (uint64_t i = 0; i < row.count; ++i)
    row.support[i] = static_cast<uint32_t>(indices[row.positions ? row.positions[i] : i] - e.b.rows[k].first);
}

// Without selecting: a sparse source as it is; of rows of a dense one, those that are not zeros.
void adopt_row(encoding& e, const unit_work& o, const unit& u, uint32_t k) {
  set_source(e, o, u, k);
  row_work& row = e.w.rows[k];
  const uint64_t bytes = e.row_bytes(k), first = row.source_first;
  if (u.sparse) {
    row.positions = nullptr;
    row.support = o.support + first;
    row.kept = static_cast<std::byte*>(o.buffer) + first * bytes;
    row.count = row.told = row.source_rows;
    read_support(e, o, k);
    return;
  }
  const void* const values = static_cast<const std::byte*>(o.source) + first * bytes;
  row.positions = row.support = o.kept.positions + first;
  row.kept = static_cast<std::byte*>(o.kept.kept) + first * bytes;
  row.count = row.told = compact_rows(u.dtype, values, row.source_rows, u.width, row.positions);
  gather(bytes, values, row.positions, row.count, row.kept);
}

// What is known of values that are sent as they lie.
struct surveyed {
  uint64_t kept;
  uint32_t largest;
};

// Of a unit that is sent whole: makes the sums, if any, and reads all values once. Values that do not lie together are
// copied at the same time.
void survey_unit(encoding& e, size_t i, const select_crew& crew) {
  const unit& u = e.b.units[i];
  unit_work& o = e.w.units[i];
  cut_to_pieces(e, i);
  o.advanced = o.sums != nullptr;
  o.taken_from = 0;
  o.block = 1;
  const uint64_t size = value_size(u.dtype);
  bool copies = false;
  for (uint32_t p = 0; p < o.piece_count; ++p) {
    row_work& row = e.w.rows[u.first_row + o.pieces[p].range];
    copies = row.sent != nullptr;
    row.kept = copies ? row.sent : o.sums ? o.sums[p].m() : const_cast<void*>(o.pieces[p].values);
    row.positions = row.support = nullptr;
    row.count = row.largest = 0;
  }
  const auto look = [&](surveyed& all, size_t piece, const void* v, uint64_t at, uint32_t n) {
    all.kept += select_at(crew.level, u.dtype).survey(v, n, all.largest);
    const select_piece& p = o.pieces[piece];
    auto* const to = static_cast<std::byte*>(e.w.rows[u.first_row + p.range].kept);
    if (copies) std::memcpy(to + (p.position + at) * size, v, n * size);
  };
  const auto add = [&](size_t piece, const surveyed& part) {
    row_work& row = e.w.rows[u.first_row + o.pieces[piece].range];
    row.count += part.kept;
    row.largest = std::max(row.largest, part.largest);
  };
  sums_source sums{&u, &o};
  const select_source source{u.dtype, {o.pieces, o.piece_count}, load_sums, &sums};
  source_walk walk(source, crew);
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
  uint64_t kept = 0;
  for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) {
    row_work& row = e.w.rows[k];
    row.sent = row.kept;
    const uint64_t rows = e.b.rows[k].universe;
    if (u.width != 1 && row.count == rows * u.width) {
      row.count = rows;
    } else if (u.width != 1) {
      row.count = 0;
      each_kept_run(u.dtype, row.sent, rows, u.width, [&](uint64_t, uint64_t n) { row.count += n; });
    }
    row.told = row.count;
    kept += row.count;
  }
  o.dense_fallback = kept > u.dense_above;
}

void sparsify_unit(encoding& e, size_t i, const select_crew& crew) {
  unit_work& o = e.w.units[i];
  o.error = dr_error{};
  o.dense_fallback = o.advanced = false;
  const unit& u = e.b.units[i];
  if (u.patches()) {
    compare_unit(e, i);
    return find_history(e, i);
  }
  const wire_plan& plan = e.b.wire[e.b.rows[u.first_row].plan];
  o.watched = !u.method->sparsifier().goes_by_magnitude() || (plan.replaces_support() && !plan.index().whole());
  o.unfinite = 0;
  if (load_source(e, i)) return;
  if (u.whole) return survey_unit(e, i, crew);
  const bound_sparsifier sparsifier = u.method->sparsifier();
  if (u.width != 1 || (u.sparse && sparsifier.how.passes_on)) {
    for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) adopt_row(e, o, u, k);
    return;
  }
  cut_to_pieces(e, i);
  sums_source sums{&u, &o};
  o.advanced = o.sums != nullptr;
  const bool nothing_left = o.sums && leaves_nothing(e, u);
  const select_source source{
      u.dtype, {o.pieces, o.piece_count}, load_sums, &sums, nothing_left ? place_of_sums : nullptr};
  const uint64_t key = sparsifier_key(e.w.rows[u.first_row].shared_key, sparsifier.how.entry);
  const kept_count kept = sparsifier.how.keep(
      {sparsifier.params, source, u.universe, u.sparse ? o.indices : nullptr, key, o.scratch, o.kept, crew});
  fence_streams();
  o.block = u.method->block ? u.method->block : kept.block;
  o.dense_fallback = kept.count > u.dense_above;
  o.taken_from = nothing_left ? kept.taken_from : 0;
  uint64_t begin = 0;
  for (uint32_t k = 0; k < u.rows; ++k) {
    row_work& row = e.w.rows[u.first_row + k];
    row.positions = row.support = o.kept.positions + begin;
    row.kept = static_cast<std::byte*>(o.kept.kept) + begin * value_size(u.dtype);
    row.count = row.told = o.kept.ends[k] - begin;
    if (u.sparse) {
      row.support = o.support + begin;
      read_support(e, o, u.first_row + k);
    }
    if (o.block > 1) row.block_count = list_blocks(row.support, row.count, o.block, row.blocks);
    begin = o.kept.ends[k];
  }
}

// Whether a unit is worth the work of all.
bool is_shared(const encoding& e, size_t i) {
  return e.workers.workers() > 1 && e.b.units[i].source_max >= select_shared;
}

}  // namespace

dr_status sparsify(encoding& e) {
  trace_span span = e.span("sparsify");
  if (e.w.squares) measure_norm(e);
  // Large units one after the other, each by all; the others side by side.
  for (size_t i = 0; i < e.b.units.size(); ++i)
    if (is_shared(e, i)) sparsify_unit(e, i, {e.w.select, &e.workers});
  const auto one = [](void* self, size_t i, size_t worker) {
    auto& e = *static_cast<encoding*>(self);
    if (!is_shared(e, i)) sparsify_unit(e, i, {e.w.select + worker});
  };
  e.workers.run(e.b.units.size(), one, &e);
  if (const dr_status s = first_unsound(e)) return s;
  for (size_t i = 0; i < e.b.rows.size(); ++i) span.bytes += e.w.rows[i].count * (4 + e.row_bytes(i));
  return DR_OK;
}

}  // namespace dr
