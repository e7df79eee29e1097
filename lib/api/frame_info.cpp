#include "api/frame_info.hpp"

#include <algorithm>
#include <cstring>

#include "container/plan_table.hpp"
#include "pipeline/decode.hpp"

namespace dr {

dr_frame_info info_of(const frame_view& f) {
  dr_frame_info i{};
  i.version = f.version;
  i.flags = f.flags | (is_patch(f) ? uint32_t{DR_FRAME_PATCH} : 0u);
  i.status = f.status;
  i.tensors = f.tensors;
  i.segments = static_cast<uint32_t>(f.rows.size());
  i.plans = f.entries;
  i.frame_size = f.frame_size;
  i.header_size = f.header_size;
  i.tag = f.tag;
  std::memcpy(i.message, f.message, sizeof i.message);
  return i;
}

size_t info_of_tensor(const frame_view& f, size_t begin, dr_tensor_info& t) {
  t = {};
  size_t end = begin;
  do {
    const wire_row& r = f.rows[end];
    t.universe += r.universe;
    t.count += r.count;
    t.support += r.support;
    t.fallback = std::max(t.fallback, r.mode);
    t.value_size += r.size[section_value];
    t.order_size += r.size[section_order];
    t.index_size += r.size[section_index];
  } while (++end < f.rows.size() && f.rows[end].continues);
  const wire_plan& p = f.plans[f.rows[begin].plan];
  t.width = p.width;
  t.dtype = p.dtype;
  t.segments = static_cast<uint32_t>(end - begin);
  std::string text = "index=" + describe_list(p.index()) + " value=" + describe_list(p.value());
  if (p.order().count) text += " order=" + describe_list(p.order());
  if (p.tiles) text += " transform=dct(size=" + std::to_string(p.tiles.size()) + ")";
  std::strncpy(t.plan, text.c_str(), sizeof t.plan - 1);
  for (size_t i = begin; i < end; ++i) {  // (with index=auto segments have plans of their own)
    const wire_plan& own = f.plans[f.rows[i].plan];
    t.host_only |= (own.index().block > 1 && own.replaces_support()) || bool(own.tiles);
    t.host_only |= own.patch && (own.index().whole() || own.width != 1 || !is_value_type(own.dtype));
    for (const stage_list& list : own.lists)
      for (const stage& s : list) t.host_only |= !runs_on_cuda(s);
  }
  return end;
}

dr_status size_of_frame(const uint8_t* frame, size_t size, size_t& out, dr_error& error) {
  frame_view f;
  if (const dr_status s = read_header(frame, size, size, f, error)) return s;
  out = static_cast<size_t>(f.frame_size);
  return DR_OK;
}

}  // namespace dr
