// Encoders and decoders at the place, with sets of inputs; they are verified against the CPU before they are measured.
#pragma once

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "bench/gpu/gpu_measure.hpp"

namespace gpu_bench {

struct tensor_shape {
  uint64_t universe;
  uint64_t count = 0;  // 0: dense; else so many pairs of i64 and f32
};

// This build lacks its operations.
struct not_here : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct context {
  dr_context* handle = nullptr;
  explicit context(uint32_t threads = 1) {
    dr_context_options options{};
    options.struct_size = sizeof options;
    options.threads = threads;
    if (dr_context_create(&options, &handle, nullptr)) throw std::runtime_error("dr_context_create");
  }
  ~context() { dr_context_destroy(handle); }
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  void must(dr_status s) const {
    if (s == DR_E_UNSUPPORTED) throw not_here(dr_last_error(handle)->message);
    if (s) throw std::runtime_error(dr_last_error(handle)->message);
  }
};

struct plan {
  dr_plan* handle = nullptr;
  explicit plan(const std::string& text) {
    dr_error error{sizeof(dr_error)};
    error.struct_size = sizeof error;
    if (dr_plan_parse(text.c_str(), &handle, &error)) throw std::runtime_error(text + ": " + error.message);
  }
  ~plan() { dr_plan_destroy(handle); }
  plan(const plan&) = delete;
  plan& operator=(const plan&) = delete;
};

using bytes = std::vector<uint8_t>;

inline uint64_t rounded(uint64_t size) { return (size + 255) / 256 * 256; }

// The number of sets whose size exceeds twice the L2, at most 16.
inline size_t sets_for(uint64_t bytes_of_a_set) {
  const uint64_t wanted = 2 * cache_size();
  return static_cast<size_t>(std::clamp<uint64_t>(wanted / std::max<uint64_t>(1, bytes_of_a_set) + 1, 2, 16));
}
inline bool fits_cache(uint64_t bytes_of_a_set, size_t sets) { return sets * bytes_of_a_set < 2 * cache_size(); }

// Set i of an encoder's inputs: the values of all tensors contiguously, and their indices.
struct input_set {
  place::buffer values, indices;
  std::vector<dr_tensor> tensors;
};

class encoder {
 public:
  encoder(session& s, const std::string& text, const std::vector<tensor_shape>& shapes,
          input_kind kind = input_kind::laplace)
      : s_(s), text_(text), plan_(text), shapes_(shapes), kind_(kind), c_(), result_(sizeof(dr_result)) {
    for (const tensor_shape& t : shapes_) {
      elements_ += t.universe;
      pairs_ += t.count;
      value_bytes_ += rounded(4 * (t.count ? t.count : t.universe));
      index_bytes_ += rounded(8 * t.count);
    }
    sets_.resize(sets_for(input_bytes()));
    make_states();
    for (size_t i = 0; i < sets_.size(); ++i) make_set(sets_[i], i);
    const dr_place at = s_.stream.at();
    const auto begin = std::chrono::steady_clock::now();
    c_.must(dr_batch_create(c_.handle, plan_.handle, &at, sets_[0].tensors.data(), sizeof(dr_tensor), shapes_.size(), 0,
                            &batch_));
    create_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    info_.struct_size = sizeof info_;
    c_.must(dr_batch_describe(batch_, &info_, nullptr));
    workspace_ = place::buffer(info_.workspace);
    frame_ = place::buffer(info_.bound);
    place::start_result(result_);
  }
  ~encoder() { dr_batch_destroy(batch_); }
  encoder(const encoder&) = delete;
  encoder& operator=(const encoder&) = delete;

  void enqueue(size_t set) {
    const dr_place at = s_.stream.at();
    dr_call call{};
    call.struct_size = sizeof call;
    call.seed = 1;
    call.private_seed = 2;
    const input_set& in = sets_[set];
    c_.must(dr_batch_encode(c_.handle, batch_, &call, &at, in.tensors.data(), sizeof(dr_tensor), in.tensors.size(),
                            workspace_.at(), info_.workspace, frame_.at(), info_.bound,
                            reinterpret_cast<dr_result*>(result_.at())));
  }
  // Waits for the frame.
  bytes frame_of(size_t set) {
    place::fill(frame_.at(), 0xa5, frame_.size());
    enqueue(set);
    s_.stream.wait();
    dr_result told{.struct_size = sizeof(dr_result)};
    place::get(&told, result_.at(), sizeof told);
    if (told.status)
      throw std::runtime_error("tensor " + std::to_string(told.tensor) + ": " + dr_status_name(told.status));
    if (!workspace_.intact() || !frame_.intact()) throw std::runtime_error("something was written out of bounds");
    return frame_.bytes(told.size);
  }
  // Replaces the gradients of a set.
  void refill(size_t set, uint64_t seed) {
    enqueue_fill(sets_[set], seed);
    s_.stream.wait();
  }
  void enqueue_refill(size_t set, uint64_t seed) { enqueue_fill(sets_[set], seed); }

