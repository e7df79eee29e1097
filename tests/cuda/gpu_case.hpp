// A sender and a receiver at a place (cuda/place.hpp), and the CPU's word beside theirs.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "cuda/gradients.hpp"
#include "cuda/place.hpp"

namespace client {

// Sizes: DR_TEST_SIZES=small keeps to the few that compute-sanitizer has time for; where the CPU plays, no others are tried.
inline bool only_small() {
  const char* const e = std::getenv("DR_TEST_SIZES");
  return !place::on_cuda || (e && std::string(e) == "small");
}
// Around a warp, a block and the tiles of kernels.
inline std::vector<uint64_t> edge_sizes() {
  std::vector<uint64_t> all{1, 31, 32, 33, 255, 256, 257, 4095, 4096, 4097};
  if (!only_small()) all.insert(all.end(), {16383, 16384, 16385, 65535, 65536, 65537});
  return all;
}

inline uint64_t round_trips = 0;  // for the record

inline constexpr dr_dtype value_types[] = {DR_F32, DR_F16, DR_BF16};

// ---- Plans ------------------------------------------------------------------------------------------------

inline bool runs_on_gpu(const std::string& name, dr_role role) {
  for (size_t i = 0; i < dr_codec_count(); ++i) {
    const dr_codec& c = *dr_codec_at(i);
    if (c.role == role && name == c.name) return c.cuda && !(c.traits & DR_HOST_ONLY);
  }
  return false;
}

// Texts of the codecs of a role that have CUDA operations, with parameters worth a test of their own; new codecs come by themselves.
// `based`: those that code against the base of a patch.
inline std::vector<std::string> stages(dr_role role, bool based = false) {
  const std::map<std::string, std::vector<std::string>> variants{
      {"bloom", {"bloom(fpr=0.01)", "bloom(policy=p0,fpr=0.02,seed=4294967295)", "bloom(policy=naive,fpr=0.05)"}},
      {"qsgd", {"qsgd", "qsgd(levels=7,bucket=100)", "qsgd(levels=1,bucket=1)"}},
      {"log_quant", {"log_quant", "log_quant(bits=6,range=64)"}},
      {"uniform_quant", {"uniform_quant", "uniform_quant(bits=4)"}},
      {"half", {"half", "half(type=bf16)"}},
      {"sign", {"sign", "sign(scale=mean)", "sign(scale=means)"}},
      {"ternary", {"ternary", "ternary(clip=0)"}},
      {"lloyd", {"lloyd", "lloyd(levels=16,price=0.01)"}},
      {"fit_poly", {"fit_poly", "fit_poly(degree=0)"}}};
  std::vector<std::string> all;
  for (size_t i = 0; i < dr_codec_count(); ++i) {
    const dr_codec& c = *dr_codec_at(i);
    if (c.role != role || !runs_on_gpu(c.name, role) || based != ((c.traits & DR_NEEDS_BASE) != 0)) continue;
    const auto v = variants.find(c.name);
    const std::vector<std::string> texts = v == variants.end() ? std::vector<std::string>{c.name} : v->second;
    all.insert(all.end(), texts.begin(), texts.end());
  }
  return all;
}

// Every index codec with every value codec. A codec that reorders brings its order codec along.
inline std::vector<std::string> pairs_of_codecs() {
  std::vector<std::string> all;
  for (const std::string& index : stages(DR_ROLE_INDEX))
    for (const std::string& value : stages(DR_ROLE_VALUE)) {
      const bool ordered = value.starts_with("fit_poly") && !index.starts_with("raw");
      if (ordered && !runs_on_gpu("bitpack", DR_ROLE_ORDER)) continue;
      all.push_back("index=" + index + " value=" + value);
    }
  return all;
}

// ---- The CPU's word ---------------------------------------------------------------------------------------

struct encoded {
  dr_status status = DR_OK;
  bytes frame;
  dr_result result{.struct_size = sizeof(dr_result)};
  std::string error;
};

inline std::vector<dr_tensor> tensors_of(gradients& g) {
  std::vector<dr_tensor> all;
  for (gradient& one : g) all.push_back(one.tensor());
  return all;
}

// States in g go on.
inline encoded encode_on_cpu(const plan& p, gradients& g, dr_call call = {}) {
  context c;
  const std::vector<dr_tensor> tensors = tensors_of(g);
  encoded e;
  size_t bound = 0;
  call.struct_size = sizeof call;
  REQUIRE(dr_bound(c.handle, p.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(), &bound) ==
          DR_OK);
  e.frame.resize(bound);
  e.result.struct_size = sizeof e.result;
  e.status = dr_encode(c.handle, p.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(),
                       e.frame.data(), bound, &e.result);
  if (e.status) e.error = c.error();
  e.frame.resize(e.result.size);
  return e;
}

struct decoded {
  dr_status status = DR_OK;
  std::vector<bytes> values;
  dr_result result{.struct_size = sizeof(dr_result)};
  std::string error;
};

inline dr_tensor_out out_for(const gradient& like, bool as_f32, void* values) {
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = as_f32 ? dr_dtype{DR_F32} : like.dtype;
  o.universe = like.universe;
  o.width = like.width;
  o.values = values;
  return o;
}
inline uint64_t out_size(const gradient& like, bool as_f32) {
  return like.universe * like.width * (as_f32 ? 4 : bytes_of(like.dtype));
}

inline decoded decode_on_cpu(const bytes& frame, const gradients& like, bool as_f32) {
  context c;
  decoded d;
  std::vector<dr_tensor_out> outs;
  for (const gradient& g : like) d.values.emplace_back(out_size(g, as_f32) + 1);
  for (size_t i = 0; i < like.size(); ++i) outs.push_back(out_for(like[i], as_f32, d.values[i].data()));
  const uint8_t nothing = 0;
  d.status = dr_decode(c.handle, nullptr, frame.empty() ? &nothing : frame.data(), frame.size(), nullptr, outs.data(),
                       sizeof(dr_tensor_out), outs.size());
  if (d.status) d.error = c.error();
  for (size_t i = 0; i < like.size(); ++i) d.values[i].pop_back();
  return d;
}

inline decoded merge_on_cpu(const std::vector<bytes>& frames, const floats& weights, bool adds, const gradients& like,
                            bool as_f32, const std::vector<bytes>& before) {
  context c;
  decoded d;
  d.values = before;
  std::vector<dr_tensor_out> outs;
  for (size_t i = 0; i < like.size(); ++i) outs.push_back(out_for(like[i], as_f32, d.values[i].data()));
  std::vector<dr_bytes> list;
  for (const bytes& f : frames) list.push_back({f.data(), f.size()});
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = adds ? uint32_t{DR_DECODE_ADD} : 0u;
  d.status = dr_merge(c.handle, nullptr, list.data(), weights.empty() ? nullptr : weights.data(), list.size(), &options,
                      outs.data(), sizeof(dr_tensor_out), outs.size());
  if (d.status) d.error = c.error();
  return d;
}

// ---- A batch at the place, its senders and receivers ------------------------------------------------------

struct placed_batch {
  plan method;
  int32_t seed;
  place::stream on;
  context c;
  dr_batch* handle = nullptr;
  dr_batch_info info{};

