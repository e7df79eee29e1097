// call_bench [--json FILE] [--rounds N] [FILTER]: the cost of calls with little work, in a warm context: dr_encode,
// dr_batch_encode
// and dr_decode of tensors of 100, 1,000 and 10,000 elements, of ResNet-20's 59 and of ResNet-50's 161. Through the C ABI of the
// shared library, so that LD_LIBRARY_PATH compares two builds of it. Frames are verified first. FILTER: a part of the input's name.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "bench/gpu/models.hpp"
#include "bench/measure.hpp"
#include "deepreduce/deepreduce.h"
#include "tool/show/machine.hpp"

namespace dr::bench {
namespace {

constexpr double ratio = 0.01;
constexpr const char* plan_text = "sparsify=topr(ratio=0.01) index=golomb value=qsgd";

[[noreturn]] void stop(const std::string& what) {
  std::fprintf(stderr, "call_bench: %s\n", what.c_str());
  std::exit(1);
}

// The parameters of the ResNet-20 in datasets/: 59 tensors, 269,722 elements.
std::vector<uint64_t> resnet20_sizes() {
  std::vector<uint64_t> sizes;
  uint64_t in = 3;
  const auto convolution = [&](uint64_t out) {
    for (const uint64_t size : {out * in * 9, out, out}) sizes.push_back(size);  // with its batch normalisation
    in = out;
  };
  convolution(16);
  for (const uint64_t width : {16, 32, 64})
    for (int i = 0; i < 6; ++i) convolution(width);
  sizes.push_back(10 * in);
  sizes.push_back(10);
  return sizes;
}

std::vector<float> laplace(uint64_t d, uint64_t seed) {
  std::vector<float> v(d);
  uint64_t state = seed;
  for (float& x : v) {
    uint64_t bits = state += 0x9e3779b97f4a7c15;  // splitmix64
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    const double u = (static_cast<double>((bits ^ (bits >> 31)) >> 11) + 0.5) * 0x1p-53 - 0.5;
    x = static_cast<float>((u < 0 ? 1e-3 : -1e-3) * std::log(1 - 2 * std::fabs(u)));
  }
  return v;
}

// Tensors, their plan, and a warm context that has encoded and decoded them.
class call_set {
 public:
  call_set(std::string name, const std::vector<uint64_t>& sizes) : name_(std::move(name)) {
    dr_context_options options{};
    options.struct_size = sizeof options;
    dr_error error{};
    error.struct_size = sizeof error;
    if (dr_context_create(&options, &context_, &error)) stop(error.message);
    if (dr_plan_parse(plan_text, &plan_, &error)) stop(error.message);
    for (const uint64_t size : sizes) {
      gradients_.push_back(laplace(size, gradients_.size() + 1));
      decoded_.emplace_back(size);
      elements_ += size;
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      dr_tensor t{};
      t.struct_size = sizeof t;
      t.dtype = DR_F32;
      t.universe = sizes[i];
      t.values = gradients_[i].data();
      tensors_.push_back(t);
      dr_tensor_out o{};
      o.struct_size = sizeof o;
      o.dtype = DR_F32;
      o.universe = sizes[i];
      o.values = decoded_[i].data();
      outs_.push_back(o);
    }
    ok(dr_batch_create(context_, plan_, nullptr, tensors_.data(), sizeof(dr_tensor), tensors_.size(), 0, &batch_));
    dr_batch_info info{};
    info.struct_size = sizeof info;
    if (dr_batch_describe(batch_, &info, &error)) stop(error.message);
    frame_.resize(info.bound);
    workspace_ = std::aligned_alloc(64, (info.workspace + 63) / 64 * 64);
    call_.struct_size = sizeof call_;
    call_.seed = 1;
  }
  ~call_set() {
    std::free(workspace_);
    dr_batch_destroy(batch_);
    dr_plan_destroy(plan_);
    dr_context_destroy(context_);
  }
  call_set(const call_set&) = delete;
  call_set& operator=(const call_set&) = delete;

  void encode() {
    dr_result result{};
    result.struct_size = sizeof result;
    ok(dr_encode(context_, plan_, &call_, nullptr, tensors_.data(), sizeof(dr_tensor), tensors_.size(), frame_.data(),
                 frame_.size(), &result));
    size_ = result.size;
  }
  void batch_encode() {
    dr_result result{};
    result.struct_size = sizeof result;
    ok(dr_batch_encode(context_, batch_, &call_, nullptr, tensors_.data(), sizeof(dr_tensor), tensors_.size(),
                       workspace_, SIZE_MAX, frame_.data(), frame_.size(), &result));
    size_ = result.size;
  }
  void decode() {
    ok(dr_decode(context_, nullptr, frame_.data(), size_, nullptr, outs_.data(), sizeof(dr_tensor_out), outs_.size()));
  }

  // Both encodes write the same frame; it decodes to Top-r, all values to within a level of their bucket.
  void verify() {
    encode();
    const std::vector<uint8_t> first(frame_.begin(), frame_.begin() + static_cast<ptrdiff_t>(size_));
    batch_encode();
    if (size_ != first.size() || !std::equal(first.begin(), first.end(), frame_.begin()))
      stop("dr_batch_encode writes another frame than dr_encode");
    decode();
    for (size_t i = 0; i < gradients_.size(); ++i) verify_tensor(gradients_[i], decoded_[i]);
  }