  // Throws unless the frame and the states equal those of the CPU, byte for byte.
  void verify() {
    const size_t set = sets_.size() - 1;
    const bytes got = frame_of(set);
    frame_bytes_ = got.size();
    const input_set& in = sets_[set];
    const bytes values = in.values.bytes(value_bytes_), indices = in.indices.bytes(index_bytes_);
    std::vector<dr_tensor> own = in.tensors;
    std::vector<std::vector<uint64_t>> states(own.size());
    for (size_t i = 0; i < own.size(); ++i) {
      own[i].values = values.data() + (static_cast<const uint8_t*>(own[i].values) - in.values.at());
      if (own[i].indices)
        own[i].indices = indices.data() + (static_cast<const uint8_t*>(own[i].indices) - in.indices.at());
      states[i].assign(own[i].state_size / 8, 0);
      if (own[i].state) own[i].state = states[i].data();
    }
    const context cpu(std::max(1u, std::thread::hardware_concurrency()));
    bytes want(info_.bound);
    dr_call call{};
    call.struct_size = sizeof call;
    call.seed = 1;
    call.private_seed = 2;
    dr_result told{.struct_size = sizeof(dr_result)};
    cpu.must(dr_encode(cpu.handle, plan_.handle, &call, nullptr, own.data(), sizeof(dr_tensor), own.size(), want.data(),
                       want.size(), &told));
    want.resize(told.size);
    if (got != want) throw std::runtime_error("the frame is not the CPU's");
    for (size_t i = 0; i < own.size(); ++i)
      if (own[i].state) {
        bytes state(own[i].state_size);
        place::get(state.data(), in.tensors[i].state, state.size());
        if (std::memcmp(state.data(), states[i].data(), state.size()) != 0)
          throw std::runtime_error("the state is not the CPU's");
      }
  }

  candidate as_candidate(std::shared_ptr<encoder> self, const std::string& name) {
    candidate c;
    c.about.name = name;
    c.about.plan = text_;
    c.about.elements = elements_;
    c.about.tensors = shapes_.size();
    c.about.kept = kept();
    c.about.frame_bytes = frame_bytes_;
    c.about.launches = info_.launches;
    // The bytes that must be read and written; a residual is both.
    c.about.bytes = input_bytes() + frame_bytes_ + (states_.empty() ? 0 : 8 * elements_);
    c.sets = sets_.size();
    c.fits_cache = fits_cache(input_bytes(), sets_.size());
    c.enqueue = [this](size_t set) { enqueue(set); };
    c.keeps = std::move(self);
    return c;
  }

  uint64_t kept() const {
    if (pairs_) return pairs_;
    dr_frame_info head{};
    head.struct_size = sizeof head;
    std::vector<dr_tensor_info> infos(shapes_.size());
    for (dr_tensor_info& t : infos) t.struct_size = sizeof t;
    const bytes frame = frame_.bytes(frame_bytes_);
    uint64_t all = 0;
    if (dr_inspect(frame.data(), frame.size(), &head, infos.data(), sizeof infos[0], infos.size(), nullptr) == DR_OK)
      for (const dr_tensor_info& t : infos) all += t.support;
    return all;
  }
  uint64_t input_bytes() const { return pairs_ ? 12 * pairs_ : 4 * elements_; }
  const dr_batch* batch() const { return batch_; }
  const dr_batch_info& info() const { return info_; }
  const std::vector<tensor_shape>& shapes() const { return shapes_; }
  const float* values(size_t set) const { return reinterpret_cast<const float*>(sets_[set].values.at()); }
  size_t sets() const { return sets_.size(); }
  const std::string& text() const { return text_; }
  uint64_t elements() const { return elements_; }
  double create_ms() const { return create_ms_; }

