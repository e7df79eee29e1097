#include "outer_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace dr::predict {
namespace {

constexpr double unit_bytes = 4 << 20;  // of a unit's f32 tensors (lib/sender/units.cpp)
constexpr double poll_ns = 50e6;        // of a Folder (_PAUSE of outer/_folder.py), at most

// Bytes that pass the memory for each weight, beside encode and merge (outer/_outer.py, _agreed.py). Adding a dense tensor
// to another, whose cost the profile has, moves 12.
constexpr double add_bytes = 12;
constexpr double difference = 12, finite = 4, copies = 8;
constexpr double plain_sgd = 12;                   // w += g
constexpr double nesterov_sgd = 8 + 12 + 12 + 12;  // b *= m; b += g; g + m b; w += that
constexpr double mean_of_f32 = 8, halves = 12;     // g /= n; to bf16 and back

double apply_ns(const step_model& m, const candidate& c, bool is_dense) {
  const bool sparse = std::ranges::any_of(
      c.works, [](const auto& w) { return w->method()->info().flags & (DR_PLAN_SPARSIFIES | DR_PLAN_TRANSFORMS); });
  double bytes = difference + finite + copies + (sparse ? plain_sgd : nesterov_sgd);
  if (is_dense) bytes += c.dense_factor == 0.5 ? halves : mean_of_f32;
  return bytes / add_bytes * m.exact->add_ns(m.model.elements());
}

bool sends_dense(const candidate& c) {
  return !c.is_plan() || std::ranges::all_of(c.choice, [](int which) { return which < 0; });
}

// all_reduces_ns of `count` of one size. Two threads alternate: from the third on, every two take as long.
double equal_all_reduces_ns(const network& net, double bytes, double count) {
  const auto few_ns = [&](double n) { return all_reduces_ns(net, std::vector<double>(static_cast<size_t>(n), bytes)); };
  const double few = 8 + std::fmod(count, 2);
  if (count <= few) return few_ns(count);
  const double first = few_ns(few);
  return first + (count - few) / 2 * (few_ns(few + 2) - first);
}

outer_exchange dense_in_group(const step_model& m, const candidate& c) {
  outer_exchange x;
  double sum = 0;
  if (c.dense_factor == 0.5) {
    const double all = 4 * m.model.elements(), units = std::max(1.0, std::ceil(all / unit_bytes));
    sum = all / 2;
    x.link_ns = equal_all_reduces_ns(m.net, sum / units, units);
  } else {
    std::vector<double> bytes;
    for (const tensor_spec& t : m.model.tensors) bytes.push_back(4 * t.elements), sum += bytes.back();
    x.link_ns = all_reduces_ns(m.net, bytes);
  }
  x.exposed_ns = x.hideable_ns = m.how.skew_ns + x.link_ns;
  x.sent_bytes = x.received_bytes = 2 * (m.net.ranks - 1.0) / m.net.ranks * sum;
  return x;
}

// The hook's step without a step's computing.
outer_exchange plans_in_group(const step_model& m, const candidate& c) {
  step_model alone = m;
  alone.hook = hook_kind::ddp;
  alone.model = m.model.scaled(0);
  const outcome o = alone.step(c);
  outer_exchange x;
  x.encode_ns = o.encode_ns, x.merge_ns = o.merge_ns, x.link_ns = o.link_ns;
  x.exposed_ns = x.hideable_ns = o.step_ns - o.encode_ns - o.merge_ns;
  x.sent_bytes = x.received_bytes = o.bytes;
  return x;
}

// One frame of all tensors of a plan, whatever their number. Reading and writing files is the worker's own work, so `overlap` hides
// only the wait for others.
outer_exchange in_folder(const step_model& m, const candidate& c) {
  const double workers = m.net.ranks;
  outer_exchange x;
  const auto add = [&](const plan_work& w, double elements, double bytes) {
    x.encode_ns += w.encode_ns(elements);
    x.merge_ns += w.merge_ns(elements, workers);
    x.sent_bytes += bytes;
  };
  for (size_t k = 0; k < c.works.size(); ++k) {
    const plan_work& w = *c.works[k];
    if (w.factor_rank() || w.schedule() == "owner")
      throw unsupported_model("unsupported: a Folder takes frames, so no transform=lowrank and no exchange=owner");
    double elements = 0, tensors = 0;
    for (size_t i = 0; i < m.model.tensors.size(); ++i)
      if (c.choice[i] == static_cast<int>(k)) elements += m.model.tensors[i].elements, ++tensors;
    if (elements <= 0) continue;
    const bool flat = w.method()->info().flags & DR_PLAN_FLAT;
    add(w, elements, w.batch_bytes(elements, flat ? 1 : tensors));
  }
  double dense = 0;
  for (size_t i = 0; i < m.model.tensors.size(); ++i)
    if (!c.is_plan() || c.choice[i] < 0) dense += m.model.tensors[i].elements;
  if (dense > 0) add(*m.exact, dense, 4 * (c.is_plan() ? 1 : c.dense_factor) * dense);
  x.received_bytes = (workers - 1) * x.sent_bytes;
  x.link_ns = 8e9 * workers * x.sent_bytes / m.net.wire.bits_per_second;
  // A round trip for each file, and for the list that closes the round.
  x.exposed_ns = m.how.skew_ns + x.link_ns + 2 * (workers + 1) * m.net.wire.latency_ns + poll_ns;
  x.hideable_ns = m.how.skew_ns;
  return x;
}

}  // namespace

outer_exchange exchange_of_round(const step_model& m, const candidate& c, bool folder) {
  if (c.powersgd_rank) throw unsupported_model("unsupported: torch's PowerSGD has no outer loop");
  const bool is_dense = sends_dense(c);
  outer_exchange x = folder ? in_folder(m, c) : is_dense ? dense_in_group(m, c) : plans_in_group(m, c);
  x.apply_ns = apply_ns(m, c, is_dense);
  x.total_ns = x.encode_ns + x.merge_ns + x.exposed_ns + x.apply_ns;
  if (!(x.total_ns <= max_ns && x.received_bytes <= max_ns))
    throw unsupported_model("unsupported: the exchange takes more than 31 years with these costs and this link");
  return x;
}

double all_reduces_ns(const network& net, std::span<const double> bytes) {
  std::array<double, 2> threads{};
  double wire = 0;
  const double beside = net.allreduce_ns(0);
  for (const double size : bytes) {
    double& thread = *std::ranges::min_element(threads);
    wire = std::max(wire, thread) + std::max(0.0, net.allreduce_ns(size) - beside);
    thread = wire + beside;
  }
  return std::ranges::max(threads);
}

double least_every(double exchange_ns, double step_ns, double share) {
  return std::max(1.0, std::ceil(exchange_ns * (1 - share) / (share * step_ns)));
}

double pays_to_every(double exchange_ns, double other_ns, double step_ns) {
  // H step + exchange < (1 - even) (H step + other)
  const double most = ((1 - even_share) * other_ns - exchange_ns) / (even_share * step_ns);
  return most > 1 ? std::ceil(most) - 1 : 0;
}

overlapped overlap_of(const outer_exchange& x, double step_ns, double every, double slowdown) {
  const double most = every - 1, beside = slowdown * step_ns;  // what a step takes beside the exchange
  const double steps = std::min(most, std::ceil(x.hideable_ns / beside));
  return {steps, std::min(x.hideable_ns / slowdown, steps * step_ns)};
}

}  // namespace dr::predict
