#include "step_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "study_model.hpp"

namespace dr::predict {
namespace {

// The point between `yes` and `no` at which `pays` changes.
double edge(double yes, double no, const std::function<bool(double)>& pays) {
  for (int i = 0; i < 20; ++i) {
    const double middle = std::sqrt(yes * no);
    (pays(middle) ? yes : no) = middle;
  }
  return yes;
}

// Infinity: not modelled, or more than 31 years.
double bounded(auto&& step_ns) {
  try {
    return step_ns();
  } catch (const unsupported_model&) {
    return std::numeric_limits<double>::infinity();
  }
}

// Compared with the faster dense ring.
bool is_faster(const step_model& m, const candidate& c, double stretch) {
  return stretch * bounded([&] { return m.step(c).step_ns; }) < m.best_dense_ns();
}

}  // namespace

candidate dense_candidate(bool half) {
  candidate c;
  c.name = half ? "dense bf16" : "dense f32";
  c.dense_factor = half ? 0.5 : 1;
  return c;
}

candidate powersgd_candidate(uint32_t rank) {
  candidate c;
  c.name = fmt::format("PowerSGD rank {}", rank);
  c.powersgd_rank = rank;
  return c;
}

candidate uniform_candidate(std::shared_ptr<const plan_work> work, size_t tensors) {
  candidate c;
  c.name = work->text();
  c.works.push_back(std::move(work));
  c.choice.assign(tensors, 0);
  return c;
}

outcome step_model::step(const candidate& c, bool traced) const {
  outcome o = unbounded_step(c, traced);
  // (Its parts may be longer than the step, but not by much.)
  if (!(o.step_ns <= max_ns && o.no_overlap_ns <= max_ns && o.bytes <= max_ns))
    throw unsupported_model("unsupported: the step takes more than 31 years with these costs and this link");
  return o;
}

outcome step_model::unbounded_step(const candidate& c, bool traced) const {
  if (c.powersgd_rank) return powersgd_step(c.powersgd_rank, traced);
  if (hook == hook_kind::exchange) return exchange_step(c, traced);
  if (c.dense_factor > 0) return dense_step(model, c.dense_factor, net, how, traced);
  const std::vector<const plan_work*> choice = works_of(c);
  // Only dense tensors: no hook.
  if (std::ranges::all_of(choice, [](const plan_work* w) { return w == nullptr; }))
    return dense_step(model, 1, net, how, traced);
  return hook_step(model, choice, units->of(model, choice, how.bypass), *exact, net, how, traced);
}

std::vector<const plan_work*> step_model::works_of(const candidate& c) const {
  std::vector<const plan_work*> choice;
  for (const int which : c.choice) choice.push_back(which < 0 ? nullptr : c.works[static_cast<size_t>(which)].get());
  return choice;
}

// After backward: one exchange per plan, one after another, and an all-reduce of the dense tensors.
outcome step_model::exchange_step(const candidate& c, bool traced) const {
  two_lanes lanes(1, traced, how.skew_ns);
  lanes.compute(model.forward_ns, "forward", "forward");
  lanes.compute(model.backward_ns, "backward", "backward");
  double encode = 0, merge = 0, sent = 0, exchanged = 0;
  std::vector<interval> inside;
  double dense = 0, late = how.skew_ns;  // after the first exchange the ranks are synchronised
  std::vector<double> elements(c.works.size(), 0);
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const int which = c.is_plan() ? c.choice[i] : -1;
    (which < 0 ? dense : elements[static_cast<size_t>(which)]) += model.tensors[i].elements;
  }
  if (dense > 0) {
    const double bytes = 4 * dense * (c.dense_factor > 0 ? c.dense_factor : 1);
    lanes.wait(lanes.send(net.allreduce_ns(bytes), "allreduce", "all-reduce"));
    sent += 2 * (net.ranks - 1.0) / net.ranks * bytes;
    late = 0;
  }
  for (size_t k = 0; k < c.works.size(); ++k) {
    if (elements[k] <= 0) continue;
    const plan_work& w = *c.works[k];
    if (w.factor_rank()) {
      const factor_bytes size = factors_of_choice(c, static_cast<int>(k));
      const double before = w.encode_ns(elements[k]), behind = w.merge_ns(elements[k], net.ranks);
      lanes.compute(before, "encode", "products");
      lanes.wait(lanes.send(net.allreduce_ns(size.first), "allreduce", "P", std::exchange(late, 0) == 0));
      lanes.compute(behind / 2, "merge", "products");
      if (size.second > 0) lanes.wait(lanes.send(net.allreduce_ns(size.second), "allreduce", "Q", true));
      lanes.compute(behind / 2, "merge", "products");
      encode += before, merge += behind;
      sent += 2 * (net.ranks - 1.0) / net.ranks * (size.first + size.second);
      continue;
    }
    const exchange_work work = w.as_exchange_work(net.ranks, *exact);
    const link port = net.port(w.schedule());
    const exchange_time t = model_exchange(w.stage(), elements[k], work, net.ranks, port, traced);
    const double begin = lanes.now() + std::exchange(late, 0);
    lanes.wait(begin + t.total_ns);
    for (interval entry : t.timeline) {
      entry.begin_ns += begin, entry.end_ns += begin;
      inside.push_back(std::move(entry));
    }
    encode += t.encode_ns, merge += t.merge_ns, sent += t.bytes;
    exchanged += std::max(0.0, 8e9 * t.bytes / port.bits_per_second);
  }
  lanes.compute(model.rest_ns, "rest", "rest");
  outcome o = lanes.result(model.compute_ns(), encode, merge, sent);
  o.link_ns += exchanged;
  o.no_overlap_ns = std::max(o.step_ns, o.no_overlap_ns + exchanged);
  o.perfect_ns = std::min(o.step_ns, std::max(model.compute_ns() + encode + merge, o.link_ns));
  o.timeline.insert(o.timeline.end(), inside.begin(), inside.end());
  return o;
}

