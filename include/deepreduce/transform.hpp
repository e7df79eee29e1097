// DeepReduce for C++20: transform.h with destructors, spans and exceptions, as deepreduce.hpp is deepreduce.h. That header
// documents each function and its errors.
#ifndef DEEPREDUCE_TRANSFORM_HPP
#define DEEPREDUCE_TRANSFORM_HPP

#include "deepreduce.hpp"

#if __cplusplus >= 201709L  // (otherwise that header is the error)

#include "transform.h"

namespace dr {
inline namespace v1 {

//   round.begin(tensors, outs);
//   do all_reduce(round.factor());
//   while (round.next(1.0f / ranks));
class transform {
 public:
  transform(context& c, const plan& p, std::span<const dr_tensor> tensors,
            const dr_transform_options* options = nullptr)
      : context_(c.get()) {
    dr_transform* made = nullptr;
    check(dr_transform_create(context_, p.get(), options, tensors.data(), sizeof(dr_tensor), tensors.size(), &made));
    handle.reset(made);
  }
  dr_transform* get() const { return handle.get(); }

  void begin(std::span<const dr_tensor> tensors, std::span<const dr_tensor_out> outs) {
    if (outs.size() != tensors.size())
      throw std::invalid_argument("transform: " + std::to_string(outs.size()) + " outputs for " +
                                  std::to_string(tensors.size()) + " tensors");
    check(dr_transform_begin(get(), tensors.data(), sizeof(dr_tensor), outs.data(), sizeof(dr_tensor_out),
                             tensors.size()));
  }
  std::span<float> factor() {
    float* values = nullptr;
    uint64_t n = 0;
    check(dr_transform_factor(get(), &values, &n));
    return {values, static_cast<size_t>(n)};
  }
  // True: there is another factor. False: the outputs are written.
  bool next(float mean) {
    const dr_status status = dr_transform_next(get(), mean);
    if (status == DR_PENDING) return true;
    check(status);
    return false;
  }
  void cancel(uint32_t flags = 0) { check(dr_transform_cancel(get(), flags)); }  // DR_TRANSFORM_KEEP

  std::span<float> residual(size_t tensor) {
    float* values = nullptr;
    uint64_t n = 0;
    check(dr_transform_residual(get(), tensor, &values, &n));
    return {values, static_cast<size_t>(n)};
  }
  std::vector<std::byte> save() {
    std::vector<std::byte> state(info().state_size);
    check(dr_transform_save(get(), state.data(), state.size()));
    return state;
  }
  void load(std::span<const std::byte> state) { check(dr_transform_load(get(), state.data(), state.size())); }
  void reset() { check(dr_transform_reset(get())); }
  dr_transform_info info() const {
    auto found = sized<dr_transform_info>();
    detail::require([&](dr_error* e) { return dr_transform_describe(get(), &found, e); });
    return found;
  }

 private:
  void check(dr_status status) const { detail::check(context_, status); }
  struct destroy {
    void operator()(dr_transform* t) const { dr_transform_destroy(t); }
  };
  dr_context* context_;
  std::unique_ptr<dr_transform, destroy> handle;
};

}  // namespace v1
}  // namespace dr
#endif
#endif
