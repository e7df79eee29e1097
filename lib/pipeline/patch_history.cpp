// The histories of a tensor's words in a chain of patches: gathered for the codecs, and advanced when nothing can fail.
#include "patch/advance_history.hpp"
#include "pipeline/encoding.hpp"

namespace dr {

void find_history(const encoding& e, size_t i, selected_rows& out) {
  const unit& u = e.b.units[i];
  uint8_t* const past = out.patched_units[i].past;
  const uint8_t* const history = e.tensors[u.first_tensor].history;
  for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) {
    const uint64_t first = e.b.rows[k].first * u.width;
    const selected_row& row = out.rows[k];
    patched_row& patch = out.patched_rows[k];
    patch.history = history ? history + first : nullptr;
    patch.past = u.whole ? patch.history : nullptr;
    if (!history || u.whole || !past) continue;
    gather_history(patch.history, u.width, row.positions, row.count, past + first);
    patch.past = past + first;
  }
}

void keep_history(const encoding& e) {
  for (const unit& u : e.b.units) {
    if (!e.tensors[u.first_tensor].history) continue;
    uint8_t* const history = e.tensors[u.first_tensor].history;
    for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) {
      const batch_row& r = e.b.rows[k];
      const selected_row& row = e.w.selected.rows[k];
      advance_history(history + r.first * u.width, r.universe, u.dtype, u.width, u.whole ? nullptr : row.positions,
                      u.whole ? r.universe : row.count, e.w.selected.patched_rows[k].based, row.values);
    }
  }
}

}  // namespace dr