  placed_batch(const std::string& text, gradients like, int32_t order_seed = 1, uint64_t segment_rows = 0)
      : method(text), seed(order_seed), on(order_seed) {
    const std::vector<dr_tensor> tensors = tensors_of(like);
    const dr_place at = on.at();
    const dr_status s = dr_batch_create(c.handle, method.handle, &at, tensors.data(), sizeof(dr_tensor), tensors.size(),
                                        segment_rows, &handle);
    INFO(text << ": " << c.error());
    REQUIRE(s == DR_OK);
    info.struct_size = sizeof info;
    REQUIRE(dr_batch_describe(handle, &info, nullptr) == DR_OK);
  }
  ~placed_batch() { dr_batch_destroy(handle); }
  placed_batch(const placed_batch&) = delete;
  placed_batch& operator=(const placed_batch&) = delete;
};

inline place::buffer buffer_with(const void* from, size_t size, size_t shift = 0) {
  place::buffer b(size, shift);
  b.put_bytes(from, size);
  return b;
}

// Encodes, on a stream of its own with memory of its own.
class sender {
 public:
  place::stream stream;

  // shift: elements by which values and indices are off any alignment that allocation gives
  sender(const placed_batch& b, const gradients& g, size_t shift = 0)
      : stream(b.seed), batch_(b), workspace_(b.info.workspace), frame_(b.info.bound), result_(sizeof(dr_result)) {
    for (const gradient& one : g) {
      values_.push_back(buffer_with(one.values.data(), one.values.size(), shift * bytes_of(one.dtype)));
      indices_.push_back(
          buffer_with(one.indices.data(), one.indices.size(), one.index_dtype ? shift * bytes_of(one.index_dtype) : 0));
      states_.push_back(buffer_with(one.state.data(), 8 * one.state.size()));
      bases_.push_back(buffer_with(one.base.data(), one.base.size(), (shift / 2) * bytes_of(one.dtype)));
      dr_tensor t = const_cast<gradient&>(one).tensor();
      t.values = values_.back().at();
      if (one.index_dtype) t.indices = indices_.back().at();
      if (!one.base.empty()) t.base = bases_.back().at();
      if (!one.state.empty()) t.state = states_.back().at();
      tensors_.push_back(t);
    }
    place::start_result(result_);
  }