step_model::factor_bytes step_model::factors_of_choice(const candidate& c, int which) const {
  factor_bytes sum;
  const plan_work& w = *c.works[static_cast<size_t>(which)];
  for (size_t i = 0; i < model.tensors.size(); ++i)
    if (c.choice[i] == which) {
      const factor_size f = factors_of(model.tensors[i], w.factor_rank());
      sum.first += w.factor_bytes(f.first), sum.second += w.factor_bytes(f.second);
    }
  return sum;
}

outcome step_model::powersgd_step(uint32_t rank, bool traced) const {
  const powersgd_size size = powersgd_of(model, rank);
  double coding = 0;
  const plan_profile* const known = powersgd_costs(rank);
  if (known)
    coding = (*known->encode)(model.elements()) + (known->merge ? (*known->merge)(model.elements()) : 0);
  else if (flops > 0)
    coding = 1e9 * size.flops / flops;
  coding *= products;
  two_lanes lanes(1, traced, how.skew_ns);
  lanes.compute(model.forward_ns, "forward", "forward");
  lanes.compute(model.backward_ns, "backward", "backward");
  lanes.compute(coding, "encode", "products");
  (void)lanes.send(net.allreduce_ns(size.bytes / 2), "allreduce", "P");
  lanes.wait(lanes.send(net.allreduce_ns(size.bytes / 2), "allreduce", "Q and the rest"));
  lanes.compute(model.rest_ns, "rest", "rest");
  return lanes.result(model.compute_ns(), coding, 0, 2 * (net.ranks - 1.0) / net.ranks * size.bytes);
}

double step_model::dense_ns(bool half) const {
  return bounded([&] { return step(dense_candidate(half)).step_ns; });
}

// torch's own, or this library's lowrank. nullptr: neither.
const plan_profile* step_model::powersgd_costs(uint32_t rank) const {
  if (!costs) return nullptr;
  for (const char* const name : {"powersgd(rank={})", "transform=lowrank(rank={}) feedback=residual"})
    if (const plan_profile* known = find_plan(*costs, fmt::format(fmt::runtime(name), rank)); known && known->encode)
      return known;
  return nullptr;
}

bool step_model::is_complete(const candidate& c) const {
  return !c.powersgd_rank || flops > 0 || powersgd_costs(c.powersgd_rank);
}

step_model step_model::with_rate(double bits_per_second) const {
  step_model m = *this;
  m.net = net.with_rate(bits_per_second);
  return m;
}

step_model step_model::with_ranks(uint32_t ranks) const {
  step_model m = *this;
  m.net = net.with_ranks(ranks);
  if (!net.measured || !costs || ranks == net.ranks) return m;
  const double stated = net.stated ? net.wire.bits_per_second : 0;
  const measured_link* const known = closest_link(*costs, transport_of(hook), ranks, stated);
  if (!known) return m;
  m.net.measured = *known;
  if (!net.stated) m.net.wire = {known->bits_per_second, known->latency_ns, false};
  return m;
}

