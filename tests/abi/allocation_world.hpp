// What calls of the ABI want to be given, made without a failure, and what must have become of it (allocation_failures.cpp).
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "client.hpp"

namespace allocation {

using client::bytes;
using client::floats;

struct job {
  const char* plan;
  uint32_t threads = 1;
  bool sparse = false;
  uint64_t segment_rows = 0;
  uint32_t flags = 0;  // DR_CALL_*
  uint32_t kind = DR_PLACE_CPU;
  size_t room = 8192;         // bytes of frame
  dr_status encodes = DR_OK;  // ARGUMENT: a value is infinite
  bool by_host = false;       // the CPU does it for the device
};

inline constexpr job jobs[] = {
    {"sparsify=topr(ratio=0.1) feedback=residual index=bloom(policy=p0,fpr=0.05)+deflate value=fit_poly+deflate"},
    {"index=golomb value=qsgd+zstd", 1, true, 100, DR_CALL_TAG | DR_CALL_LIST},
    {"sparsify=topr(ratio=0.2) index=auto value=auto(error=0.05) bucket=flat"},
    {"sparsify=blocks(count=9) feedback=residual index=auto value=half", 3},
    {"sparsify=topr(ratio=0.2) feedback=residual index=rice value=sketch+huffman", 1, false, 0, DR_CALL_FIT, 0, 160},
    {"sparsify=topr(ratio=0.9) index=raw value=qsgd", 1, false, 0, DR_CALL_STATUS_FRAME, 0, 8192, DR_E_ARGUMENT},
    {"sparsify=random(ratio=0.1) index=seeded value=raw", 2, false, 50},
    {"sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd", 1, false, 0, 0, DR_PLACE_EMULATED},
    {"sparsify=topr(ratio=0.1) index=delta_varint+deflate value=raw", 1, false, 0, 0, DR_PLACE_EMULATED, 8192, DR_OK,
     true},
};

// A context that has done nothing yet, fresh states, outputs of a pattern; and frames and a batch as others made them.
class world {
 public:
  static constexpr float untouched = -7;
  static constexpr uint64_t rows[] = {300, 70};
  static constexpr size_t n = 2;

  world(const job& j, const dr_context_options& options) : how(j), plan_(plan_of(j)) {
    REQUIRE(dr_context_create(&options, &context, nullptr) == DR_OK);
    place.struct_size = sizeof place;
    place.kind = how.kind;
    place.flags = how.kind ? DR_PLACE_ALLOW_HOST : 0;
    call.struct_size = sizeof call;
    call.flags = how.flags;
    call.tag = how.flags & DR_CALL_TAG ? 5 : 0;
    call.segment_rows = how.segment_rows;
    result.struct_size = sizeof result;
    error.struct_size = sizeof error;
    info.struct_size = sizeof info;
    for (size_t i = 0; i < n; ++i) add(i);
  }
  ~world() {
    dr_binding_destroy(binding);
    dr_batch_destroy(made);
    dr_plan_destroy(parsed);
    dr_context_destroy(context);
  }
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  const dr_plan* plan() const { return plan_.handle; }
  void* aligned(bytes& from) const {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(from.data()) + 63) / 64 * 64);
  }
  bool host() const { return how.kind == DR_PLACE_CPU; }
  bool states_fresh() const {
    for (const auto& s : states)
      for (const uint64_t x : s)
        if (x) return false;
    return true;
  }
  bool outputs_untouched() const {
    for (const auto* all : {&values, &union_values})
      for (const floats& v : *all)
        for (const float x : v)
          if (x != untouched) return false;
    return true;
  }

  const job& how;
  dr_context* context = nullptr;
  std::vector<floats> gradients, values, union_values;
  std::vector<std::vector<uint32_t>> indices;
  std::vector<std::vector<uint64_t>> states, union_indices;
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs, unions;  // dense, sparse
  bytes frame = bytes(how.room, 0xcc), workspace = bytes(1 << 20);
  dr_place place{};
  dr_call call{};
  dr_result result{};
  dr_error error{};
  dr_frame_info info{};
  dr_tensor_info infos[n] = {{sizeof(dr_tensor_info)}, {sizeof(dr_tensor_info)}};
  // What calls make.
  dr_plan* parsed = nullptr;
  dr_batch* made = nullptr;
  dr_binding* binding = nullptr;
  size_t size = 0;

 private:
  // (Parsed once a job.)
  static const client::plan& plan_of(const job& j) {
    static std::map<std::string, std::unique_ptr<client::plan>> all;
    auto& p = all[j.plan];
    if (!p) p = std::make_unique<client::plan>(j.plan);
    return *p;
  }

  void add(size_t i) {
    floats& gradient = gradients.emplace_back(client::laplace(rows[i], i + 1));
    if (how.encodes) gradient[3] = INFINITY;
    if (how.sparse) {
      auto& list = indices.emplace_back();
      for (uint32_t k = 0; k < rows[i]; ++k) list.push_back(k * 7 % 4000);
      tensors.push_back(client::sparse(list, gradient, 4000));
    } else {
      tensors.push_back(client::dense(gradient));
    }
    dr_tensor& t = tensors.back();
    if (how.sparse) t.flags = DR_TENSOR_SUM_DUPLICATES;
    size_t bytes_of = 0;
    REQUIRE(dr_state_size(plan(), &t, &bytes_of, nullptr) == DR_OK);
    states.emplace_back(bytes_of / 8 + 1);
    if (bytes_of) t.state = states.back().data(), t.state_size = bytes_of;
    const uint64_t universe = t.universe;
    outs.push_back(client::dense_out(values.emplace_back(universe, untouched)));
    dr_tensor_out u = client::dense_out(union_values.emplace_back(universe, untouched));
    u.index_dtype = DR_U64;
    u.indices = union_indices.emplace_back(universe).data();
    u.capacity = universe;
    unions.push_back(u);
  }

  const client::plan& plan_;
};

}  // namespace allocation
