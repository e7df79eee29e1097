// DeepReduce for C++20: deepreduce.h with destructors, spans and exceptions. Header only, and no more than that:
// that header documents each function and its errors.
//
//   dr::plan plan("sparsify=topr(ratio=0.01) index=golomb value=raw");
//   dr::context context;
//   std::vector<std::byte> frame = context.encode(plan, dr::dense(gradient));      gradient: std::span<const float>
//   context.decode(frame, dr::dense_out(received));                                received: std::span<float>
#ifndef DEEPREDUCE_HPP
#define DEEPREDUCE_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "deepreduce.h"

namespace dr {
inline namespace v1 {  // so that two versions of this header in one program are two sets of classes

// what() is "CORRUPT: the sentence".
struct error : std::runtime_error {
  explicit error(const dr_error& e)
      : std::runtime_error(std::string(dr_status_name(e.code)) + ": " + e.message), detail(e) {}
  dr_status code() const { return detail.code; }
  dr_error detail;
};

// A struct that the library may grow, zero but for its size.
template <class T>
T sized() {
  T t{};
  t.struct_size = sizeof(T);
  return t;
}

// ---- Plans and codecs ---------------------------------------------------------------------------------

class plan {
 public:
  explicit plan(const std::string& text) {
    auto e = sized<dr_error>();
    dr_plan* parsed = nullptr;
    if (dr_plan_parse(text.c_str(), &parsed, &e) != DR_OK) throw error(e);
    handle.reset(parsed);
  }
  // Canonical; lives as long as the plan.
  std::string_view text() const { return dr_plan_text(handle.get()); }
  const dr_plan* get() const { return handle.get(); }
  // Of tensors that travel beside those of this plan: small ones, and rows that are selected already.
  plan exact() const { return beside(dr_plan_exact); }
  plan rows() const { return beside(dr_plan_rows); }

 private:
  struct destroy {
    void operator()(dr_plan* p) const { dr_plan_destroy(p); }
  };
  plan() = default;
  plan beside(decltype(dr_plan_exact)* derive) const {
    auto e = sized<dr_error>();
    dr_plan* derived = nullptr;
    if (derive(get(), &derived, &e) != DR_OK) throw error(e);
    plan p;
    p.handle.reset(derived);
    return p;
  }
  std::unique_ptr<dr_plan, destroy> handle;
};

inline std::vector<const dr_preset*> presets() {
  std::vector<const dr_preset*> list(dr_preset_count());
  for (size_t i = 0; i < list.size(); ++i) list[i] = dr_preset_at(i);
  return list;
}

inline std::vector<const dr_codec*> codecs() {
  std::vector<const dr_codec*> list(dr_codec_count());
  for (size_t i = 0; i < list.size(); ++i) list[i] = dr_codec_at(i);
  return list;
}

inline void load_plugin(const std::string& path) {
  auto e = sized<dr_error>();
  if (dr_plugin_load(path.c_str(), &e) != DR_OK) throw error(e);
}

// ---- Tensors: borrowed memory -------------------------------------------------------------------------

inline dr_tensor dense(dr_dtype dtype, const void* values, uint64_t rows, uint32_t width = 1) {
  auto t = sized<dr_tensor>();
  t.dtype = dtype;
  t.universe = rows;
  t.width = width;
  t.values = values;
  return t;
}
inline dr_tensor dense(std::span<const float> values) { return dense(DR_F32, values.data(), values.size()); }

// values[count * width] of the rows `indices[count]` of a tensor of `rows` rows.
inline dr_tensor sparse(dr_dtype dtype, const void* values, dr_dtype index_dtype, const void* indices, uint64_t count,
                        uint64_t rows, uint32_t width = 1) {
  auto t = dense(dtype, values, rows, width);
  t.index_dtype = index_dtype;
  t.indices = indices;
  t.count = count;
  return t;
}

inline dr_tensor_out dense_out(dr_dtype dtype, void* values, uint64_t rows, uint32_t width = 1) {
  auto t = sized<dr_tensor_out>();
  t.dtype = dtype;
  t.universe = rows;
  t.width = width;
  t.values = values;
  return t;
}
inline dr_tensor_out dense_out(std::span<float> values) { return dense_out(DR_F32, values.data(), values.size()); }

// Memory for `capacity` rows; decode sets `count`, the number of rows.
inline dr_tensor_out sparse_out(dr_dtype dtype, void* values, dr_dtype index_dtype, void* indices, uint64_t capacity,
                                uint64_t rows, uint32_t width = 1) {
  auto t = dense_out(dtype, values, rows, width);
  t.index_dtype = index_dtype;
  t.indices = indices;
  t.capacity = capacity;
  return t;
}

// Bytes of feedback state that `p` needs for such a tensor; zeroed memory, aligned to 8 bytes, is a fresh state.
inline size_t state_size(const plan& p, const dr_tensor& tensor) {
  auto e = sized<dr_error>();
  size_t bytes = 0;
  if (dr_state_size(p.get(), &tensor, &bytes, &e) != DR_OK) throw error(e);
  return bytes;
}

// ---- Frames -------------------------------------------------------------------------------------------

struct frame {
  dr_frame_info info;
  std::vector<dr_tensor_info> tensors;
};

inline frame inspect(std::span<const std::byte> bytes) {
  auto e = sized<dr_error>();
  frame f{sized<dr_frame_info>(), {}};
  if (dr_inspect(bytes.data(), bytes.size(), &f.info, nullptr, 0, 0, &e) != DR_OK) throw error(e);
  if (f.info.tensors == 0) return f;
  f.tensors.assign(f.info.tensors, sized<dr_tensor_info>());
  if (dr_inspect(bytes.data(), bytes.size(), &f.info, f.tensors.data(), sizeof(dr_tensor_info), f.tensors.size(), &e) !=
      DR_OK)
    throw error(e);
  return f;
}

// One thread at a time, like a dr_context. Every method throws dr::error.
class context {
 public:
  explicit context(uint32_t threads = 0) : context(with_threads(threads)) {}
  explicit context(const dr_context_options& options) {
    auto e = sized<dr_error>();
    dr_context* made = nullptr;
    if (dr_context_create(&options, &made, &e) != DR_OK) throw error(e);
    handle.reset(made);
  }
  dr_context* get() const { return handle.get(); }

  size_t bound(const plan& p, std::span<const dr_tensor> tensors, const dr_call* call = nullptr) {
    size_t bytes = 0;
    check(dr_bound(get(), p.get(), call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(), &bytes));
    return bytes;
  }

  // Into memory of the caller; returns the frame's size.
  size_t encode_into(std::span<std::byte> room, const plan& p, std::span<const dr_tensor> tensors,
                     const dr_call* call = nullptr) {
    auto result = sized<dr_result>();
    check(dr_encode(get(), p.get(), call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(), room.data(),
                    room.size(), &result));
    return result.size;
  }
  std::vector<std::byte> encode(const plan& p, std::span<const dr_tensor> tensors, const dr_call* call = nullptr) {
    std::vector<std::byte> bytes(bound(p, tensors, call));
    bytes.resize(encode_into(bytes, p, tensors, call));
    return bytes;
  }
  std::vector<std::byte> encode(const plan& p, const dr_tensor& tensor, const dr_call* call = nullptr) {
    return encode(p, std::span(&tensor, 1), call);
  }

  void decode(std::span<const std::byte> bytes, std::span<dr_tensor_out> outs,
              const dr_decode_options* options = nullptr) {
    check(dr_decode(get(), nullptr, bytes.data(), bytes.size(), options, outs.data(), sizeof(dr_tensor_out),
                    outs.size()));
  }
  // A frame of one tensor; returns the rows of its support.
  uint64_t decode(std::span<const std::byte> bytes, dr_tensor_out out, const dr_decode_options* options = nullptr) {
    decode(bytes, std::span(&out, 1), options);
    return out.count;
  }

  // weights: one for each frame, or empty: all 1.
  void merge(std::span<const dr_bytes> frames, std::span<const float> weights, std::span<dr_tensor_out> outs,
             const dr_decode_options* options = nullptr) {
    if (!weights.empty() && weights.size() != frames.size())
      throw std::invalid_argument("merge: " + std::to_string(weights.size()) + " weights for " +
                                  std::to_string(frames.size()) + " frames");
    check(dr_merge(get(), nullptr, frames.data(), weights.empty() ? nullptr : weights.data(), frames.size(), options,
                   outs.data(), sizeof(dr_tensor_out), outs.size()));
  }

 private:
  static dr_context_options with_threads(uint32_t threads) {
    auto options = sized<dr_context_options>();
    options.threads = threads;
    return options;
  }
  void check(dr_status status) const {
    if (status != DR_OK) throw error(*dr_last_error(get()));
  }
  struct destroy {
    void operator()(dr_context* c) const { dr_context_destroy(c); }
  };
  std::unique_ptr<dr_context, destroy> handle;
};

inline dr_bytes bytes_of(std::span<const std::byte> bytes) { return {bytes.data(), bytes.size()}; }

// Tensors and outputs, in a batch prepared for them and bound to it: the calls of a training step, on the CPU. What they
// point to, the outputs themselves and the context must outlive it. No outputs: it only encodes. merges: frames of one merge, at most.
class binding {
 public:
  binding(context& c, const plan& p, std::span<const dr_tensor> tensors, std::span<dr_tensor_out> outs = {},
          size_t merges = 1, uint64_t segment_rows = 0)
      : context_(c.get()) {
    dr_batch* prepared = nullptr;
    check(dr_batch_create(context_, p.get(), nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(), segment_rows,
                          &prepared));
    batch_.reset(prepared);
    if (!outs.empty() && outs.size() != tensors.size())
      throw std::invalid_argument("binding: " + std::to_string(outs.size()) + " outputs for " +
                                  std::to_string(tensors.size()) + " tensors");
    dr_binding* made = nullptr;
    check(dr_binding_create(context_, prepared, nullptr, tensors.data(), sizeof(dr_tensor),
                            outs.empty() ? nullptr : outs.data(), sizeof(dr_tensor_out), tensors.size(), merges,
                            &made));
    handle.reset(made);
  }
  dr_binding* get() const { return handle.get(); }

  // Other memory of the same shapes; empty: what is bound stays.
  void rebind(std::span<const dr_tensor> tensors, std::span<dr_tensor_out> outs = {}) {
    if (!tensors.empty() && !outs.empty() && outs.size() != tensors.size())
      throw std::invalid_argument("rebind: " + std::to_string(outs.size()) + " outputs for " +
                                  std::to_string(tensors.size()) + " tensors");
    check(dr_binding_rebind(get(), tensors.empty() ? nullptr : tensors.data(), sizeof(dr_tensor),
                            outs.empty() ? nullptr : outs.data(), sizeof(dr_tensor_out),
                            tensors.empty() ? outs.size() : tensors.size()));
  }
  // Bytes that suffice for any frame.
  size_t bound() const {
    auto info = sized<dr_batch_info>();
    auto e = sized<dr_error>();
    if (dr_batch_describe(batch_.get(), &info, &e) != DR_OK) throw error(e);
    return info.bound;
  }
  // Returns the frame's size.
  size_t encode_into(std::span<std::byte> room, const dr_call* call = nullptr) {
    auto result = sized<dr_result>();
    check(dr_binding_encode(get(), call, room.data(), room.size(), &result));
    return result.size;
  }
  void decode(std::span<const std::byte> bytes, const dr_decode_options* options = nullptr) {
    check(dr_binding_decode(get(), bytes.data(), bytes.size(), options, nullptr));
  }
  // weights: one for each frame, or empty: all 1.
  void merge(std::span<const dr_bytes> frames, std::span<const float> weights = {},
             const dr_decode_options* options = nullptr) {
    if (!weights.empty() && weights.size() != frames.size())
      throw std::invalid_argument("merge: " + std::to_string(weights.size()) + " weights for " +
                                  std::to_string(frames.size()) + " frames");
    check(dr_binding_merge(get(), frames.data(), weights.empty() ? nullptr : weights.data(), frames.size(), options,
                           nullptr));
  }

 private:
  void check(dr_status status) const {
    if (status != DR_OK) throw error(*dr_last_error(context_));
  }
  struct destroy {
    void operator()(dr_batch* b) const { dr_batch_destroy(b); }
    void operator()(dr_binding* b) const { dr_binding_destroy(b); }
  };
  dr_context* context_;
  std::unique_ptr<dr_batch, destroy> batch_;
  std::unique_ptr<dr_binding, destroy> handle;  // goes before its batch
};

}  // namespace v1
}  // namespace dr
#endif
