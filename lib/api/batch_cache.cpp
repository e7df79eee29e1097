#include "api/batch_cache.hpp"

#include <algorithm>

namespace dr {
namespace {

constexpr size_t entries_max = 8;

bool same_shape(const tensor_view& v, const tensor_shape& s) {
  return v.dtype == s.dtype && v.index_dtype == s.index_dtype && std::max(1u, v.width) == s.width &&
         v.flags == s.flags && v.universe == s.universe && std::max<uint64_t>(1, v.rows) == s.rows &&
         (!v.index_dtype || v.count == s.count);
}

}  // namespace

bool batch_cache::entry::fits(const batch_request& r, const tensor_list& tensors, const target& t) const {
  return request.method == r.method && request.segment_rows == r.segment_rows && placed.where == t.where &&
         (!placed.by_host || t.allows_host) && plans == tensors.plans &&
         std::equal(tensors.views.begin(), tensors.views.end(), placed.shapes.begin(), placed.shapes.end(), same_shape);
}

dr_status batch_cache::find(const batch_request& request, const tensor_list& tensors, const target& t,
                            const placed_batch*& out, dr_error& error) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& e) { return e->fits(request, tensors, t); });
  if (found != entries_.end()) {
    std::rotate(entries_.begin(), found, found + 1);
  } else {
    auto made = std::make_unique<entry>();
    if (const dr_status s = made->placed.place(request, tensors, t, error)) return s;
    made->request = request;
    made->plans = tensors.plans;
    if (entries_.size() == entries_max) entries_.pop_back();
    entries_.insert(entries_.begin(), std::move(made));
  }
  out = &entries_.front()->placed;
  return DR_OK;
}

}  // namespace dr
