#include "hook_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "study_model.hpp"

namespace dr::predict {
namespace {

struct bucket {
  double ready_ns = 0, bytes = 0;
  size_t tensors = 0;
};

struct bucket_list {
  std::vector<bucket> buckets;
  std::vector<size_t> of_tensor;
};

// Buckets in the order in which gradients become ready (DDP's order after the first step); the tensor that fills a bucket
// closes it. DDP passes buckets on in order.
bucket_list buckets_of(const training& t, const hook_settings& how) {
  std::vector<size_t> order(t.tensors.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::ranges::stable_sort(order, {}, [&](size_t i) { return t.tensors[i].ready_ns; });
  bucket_list list;
  list.of_tensor.resize(t.tensors.size());
  bool open = false;
  for (const size_t i : order) {
    if (!open) {
      const double before = list.buckets.empty() ? 0 : list.buckets.back().ready_ns;
      list.buckets.push_back({before, 0, 0});
    }
    bucket& b = list.buckets.back();
    b.bytes += 4 * t.tensors[i].elements;
    b.ready_ns = std::max(b.ready_ns, t.tensors[i].ready_ns);
    ++b.tensors;
    list.of_tensor[i] = list.buckets.size() - 1;
    open = b.bytes < (list.buckets.size() == 1 ? how.first_bucket_bytes : how.bucket_bytes);
  }
  return list;
}

struct part {
  const plan_work* plan;
  double elements, tensors;  // tensors: those with a row of the frame's header and levels of their own
};

// What a unit costs. Its slots travel in one all-gather; or, with exchange=owner, in one all-to-all, and the owners' sums in
// an all-gather; or its tensors are all-reduced: values of 16 bits, or the two factors of a transform, one after another.
struct unit {
  size_t bucket = 0;  // the bucket that completes it
  std::vector<part> parts;
  double encode_ns = 0, merge_ns = 0, slot_bytes = 0;  // slot_bytes: of one slot
  bool owned = false;
  double sum_ns = 0;     // of this rank's range: to add up and encode
  bool reduced = false;  // all-reduced, its only part
  double first_bytes = 0, second_bytes = 0;
};

// For slots whose frames vary by 1 % from step to step.
constexpr double room_factor = 1.024;
// A transform sends smaller tensors as they are (`dense_below` of torch/_factors.py).
constexpr double small_elements = 1000;
// Larger slots are sent in pieces, all at once.
constexpr double piece_bytes = 2 << 20;

double gather_ns(const network& net, double bytes) {
  const double whole = net.allgather_ns(bytes), pieces = std::ceil(bytes / piece_bytes);
  if (pieces <= 1) return whole;
  const double beside = net.allgather_ns(0);
  return std::min(whole, beside + pieces * (net.allgather_ns(bytes / pieces) - beside));
}

double rounded(double bytes) { return std::ceil(bytes / 64) * 64; }

// The parts of a unit by plan, and the bytes of an all-reduce.
unit gathered(const training& t, std::span<const plan_work* const> choice, const plan_work& exact,
              const bucket_list& buckets, const hook_unit& of, const hook_settings& how) {
  unit u;
  u.owned = of.kind == DR_UNIT_OWNER;
  u.reduced = of.kind == DR_UNIT_HALVES || of.kind == DR_UNIT_FACTORS;
  for (const hook_unit::tensor& sent : of.tensors) {
    const tensor_spec& tensor = t.tensors[sent.position];
    const plan_work* const plan = sent.exact ? &exact : choice[sent.position];
    u.bucket = std::max(u.bucket, buckets.of_tensor[sent.position]);
    if (of.kind == DR_UNIT_HALVES) {
      u.first_bytes += plan->half_bytes(tensor.elements);
    } else if (of.kind == DR_UNIT_FACTORS) {
      const bool small = tensor.elements < how.bypass.value_or(small_elements);
      const factor_size f = factors_of(tensor, plan->factor_rank());
      u.first_bytes += plan->factor_bytes(small ? tensor.elements : f.first);
      u.second_bytes += small ? 0 : plan->factor_bytes(f.second);
    }
    const auto known = std::ranges::find(u.parts, plan, &part::plan);
    if (known == u.parts.end())
      u.parts.push_back({plan, tensor.elements, 1});
    else
      known->elements += tensor.elements, known->tensors += sent.flat ? 0 : 1;
  }
  return u;
}

std::vector<unit> costs_of(const training& t, std::span<const plan_work* const> choice, std::span<const hook_unit> list,
                           const plan_work& exact, const bucket_list& buckets, const network& net,
                           const hook_settings& how) {
  std::vector<unit> units;
  constexpr double size_bytes = 8, head = 40;  // bytes of a frame's size, and of the slot's header
  for (const hook_unit& of : list) {
    unit& u = units.emplace_back(gathered(t, choice, exact, buckets, of, how));
    const double owners = u.owned ? net.ranks : 1;
    double size = head + size_bytes * static_cast<double>(of.frames), bound = size;
    for (const part& p : u.parts) {
      u.encode_ns += p.plan->encode_ns(p.elements);
      u.merge_ns += p.plan->merge_ns(p.elements, u.reduced || u.owned ? 1 : net.ranks);
      if (u.reduced) continue;
      const double elements = p.elements / owners, tensors = std::max(1.0, p.tensors / owners);
      if (u.owned) u.sum_ns += p.plan->merge_ns(elements, net.ranks) + p.plan->encode_ns(elements);
      size += p.plan->batch_bytes(elements, tensors);
      bound += p.plan == &exact ? exact.frame_bytes(elements)
                                : std::max(p.plan->bound_bytes(elements), p.plan->batch_bytes(elements, tensors));
    }
    // Numbers with a rank's step and status: three of f32, or 16 of 16 bits.
    if (u.reduced) u.first_bytes += (of.kind == DR_UNIT_FACTORS ? 12.0 : 32.0) * net.ranks;
    // Room for growth from step to step, at most the bound of the frames.
    u.slot_bytes = std::max(rounded(size), std::min(rounded(size * room_factor), rounded(bound)));
  }
  std::ranges::stable_sort(units, {}, &unit::bucket);
  return units;
}

// "i of n", counted from 1.
std::string numbered(const char* what, size_t i) { return fmt::format("{} {}", what, i); }

// Backward until the bucket is ready.
void backward_to(two_lanes& lanes, const bucket& b, size_t i, double& done) {
  lanes.compute(b.ready_ns - done, "backward", numbered("backward to bucket", i));
  done = std::max(done, b.ready_ns);
}

}  // namespace

outcome hook_step(const training& t, std::span<const plan_work* const> choice, std::span<const hook_unit> list,
                  const plan_work& exact, const network& net, const hook_settings& how, bool traced) {
  const bucket_list buckets = buckets_of(t, how);
  const std::vector<unit> units = costs_of(t, choice, list, exact, buckets, net, how);
  two_lanes lanes(how.slowdown, traced, how.skew_ns);
  lanes.compute(t.forward_ns, "forward", "forward");
  double done = 0, encode = 0, merge = 0, bytes = 0;
  std::vector<double> arrives;
  for (size_t b = 0; b < buckets.buckets.size(); ++b) {
    backward_to(lanes, buckets.buckets[b], b, done);
    for (; arrives.size() < units.size() && units[arrives.size()].bucket == b;) {
      const unit& u = units[arrives.size()];
      const std::string name = traced ? numbered("unit", arrives.size()) : std::string();
      lanes.compute(u.encode_ns, "encode", name);
      encode += u.encode_ns;
      if (u.reduced) {
        arrives.push_back(lanes.send(net.allreduce_ns(u.first_bytes), "allreduce", name));
        bytes += 2 * (net.ranks - 1.0) / net.ranks * (u.first_bytes + u.second_bytes);
      } else {
        // (An all-to-all moves as much as an all-gather of one of its slots.)
        arrives.push_back(lanes.send(gather_ns(net, u.slot_bytes), u.owned ? "alltoall" : "allgather", name));
        bytes += (net.ranks - 1.0) * u.slot_bytes * (u.owned ? 2 : 1);
      }
    }
  }
  lanes.compute(how.hook_ns, "hook", "hook");
  // In the hook of the last bucket; the rest of backward follows. Owners send their sums before anyone merges.
  for (size_t i = 0; i < units.size(); ++i) {
    const unit& u = units[i];
    if (!u.owned) continue;
    const std::string name = traced ? numbered("unit", i) : std::string();
    lanes.wait(arrives[i]);
    lanes.compute(u.sum_ns, "merge", name);
    merge += u.sum_ns;
    arrives[i] = lanes.send(gather_ns(net, u.slot_bytes), "allgather", name, true);
  }
  for (size_t i = 0; i < units.size(); ++i) {
    const unit& u = units[i];
    const std::string name = traced ? numbered("unit", i) : std::string();
    lanes.wait(arrives[i]);
    if (u.second_bytes > 0) {
      lanes.compute(u.merge_ns / 2, "merge", name);
      lanes.wait(lanes.send(net.allreduce_ns(u.second_bytes), "allreduce", name, true));
    }
    lanes.compute(u.second_bytes > 0 ? u.merge_ns / 2 : u.merge_ns, "merge", name);
    merge += u.merge_ns;
  }
  lanes.compute(t.backward_ns - done, "backward", "backward");
  lanes.compute(t.rest_ns, "rest", "rest");
  return lanes.result(t.compute_ns() + how.hook_ns, encode, merge, bytes);
}

outcome dense_step(const training& t, double factor, const network& net, const hook_settings& how, bool traced) {
  const bucket_list buckets = buckets_of(t, how);
  two_lanes lanes(how.slowdown, traced, how.skew_ns);
  lanes.compute(t.forward_ns, "forward", "forward");
  double done = 0, last = 0, bytes = 0;
  for (size_t b = 0; b < buckets.buckets.size(); ++b) {
    backward_to(lanes, buckets.buckets[b], b, done);
    const double size = factor * buckets.buckets[b].bytes;
    last = lanes.send(net.allreduce_ns(size), "allreduce", traced ? numbered("bucket", b) : std::string());
    bytes += 2 * (net.ranks - 1.0) / net.ranks * size;
  }
  lanes.compute(t.backward_ns - done, "backward", "backward");
  lanes.wait(last);
  lanes.compute(t.rest_ns, "rest", "rest");
  return lanes.result(t.compute_ns(), 0, 0, bytes);
}

}  // namespace dr::predict