 private:
  void make_states() {
    for (const tensor_shape& t : shapes_) {
      dr_tensor view{};
      view.struct_size = sizeof view;
      view.dtype = DR_F32;
      view.universe = t.universe;
      size_t size = 0;
      dr_error error{sizeof(dr_error)};
      error.struct_size = sizeof error;
      if (dr_state_size(plan_.handle, &view, &size, &error)) throw std::runtime_error(error.message);
      if (size == 0) return;
      states_.emplace_back(size);
      place::fill(states_.back().at(), 0, size);
    }
  }
  void make_set(input_set& in, uint64_t seed) {
    in.values = place::buffer(value_bytes_);
    in.indices = place::buffer(index_bytes_);
    uint64_t value_at = 0, index_at = 0;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const tensor_shape& shape = shapes_[i];
      dr_tensor t{};
      t.struct_size = sizeof t;
      t.dtype = DR_F32;
      t.universe = shape.universe;
      t.values = in.values.at() + value_at;
      value_at += rounded(4 * (shape.count ? shape.count : shape.universe));
      if (shape.count) {
        t.index_dtype = DR_I64;
        t.indices = in.indices.at() + index_at;
        t.count = shape.count;
        index_at += rounded(8 * shape.count);
      }
      if (!states_.empty()) {
        t.state = states_[i].at();
        t.state_size = states_[i].size();
      }
      in.tensors.push_back(t);
    }
    enqueue_fill(in, seed);
    s_.stream.wait();
  }
  void enqueue_fill(input_set& in, uint64_t seed) {
    for (size_t i = 0; i < shapes_.size(); ++i) {
      auto* const values = static_cast<float*>(const_cast<void*>(in.tensors[i].values));
      if (shapes_[i].count)
        fill_pairs(s_.raw(), static_cast<int64_t*>(const_cast<void*>(in.tensors[i].indices)), values, shapes_[i].count,
                   shapes_[i].universe, 1000 * seed + i);
      else if (shapes_[i].universe)
        fill_dense(s_.raw(), values, shapes_[i].universe, kind_, 1000 * seed + i);
    }
  }

  session& s_;
  const std::string text_;
  const plan plan_;
  const std::vector<tensor_shape> shapes_;
  const input_kind kind_;
  const context c_;
  dr_batch* batch_ = nullptr;
  dr_batch_info info_{};
  std::vector<input_set> sets_;
  std::vector<place::buffer> states_;
  place::buffer workspace_, frame_, result_;
  uint64_t elements_ = 0, pairs_ = 0, value_bytes_ = 0, index_bytes_ = 0, frame_bytes_ = 0;
  double create_ms_ = 0;
};

// Decodes k frames of an encoder's tensor to a dense tensor, or adds them to one.
class decoder {
 public:
  decoder(session& s, std::shared_ptr<encoder> from, size_t k, bool adds)
      : s_(s), from_(std::move(from)), adds_(adds), d_(from_->elements()), c_(), result_(sizeof(dr_result)) {
    if (from_->shapes().size() != 1) throw std::logic_error("a decoder takes frames of one tensor");
    uint64_t frame_room = 0;
    for (size_t i = 0; i < k; ++i) {
      from_->refill(0, 50 + i);
      frames_.push_back(from_->frame_of(0));
      frame_room += rounded(frames_.back().size() + 16);
      frame_bytes_ += frames_.back().size();
    }
    place::start_result(result_);
    c_.must(dr_batch_merge_workspace(from_->batch(), k, &workspace_size_, nullptr));
    workspace_ = place::buffer(workspace_size_);
    sets_.resize(sets_for(4 * d_ + frame_bytes_));
    for (size_t i = 0; i < sets_.size(); ++i) {
      own_set& o = sets_[i];
      o.frames = place::buffer(frame_room);
      o.dense = place::buffer(4 * d_);
      fill_dense(s_.raw(), reinterpret_cast<float*>(o.dense.at()), d_, input_kind::laplace, 900 + i);
      uint64_t at = 0;
      for (size_t f = 0; f < k; ++f) {
        const bytes& frame = frames_[(f + i) % k];
        place::put(o.frames.at() + at, frame.data(), frame.size());
        o.list.push_back({o.frames.at() + at, frame.size()});
        at += rounded(frame.size() + 16);
      }
      o.out.struct_size = sizeof o.out;
      o.out.dtype = DR_F32;
      o.out.universe = d_;
      o.out.values = o.dense.at();
    }
    s_.stream.wait();
  }

