// dr_inspect and its kin: the header of a frame, in the structs of the ABI.
#include "api/frame_info.hpp"
#include "capi/handles.hpp"

using dr::fail;
using dr::read_struct;
using dr::reported;
using dr::write_struct;

namespace {

// A frame that read(data, view) reads.
template <class Read>
dr_status describe_frame(const void* frame, dr_frame_info* info, dr_tensor_info* infos, size_t stride, size_t capacity,
                         dr_error& e, Read&& read) {
  if (!frame || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", frame ? "info" : "frame");
  dr_frame_info i;
  if (const dr_status s = read_struct(info, "info", i, e)) return s;
  if (infos && capacity && stride < dr::first_of<dr_tensor_info>.size)
    return fail(e, DR_E_ARGUMENT, "infos: stride %zu is smaller than the %zu bytes of a dr_tensor_info", stride,
                dr::first_of<dr_tensor_info>.size);
  dr::frame_view f;
  if (const dr_status s = read(static_cast<const uint8_t*>(frame), f)) return s;
  const size_t count = infos ? std::min<size_t>(capacity, f.tensors) : 0;
  const auto info_at = [&](size_t k) { return reinterpret_cast<char*>(infos) + k * stride; };
  dr_tensor_info t;
  for (size_t k = 0; k < count; ++k)
    if (const dr_status s = read_struct(info_at(k), "infos", t, e, stride)) return s;
  write_struct(dr::info_of(f), info);
  for (size_t k = 0, row = 0; k < count; ++k) {
    row = dr::info_of_tensor(f, row, t);
    write_struct(t, info_at(k));
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
    return describe_frame(
        frame, info, infos, stride, capacity, e, [&](const uint8_t* data, dr::frame_view& f) -> dr_status {
          if (available > size)
            return fail(e, DR_E_ARGUMENT, "available: %zu exceeds the size of %zu bytes", available, size);
          return dr::read_header(data, available, size, f, e);
        });
  });
}

dr_status dr_frame_size(const void* frame, size_t size, size_t* frame_size, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!frame || !frame_size) return fail(e, DR_E_ARGUMENT, "%s is NULL", frame ? "frame_size" : "frame");
    *frame_size = 0;
    return dr::size_of_frame(static_cast<const uint8_t*>(frame), size, *frame_size, e);
  });
}
