// Encode with segments: dr_bound knows nothing of them, so the bound is that of a prepared batch.
#pragma once

#include "client.hpp"

namespace abi {

inline client::bytes encode_segmented(client::context& c, const std::string& text,
                                      const std::vector<dr_tensor>& tensors, dr_call call) {
  const client::plan p(text);
  dr_batch* batch = nullptr;
  const dr_status made = dr_batch_create(c.handle, p.handle, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(),
                                         call.segment_rows, &batch);
  INFO(text << ": " << c.error());
  REQUIRE(made == DR_OK);
  dr_batch_info info{};
  info.struct_size = sizeof info;
  CHECK(dr_batch_describe(batch, &info, nullptr) == DR_OK);
  dr_batch_destroy(batch);
  client::bytes frame(info.bound);
  dr_result result{.struct_size = sizeof(dr_result)};
  call.struct_size = sizeof call;
  const dr_status s = dr_encode(c.handle, p.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(),
                                frame.data(), frame.size(), &result);
  INFO(c.error());
  REQUIRE(s == DR_OK);
  frame.resize(result.size);
  return frame;
}

}  // namespace abi
