// Encode of one f32 tensor as a handler of XLA's foreign function interface: what deepreduce.jax would be without Python in its calls.
// bench/python/jax_call.py compiles it against jax.ffi.include_dir() and times the two. One call at a time.
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "deepreduce/deepreduce.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

struct codec {
  dr_context *context = nullptr;
  dr_plan *plan = nullptr;
  dr_batch *batch = nullptr;
  dr_tensor tensor{};
  std::vector<unsigned char> memory;
  dr_batch_info info{};

  void *workspace() {
    const auto at = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (64 - at % 64) % 64;
  }
};

ffi::Error encode(int64_t handle, ffi::Buffer<ffi::U32> step, ffi::Buffer<ffi::U8> state, ffi::Buffer<ffi::F32> x,
                  ffi::ResultBuffer<ffi::U8> row, ffi::ResultBuffer<ffi::U8> next, ffi::ResultBuffer<ffi::S32> used) {
  auto &self = *reinterpret_cast<codec *>(handle);
  if (next->untyped_data() != state.untyped_data()) {
    std::memcpy(next->untyped_data(), state.untyped_data(), state.size_bytes());
  }
  dr_tensor tensor = self.tensor;
  tensor.values = x.untyped_data();
  tensor.state = next->untyped_data();
  tensor.state_size = next->size_bytes();
  dr_call call{};
  call.struct_size = sizeof call;
  call.step = step.typed_data()[0];
  call.flags = DR_CALL_STATUS_FRAME;
  dr_result result{};
  result.struct_size = sizeof result;
  auto *frame = static_cast<unsigned char *>(row->untyped_data());
  if (dr_batch_encode(self.context, self.batch, &call, nullptr, &tensor, sizeof tensor, 1, self.workspace(),
                      self.info.workspace, frame, row->size_bytes(), &result) != DR_OK &&
      result.size == 0) {
    return ffi::Error::Internal(dr_last_error(self.context)->message);
  }
  std::memset(frame + result.size, 0, row->size_bytes() - result.size);
  used->typed_data()[0] = static_cast<int32_t>(result.size);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(bench_encode, encode,
                              ffi::Ffi::Bind()
                                  .Attr<int64_t>("handle")
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

// A codec for tensors of d elements, which lives as long as the process; null if something is wrong.
extern "C" void *bench_codec(const char *plan, uint64_t d) {
  auto *made = new (std::nothrow) codec;
  if (made == nullptr) {
    return nullptr;
  }
  made->tensor.struct_size = sizeof made->tensor;
  made->tensor.dtype = DR_F32;
  made->tensor.universe = d;
  made->tensor.key = 1;  // as Rows
  made->info.struct_size = sizeof made->info;
  if (dr_context_create(nullptr, &made->context, nullptr) != DR_OK ||
      dr_plan_parse(plan, &made->plan, nullptr) != DR_OK ||
      dr_batch_create(made->context, made->plan, nullptr, &made->tensor, sizeof made->tensor, 1, 0, &made->batch) !=
          DR_OK ||
      dr_batch_describe(made->batch, &made->info, nullptr) != DR_OK) {
    return nullptr;
  }
  made->memory.resize(made->info.workspace + 64);
  return made;
}
