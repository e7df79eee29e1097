// exchange_bench [--rounds N]: the cost of an exchange in addition to encode and merge. 4 ranks in one thread over the
// loopback, one tensor, in turn with the same encodes and merges by bound batches, without an exchange. Results are
// compared first. The difference includes the loopback's own work. Times are per rank.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/measure.hpp"
#include "deepreduce/exchange.h"

namespace dr::bench {
namespace {

constexpr uint32_t ranks = 4;

void require(dr_status status, const char* what) {
  if (status == DR_OK) return;
  std::fprintf(stderr, "exchange_bench: %s: %s\n", what, dr_status_name(status));
  std::exit(1);
}

std::vector<float> laplace(uint64_t d, uint64_t seed) {
  std::vector<float> v(d);
  uint64_t state = seed * 0x632be59bd9b4e019 + 1;
  for (float& x : v) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const double u = (static_cast<double>(state >> 11) + 0.5) * 0x1p-53 - 0.5;
    x = static_cast<float>((u < 0 ? 1e-3 : -1e-3) * std::log(1 - 2 * std::fabs(u)));
  }
  return v;
}

// A rank with one tensor: the parts by themselves, and the exchange.
struct rank {
  dr_context *alone = nullptr, *exchanging = nullptr;
  std::vector<float> gradient, sum, exchanged;
  dr_tensor tensor{};
  dr_tensor_out out{}, exchanged_out{};
  dr_batch* batch = nullptr;
  dr_binding* binding = nullptr;
  dr_exchange* exchange = nullptr;
  std::vector<uint8_t> frame;
  size_t size = 0;
};

class trial {
 public:
  trial(const std::string& text, uint64_t elements) : text_(text), elements_(elements), ranks_(ranks) {
    dr_plan* plan = nullptr;
    require(dr_plan_parse(text.c_str(), &plan, nullptr), "plan");
    dr_loopback_options loop{};
    loop.struct_size = sizeof loop;
    loop.ranks = ranks;
    require(dr_loopback_create(&loop, &net_, nullptr), "loopback");
    for (uint32_t i = 0; i < ranks; ++i) make(ranks_[i], i, plan);
    dr_plan_destroy(plan);
  }
  ~trial() {
    for (rank& r : ranks_) {
      dr_exchange_destroy(r.exchange);
      dr_binding_destroy(r.binding);
      dr_batch_destroy(r.batch);
      dr_context_destroy(r.alone);
      dr_context_destroy(r.exchanging);
    }
    dr_loopback_destroy(net_);
  }
  trial(const trial&) = delete;
  trial& operator=(const trial&) = delete;

  void alone() {
    dr_bytes frames[ranks];
    for (uint32_t i = 0; i < ranks; ++i) {
      rank& r = ranks_[i];
      dr_result result{};
      result.struct_size = sizeof result;
      require(dr_binding_encode(r.binding, &call_, r.frame.data(), r.frame.size(), &result), "encode");
      frames[i] = {r.frame.data(), result.size};
    }
    const float weights[ranks] = {0.25f, 0.25f, 0.25f, 0.25f};
    for (rank& r : ranks_) require(dr_binding_merge(r.binding, frames, weights, ranks, nullptr, nullptr), "merge");
  }
  void exchange() {
    dr_exchange* list[ranks];
    for (uint32_t i = 0; i < ranks; ++i) {
      list[i] = ranks_[i].exchange;
      require(dr_exchange_start(list[i], &call_), "start");
    }
    require(dr_loopback_run(net_, list, nullptr), "exchange");
  }

  void run(int rounds) {
    alone();
    exchange();
    for (const rank& r : ranks_)
      if (std::memcmp(r.sum.data(), r.exchanged.data(), 4 * elements_)) require(DR_E_INTERNAL, "the sums differ");
    const std::function<void()> both[] = {[&] { alone(); }, [&] { exchange(); }};
    const std::vector<timing> t = alternate(both, rounds);
    const auto micro = [](double seconds) { return seconds / ranks * 1e6; };
    std::printf("| %-58s | %9llu | %8.2f | %8.2f | %6.2f | %5.2f to %5.2f |\n", text_.c_str(),
                static_cast<unsigned long long>(elements_), micro(t[0].median), micro(t[1].median),
                micro(t[1].median - t[0].median), micro(t[1].low - t[0].high), micro(t[1].high - t[0].low));
  }

 private:
  void make(rank& r, uint32_t number, const dr_plan* plan) {
    require(dr_context_create(nullptr, &r.alone, nullptr), "context");
    require(dr_context_create(nullptr, &r.exchanging, nullptr), "context");
    r.gradient = laplace(elements_, number + 1);
    r.sum.resize(elements_);
    r.exchanged.resize(elements_);
    r.tensor.struct_size = sizeof r.tensor;
    r.tensor.dtype = DR_F32;
    r.tensor.universe = elements_;
    r.tensor.values = r.gradient.data();
    r.out.struct_size = sizeof r.out;
    r.out.dtype = DR_F32;
    r.out.universe = elements_;
    r.out.values = r.sum.data();
    r.exchanged_out = r.out;
    r.exchanged_out.values = r.exchanged.data();
    require(dr_batch_create(r.alone, plan, nullptr, &r.tensor, sizeof r.tensor, 1, 0, &r.batch), "batch");
    dr_batch_info info{};
    info.struct_size = sizeof info;
    require(dr_batch_describe(r.batch, &info, nullptr), "batch");
    r.frame.resize(info.bound);
    require(dr_binding_create(r.alone, r.batch, nullptr, &r.tensor, sizeof r.tensor, &r.out, sizeof r.out, 1, ranks,
                              &r.binding),
            "binding");
    dr_transport transport{};
    transport.struct_size = sizeof transport;
    require(dr_loopback_transport(net_, number, &transport), "transport");
    require(dr_exchange_create(r.exchanging, plan, &transport, nullptr, &r.tensor, sizeof r.tensor, &r.exchanged_out,
                               sizeof r.exchanged_out, 1, &r.exchange),
            "exchange");
  }

  std::string text_;
  uint64_t elements_;
  std::vector<rank> ranks_;
  dr_loopback* net_ = nullptr;
  dr_call call_{sizeof(dr_call), 0, 0, 0, 0, 0, 0, 0, nullptr, nullptr, nullptr, 0};
};

}  // namespace
}  // namespace dr::bench

int main(int argc, char** argv) {
  int rounds = 25;
  for (int i = 1; i + 1 < argc; ++i)
    if (std::string(argv[i]) == "--rounds") rounds = std::atoi(argv[i + 1]);
  std::printf("4 ranks, one thread, %s; µs a rank: median, difference by quartiles\n", dr::bench::clock_name);
  std::printf("| plan | elements | encode + merge | exchange | beside | quartiles |\n|---|---|---|---|---|---|\n");
  for (const char* plan : {"sparsify=topr(ratio=0.01) index=golomb value=raw", "index=all value=raw"})
    for (const uint64_t elements : {100, 1000, 10000, 100000, 1000000}) dr::bench::trial(plan, elements).run(rounds);
}
