// The launches of the gated rows of gpu_bench, at full size: kernels and blocks, as the host enqueues them. Nothing is run, so the memory is
// none. bench/gpu/model.py works from them.
//
//   launches CSV            compares
//   launches --update CSV   writes it
#include <deepreduce/deepreduce.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/gpu/models.hpp"
#include "cuda/device.hpp"

namespace {

struct shape {
  uint64_t universe, count = 0;  // count: of a sparse tensor
};

void must(dr_status s, const dr_context* c) {
  if (s) throw std::runtime_error(dr_last_error(c)->message);
}
// An address that nobody reads.
template <class T>
T* address(uint64_t n) {
  return reinterpret_cast<T*>(uintptr_t{n} << 40);
}

class lister {
 public:
  explicit lister(std::ostream& out) : out_(out) {
    dr_context_options options{};
    options.struct_size = sizeof options;
    options.threads = 1;
    if (dr_context_create(&options, &c_, nullptr)) throw std::runtime_error("dr_context_create");
    dr::emulator().only_counts = true;
    out_ << "row,kernel,blocks,lanes\n";
  }
  ~lister() {
    dr::emulator().seen = nullptr;
    dr::emulator().only_counts = false;
    dr_context_destroy(c_);
  }
  lister(const lister&) = delete;
  lister& operator=(const lister&) = delete;

  enum way { added, fresh, applied };
  // frames: 0: an encode, else that many are decoded. A patch is of bf16.
  void row(const std::string& name, const std::string& text, const std::vector<shape>& shapes, size_t frames = 0,
           way decodes = added) {
    dr_error error{};
    error.struct_size = sizeof error;
    dr_plan* plan = nullptr;
    if (dr_plan_parse(text.c_str(), &plan, &error)) throw std::runtime_error(text + ": " + error.message);
    const bool patch = text.find("sparsify=changed") != std::string::npos;
    const dr_dtype dtype = patch ? DR_BF16 : DR_F32;
    std::vector<dr_tensor> tensors;
    std::vector<dr_tensor_out> outs;
    for (const shape& s : shapes) {
      dr_tensor t{};
      t.struct_size = sizeof t;
      t.dtype = dtype;
      t.universe = s.universe;
      t.values = address<void>(1);
      if (s.count) {
        t.index_dtype = DR_I64;
        t.indices = address<void>(2);
        t.count = s.count;
      }
      if (patch) t.base = address<void>(9);
      size_t state = 0;
      if (!s.count && dr_state_size(plan, &t, &state, nullptr) == DR_OK && state) {
        t.state = address<void>(3);
        t.state_size = state;
      }
      tensors.push_back(t);
      dr_tensor_out out{};
      out.struct_size = sizeof out;
      out.dtype = dtype;
      out.universe = s.universe;
      out.values = address<uint8_t>(7) + (outs.size() << 32);
      outs.push_back(out);
    }
    const dr_place at{sizeof(dr_place), DR_PLACE_EMULATED, 1, nullptr, 0, 0};
    dr_batch* batch = nullptr;
    must(dr_batch_create(c_, plan, &at, tensors.data(), sizeof(dr_tensor), tensors.size(), 0, &batch), c_);
    dr_batch_info info{};
    info.struct_size = sizeof info;
    must(dr_batch_describe(batch, &info, nullptr), c_);
    dr::emulator().seen = [&](const dr_kernel& k, uint32_t blocks) {
      out_ << '"' << name << "\"," << k.name << ',' << blocks << ',' << k.lanes << '\n';
    };
    auto* const result = address<dr_result>(4);
    if (frames == 0) {
      dr_call call{};
      call.struct_size = sizeof call;
      must(dr_batch_encode(c_, batch, &call, &at, tensors.data(), sizeof(dr_tensor), tensors.size(), address<void>(5),
                           info.workspace, address<void>(6), info.bound, result),
           c_);
    } else {
      size_t workspace = 0;
      must(dr_batch_merge_workspace(batch, frames, &workspace, nullptr), c_);
      const std::vector<dr_bytes> list(frames, {address<void>(8), info.bound});
      dr_decode_options options{};
      options.struct_size = sizeof options;
      options.flags = decodes == applied ? DR_DECODE_APPLY : decodes == added ? DR_DECODE_ADD : 0;
      must(decodes == added ? dr_batch_merge(c_, batch, &at, list.data(), nullptr, frames, &options, outs.data(),
                                             sizeof outs[0], outs.size(), address<void>(5), workspace, result)
                            : dr_batch_decode(c_, batch, &at, list[0].data, list[0].size, &options, outs.data(),
                                              sizeof outs[0], outs.size(), address<void>(5), workspace, result),
           c_);
    }
    dr::emulator().seen = nullptr;
    dr_batch_destroy(batch);
    dr_plan_destroy(plan);
  }

