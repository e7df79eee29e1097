// All ranks of an exchange in one thread.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "exchange/loopback.hpp"
#include "exchange/rank_exchange.hpp"
#include "primitive/half.hpp"

namespace world {

using floats = std::vector<float>;
using tensors = std::vector<floats>;

inline const std::string schedules[] = {"gather",
                                        "gather(parts=3)",
                                        "owner",
                                        "owner(parts=4)",
                                        "ring",
                                        "ring(parts=2)",
                                        "hierarchy(inner=2)",
                                        "hierarchy(inner=3,parts=2)"};

inline std::shared_ptr<const dr::plan> plan_of(const std::string& text) {
  std::shared_ptr<const dr::plan> p;
  dr_error error = dr::no_error();
  const dr_status s = dr::bind_plan(text, p, error);
  INFO(text << ": " << error.message);
  REQUIRE(s == DR_OK);
  return p;
}

// Integers of a few sizes, most of them small: sums of as many as there are ranks are exact in f32, in any order.
inline floats integers(size_t n, uint64_t seed) {
  std::mt19937_64 draw(seed);
  floats out(n);
  for (float& x : out) {
    const uint64_t bits = draw();
    const int large = bits % 16 == 0 ? 4096 : 16;
    x = static_cast<float>(static_cast<int>(bits >> 8 & 0xffff) % large - large / 2);
  }
  return out;
}

struct rank {
  dr::context context;
  tensors in, out;
  std::unique_ptr<dr::exchange> exchange;

  std::string error() const { return context.error.message; }
};

struct options {
  uint32_t ranks = 2, present = UINT32_MAX;  // of which so many are there
  std::string plan;
  std::vector<size_t> sizes;  // elements
  uint32_t width = 1;         // of their rows
  dr_exchange_options exchange{};
  dr_loopback_options loopback{};
  uint32_t dtype = DR_F32;       // other types lie in the first half of `in` and `out`
  uint32_t on_device = 0;        // bit i: rank i's memory is a device's, which the CPU plays
  int32_t device_order = 1;      // of its blocks and lanes
  std::vector<void*> nccl = {};  // communicators of the ranks, of their hosts
};

inline dr::target place_of(const options& o, uint32_t rank) {
  dr::target t;
  dr_error error = dr::no_error();
  if (o.on_device >> rank % 32 & 1)
    REQUIRE(dr::find_device({sizeof(dr_place), DR_PLACE_EMULATED, o.device_order, nullptr, 0, 0}, t.where, error) ==
            DR_OK);
  return t;
}

struct group {
  dr::loopback net;
  std::vector<std::unique_ptr<rank>> ranks;
  options how;

  explicit group(const options& o) : how(o) {
    dr_error error = dr::no_error();
    how.loopback.ranks = o.ranks;
    REQUIRE(net.create(how.loopback, error) == DR_OK);
    const auto method = plan_of(o.plan);
    for (uint32_t i = 0; i < std::min(o.ranks, o.present); ++i) {
      rank& r = *ranks.emplace_back(std::make_unique<rank>());
      REQUIRE(r.context.start(dr_context_options{}, error) == DR_OK);
      // (A model's tensors have sizes only.)
      const bool dry = o.exchange.flags & DR_EXCHANGE_DRY;
      for (const size_t n : o.sizes) r.in.emplace_back(dry ? 0 : n), r.out.emplace_back(dry ? 0 : n, -1.0f);
      r.exchange = std::make_unique<dr::exchange>(r.context);
      dr_exchange_options made = o.exchange;
      if (i < o.nccl.size()) made.nccl = o.nccl[i];
      const dr_status s = r.exchange->create({method, net.transport(i), made, place_of(o, i)}, views(o, r), outs(o, r));
      INFO(o.plan << ": " << r.error());
      REQUIRE(s == DR_OK);
    }
  }

  static std::vector<dr::tensor_view> views(const options& o, rank& r) { return dense<dr::tensor_view>(o, r.in); }
  static std::vector<dr::tensor_out> outs(const options& o, rank& r) { return dense<dr::tensor_out>(o, r.out); }
  template <class T>
  static std::vector<T> dense(const options& o, tensors& of) {
    std::vector<T> list(o.sizes.size());
    for (size_t i = 0; i < list.size(); ++i) {
      list[i].struct_size = sizeof list[i];
      list[i].dtype = o.dtype;
      list[i].universe = o.sizes[i] / o.width;
      list[i].width = o.width;
      list[i].values = of[i].data();
    }
    return list;
  }

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }

  // New gradients of a step, where the old ones lie.
  void draw(uint64_t step) {
    for (uint32_t i = 0; i < size(); ++i)
      for (size_t t = 0; t < how.sizes.size(); ++t) {
        const floats drawn = integers(how.sizes[t], (step * 1000 + i) * 1000 + t);
        if (how.dtype == DR_F32) std::copy(drawn.begin(), drawn.end(), ranks[i]->in[t].begin());
        for (size_t k = 0; k < drawn.size() && how.dtype != DR_F32; ++k) {
          const double x = static_cast<double>(drawn[k]);
          const uint16_t bits = how.dtype == DR_F16 ? dr::f64_to_f16(x) : dr::f64_to_bf16(x);
          std::memcpy(reinterpret_cast<char*>(ranks[i]->in[t].data()) + 2 * k, &bits, sizeof bits);
        }
      }
  }

  // One exchange on all ranks; their statuses.
  std::vector<dr_status> run(uint64_t step) {
    std::vector<dr::exchange*> list;
    for (const auto& r : ranks) {
      dr_call call{};
      call.step = step;
      REQUIRE(r->exchange->start(call) == DR_OK);
      list.push_back(r->exchange.get());
    }
    std::vector<dr_status> statuses(size());
    net.run(list, statuses);
    return statuses;
  }

  void run_well(uint64_t step) {
    const std::vector<dr_status> statuses = run(step);
    for (uint32_t i = 0; i < size(); ++i) {
      INFO("rank " << i << ": " << ranks[i]->error());
      REQUIRE(statuses[i] == DR_OK);
    }
  }

  // Σ over ranks of a tensor's inputs, in f64.
  std::vector<double> total(size_t tensor) const {
    std::vector<double> sum(how.sizes[tensor]);
    for (const auto& r : ranks)
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(r->in[tensor][i]);
    return sum;
  }
  // Σ over ranks of residuals, in the units of the inputs: an owner's is of means.
  std::vector<double> kept(size_t tensor) {
    std::vector<double> sum(how.sizes[tensor]);
    floats residual(how.sizes[tensor]);
    const double scale = how.exchange.flags & DR_EXCHANGE_SUM ? 1 : size();
    for (const auto& r : ranks)
      for (const uint32_t which : {DR_RESIDUAL_OWN, DR_RESIDUAL_SUM}) {
        REQUIRE(r->exchange->read_residual(which, tensor, residual.data(), residual.size()) == DR_OK);
        for (size_t i = 0; i < sum.size(); ++i)
          sum[i] += static_cast<double>(residual[i]) * (which == DR_RESIDUAL_SUM ? scale : 1);
      }
    return sum;
  }
  bool all_alike() const {
    for (const auto& r : ranks)
      for (size_t t = 0; t < r->out.size(); ++t)
        if (!r->out[t].empty() && std::memcmp(r->out[t].data(), ranks[0]->out[t].data(), 4 * r->out[t].size()))
          return false;
    return true;
  }
};

}  // namespace world
