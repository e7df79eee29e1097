// A client of the C ABI, for tests: plans, frames and tensors in few words. Anything that fails is a failed test.
#pragma once

#include <deepreduce/deepreduce.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace client {

struct context {
  dr_context* handle = nullptr;
  explicit context(uint32_t threads = 1) {
    dr_context_options options{};
    options.struct_size = sizeof options;
    options.threads = threads;
    REQUIRE(dr_context_create(&options, &handle, nullptr) == DR_OK);
  }
  ~context() { dr_context_destroy(handle); }
  context(const context&) = delete;
  context& operator=(const context&) = delete;
  std::string error() const { return dr_last_error(handle)->message; }
};

struct plan {
  dr_plan* handle = nullptr;
  explicit plan(const std::string& text) {
    dr_error error{sizeof(dr_error)};
    const dr_status status = dr_plan_parse(text.c_str(), &handle, &error);
    INFO(text << ": " << error.message);
    REQUIRE(status == DR_OK);
  }
  ~plan() { dr_plan_destroy(handle); }
  plan(const plan&) = delete;
  plan& operator=(const plan&) = delete;
};

using bytes = std::vector<uint8_t>;
using floats = std::vector<float>;

inline dr_tensor dense(const floats& values) {
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = DR_F32;
  t.universe = values.size();
  t.values = values.data();
  return t;
}

template <class I>
constexpr dr_dtype index_type = std::is_same_v<I, uint32_t>   ? dr_dtype{DR_U32}
                                : std::is_same_v<I, int32_t>  ? dr_dtype{DR_I32}
                                : std::is_same_v<I, uint64_t> ? dr_dtype{DR_U64}
                                                              : dr_dtype{DR_I64};

template <class I>
dr_tensor sparse(const std::vector<I>& indices, const floats& values, uint64_t universe, uint32_t width = 1) {
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = DR_F32;
  t.index_dtype = index_type<I>;
  t.universe = universe;
  t.width = width;
  t.values = values.data();
  t.indices = indices.data();
  t.count = indices.size();
  return t;
}

inline dr_tensor_out dense_out(floats& values, uint32_t width = 1) {
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = DR_F32;
  o.universe = values.size() / width;
  o.width = width;
  o.values = values.data();
  return o;
}

inline dr_status try_encode(context& c, const std::string& text, const std::vector<dr_tensor>& tensors, bytes& frame,
                            dr_call call = {}) {
  const plan p(text);
  size_t bound = 0;
  call.struct_size = sizeof call;
  if (const dr_status s =
          dr_bound(c.handle, p.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(), &bound))
    return s;
  frame.assign(bound, 0xcc);
  dr_result result{.struct_size = sizeof(dr_result)};
  const dr_status s = dr_encode(c.handle, p.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(),
                                frame.data(), bound, &result);
  frame.resize(result.size);
  return s;
}

inline bytes encode(context& c, const std::string& text, const std::vector<dr_tensor>& tensors, dr_call call = {}) {
  bytes frame;
  const dr_status s = try_encode(c, text, tensors, frame, call);
  INFO(text << ": " << c.error());
  REQUIRE(s == DR_OK);
  return frame;
}

inline dr_tensor_info inspect(const bytes& frame, dr_frame_info* head = nullptr) {
  dr_frame_info own{};
  dr_frame_info& info = head ? *head : own;
  info.struct_size = sizeof info;
  dr_tensor_info tensor{};
  tensor.struct_size = sizeof tensor;
  dr_error error{sizeof(dr_error)};
  const dr_status s = dr_inspect(frame.data(), frame.size(), &info, &tensor, sizeof tensor, 1, &error);
  INFO(error.message);
  REQUIRE(s == DR_OK);
  return tensor;
}

inline floats decode(context& c, const bytes& frame, uint64_t universe, uint32_t width = 1) {
  floats values(universe * width, -77);
  dr_tensor_out out = dense_out(values, width);
  const dr_status s = dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1);
  INFO(c.error());
  REQUIRE(s == DR_OK);
  return values;
}

struct pairs {
  std::vector<uint64_t> indices;
  floats values;
};

inline pairs decode_sparse(context& c, const bytes& frame, const dr_decode_options* options = nullptr) {
  const dr_tensor_info info = inspect(frame);
  pairs p{std::vector<uint64_t>(info.support), floats(info.support * info.width)};
  dr_tensor_out out{};
  out.struct_size = sizeof out;
  out.dtype = DR_F32;
  out.index_dtype = DR_U64;
  out.universe = info.universe;
  out.width = info.width;
  out.values = p.values.data();
  out.indices = p.indices.data();
  out.capacity = info.support;
  const dr_status s = dr_decode(c.handle, nullptr, frame.data(), frame.size(), options, &out, sizeof out, 1);
  INFO(c.error());
  REQUIRE(s == DR_OK);
  CHECK(out.count == info.support);
  return p;
}

// splitmix64, so that inputs are the same everywhere.
struct rng {
  uint64_t state;
  uint64_t next() {
    uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
  float laplace(double scale) {
    const double magnitude = -std::log(uniform()) * scale;
    return static_cast<float>(next() & 1 ? magnitude : -magnitude);
  }
};

inline floats laplace(uint64_t d, uint64_t seed, double scale = 1e-3) {
  rng r{seed};
  floats values(d);
  for (float& v : values) v = r.laplace(scale);
  return values;
}

inline bool same_bits(const floats& a, const floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

}  // namespace client