step_model step_model::with_batch(double factor) const {
  step_model m = *this;
  m.model = model.scaled(factor);
  m.how.skew_ns *= factor;  // of computing
  return m;
}

step_model step_model::with_compute(double factor) const {
  step_model m = with_batch(factor);
  m.exact = std::make_shared<const plan_work>(exact->scaled(factor, 1));
  m.how.hook_ns *= factor;
  m.products *= factor;
  return m;
}

void step_model::note(const candidate& c, note_list& notes) const {
  if (!model.times_known)
    notes.insert("the model has no times of forward and backward: a step is its exchange alone, without overlap");
  else if (!model.ready_known)
    notes.insert(
        "ready times are unknown: all gradients count as ready at the end of backward, so nothing overlaps it");
  if (c.powersgd_rank) {
    notes.insert("PowerSGD is by formula: products, then two all-reduces after backward");
    if (powersgd_of(model, c.powersgd_rank).guessed)
      notes.insert("PowerSGD: shapes are unknown; tensors count as square matrices, a lower bound on its bytes");
    if (!is_complete(c))
      notes.insert(
          "PowerSGD: its products are not counted, since neither the profile nor --flops has their cost: its row is "
          "incomplete");
  }
  std::vector<hook_unit> sent;
  if (hook == hook_kind::ddp && c.is_plan()) try {
      sent = units->of(model, works_of(c), how.bypass);
    } catch (const unsupported_model&) {  // (the row says so)
    }
  for (size_t k = 0; k < c.works.size(); ++k) {
    if (c.works[k]->factor_rank() && std::ranges::any_of(model.tensors, [](const auto& t) { return t.rows <= 0; }))
      notes.insert("lowrank: shapes are unknown; tensors count as square matrices, a lower bound on its bytes");
    if (hook == hook_kind::exchange) {
      c.works[k]->note_growth(net.ranks, notes);
      if (c.works[k]->schedule() == "hierarchy")
        notes.insert("hierarchy: inside a host the network's rate counts, too, so it is faster than this");
    }
    double low = std::numeric_limits<double>::infinity(), high = 0;
    if (hook == hook_kind::exchange) {
      double sum = 0;
      for (size_t i = 0; i < model.tensors.size(); ++i)
        if (c.choice[i] == static_cast<int>(k)) sum += model.tensors[i].elements;
      low = high = sum;
    } else {
      // The tensors of a unit count as one.
      for (const hook_unit& u : sent) {
        double sum = 0;
        for (const hook_unit::tensor& t : u.tensors)
          if (c.choice[t.position] == static_cast<int>(k) && !t.exact) sum += model.tensors[t.position].elements;
        if (sum > 0) low = std::min(low, sum), high = std::max(high, sum);
      }
    }
    if (high > 0) c.works[k]->note_range(low, high, notes);
  }
}

void step_model::note_link(note_list& notes) const {
  if (!net.uses_measured() || net.measured->ranks == net.ranks) return;
  notes.insert(fmt::format("extrapolation: {} was measured among {} ranks, not {}",
                           net.stated ? "what a collective costs beside its bytes" : "the link", net.measured->ranks,
                           net.ranks));
}

paying_range where_it_pays(double low, double high, int points, const std::function<bool(double)>& pays) {
  const double step = std::pow(high / low, 1.0 / (points - 1));
  int last = points - 1;
  while (last >= 0 && !pays(low * std::pow(step, last))) --last;
  if (last < 0) return {};
  const double x = low * std::pow(step, last);
  return {last == 0 || pays(low) ? 0 : edge(x, low, pays),
          last == points - 1 ? std::numeric_limits<double>::infinity() : edge(x, x * step, pays)};
}

paying_range break_even_rate(const step_model& m, const candidate& c, double stretch) {
  return where_it_pays(1e5, 1e13, 33, [&](double rate) { return is_faster(m.with_rate(rate), c, stretch); });
}

paying_range break_even_batch(const step_model& m, const candidate& c, double stretch) {
  return where_it_pays(1.0 / 64, 64, 13, [&](double factor) { return is_faster(m.with_batch(factor), c, stretch); });
}

const char* verdict_of(double step_ns, double dense_ns) {
  return step_ns < (1 - even_share) * dense_ns ? "pays" : step_ns > (1 + even_share) * dense_ns ? "slower" : "even";
}

}  // namespace dr::predict
