// What the patches of a chain tell of a tensor's words: found for the codecs, and advanced once nothing can fail.
#include "patch/advance_history.hpp"
#include "pipeline/encoding.hpp"

namespace dr {

void find_history(encoding& e, size_t i) {
  const unit& u = e.b.units[i];
  const unit_work& o = e.w.units[i];
  const uint8_t* const history = e.tensors[u.first_tensor].history;
  for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) {
    const uint64_t first = e.b.rows[k].first * u.width;
    row_work& row = e.w.rows[k];
    row.history = history ? history + first : nullptr;
    row.past = u.whole ? row.history : nullptr;
    if (!history || u.whole || !o.past) continue;
    gather_history(row.history, u.width, row.positions, row.count, o.past + first);
    row.past = o.past + first;
  }
}

void keep_history(const encoding& e) {
  for (const unit& u : e.b.units) {
    if (!u.patches() || !e.tensors[u.first_tensor].history) continue;
    uint8_t* const history = e.tensors[u.first_tensor].history;
    for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) {
      const batch_row& r = e.b.rows[k];
      const row_work& row = e.w.rows[k];
      advance_history(history + r.first * u.width, r.universe, u.dtype, u.width, u.whole ? nullptr : row.positions,
                      u.whole ? r.universe : row.count, row.based, row.kept);
    }
  }
}

}  // namespace dr
