#include "hook_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

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

// In the order in which gradients become ready, as DDP orders them after the first step; a bucket closes with the tensor
// that fills it. DDP hands them over in order.
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
  double elements;
};

// Tensors that travel together: one frame for each plan, one all-gather.
struct unit {
  size_t bucket = 0;  // with which it is complete
  std::vector<part> parts;
  double encode_ns = 0, merge_ns = 0, slot_bytes = 0;
};

double rounded(double bytes) { return std::ceil(bytes / 64) * 64; }

std::vector<unit> units_of(const training& t, std::span<const plan_work* const> choice, const plan_work& exact,
                           const bucket_list& buckets, const network& net, const hook_settings& how) {
  std::vector<unit> units;
  double room = -1;
  for (size_t i = t.tensors.size(); i-- > 0;) {
    const tensor_spec& each = t.tensors[i];
    const double size = 4 * each.elements;
    if (size > room) units.emplace_back(), room = std::max(how.bucket_bytes, size);
    room -= size;
    unit& u = units.back();
    u.bucket = std::max(u.bucket, buckets.of_tensor[i]);
    const plan_work* plan = choice[i] && each.elements >= how.bypass ? choice[i] : &exact;
    const auto known = std::ranges::find(u.parts, plan, &part::plan);
    if (known == u.parts.end())
      u.parts.push_back({plan, each.elements});
    else
      known->elements += each.elements;
  }
  constexpr double told = 8;  // bytes that say how large a frame is
  for (unit& u : units) {
    double size = told * static_cast<double>(u.parts.size()), bound = size;
    for (const part& p : u.parts) {
      u.encode_ns += p.plan->encode_ns(p.elements);
      u.merge_ns += p.plan->merge_ns(p.elements, net.ranks);
      size += p.plan->frame_bytes(p.elements);
      bound += p.plan == &exact ? exact.frame_bytes(p.elements) : p.plan->bound_bytes(p.elements);
    }
    // Room for the largest of the last step and 1/8 more, but never for more than any frame takes.
    u.slot_bytes = std::max(rounded(size), std::min(rounded(size + size / 8), rounded(bound)));
  }
  std::ranges::stable_sort(units, {}, &unit::bucket);
  return units;
}

// Of n things the i-th, for people.
std::string numbered(const char* what, size_t i) { return fmt::format("{} {}", what, i); }

// Backward until the bucket is ready.
void backward_to(two_lanes& lanes, const bucket& b, size_t i, double& done) {
  lanes.compute(b.ready_ns - done, "backward", numbered("backward to bucket", i));
  done = std::max(done, b.ready_ns);
}

}  // namespace

outcome hook_step(const training& t, std::span<const plan_work* const> choice, const plan_work& exact,
                  const network& net, const hook_settings& how, bool traced) {
  const bucket_list buckets = buckets_of(t, how);
  const std::vector<unit> units = units_of(t, choice, exact, buckets, net, how);
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
      arrives.push_back(lanes.send(net.allgather_ns(u.slot_bytes), "allgather", name));
      encode += u.encode_ns;
      bytes += (net.ranks - 1.0) * u.slot_bytes;
    }
  }
  lanes.compute(how.hook_ns, "hook", "hook");
  // Within the hook of the last bucket; what backward computes behind that gradient comes later.
  for (size_t i = 0; i < units.size(); ++i) {
    lanes.wait(arrives[i]);
    lanes.compute(units[i].merge_ns, "merge", traced ? numbered("unit", i) : std::string());
    merge += units[i].merge_ns;
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
