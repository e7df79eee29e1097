// A patch of a model's weights, made and applied at the place; both are verified against the CPU before they are measured.
#pragma once

#include <cmath>

#include "bench/gpu/gpu_subjects.hpp"

namespace gpu_bench {

class patcher {
 public:
  // Weights in bf16, n tensors of `size` elements, of which 2 % have moved.
  patcher(session& s, const std::string& text, size_t n, uint64_t size)
      : s_(s), text_(text), plan_(text), n_(n), size_(size), result_(sizeof(dr_result)) {
    for (place::buffer* b : {&before_, &after_, &there_}) *b = place::buffer(2 * elements());
    for (size_t i = 0; i < n_; ++i) {
      fill_weights(s_.raw(), words(before_) + i * size_, words(after_) + i * size_, size_, i);
      dr_tensor t{};
      t.struct_size = sizeof t;
      t.dtype = DR_BF16;
      t.universe = size_;
      t.values = words(after_) + i * size_;
      t.base = words(before_) + i * size_;
      tensors_.push_back(t);
      dr_tensor_out out{};
      out.struct_size = sizeof out;
      out.dtype = DR_BF16;
      out.universe = size_;
      out.values = words(there_) + i * size_;
      outs_.push_back(out);
    }
    restore();
    const dr_place at = s_.stream.at();
    c_.must(dr_batch_create(c_.handle, plan_.handle, &at, tensors_.data(), sizeof(dr_tensor), n_, 0, &batch_));
    dr_batch_info info{};
    info.struct_size = sizeof info;
    c_.must(dr_batch_describe(batch_, &info, nullptr));
    size_t applying = 0;
    c_.must(dr_batch_merge_workspace(batch_, 1, &applying, nullptr));
    launches_ = info.launches;
    workspace_ = place::buffer(std::max(info.workspace, applying));
    frame_ = place::buffer(info.bound);
    place::start_result(result_);
    make();
    frame_size_ = read("the patch").size;
  }
  ~patcher() { dr_batch_destroy(batch_); }
  patcher(const patcher&) = delete;
  patcher& operator=(const patcher&) = delete;

  void make() {
    const dr_place at = s_.stream.at();
    dr_call call{};
    call.struct_size = sizeof call;
    c_.must(dr_batch_encode(c_.handle, batch_, &call, &at, tensors_.data(), sizeof(dr_tensor), n_, workspace_.at(),
                            workspace_.size(), frame_.at(), frame_.size(), result()));
  }
  void apply() {
    const dr_place at = s_.stream.at();
    dr_decode_options options{};
    options.struct_size = sizeof options;
    options.flags = DR_DECODE_APPLY;
    c_.must(dr_batch_decode(c_.handle, batch_, &at, frame_.at(), frame_size_, &options, outs_.data(),
                            sizeof(dr_tensor_out), n_, workspace_.at(), workspace_.size(), result()));
  }
  // Each patch is applied to its base.
  void restore() { copy(s_.raw(), there_.at(), before_.at(), 2 * elements()); }

  // Throws unless the patch is the CPU's, and makes the new weights of the old ones.
  void verify() {
    const bytes before = before_.bytes(), after = after_.bytes();
    std::vector<dr_tensor> own = tensors_;
    for (size_t i = 0; i < n_; ++i) {
      own[i].values = after.data() + 2 * i * size_;
      own[i].base = before.data() + 2 * i * size_;
    }
    const context cpu(std::max(1u, std::thread::hardware_concurrency()));
    bytes want(frame_size_);
    dr_call call{};
    call.struct_size = sizeof call;
    dr_result told{.struct_size = sizeof(dr_result)};
    cpu.must(dr_encode(cpu.handle, plan_.handle, &call, nullptr, own.data(), sizeof(dr_tensor), n_, want.data(),
                       want.size(), &told));
    if (told.size != frame_size_ || frame_.bytes(frame_size_) != want)
      throw std::runtime_error("the patch is not the CPU's");
    apply();
    read("applying");
    if (there_.bytes() != after) throw std::runtime_error("the patch does not make the new weights");
    if (!workspace_.intact() || !frame_.intact() || !there_.intact())
      throw std::runtime_error("something was written out of bounds");
    restore();
    s_.stream.wait();
  }

  candidate making(const std::shared_ptr<patcher>& self) {
    candidate c = about(self);
    c.about.launches = launches_;
    c.about.bytes = 4 * elements() + frame_size_;
    c.enqueue = [this](size_t) { make(); };
    return c;
  }
  candidate applying(const std::shared_ptr<patcher>& self) {
    candidate c = about(self);
    // The base is read for its check, and of its sectors of 32 bytes those are written in which one of 16 values changed.
    const double written = 1 - std::pow(0.98, 16);
    c.about.bytes = 2 * elements() + static_cast<uint64_t>(2 * written * static_cast<double>(elements())) + frame_size_;
    c.enqueue = [this](size_t) { apply(); };
    c.before = [this](size_t, uint64_t) { restore(); };
    return c;
  }

 private:
  uint64_t elements() const { return n_ * size_; }
  static uint16_t* words(const place::buffer& b) { return reinterpret_cast<uint16_t*>(b.at()); }
  dr_result* result() const { return reinterpret_cast<dr_result*>(result_.at()); }
  dr_result read(const char* what) const {
    s_.stream.wait();
    dr_result told{.struct_size = sizeof(dr_result)};
    place::get(&told, result_.at(), sizeof told);
    if (told.status)
      throw std::runtime_error(std::string(what) + ": tensor " + std::to_string(told.tensor) + ": " +
                               dr_status_name(told.status));
    return told;
  }
  candidate about(const std::shared_ptr<patcher>& self) const {
    candidate c;
    c.about.plan = text_;
    c.about.elements = elements();
    c.about.tensors = n_;
    c.about.frame_bytes = frame_size_;
    c.about.verified = "the CPU's patch and weights";
    c.fits_cache = fits_cache(4 * elements(), 1);
    c.keeps = self;
    return c;
  }

  session& s_;
  const std::string text_;
  const plan plan_;
  const size_t n_;
  const uint64_t size_;
  const context c_;
  dr_batch* batch_ = nullptr;
  std::vector<dr_tensor> tensors_;
  std::vector<dr_tensor_out> outs_;
  place::buffer before_, after_, there_, workspace_, frame_, result_;
  uint64_t frame_size_ = 0, launches_ = 0;
};

}  // namespace gpu_bench
