// How a call that encodes begins and ends.
#pragma once

#include "capi/handles.hpp"

namespace dr {

// The common arguments of dr_encode, dr_batch_encode and dr_binding_encode.
struct encode_arguments {
  const dr_call* call;
  size_t tensors;
  void* frame;
  size_t capacity;
  dr_result* result;
};

// Reads the call and its result, and clears its faults.
dr_status read_call(const encode_arguments& a, bool on_cpu, dr_call& call, encode_request& out, dr_error& error);
// ARGUMENT: the call differs from the prepared batch.
dr_status check_repeated(const placed_batch& batch, const dr_call& call, std::span<const dr_tensor> tensors,
                         dr_error& error);
// Fills the caller's result and, if the call requests one, the status frame.
void finish_call(const encode_arguments& a, const encode_request& request, dr_status status, const encode_result& made,
                 const dr_error& error);

// Reads the call, finds the place and runs encode(call, request, made). The call is read first: its flags decide whether
// a failure of the others becomes a status frame. On a device the kernels fill the result; an error before their launch is in
// the status alone.
template <class Place, class Encode>
dr_status run_call(context& c, const encode_arguments& a, bool on_cpu, Place&& find_place, Encode&& encode) noexcept {
  dr_call call{};
  encode_request request;
  encode_result made;
  const turn mine(c);
  const dr_status status = mine.end(guarded(mine.error(), [&]() -> dr_status {
    const dr_status read = read_call(a, on_cpu, call, request, mine.error());
    if (const dr_status s = mine.check()) return s;
    if (read) return read;
    if (const dr_status s = find_place(request.where)) return s;
    return encode(call, request, made);
  }));
  if (on_cpu) finish_call(a, request, status, made, mine.error());
  return status;
}

}  // namespace dr