  // Fresh gradients of the same shapes, in the same memory. States stay.
  void put(const gradients& g) {
    for (size_t i = 0; i < g.size(); ++i) {
      values_[i].put_bytes(g[i].values.data(), g[i].values.size());
      indices_[i].put_bytes(g[i].indices.data(), g[i].indices.size());
      bases_[i].put_bytes(g[i].base.data(), g[i].base.size());
    }
  }
  // Forgets the last frame, so that the next cannot be it.
  void forget() {
    frame_.poison_again();
    workspace_.poison_again();
    place::start_result(result_);
  }

  // Throws, for use inside a capture, where no check may speak.
  void enqueue(dr_call call = {}) {
    call.struct_size = sizeof call;
    const dr_place at = stream.at();
    const dr_status s =
        dr_batch_encode(c_.handle, batch_.handle, &call, &at, tensors_.data(), sizeof(dr_tensor), tensors_.size(),
                        workspace_.at(), workspace_.size(), frame_.at(), frame_.size(), result());
    if (s) throw std::runtime_error("dr_batch_encode: " + c_.error());
  }
  encoded read() {
    stream.wait();
    encoded e;
    place::get(&e.result, result_.at(), sizeof(dr_result));
    e.status = e.result.status;
    REQUIRE(e.result.size <= frame_.size());
    e.frame = frame_.bytes(e.result.size);
    return e;
  }
  encoded encode(const dr_call& call = {}) {
    enqueue(call);
    return read();
  }
  std::vector<uint64_t> state(size_t i) const {
    std::vector<uint64_t> s(states_[i].size() / 8);
    place::get(s.data(), states_[i].at(), states_[i].size());
    return s;
  }
  void check_guards() const {
    CHECK(workspace_.intact());
    CHECK(frame_.intact());
    CHECK(result_.intact());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      CHECK(values_[i].intact());
      CHECK(indices_[i].intact());
      CHECK(states_[i].intact());
      CHECK(bases_[i].intact());
    }
  }
  dr_result* result() const { return reinterpret_cast<dr_result*>(result_.at()); }
  const place::buffer& frame() const { return frame_; }

 private:
  const placed_batch& batch_;
  context c_;
  std::vector<place::buffer> values_, indices_, states_, bases_;
  place::buffer workspace_, frame_, result_;
  std::vector<dr_tensor> tensors_;
};

// Decodes and merges up to k frames, on a stream of its own with memory of its own.
class receiver {
 public:
  place::stream stream;

  // frame_room: bytes for each frame
  receiver(const placed_batch& b, const gradients& like, size_t k, size_t frame_room, bool as_f32)
      : stream(b.seed), batch_(b), result_(sizeof(dr_result)), room_(frame_room) {
    size_t workspace = 0;
    REQUIRE(dr_batch_merge_workspace(b.handle, k, &workspace, nullptr) == DR_OK);
    workspace_ = place::buffer(workspace);
    for (size_t i = 0; i < k; ++i) frames_.emplace_back(frame_room);
    for (const gradient& g : like) {
      values_.emplace_back(out_size(g, as_f32));
      outs_.push_back(out_for(g, as_f32, values_.back().at()));
    }
    list_.resize(k);
    place::start_result(result_);
  }

