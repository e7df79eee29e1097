// The loopback: all ranks of an exchange in one thread, on a modelled link. For tests of an integration, and to try a
// plan's schedule without a cluster.
//
//   c++ -std=c++20 loopback_ranks.cpp $(pkg-config --cflags --libs deepreduce) -o loopback_ranks && ./loopback_ranks
#include <cstdio>
#include <deepreduce/exchange.hpp>
#include <random>

namespace {

constexpr uint32_t ranks = 4;
constexpr size_t elements = 200'000;

struct rank {
  dr::context context;
  std::vector<float> gradient = std::vector<float>(elements), mean = std::vector<float>(elements);
  dr_tensor tensor = dr::dense(gradient);
  dr_tensor_out out = dr::dense_out(mean);
};

// The time of a step, and the bytes that a rank sends, by a plan. The frames are real, the link is not.
void run(const char* text) {
  auto link = dr::sized<dr_loopback_options>();
  link.ranks = ranks;
  link.latency_ns = 50'000;
  link.bytes_per_second = 125e6;  // 1 Gbit/s
  dr::loopback net(link);
  const dr::plan plan(text);
  auto traced = dr::sized<dr_exchange_options>();
  traced.flags = DR_EXCHANGE_TRACE;
  std::vector<rank> list(ranks);
  std::vector<dr::exchange> exchanges;  // destroyed before `list` and `net`
  std::vector<dr_exchange*> all;
  for (uint32_t i = 0; i < ranks; ++i) {
    std::mt19937 draw(i);
    std::normal_distribution<float> values;
    for (float& x : list[i].gradient) x = values(draw);
    exchanges.emplace_back(list[i].context, plan, net.transport(i), std::span(&list[i].tensor, 1),
                           std::span(&list[i].out, 1), &traced);
    all.push_back(exchanges.back().get());
  }
  for (dr::exchange& x : exchanges) x.start();
  if (net.run(all) != DR_OK) throw dr::error(*dr_last_error(list[0].context.get()));
  for (const rank& r : list)
    if (r.mean != list[0].mean) throw std::runtime_error("ranks differ");
  std::printf("%7.2f ms, %8llu bytes a rank, %5zu bytes of trace   %s\n", 1e-6 * static_cast<double>(net.now(0)),
              static_cast<unsigned long long>(exchanges[0].info().sent), exchanges[0].trace().size(), text);
}

// A missing rank: the others wait for it in virtual time, and all of them name it.
void lose_one() {
  dr::loopback net(ranks);
  const dr::plan plan("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw");
  std::vector<rank> list(ranks);
  std::vector<dr::exchange> exchanges;
  for (uint32_t i = 0; i < ranks; ++i)
    exchanges.emplace_back(list[i].context, plan, net.transport(i), std::span(&list[i].tensor, 1),
                           std::span(&list[i].out, 1));
  std::vector<dr_exchange*> all;
  for (uint32_t i = 0; i < ranks; ++i) {
    if (i != 2) exchanges[i].start();
    all.push_back(i == 2 ? nullptr : exchanges[i].get());
  }
  std::vector<dr_status> statuses(ranks);
  net.run(all, statuses);
  for (const uint32_t i : {0u, 1u, 3u}) {
    const dr_error& e = *dr_last_error(list[i].context.get());
    if (statuses[i] != DR_E_TIMEOUT || e.frame != 2) throw dr::error(e);
  }
  std::printf("rank 0: %s\n", dr_last_error(list[0].context.get())->message);
}

}  // namespace

int main() {
  try {
    run("index=all value=raw exchange=ring");
    for (const char* schedule : {"gather", "owner(parts=4)", "ring"})
      run((std::string("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw exchange=") + schedule)
              .c_str());
    lose_one();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
