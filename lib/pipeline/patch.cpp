// The rows of a tensor that differ from its base (sparsify=changed), and the checks of both.
#include <algorithm>
#include <cstring>

#include "patch/base_check.hpp"
#include "patch/word_diff.hpp"
#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// Compared together, so that base and tensor are read from memory once: whole chunks, of any width.
constexpr uint64_t compared_bytes = 16 * base_chunk;

}  // namespace

uint64_t compare_unit(const encoding& e, size_t i, selected_rows& out) {
  const unit& u = e.b.units[i];
  const select_memory& memory = out.units[i].memory;
  const patched_unit& patched = out.patched_units[i];
  const tensor_view& t = e.tensors[u.first_tensor];
  const auto *const base = static_cast<const std::byte*>(t.base), *const now = static_cast<const std::byte*>(t.values);
  const uint64_t word = value_size(u.dtype), row_bytes = word * u.width;
  const word_diff diff{base, now, static_cast<uint32_t>(word), u.width};
  const uint64_t step = std::max<uint64_t>(1, compared_bytes / row_bytes);
  uint64_t changes = 0;
  if (t.sums) std::memcpy(patched.base_sums, t.sums, base_chunks(u.universe * row_bytes) * sizeof(uint64_t));
  for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) {
    const batch_row& r = e.b.rows[k];
    selected_row& row = out.rows[k];
    patched_row& patch = out.patched_rows[k];
    patch.base = base + r.first * row_bytes;
    uint64_t* const sums = patched.base_sums + r.first * row_bytes / base_chunk;
    const uint64_t bytes = r.universe * row_bytes, chunks = base_chunks(bytes);
    std::byte* const old = u.whole ? nullptr : patched.based + r.first * row_bytes;
    std::byte* const values = u.whole ? nullptr : static_cast<std::byte*>(memory.values) + r.first * row_bytes;
    uint32_t* const positions = u.whole ? nullptr : memory.positions + r.first;
    row.count = row.largest = 0;
    // (With a width that is not a power of two rows and chunks have different ends: then the sums are a separate loop.)
    const bool together = compared_bytes % row_bytes == 0;
    if (!t.sums && !together) base_sums(patch.base, bytes, sums);
    for (uint64_t at = 0; at < r.universe; at += step) {
      const uint64_t n = std::min(step, r.universe - at);
      if (!t.sums && together)
        base_sums(static_cast<const std::byte*>(patch.base) + at * row_bytes, n * row_bytes,
                  sums + at * row_bytes / base_chunk);
      if (u.whole) {
        row.count += diff_rows(diff, r.first + at, n, nullptr, nullptr, nullptr);
        continue;
      }
      const uint64_t found = diff_rows(diff, r.first + at, n, positions + row.count, old + row.count * row_bytes,
                                       values + row.count * row_bytes);
      for (uint64_t x = row.count; x < row.count + found; ++x) positions[x] += static_cast<uint32_t>(at);
      row.count += found;
    }
    changes += row.count;
    patch.checks[0] = fold_sums(sums, chunks);
    if (u.whole)
      base_sums(now + r.first * row_bytes, bytes, sums);
    else
      move_sums(sums, static_cast<uint32_t>(word), u.width, positions, row.count, old, values);
    patch.checks[1] = fold_sums(sums, chunks);
    row.positions = row.support = positions;
    patch.based = u.whole ? patch.base : old;
    row.values = u.whole ? const_cast<std::byte*>(now + r.first * row_bytes) : values;
  }
  return changes;
}

void keep_sums(const encoding& e) {
  for (size_t i = 0; i < e.b.units.size(); ++i) {
    const unit& u = e.b.units[i];
    const tensor_view& t = e.tensors[u.first_tensor];
    if (t.sums)
      std::memcpy(t.sums, e.w.selected.patched_units[i].base_sums,
                  base_chunks(u.universe * u.width * value_size(u.dtype)) * sizeof(uint64_t));
  }
}

}  // namespace dr