  void put_frame(size_t i, const bytes& frame) {
    REQUIRE(frame.size() <= room_);
    frames_[i].poison_again();
    frames_[i].put_bytes(frame.data(), frame.size());
    list_[i] = {frames_[i].at(), frame.size()};
  }
  // Frames that are at the place already.
  void adopt_frame(size_t i, const void* at, size_t size) { list_[i] = {at, size}; }
  void put_values(const std::vector<bytes>& values) {
    for (size_t i = 0; i < values.size(); ++i) values_[i].put_bytes(values[i].data(), values[i].size());
  }
  // Outputs, workspace and result as if nothing had ever been there.
  void forget() {
    workspace_.poison_again();
    for (const place::buffer& v : values_) place::fill(v.at(), place::buffer::poison, v.size());
    place::start_result(result_);
  }

  void enqueue_decode(uint32_t flags = 0) {
    const dr_place at = stream.at();
    dr_decode_options options{};
    options.struct_size = sizeof options;
    options.flags = flags;
    const dr_status s = dr_batch_decode(c_.handle, batch_.handle, &at, list_[0].data, list_[0].size, &options,
                                        outs_.data(), sizeof(dr_tensor_out), outs_.size(), workspace_.at(),
                                        workspace_.size(), reinterpret_cast<dr_result*>(result_.at()));
    if (s) throw std::runtime_error("dr_batch_decode: " + c_.error());
  }
  void enqueue_merge(const floats& weights, bool adds) {
    const dr_place at = stream.at();
    dr_decode_options options{};
    options.struct_size = sizeof options;
    options.flags = adds ? uint32_t{DR_DECODE_ADD} : 0u;
    const dr_status s =
        dr_batch_merge(c_.handle, batch_.handle, &at, list_.data(), weights.empty() ? nullptr : weights.data(),
                       list_.size(), &options, outs_.data(), sizeof(dr_tensor_out), outs_.size(), workspace_.at(),
                       workspace_.size(), reinterpret_cast<dr_result*>(result_.at()));
    if (s) throw std::runtime_error("dr_batch_merge: " + c_.error());
  }
  decoded read() {
    stream.wait();
    decoded d;
    place::get(&d.result, result_.at(), sizeof(dr_result));
    d.status = d.result.status;
    for (const place::buffer& v : values_) d.values.push_back(v.bytes());
    return d;
  }
  decoded decode(const bytes& frame) {
    put_frame(0, frame);
    forget();
    enqueue_decode();
    return read();
  }
  void check_guards() const {
    CHECK(workspace_.intact());
    CHECK(result_.intact());
    for (const place::buffer& f : frames_) CHECK(f.intact());
    for (const place::buffer& v : values_) CHECK(v.intact());
  }

 private:
  const placed_batch& batch_;
  context c_;
  place::buffer workspace_, result_;
  std::vector<place::buffer> frames_, values_;
  std::vector<dr_tensor_out> outs_;
  std::vector<dr_bytes> list_;
  size_t room_;
};

// ---- Comparisons ------------------------------------------------------------------------------------------

inline void require_same(const bytes& got, const bytes& want, const char* what) {
  if (got == want) return;
  const auto first = std::mismatch(got.begin(), got.end(), want.begin(), want.end()).first - got.begin();
  INFO(what << ": " << got.size() << " bytes for " << want.size() << ", the first difference at " << first);
  REQUIRE(got == want);
}

inline bool all_poison(const std::vector<bytes>& values) {
  return std::all_of(values.begin(), values.end(), [](const bytes& v) {
    return std::all_of(v.begin(), v.end(), [](uint8_t b) { return b == place::buffer::poison; });
  });
}

inline void require_no_trouble() {
  const std::string trouble = place::trouble();
  INFO("CUDA: " << trouble);
  REQUIRE(trouble.empty());
}

