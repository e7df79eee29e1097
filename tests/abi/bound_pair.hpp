// A batch of two tensors, bound to its memory.
#pragma once

#include <algorithm>
#include <memory>

#include "abi/prepared.hpp"
#include "client.hpp"

namespace abi {

using client::bytes;
using client::floats;

struct binding {
  dr_binding* handle = nullptr;
  binding() = default;
  ~binding() { dr_binding_destroy(handle); }
  binding(const binding&) = delete;
  binding& operator=(const binding&) = delete;
};

inline dr_result no_result() {
  dr_result r{};
  r.struct_size = sizeof r;
  return r;
}

// A version of the struct that has grown, so that arrays of it have another stride.
struct grown_out {
  dr_tensor_out now;
  uint64_t later[3];
};

// A batch of two dense tensors with feedback, bound, and everything once more to call dr_batch_encode with.
struct bound_pair {
  dr_place place{};
  client::context c;
  floats a = client::laplace(3000, 1), b = client::laplace(500, 2);
  std::vector<uint64_t> states[2][2];
  std::vector<dr_tensor> tensors[2];
  batch prepared;
  dr_batch_info info{};
  floats x = floats(3000), y = floats(500);
  std::vector<grown_out> outs;
  binding bound;
  std::unique_ptr<aligned_bytes> workspace, frame, again;
  dr_result result = no_result();

  explicit bound_pair(uint32_t kind, size_t frames = 3) {
    place.struct_size = sizeof place;
    place.kind = kind;
    const client::plan p("sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd");
    for (size_t k = 0; k < 2; ++k)
      for (size_t i = 0; i < 2; ++i) {
        tensors[k].push_back(client::dense(i ? b : a));
        states[k][i].resize(2 + (i ? 500 : 3000) / 2);
        tensors[k][i].state = states[k][i].data();
        tensors[k][i].state_size = 8 * states[k][i].size();
      }
    REQUIRE(dr_batch_create(c.handle, p.handle, &place, tensors[0].data(), sizeof(dr_tensor), 2, 0, &prepared.handle) ==
            DR_OK);
    info = abi::describe(prepared);
    for (floats* o : {&x, &y}) {
      grown_out out{client::dense_out(*o), {}};
      out.now.struct_size = sizeof out;
      outs.push_back(out);
    }
    const dr_status s = create(frames);
    INFO(c.error());
    REQUIRE(s == DR_OK);
    workspace = std::make_unique<aligned_bytes>(info.workspace);
    frame = std::make_unique<aligned_bytes>(info.bound);
    again = std::make_unique<aligned_bytes>(info.bound);
  }
  dr_status create(size_t frames) {
    return dr_binding_create(c.handle, prepared.handle, &place, tensors[0].data(), sizeof(dr_tensor), &outs[0].now,
                             sizeof(grown_out), 2, frames, &bound.handle);
  }
  bytes made(const aligned_bytes& from, const dr_result& r) const { return bytes(from.data, from.data + r.size); }
};

inline constexpr uint32_t places[] = {DR_PLACE_CPU, DR_PLACE_EMULATED};

}  // namespace abi