  void enqueue(size_t set) {
    const dr_place at = s_.stream.at();
    own_set& o = sets_[set];
    auto* const result = reinterpret_cast<dr_result*>(result_.at());
    if (!adds_) {
      c_.must(dr_batch_decode(c_.handle, from_->batch(), &at, o.list[0].data, o.list[0].size, nullptr, &o.out,
                              sizeof o.out, 1, workspace_.at(), workspace_size_, result));
      return;
    }
    const dr_decode_options options = adding();
    c_.must(dr_batch_merge(c_.handle, from_->batch(), &at, o.list.data(), nullptr, o.list.size(), &options, &o.out,
                           sizeof o.out, 1, workspace_.at(), workspace_size_, result));
  }

  // Throws unless the sums equal those of the CPU, bit for bit.
  void verify() {
    own_set& o = sets_.back();
    const size_t i = sets_.size() - 1;
    bytes want = o.dense.bytes();
    enqueue(i);
    s_.stream.wait();
    dr_result told{.struct_size = sizeof(dr_result)};
    place::get(&told, result_.at(), sizeof told);
    if (told.status)
      throw std::runtime_error("frame " + std::to_string(told.frame) + ": " + dr_status_name(told.status));
    if (!workspace_.intact() || !o.dense.intact()) throw std::runtime_error("something was written out of bounds");
    std::vector<dr_bytes> list;
    for (size_t f = 0; f < frames_.size(); ++f) {
      const bytes& frame = frames_[(f + i) % frames_.size()];
      list.push_back({frame.data(), frame.size()});
    }
    dr_tensor_out out = o.out;
    out.values = want.data();
    const context cpu(std::max(1u, std::thread::hardware_concurrency()));
    const dr_decode_options options = adding();
    cpu.must(adds_ ? dr_merge(cpu.handle, nullptr, list.data(), nullptr, list.size(), &options, &out, sizeof out, 1)
                   : dr_decode(cpu.handle, nullptr, list[0].data, list[0].size, nullptr, &out, sizeof out, 1));
    if (o.dense.bytes() != want) throw std::runtime_error("the values are not the CPU's");
  }

  const std::vector<bytes>& frames() const { return frames_; }
  uint64_t elements() const { return d_; }

  candidate as_candidate(std::shared_ptr<decoder> self, const std::string& name) {
    candidate c;
    c.about.name = name;
    c.about.plan = from_->text();
    c.about.elements = d_;
    c.about.frame_bytes = frame_bytes_;
    c.about.kept = kept() * frames_.size();
    // A scattered addition reads and writes 64 bytes of memory for a value, but no more than the whole tensor each way.
    c.about.bytes = frame_bytes_ + (adds_ ? std::min(128 * c.about.kept, 8 * d_) : 4 * d_);
    c.sets = sets_.size();
    c.fits_cache = fits_cache(4 * d_ + frame_bytes_, sets_.size());
    c.enqueue = [this](size_t set) { enqueue(set); };
    c.keeps = std::move(self);
    return c;
  }

 private:
  struct own_set {
    place::buffer frames, dense;
    std::vector<dr_bytes> list;
    dr_tensor_out out{};
  };
  static dr_decode_options adding() {
    dr_decode_options options{};
    options.struct_size = sizeof options;
    options.flags = DR_DECODE_ADD;
    return options;
  }
  uint64_t kept() const {
    dr_frame_info head{};
    head.struct_size = sizeof head;
    dr_tensor_info info{};
    info.struct_size = sizeof info;
    return dr_inspect(frames_[0].data(), frames_[0].size(), &head, &info, sizeof info, 1, nullptr) ? 0 : info.support;
  }

  session& s_;
  const std::shared_ptr<encoder> from_;
  const bool adds_;
  const uint64_t d_;
  const context c_;
  std::vector<bytes> frames_;
  std::vector<own_set> sets_;
  place::buffer workspace_, result_;
  size_t workspace_size_ = 0;
  uint64_t frame_bytes_ = 0;
};

}  // namespace gpu_bench