 private:
  std::ostream& out_;
  dr_context* c_ = nullptr;
};

std::string listed() {
  std::ostringstream out;
  lister l(out);
  constexpr uint64_t d = 25600000, r = 256000;
  const std::string usual = "index=golomb value=qsgd", one = "sparsify=topr(ratio=0.01) " + usual,
                    fixed = "sparsify=topr(count=256000) " + usual;
  l.row("25.6e6, 1 %", one, {{d}});
  l.row("25.6e6, 1 %, log_quant", "sparsify=topr(ratio=0.01) index=golomb value=log_quant", {{d}});
  l.row("25.6e6, 10 %", "sparsify=topr(ratio=0.1) " + usual, {{d}});
  l.row("25.6e6, 1 %, residual", one + " feedback=residual", {{d}});
  for (const char* name : {"25.6e6, constant", "25.6e6, two values", "25.6e6, ascending"}) l.row(name, one, {{d}});
  l.row("1e8, 1 %", one, {{100000000}});
  l.row("1e9, 0.1 %", "sparsify=topr(ratio=0.001) " + usual, {{1000000000}});
  l.row("1e6 pairs", usual, {{d, 1000000}});
  l.row("256e3 pairs, fit_poly, raw indices", "index=raw value=fit_poly", {{d, r}});
  l.row("a frame of 256e3, added", fixed, {{d}}, 1);
  l.row("a frame of 256e3, to a fresh tensor", fixed, {{d}}, 1, lister::fresh);
  l.row("8 frames of 256e3, added", fixed, {{d}}, 8);
  l.row("64 frames of 256e3, added", fixed, {{d}}, 64);
  std::vector<shape> model;
  for (const uint64_t size : gpu_bench::resnet50_sizes()) model.push_back({size});
  l.row("ResNet-50: 161 tensors, 1 % of each", one, model);
  l.row("ResNet-50: one bucket, 1 %", one + " bucket=flat", model);
  const std::string patch = "sparsify=changed(max_ratio=0.05) index=golomb value=raw";
  const std::vector<shape> weights(gpu_bench::weight_tensors, {gpu_bench::weight_size});
  l.row("1e9 bf16, 2 % changed: a patch", patch, weights);
  l.row("1e9 bf16, 2 % changed: applied", patch, weights, 1, lister::applied);
  l.row("36,864, 1 %", one, {{36864}});
  return out.str();
}

}  // namespace

int main(int argc, char** argv) {
  const bool update = argc == 3 && std::strcmp(argv[1], "--update") == 0;
  if (argc != 2 + update) return 2;
  const char* const path = argv[1 + update];
  try {
    const std::string now = listed();
    if (update) return (std::ofstream(path) << now).flush() ? 0 : 1;
    std::ifstream file(path);
    const std::string kept{std::istreambuf_iterator<char>(file), {}};
    if (kept == now) return 0;
    std::istringstream a(kept), b(now);
    std::string was, is;
    for (size_t line = 1; std::getline(a, was), std::getline(b, is); ++line)
      if (was != is) {
        std::printf("%s:%zu: %s, now %s\n", path, line, was.c_str(), is.c_str());
        break;
      }
    std::printf("launches changed: launches --update %s writes them anew, and bench/gpu/PREDICTIONS.md wants a look\n",
                path);
    return 1;
  } catch (const std::exception& e) {
    std::printf("launches: %s\n", e.what());
    return 1;
  }
}
