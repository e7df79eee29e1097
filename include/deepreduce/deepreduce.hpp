// DeepReduce for C++20: deepreduce.h with destructors, spans and exceptions. Header only; deepreduce.h documents the
// functions and their errors. exchange.hpp, transform.hpp and control.hpp do the same for the headers of their names.
// All is for the CPU: for a dr_place call the C functions with the handles that `get` returns.
//
//   dr::plan plan("sparsify=topr(ratio=0.01) index=golomb value=raw");
//   dr::context context;
//   std::vector<std::byte> frame = context.encode(plan, dr::dense(gradient));      gradient: std::span<const float>
//   context.decode(frame, dr::dense_out(received));                                received: std::span<float>
#ifndef DEEPREDUCE_HPP
#define DEEPREDUCE_HPP

#if !defined(__cplusplus) || __cplusplus < 201709L
#error "deepreduce.hpp needs C++20 (-std=c++20); deepreduce.h serves older C++ and C"
#else

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepreduce.h"

namespace dr {
inline namespace v1 {  // two versions of this header in one program are two sets of classes

// what() is "CORRUPT: the message".
struct error : std::runtime_error {
  explicit error(const dr_error& e)
      : std::runtime_error(std::string(dr_status_name(e.code)) + ": " + e.message), detail(e) {}
  dr_status code() const { return detail.code; }
  dr_error detail;
};

// A versioned struct, all zero except for its size.
template <class T>
T sized() {
  T t{};
  t.struct_size = sizeof(T);
  return t;
}

namespace detail {
// For a function that returns its error in a struct.
template <class F>
void require(F&& call) {
  auto e = sized<dr_error>();
  if (call(&e) != DR_OK) throw error(e);
}
inline void check(const dr_context* c, dr_status status) {
  if (status != DR_OK) throw error(*dr_last_error(c));
}
inline const float* weights_of(std::span<const dr_bytes> frames, std::span<const float> weights) {
  if (weights.empty()) return nullptr;
  if (weights.size() == frames.size()) return weights.data();
  throw std::invalid_argument("merge: " + std::to_string(weights.size()) + " weights for " +
                              std::to_string(frames.size()) + " frames");
}
// Calls write(buffer, capacity, size) twice, for the size and for the text. Errors are in the context, or nullptr.
template <class F>
std::string read_text(const dr_context* c, F&& write) {
  size_t size = 0;
  dr_status status = write(nullptr, size_t{0}, &size);
  std::string text;
  if (status == DR_E_CAPACITY) {
    text.resize(size);
    status = write(text.data(), text.size(), &size);
  }
  if (status == DR_OK) return text;
  if (c) check(c, status);
  throw std::runtime_error(dr_status_name(status));
}
}  // namespace detail

// ---- Versions, of the library that was loaded -----------------------------------------------------------

inline std::string_view version() { return dr_version(); }
inline uint32_t abi_version() { return dr_abi_version(); }
inline uint64_t feature(uint32_t which) { return dr_feature(which); }  // DR_FEATURE_*

// ---- Plans and codecs ---------------------------------------------------------------------------------

class plan {
 public:
  explicit plan(const std::string& text) {
    dr_plan* parsed = nullptr;
    detail::require([&](dr_error* e) { return dr_plan_parse(text.c_str(), &parsed, e); });
    handle.reset(parsed);
  }
  // Canonical; valid as long as the plan.
  std::string_view text() const { return dr_plan_text(handle.get()); }
  dr_plan_info info() const {
    auto found = sized<dr_plan_info>();
    detail::require([&](dr_error* e) { return dr_plan_describe(get(), &found, e); });
    return found;
  }
  const dr_plan* get() const { return handle.get(); }
  // Valid as long as the plan.
  std::vector<dr_stage> stages() const {
    std::vector<dr_stage> list(dr_plan_stage_count(get()), sized<dr_stage>());
    for (size_t i = 0; i < list.size(); ++i)
      detail::require([&](dr_error* e) { return dr_plan_stage(get(), i, &list[i], e); });
    return list;
  }
  // A plan in which stages replace its own: "feedback=none".
  plan with(const std::string& stages) const {
    return beside(
        [&](const dr_plan* p, dr_plan** made, dr_error* e) { return dr_plan_with(p, stages.c_str(), made, e); });
  }
  // Plans for tensors that are sent with those of this plan: small ones, and rows that are selected already.
  plan exact() const { return beside(dr_plan_exact); }
  plan rows() const { return beside(dr_plan_rows); }

 private:
  struct destroy {
    void operator()(dr_plan* p) const { dr_plan_destroy(p); }
  };
  plan() = default;
  template <class Derive>
  plan beside(Derive derive) const {
    dr_plan* derived = nullptr;
    detail::require([&](dr_error* e) { return derive(get(), &derived, e); });
    plan p;
    p.handle.reset(derived);
    return p;
  }
  std::unique_ptr<dr_plan, destroy> handle;
};

// The stages of a text without a lookup of its names; valid as long as this object.
class parsed_stages {
 public:
  explicit parsed_stages(const std::string& text) {
    dr_stages* parsed = nullptr;
    detail::require([&](dr_error* e) { return dr_stages_parse(text.c_str(), &parsed, e); });
    handle.reset(parsed);
    list.assign(dr_stages_count(parsed), sized<dr_stage>());
    for (size_t i = 0; i < list.size(); ++i)
      detail::require([&](dr_error* e) { return dr_stages_at(parsed, i, &list[i], e); });
  }
  std::span<const dr_stage> stages() const { return list; }

 private:
  struct destroy {
    void operator()(dr_stages* s) const { dr_stages_destroy(s); }
  };
  std::unique_ptr<dr_stages, destroy> handle;
  std::vector<dr_stage> list;
};

// The first name of a role; nullptr: the plan has no such stage.
inline const dr_stage* find_stage(std::span<const dr_stage> stages, std::string_view role) {
  for (const dr_stage& s : stages)
    if (role == s.role) return &s;
  return nullptr;
}
// nullptr: the stage has no such parameter.
inline const dr_stage_param* find_param(const dr_stage& stage, std::string_view name) {
  for (size_t i = 0; i < stage.param_count; ++i)
    if (name == dr_stage_param_at(&stage, i)->name) return dr_stage_param_at(&stage, i);
  return nullptr;
}

inline std::vector<const dr_stage_word*> stage_words() {
  std::vector<const dr_stage_word*> list(dr_stage_word_count());
  for (size_t i = 0; i < list.size(); ++i) list[i] = dr_stage_word_at(i);
  return list;
}

// Which tensor has which plan.
class book {
 public:
  // where: its name in errors.
  explicit book(std::string_view text = {}, const std::string& where = "book") {
    dr_book* parsed = nullptr;
    detail::require([&](dr_error* e) { return dr_book_parse(text.data(), text.size(), where.c_str(), &parsed, e); });
    handle.reset(parsed);
  }
  // nullptr: dense. is_name: the pattern matches only itself.
  void add(const std::string& pattern, const plan* p, bool is_name = false) {
    const uint32_t flags = is_name ? static_cast<uint32_t>(DR_BOOK_NAME) : 0;
    detail::require([&](dr_error* e) { return dr_book_add(get(), pattern.c_str(), flags, p ? p->get() : nullptr, e); });
  }
  // The line of a name; position DR_NO_LINE: none, so the tensor is dense.
  dr_book_line match(const std::string& name) const {
    auto line = sized<dr_book_line>();
    detail::require([&](dr_error* e) { return dr_book_match(get(), name.c_str(), &line, e); });
    return line;
  }
  size_t size() const { return dr_book_line_count(get()); }
  dr_book_line operator[](size_t i) const {
    auto line = sized<dr_book_line>();
    detail::require([&](dr_error* e) { return dr_book_line_at(get(), i, &line, e); });
    return line;
  }
  // DR_LINE_* of every line.
  std::vector<uint32_t> uses(std::span<const std::string> names) const {
    std::vector<const char*> list;
    for (const std::string& name : names) list.push_back(name.c_str());
    std::vector<uint32_t> found(size());
    detail::require([&](dr_error* e) { return dr_book_uses(get(), list.data(), list.size(), found.data(), e); });
    return found;
  }
  std::string text() const { return dr_book_text(get()); }
  dr_book* get() const { return handle.get(); }

 private:
  struct destroy {
    void operator()(dr_book* b) const { dr_book_destroy(b); }
  };
  std::unique_ptr<dr_book, destroy> handle;
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

// Returns "", or a note on names that are also names of built-ins.
inline std::string load_plugin(const std::string& path) {
  auto e = sized<dr_error>();
  if (dr_plugin_load(path.c_str(), &e) != DR_OK) throw error(e);
  return e.message;
}
// The codec's structs must exist until the process ends.
inline void register_codec(const dr_codec& codec) {
  detail::require([&](dr_error* e) { return dr_codec_register(&codec, e); });
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

// ---- Patches of weights ---------------------------------------------------------------------------------

// A number for every 4096 bytes of weights: for `sums` of a dr_tensor or dr_tensor_out of a patch.
inline std::vector<uint64_t> base_sums(std::span<const std::byte> weights) {
  std::vector<uint64_t> sums((weights.size() + 4095) / 4096);
  detail::require(
      [&](dr_error* e) { return dr_base_sums(weights.data(), weights.size(), sums.data(), sums.size(), e); });
  return sums;
}
inline uint64_t base_check(std::span<const uint64_t> sums) { return dr_base_check(sums.data(), sums.size()); }

// ---- State of feedback: bytes of the caller, aligned to 8; zeroed memory is a fresh state ---------------

// Bytes that `p` needs for such a tensor.
inline size_t state_size(const plan& p, const dr_tensor& tensor) {
  size_t bytes = 0;
  detail::require([&](dr_error* e) { return dr_state_size(p.get(), &tensor, &bytes, e); });
  return bytes;
}
// Throws unless an encode of such a tensor accepts it.
inline void check_state(const plan& p, const dr_tensor& tensor, std::span<const std::byte> state) {
  detail::require([&](dr_error* e) { return dr_state_check(p.get(), &tensor, state.data(), state.size(), e); });
}
inline std::span<float> residual_of(std::span<std::byte> state) {
  float* values = nullptr;
  uint64_t n = 0;
  detail::require([&](dr_error* e) { return dr_state_residual(state.data(), state.size(), &values, &n, e); });
  return {values, static_cast<size_t>(n)};
}
inline std::span<float> momentum_of(std::span<std::byte> state) {
  float* values = nullptr;
  uint64_t n = 0;
  detail::require([&](dr_error* e) { return dr_state_momentum(state.data(), state.size(), &values, &n, e); });
  return {values, static_cast<size_t>(n)};
}
// residual: of all elements of the tensor, or empty: zeros.
inline void fill_state(const plan& p, const dr_tensor& tensor, std::span<const float> residual,
                       std::span<std::byte> state) {
  const uint64_t elements = tensor.universe * (tensor.width ? tensor.width : 1);
  if (!residual.empty() && residual.size() != elements)
    throw std::invalid_argument("fill_state: a residual of " + std::to_string(residual.size()) +
                                " values; the tensor has " + std::to_string(elements));
  const float* const from = residual.empty() ? nullptr : residual.data();
  detail::require([&](dr_error* e) { return dr_state_fill(p.get(), &tensor, from, state.data(), state.size(), e); });
}
inline void copy_state(std::span<const std::byte> from, uint64_t first, std::span<std::byte> to, uint64_t at,
                       uint64_t elements) {
  detail::require([&](dr_error* e) {
    return dr_state_copy(from.data(), from.size(), first, to.data(), to.size(), at, elements, e);
  });
}
inline void scale_state(std::span<std::byte> state, double factor) {
  detail::require([&](dr_error* e) { return dr_state_scale(state.data(), state.size(), factor, e); });
}
inline double norm_of_state(std::span<const std::byte> state) {
  double norm = 0;
  detail::require([&](dr_error* e) { return dr_state_norm(state.data(), state.size(), &norm, e); });
  return norm;
}

// ---- Frames -------------------------------------------------------------------------------------------

struct frame {
  dr_frame_info info;
  std::vector<dr_tensor_info> tensors;
};

namespace detail {
// Calls read(info, tensors, capacity, error) twice, for the number of tensors and for the tensors.
template <class F>
frame read_frame(F&& read) {
  frame f{sized<dr_frame_info>(), {}};
  require([&](dr_error* e) { return read(&f.info, nullptr, size_t{0}, e); });
  if (f.info.tensors == 0) return f;
  f.tensors.assign(f.info.tensors, sized<dr_tensor_info>());
  require([&](dr_error* e) { return read(&f.info, f.tensors.data(), f.tensors.size(), e); });
  return f;
}
}  // namespace detail

inline frame inspect(std::span<const std::byte> bytes) {
  return detail::read_frame([&](dr_frame_info* info, dr_tensor_info* tensors, size_t capacity, dr_error* e) {
    return dr_inspect(bytes.data(), bytes.size(), info, tensors, sizeof(dr_tensor_info), capacity, e);
  });
}
// Reads only the header of a frame of at most `size` bytes, whose first bytes are `available`; verifies no check.
inline frame read_header(std::span<const std::byte> available, size_t size) {
  return detail::read_frame([&](dr_frame_info* info, dr_tensor_info* tensors, size_t capacity, dr_error* e) {
    return dr_frame_header(available.data(), available.size(), size, info, tensors, sizeof(dr_tensor_info), capacity,
                           e);
  });
}
// The size of the frame at the beginning of `bytes`.
inline size_t frame_size(std::span<const std::byte> bytes) {
  size_t size = 0;
  detail::require([&](dr_error* e) { return dr_frame_size(bytes.data(), bytes.size(), &size, e); });
  return size;
}

// One thread at a time, like a dr_context. Every method throws dr::error.
class context {
 public:
  explicit context(uint32_t threads = 0) : context(with_threads(threads)) {}
  explicit context(const dr_context_options& options) {
    dr_context* made = nullptr;
    detail::require([&](dr_error* e) { return dr_context_create(&options, &made, e); });
    handle.reset(made);
  }
  dr_context* get() const { return handle.get(); }
  void trim() { check(dr_context_trim(get())); }

  size_t bound(const plan& p, std::span<const dr_tensor> tensors, const dr_call* call = nullptr) {
    size_t bytes = 0;
    check(dr_bound(get(), p.get(), call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(), &bytes));
    return bytes;
  }

  // Encodes to the caller's memory; returns the frame's size.
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
  // Decodes a frame of one tensor; returns the rows of its support.
  uint64_t decode(std::span<const std::byte> bytes, dr_tensor_out out, const dr_decode_options* options = nullptr) {
    decode(bytes, std::span(&out, 1), options);
    return out.count;
  }

  // weights: one per frame, or empty: all 1.
  void merge(std::span<const dr_bytes> frames, std::span<const float> weights, std::span<dr_tensor_out> outs,
             const dr_decode_options* options = nullptr) {
    check(dr_merge(get(), nullptr, frames.data(), detail::weights_of(frames, weights), frames.size(), options,
                   outs.data(), sizeof(dr_tensor_out), outs.size()));
  }

 private:
  static dr_context_options with_threads(uint32_t threads) {
    auto options = sized<dr_context_options>();
    options.threads = threads;
    return options;
  }
  void check(dr_status status) const { detail::check(get(), status); }
  struct destroy {
    void operator()(dr_context* c) const { dr_context_destroy(c); }
  };
  std::unique_ptr<dr_context, destroy> handle;
};

inline dr_bytes bytes_of(std::span<const std::byte> bytes) { return {bytes.data(), bytes.size()}; }

// Bounds, layout and workspace, computed once. It serves any number of threads, each with its own context and
// workspace: at least info().workspace bytes to encode, merge_workspace(k) to merge k frames, aligned to 64 bytes.
class batch {
 public:
  batch(context& c, const plan& p, std::span<const dr_tensor> tensors, uint64_t segment_rows = 0) {
    dr_batch* made = nullptr;
    detail::check(c.get(), dr_batch_create(c.get(), p.get(), nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(),
                                           segment_rows, &made));
    handle.reset(made);
  }
  const dr_batch* get() const { return handle.get(); }

  dr_batch_info info() const {
    auto found = sized<dr_batch_info>();
    detail::require([&](dr_error* e) { return dr_batch_describe(get(), &found, e); });
    return found;
  }
  size_t merge_workspace(size_t frames) const {
    size_t bytes = 0;
    detail::require([&](dr_error* e) { return dr_batch_merge_workspace(get(), frames, &bytes, e); });
    return bytes;
  }

  // Returns the frame's size.
  size_t encode_into(std::span<std::byte> room, context& c, std::span<const dr_tensor> tensors,
                     std::span<std::byte> workspace, const dr_call* call = nullptr) const {
    auto result = sized<dr_result>();
    detail::check(c.get(),
                  dr_batch_encode(c.get(), get(), call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(),
                                  workspace.data(), workspace.size(), room.data(), room.size(), &result));
    return result.size;
  }
  void decode(context& c, std::span<const std::byte> bytes, std::span<dr_tensor_out> outs,
              std::span<std::byte> workspace, const dr_decode_options* options = nullptr) const {
    detail::check(c.get(),
                  dr_batch_decode(c.get(), get(), nullptr, bytes.data(), bytes.size(), options, outs.data(),
                                  sizeof(dr_tensor_out), outs.size(), workspace.data(), workspace.size(), nullptr));
  }
  // weights: one for each frame, or empty: all 1.
  void merge(context& c, std::span<const dr_bytes> frames, std::span<const float> weights,
             std::span<dr_tensor_out> outs, std::span<std::byte> workspace,
             const dr_decode_options* options = nullptr) const {
    detail::check(c.get(), dr_batch_merge(c.get(), get(), nullptr, frames.data(), detail::weights_of(frames, weights),
                                          frames.size(), options, outs.data(), sizeof(dr_tensor_out), outs.size(),
                                          workspace.data(), workspace.size(), nullptr));
  }

 private:
  struct destroy {
    void operator()(dr_batch* b) const { dr_batch_destroy(b); }
  };
  std::unique_ptr<dr_batch, destroy> handle;
};

// Tensors and outputs, in a batch prepared for them and bound to it: the calls of a training step, on the CPU. What they
// point to, the outputs themselves and the context must outlive it. No outputs: it only encodes. merges: largest number of frames of a merge.
class binding {
 public:
  binding(context& c, const plan& p, std::span<const dr_tensor> tensors, std::span<dr_tensor_out> outs = {},
          size_t merges = 1, uint64_t segment_rows = 0)
      : context_(c.get()), batch_(c, p, tensors, segment_rows) {
    if (!outs.empty() && outs.size() != tensors.size())
      throw std::invalid_argument("binding: " + std::to_string(outs.size()) + " outputs for " +
                                  std::to_string(tensors.size()) + " tensors");
    dr_binding* made = nullptr;
    check(dr_binding_create(context_, batch_.get(), nullptr, tensors.data(), sizeof(dr_tensor),
                            outs.empty() ? nullptr : outs.data(), sizeof(dr_tensor_out), tensors.size(), merges,
                            &made));
    handle.reset(made);
  }
  binding(binding&&) noexcept = default;
  binding& operator=(binding&& other) noexcept {
    handle = std::move(other.handle);  // before the batch that it was bound to
    batch_ = std::move(other.batch_);
    context_ = other.context_;
    return *this;
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
  size_t bound() const { return batch_.info().bound; }
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
    check(dr_binding_merge(get(), frames.data(), detail::weights_of(frames, weights), frames.size(), options, nullptr));
  }

 private:
  void check(dr_status status) const { detail::check(context_, status); }
  struct destroy {
    void operator()(dr_binding* b) const { dr_binding_destroy(b); }
  };
  dr_context* context_;
  batch batch_;
  std::unique_ptr<dr_binding, destroy> handle;  // goes before its batch
};

}  // namespace v1
}  // namespace dr
#endif
#endif