  const std::string& name() const { return name_; }
  uint64_t elements() const { return elements_; }
  uint64_t tensors() const { return tensors_.size(); }
  uint64_t frame_size() const { return size_; }

 private:
  void ok(dr_status s) const {
    if (s) stop(name_ + ": " + dr_last_error(context_)->message);
  }
  static void verify_tensor(const std::vector<float>& g, const std::vector<float>& got) {
    std::vector<uint32_t> order(g.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return std::fabs(g[a]) > std::fabs(g[b]); });
    const auto kept = std::max<size_t>(1, static_cast<size_t>(ratio * static_cast<double>(g.size()) + 1e-9));
    std::vector<uint32_t> support(order.begin(), order.begin() + static_cast<ptrdiff_t>(kept));
    std::sort(support.begin(), support.end());
    std::vector<float> allowed(g.size());
    for (size_t begin = 0; begin < kept; begin += 512) {
      const size_t end = std::min(kept, begin + 512);
      double squares = 0;
      for (size_t k = begin; k < end; ++k) squares += double{g[support[k]]} * double{g[support[k]]};
      for (size_t k = begin; k < end; ++k) allowed[support[k]] = static_cast<float>(std::sqrt(squares) / 127 * 1.001);
    }
    for (size_t k = 0; k < g.size(); ++k)
      if (allowed[k] == 0 ? got[k] != 0 : !(std::fabs(got[k] - g[k]) <= allowed[k]))
        stop("a decoded value is not what the plan promises");
  }

  std::string name_;
  dr_context* context_ = nullptr;
  dr_plan* plan_ = nullptr;
  dr_batch* batch_ = nullptr;
  dr_call call_{};
  std::vector<std::vector<float>> gradients_, decoded_;
  std::vector<dr_tensor> tensors_;
  std::vector<dr_tensor_out> outs_;
  void* workspace_ = nullptr;
  std::vector<uint8_t> frame_;
  uint64_t size_ = 0, elements_ = 0;
};

}  // namespace
}  // namespace dr::bench

int main(int argc, char** argv) {
  using namespace dr::bench;
  std::string json_path, filter;
  int rounds = 31, calls = 0;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--json") && i + 1 < argc)
      json_path = argv[++i];
    else if (!std::strcmp(argv[i], "--rounds") && i + 1 < argc)
      rounds = std::max(1, std::atoi(argv[++i]));
    else if (!std::strcmp(argv[i], "--calls") && i + 1 < argc)
      calls = std::atoi(argv[++i]);
    else if (argv[i][0] == '-')
      return std::fprintf(stderr,
                          "usage: call_bench [--json FILE] [--rounds N] [FILTER]\n"
                          "       call_bench --calls N [FILTER]   so many of each, untimed: for callgrind\n"),
             2;
    else
      filter = argv[i];
  }
  const std::pair<const char*, std::vector<uint64_t>> inputs[] = {
      {"100", {100}},
      {"1,000", {1000}},
      {"10,000", {10000}},
      {"ResNet-20, 59 tensors", resnet20_sizes()},
      {"ResNet-50, 161 tensors", gpu_bench::resnet50_sizes()}};
  nlohmann::ordered_json out{{"machine", dr::compare::machine_facts()},
                             {"build", dr::compare::build_facts()},
                             {"commit", dr::compare::commit()},
                             {"library", dr_version()},
                             {"plan", plan_text},
                             {"clock", clock_name},
                             {"rounds", rounds},
                             {"rows", nlohmann::json::array()}};
  std::printf("%-24s %-16s %12s %8s %8s\n", "input", "call", "us", "+-%", "frame");
  for (const auto& [name, sizes] : inputs) {
    if (std::string(name).find(filter) == std::string::npos) continue;
    call_set s(name, sizes);
    s.verify();
    const std::pair<const char*, std::function<void()>> candidates[] = {{"dr_encode", [&] { s.encode(); }},
                                                                        {"dr_batch_encode", [&] { s.batch_encode(); }},
                                                                        {"dr_decode", [&] { s.decode(); }}};
    if (calls) {
      for (const auto& c : candidates)
        for (int i = 0; i < calls; ++i) c.second();
      continue;
    }
    std::vector<std::function<void()>> runs;
    for (const auto& c : candidates) runs.push_back(c.second);
    const auto times = alternate(runs, rounds);
    for (size_t c = 0; c < times.size(); ++c) {
      const timing& t = times[c];
      std::printf("%-24s %-16s %12.3f %8.1f %8llu\n", name, candidates[c].first, t.median * 1e6,
                  50 * (t.high - t.low) / t.median, static_cast<unsigned long long>(s.frame_size()));
      out["rows"].push_back({{"input", name},
                             {"call", candidates[c].first},
                             {"tensors", s.tensors()},
                             {"elements", s.elements()},
                             {"frame", s.frame_size()},
                             {"seconds", t.median},
                             {"low", t.low},
                             {"high", t.high}});
    }
    std::fflush(stdout);
  }
  if (!json_path.empty()) std::ofstream(json_path) << out.dump(1) << '\n';
}