// CPU encode → GPU encode: the same frame, states and faults. GPU encode → CPU decode, CPU encode → GPU decode: the same values, of the
// gradient's type and of f32.
inline void both_ways(const std::string& text, const gradients& g, const dr_call& call = {}, int32_t seed = 1,
                      size_t shift = 0) {
  INFO(text);
  ++round_trips;
  const placed_batch b(text, g, seed, call.segment_rows);
  gradients own = g;
  const encoded want = encode_on_cpu(b.method, own, call);
  sender s(b, g, shift);
  const encoded got = s.encode(call);
  s.check_guards();
  INFO("the CPU says: " << want.error);
  REQUIRE(got.status == want.status);
  for (size_t i = 0; i < g.size(); ++i) CHECK(s.state(i) == own[i].state);
  if (want.status) {
    CHECK(got.result.tensor == want.result.tensor);
    CHECK(got.result.stream == want.result.stream);
    CHECK(got.result.where == want.result.where);
    CHECK(got.result.what == want.result.what);
    return;
  }
  require_same(got.frame, want.frame, "frame");
  uint64_t dense = 0;
  for (const gradient& one : g) dense += out_size(one, true);
  if (dense > (uint64_t{1} << 30)) return;  // a universe for sparse outputs
  const bool halves = std::any_of(g.begin(), g.end(), [](const gradient& one) { return one.dtype != DR_F32; });
  for (const bool as_f32 : {true, false}) {
    if (!as_f32 && !halves) continue;
    receiver r(b, g, 1, want.frame.size(), as_f32);
    const decoded x = decode_on_cpu(got.frame, g, as_f32), y = r.decode(want.frame);
    r.check_guards();
    REQUIRE(x.status == DR_OK);
    REQUIRE(y.status == DR_OK);
    for (size_t i = 0; i < g.size(); ++i) require_same(y.values[i], x.values[i], "values");
  }
}

// Steps with feedback: frames and states are the CPU's. call: of the first step; the step of the next one is 1 higher.
inline void steps_with_states(const std::string& text, gradients own, size_t shift = 0, dr_call call = {},
                              uint64_t steps = 3) {
  INFO(text << ", type " << own[0].dtype);
  for (gradient& g : own) g.give_state();
  const placed_batch b(text, own, 1, call.segment_rows);
  sender at(b, own, shift);
  for (uint64_t step = 0; step < steps; ++step, ++call.step) {
    INFO("step " << step);
    for (size_t i = 0; i < own.size(); ++i) own[i].values = make(own[i].dtype, own[i].universe, 10 * step + i).values;
    at.put(own);
    at.forget();
    const encoded want = encode_on_cpu(b.method, own, call), got = at.encode(call);
    INFO("the CPU says: " << want.error);
    REQUIRE(want.status == DR_OK);
    REQUIRE(got.status == DR_OK);
    require_same(got.frame, want.frame, "frame");
    for (size_t i = 0; i < own.size(); ++i) REQUIRE(at.state(i) == own[i].state);
  }
  at.check_guards();
}

// Merges k frames, added or not, to outputs of each type: the CPU's sums, to the bit. of(i): the gradients of frame i.
template <class Of>
void require_same_merge(const std::string& text, dr_dtype dtype, size_t k, Of&& of, uint64_t segment_rows = 0) {
  const gradients like = of(0);
  std::vector<bytes> frames;
  floats weights;
  size_t room = 16;
  const plan p(text);
  for (size_t i = 0; i < k; ++i) {
    gradients g = of(i);
    dr_call call{};
    call.segment_rows = segment_rows;
    frames.push_back(encode_on_cpu(p, g, call).frame);
    weights.push_back(1 / static_cast<float>(i + 1));
    room = std::max(room, frames.back().size());
  }
  const placed_batch b(text, like, 1, segment_rows);
  for (const bool as_f32 : {true, false})
    for (const bool adds : {true, false}) {
      INFO(text << ", type " << dtype << ", " << k << " frames, as f32 " << as_f32 << ", adds " << adds);
      std::vector<bytes> before;
      for (const gradient& g : like) before.push_back(make(as_f32 ? dr_dtype{DR_F32} : dtype, g.universe, 50).values);
      receiver r(b, like, k, room, as_f32);
      for (size_t i = 0; i < k; ++i) r.put_frame(i, frames[i]);
      r.put_values(before);
      r.enqueue_merge(weights, adds);
      const decoded got = r.read(), want = merge_on_cpu(frames, weights, adds, like, as_f32, before);
      r.check_guards();
      REQUIRE(want.status == DR_OK);
      REQUIRE(got.status == DR_OK);
      for (size_t i = 0; i < got.values.size(); ++i) require_same(got.values[i], want.values[i], "sums");
    }
}

}  // namespace client
