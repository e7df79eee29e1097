// A prepared batch at the place where its calls run: the CPU or a device.
#pragma once

#include <span>

#include "api/device_memory.hpp"
#include "pipeline/batch.hpp"
#include "pipeline/decode.hpp"
#include "pipeline/device_decode.hpp"
#include "pipeline/device_encode.hpp"

namespace dr {

// The tensors of a call in our version of dr_tensor, and their own plans (null: the call's).
struct tensor_list {
  std::vector<tensor_view> views;
  std::vector<std::shared_ptr<const plan>> plans;
};

struct placed_batch : batch {
  device* where = nullptr;  // nullptr: the CPU
  bool by_host = false;     // the CPU does it for the device: a codec has no operations there
  // On a device:
  device_prepared on_device;
  decode_shape frames;  // after load_decode
  uint32_t launches = 0;

  // Bytes of workspace of an encode.
  uint64_t encode_room() const { return where ? on_device.memory.size : workspace; }
  // Bytes of workspace of a decode or a merge of k frames. ARGUMENT, UNSUPPORTED, MEMORY.
  dr_status decode_room(size_t k, size_t& bytes, dr_error& error) const;
  dr_batch_info info() const;

  // UNSUPPORTED: codecs without operations on the device, unless the target allows the host.
  dr_status place(const batch_request& request, const tensor_list& tensors, const target& t, dr_error& error);
  // Readies prepared decodes on a device; elsewhere there is nothing to do. tagged: of frames that all have a tag
  dr_status load_decode(dr_error& error, bool tagged = false);

  // A call may repeat the settings of the batch, and must not change them. ARGUMENT.
  dr_status check_segment_rows(uint64_t asked, dr_error& error) const;
  dr_status check_plan(size_t tensor, const plan& own, dr_error& error) const;
  // Whether the batch decodes such outputs, all of them dense if it runs on a device. common: its common_frame, if the
  // caller has it already.
  dr_status check_outputs(std::span<const tensor_out> outs, dr_error& error, const frame_view* common = nullptr) const;
};

}  // namespace dr
