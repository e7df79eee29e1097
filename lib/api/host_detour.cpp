#include "api/host_detour.hpp"

#include <algorithm>

#include "primitive/device_row.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

dr_status device_failed(dr_status s, device& where, dr_error& error) {
  return s ? fail(error, s, "device: a copy failed: %s", where.reason()) : DR_OK;
}

// Copies of device memory, aligned to 8 bytes.
struct fetcher {
  device& where;
  void* stream;
  std::vector<std::vector<uint64_t>> on_host;

  dr_status get(const void* from, uint64_t size, void*& to) {
    on_host.emplace_back(size / 8 + 1);
    to = on_host.back().data();
    return size ? where.copy(stream, to, from, size) : DR_OK;
  }
};

}  // namespace

dr_status encode_by_host(const batch& b, const encode_call& call, std::span<const tensor_view> tensors, pool& workers,
                         device& where, void* stream, uint8_t* frame, uint64_t capacity, encode_result& result,
                         dr_error& error) {
  if (const dr_status s = check_tensors(b, tensors, true, error)) return s;
  std::vector<state_range> states(states_of(b));
  if (!states.empty())
    if (const dr_status s = check_states_apart(b, tensors, states.data(), error)) return s;
  fetcher f{where, stream, {}};
  std::vector<tensor_view> own(tensors.begin(), tensors.end());
  for (tensor_view& t : own) {
    const uint64_t rows = t.index_dtype ? t.count : t.universe;
    void *values = nullptr, *indices = nullptr, *state = nullptr, *base = nullptr;
    dr_status s = f.get(t.values, rows * std::max(1u, t.width) * value_size(t.dtype), values);
    if (!s && t.index_dtype) s = f.get(t.indices, rows * index_type_size(t.index_dtype), indices);
    if (!s && t.state) s = f.get(t.state, t.state_size, state);
    if (!s && t.base) s = f.get(t.base, rows * std::max(1u, t.width) * value_size(t.dtype), base);
    if (s) return device_failed(s, where, error);
    t.values = values;
    t.indices = indices;
    t.state = state;
    t.base = base;
  }
  if (const dr_status s = device_failed(where.wait(stream), where, error)) return s;
  std::vector<uint64_t> workspace(b.workspace / 8 + 8),
      made(std::min<uint64_t>(capacity, b.layout[1].frame_bound) / 8 + 1);
  auto* const host_frame = reinterpret_cast<uint8_t*>(made.data());
  auto* const aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
  if (const dr_status s = encode(b, call, own, workers, aligned, b.workspace, host_frame,
                                 std::min<uint64_t>(capacity, 8 * made.size()), result, error))
    return s;
  dr_status s = where.copy(stream, frame, host_frame, result.size);
  for (size_t i = 0; i < own.size() && !s; ++i)
    if (own[i].state) s = where.copy(stream, tensors[i].state, own[i].state, own[i].state_size);
  if (!s) s = where.wait(stream);
  return device_failed(s, where, error);
}

dr_status set_result_by_host(const dr_result& from, device& where, void* stream, dr_result* to) {
  dr_result own{};
  if (const dr_status s = where.copy(stream, &own, to, sizeof own.struct_size)) return s;
  if (const dr_status s = where.wait(stream)) return s;
  const uint64_t size = std::min(own.struct_size, sizeof own) / 4 * 4;
  if (size < offsetof(dr_result, status) + sizeof own.status) return DR_OK;
  tell_result(from, &own);
  return where.copy(stream, to, &own, size);
}

dr_status fetch_frames(std::span<const dr_bytes> frames, device& where, void* stream,
                       std::vector<std::vector<uint8_t>>& on_host, dr_error& error) {
  on_host.clear();
  for (const dr_bytes& f : frames) {
    on_host.emplace_back(f.size);
    if (f.size)
      if (const dr_status s = device_failed(where.copy(stream, on_host.back().data(), f.data, f.size), where, error))
        return s;
  }
  return device_failed(where.wait(stream), where, error);
}

dr_status host_outputs::fetch(std::span<const tensor_out> outs, bool reads, device& where, void* stream,
                              dr_error& error) {
  own.assign(outs.begin(), outs.end());
  for (tensor_out& o : own) {
    o.capacity = std::min(o.capacity, o.universe);
    const uint64_t rows = o.index_dtype ? o.capacity : o.universe,
                   size = rows * std::max(1u, o.width) * value_size(o.dtype);
    values_.emplace_back(size / 8 + 1);
    indices_.emplace_back(o.index_dtype ? rows * index_type_size(o.index_dtype) / 8 + 1 : 0);
    if (reads && size)
      if (const dr_status s = device_failed(where.copy(stream, values_.back().data(), o.values, size), where, error))
        return s;
    const uint64_t based = o.base ? o.universe * std::max(1u, o.width) * value_size(o.dtype) : 0;
    bases_.emplace_back(based / 8 + 1);
    if (based)
      if (const dr_status s = device_failed(where.copy(stream, bases_.back().data(), o.base, based), where, error))
        return s;
    o.base = o.base ? bases_.back().data() : nullptr;
    o.values = values_.back().data();
    o.indices = o.index_dtype ? indices_.back().data() : nullptr;
  }
  return device_failed(where.wait(stream), where, error);
}

dr_status host_outputs::copy_back(std::span<tensor_out> outs, device& where, void* stream, dr_error& error) {
  for (size_t i = 0; i < own.size(); ++i) {
    const tensor_out& o = own[i];
    const uint64_t rows = o.index_dtype ? o.count : o.universe;
    const uint64_t size = rows * std::max(1u, o.width) * value_size(o.dtype);
    dr_status s = size ? where.copy(stream, outs[i].values, o.values, size) : DR_OK;
    if (!s && o.index_dtype && rows)
      s = where.copy(stream, outs[i].indices, o.indices, rows * index_type_size(o.index_dtype));
    if (s) return device_failed(s, where, error);
    outs[i].count = o.count;
  }
  return device_failed(where.wait(stream), where, error);
}

}  // namespace dr
