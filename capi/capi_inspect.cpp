// What a frame says of itself.
#include <algorithm>

#include "capi/handles.hpp"
#include "container/frame.hpp"

using dr::fail;
using dr::read_struct;
using dr::reported;
using dr::write_struct;

namespace {

void describe_tensor(const dr::frame_view& f, size_t begin, size_t end, dr_tensor_info& t) {
  const dr::wire_plan& p = f.plans[f.rows[begin].plan];
  t.width = p.width;
  t.dtype = p.dtype;
  t.segments = static_cast<uint32_t>(end - begin);
  for (size_t i = begin; i < end; ++i) {
    const dr::wire_row& r = f.rows[i];
    t.universe += r.universe;
    t.count += r.count;
    t.support += r.support;
    t.fallback = std::max(t.fallback, r.mode);
    t.value_size += r.size[dr::section_value];
    t.order_size += r.size[dr::section_order];
    t.index_size += r.size[dr::section_index];
  }
  std::string text = "index=" + dr::describe_list(p.index()) + " value=" + dr::describe_list(p.value());
  if (p.order().count) text += " order=" + dr::describe_list(p.order());
  for (const dr::stage_list& list : p.lists)
    for (const dr::stage& s : list) t.host_only |= !dr::runs_on_cuda(s);
  std::strncpy(t.plan, text.c_str(), sizeof t.plan - 1);
}

// What a frame says of itself, that `read` reads.
template <class Read>
dr_status describe_frame(const void* frame, dr_frame_info* info, dr_tensor_info* infos, size_t stride, size_t capacity,
                         dr_error& e, Read&& read) {
  if (!frame || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", frame ? "info" : "frame");
  dr_frame_info i;
  if (const dr_status s = read_struct(info, "info", i, e)) return s;
  if (infos && capacity && stride < dr::struct_size_min)
    return fail(e, DR_E_ARGUMENT, "infos: stride %zu is smaller than a struct", stride);
  dr::frame_view f;
  if (const dr_status s = read(static_cast<const uint8_t*>(frame), f)) return s;
  const size_t wanted = infos ? std::min<size_t>(capacity, f.tensors) : 0;
  for (size_t k = 0; k < wanted; ++k) {
    dr_tensor_info t;
    if (const dr_status s = read_struct(reinterpret_cast<char*>(infos) + k * stride, "infos", t, e, stride)) return s;
  }
  i = {};
  i.version = f.version;
  i.flags = f.flags;
  i.status = f.status;
  i.tensors = f.tensors;
  i.rows = static_cast<uint32_t>(f.rows.size());
  i.plans = f.entries;
  i.frame_size = f.frame_size;
  i.header_size = f.header_size;
  i.tag = f.tag;
  std::memcpy(i.message, f.message, sizeof i.message);
  write_struct(i, info);
  size_t n = 0;
  for (size_t begin = 0; n < wanted;) {
    size_t end = begin + 1;
    while (end < f.rows.size() && f.rows[end].continues) ++end;
    dr_tensor_info t{};
    describe_tensor(f, begin, end, t);
    write_struct(t, reinterpret_cast<char*>(infos) + n++ * stride);
    begin = end;
  }
  return DR_OK;
}

}  // namespace

dr_status dr_inspect(const void* frame, size_t size, dr_frame_info* info, dr_tensor_info* infos, size_t stride,
                     size_t capacity, dr_error* error) {
  return reported(error, [&](dr_error& e) {
    return describe_frame(frame, info, infos, stride, capacity, e,
                          [&](const uint8_t* data, dr::frame_view& f) { return dr::read_frame(data, size, f, e); });
  });
}

dr_status dr_frame_header(const void* frame, size_t available, size_t size, dr_frame_info* info, dr_tensor_info* infos,
                          size_t stride, size_t capacity, dr_error* error) {
  return reported(error, [&](dr_error& e) {
    return describe_frame(frame, info, infos, stride, capacity, e,
                          [&](const uint8_t* data, dr::frame_view& f) -> dr_status {
                            if (available > size)
                              return fail(e, DR_E_ARGUMENT, "available: %zu bytes of %zu", available, size);
                            return dr::read_header(data, available, size, f, e);
                          });
  });
}

dr_status dr_frame_size(const void* frame, size_t size, size_t* frame_size, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!frame || !frame_size) return fail(e, DR_E_ARGUMENT, "%s is NULL", frame ? "frame_size" : "frame");
    *frame_size = 0;
    dr::frame_view f;
    if (const dr_status s = dr::read_header(static_cast<const uint8_t*>(frame), size, size, f, e)) return s;
    *frame_size = static_cast<size_t>(f.frame_size);
    return DR_OK;
  });
}
