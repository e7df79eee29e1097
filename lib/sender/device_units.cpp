// Units of frames on a device: their batches, one for each frame and range, and their memory.
#include <algorithm>
#include <cstring>

#include "feedback/residual.hpp"
#include "primitive/rng.hpp"
#include "sender/rank_sender.hpp"

namespace dr {
namespace {

constexpr uint64_t device_mark = 0x646576696365;  // in the digest: slots of the CPU have their frames at other places

// What a message of the pipeline adds for its own callers.
void drop_advice(dr_error& error) {
  if (char* const advice = std::strstr(error.message, "; DR_PLACE_ALLOW_HOST")) *advice = 0;
}

}  // namespace

dr_status sender::prepare_device(unit& u) {
  static constexpr const char* kinds[] = {"",
                                          "",
                                          "",
                                          "transform=lowrank",
                                          "a gradient of sparse rows (DR_NAMED_ROWS)",
                                          "an all-reduce of halves (DR_SENDER_HALVES)"};
  const auto refuse = [&](uint32_t tensor, const char* what) {
    fail(c_.error, DR_E_UNSUPPORTED, "%.80s: %s has no path on a device", tensors_[tensor].name.c_str(), what);
    c_.error.tensor = tensor;
    return DR_E_UNSUPPORTED;
  };
  if (!makes_frames(u)) return refuse(u.list.tensors[0], kinds[u.list.kind]);
  if (u.list.frames.size() > gates_max)
    return refuse(u.list.tensors[0], "a unit of more than 64 frames (flat plans, each with its own)");
  u.list.digest = static_cast<uint32_t>(combine(u.list.digest, device_mark) >> 32);
  u.device = std::make_unique<device_unit>();
  device_unit& d = *u.device;
  d.ranges = slots_of(u);
  const bool owns = u.list.kind == DR_UNIT_OWNER;
  uint64_t at = device_prefix(u.list.frames.size()), sum_at = at;
  for (const auto& list : u.list.frames) {
    frame& f = u.frames.emplace_back();
    f.tensors = list;
    f.votes = plans_.methods[list[0]]->votes;
    std::vector<piece_list> ranges;
    if (const dr_status s = cut(f, u, ranges)) return s;
    uint64_t bound = 0, sum_bound = 0;
    for (piece_list& pieces : ranges) {
      const auto prepare = [&](device_parts& to, std::span<const plan_ptr> plans, uint64_t& most) {
        device_part& p = *to.emplace_back(std::make_unique<device_part>());
        p.pieces = pieces;
        for (const piece& of : pieces) p.plans.push_back(plans[of.tensor]);
        const device_part* const like = &to == &d.sums ? d.parts.back().get() : nullptr;
        const dr_status s = prepare_part(p, like);
        if (!s && !p.empty()) most = std::max(most, p.batch->bound());
        if (s) {
          drop_advice(c_.error);
          name_tensor(p.pieces);
        }
        return s;
      };
      if (const dr_status s = prepare(d.parts, plans_.methods, bound)) return s;
      if (!owns) continue;
      if (const dr_status s = prepare(d.sums, sum_plans_, sum_bound)) return s;
    }
    d.at.push_back(at);
    d.sum_at.push_back(sum_at);
    u.bounds.push_back(aligned_to_16(bound));
    u.sum_bounds.push_back(aligned_to_16(sum_bound));
    at += u.bounds.back();
    sum_at += u.sum_bounds.back();
  }
  u.room = slot_room(at, 0, true);
  if (owns) u.sum_room = slot_room(sum_at, 0, true);
  return DR_OK;
}

// like: a part of the same pieces.
dr_status sender::prepare_part(device_part& p, const device_part* like) {
  if (p.empty()) return DR_OK;
  tensor_list tensors;
  for (const piece& of : p.pieces) {
    tensor_view v = views_[of.tensor];
    v.universe = of.rows;
    v.key += of.first;
    v.plan = nullptr;
    tensors.views.push_back(v);
  }
  tensors.plans = p.plans;
  p.views = tensors.views;
  if (like && like->plans == p.plans) {
    p.batch = like->batch;
    return DR_OK;
  }
  p.batch = std::make_shared<placed_batch>();
  if (const dr_status s = p.batch->place(c_.request_for(nullptr, 0), tensors, side_->where(), c_.error)) return s;
  return p.batch->load_decode(c_.error, true);
}

// One block: counts, reports and results, which the host has, too; states, and those of sums once more; f32 sums and outputs
// of the largest unit; a workspace for all units.
dr_status sender::take_device_memory() {
  uint64_t mirrored = align(sizeof(step_counts)), states = 0, outputs = 0, workspace = 0;
  for (unit& u : units_) {
    device_unit& d = *u.device;
    uint64_t kept = 0, lent = 0;
    if (const dr_status s = lay_out_device(u, nullptr, nullptr, kept, lent)) return s;
    const size_t frames = u.frames.size(), prefixes = options_.ranks * device_prefix(frames);
    const auto place = [&](uint64_t size) {
      const uint64_t at = mirrored;
      mirrored += align(size);
      return at;
    };
    d.bounds_at = place(frames * sizeof(uint64_t));
    d.sum_bounds_at = place(frames * sizeof(uint64_t));
    d.results_at = place(d.parts.size() * sizeof(dr_result));
    d.sum_results_at = place(d.sums.empty() ? 0 : frames * sizeof(dr_result));
    d.report_at = place(sizeof(slot_report) + d.checks() * sizeof(dr_result) + prefixes);
    d.sum_report_at = place(d.sums.empty() ? 0 : sizeof(slot_report) + frames * sizeof(dr_result) + prefixes);
    d.end = mirrored;
    if (const dr_status s = measure_device(u, workspace)) return s;
    states += kept;
    outputs = std::max(outputs, lent);
  }
  if (const dr_status s = side_->allocate(mirrored, mirrored + states + outputs + align(workspace))) return s;
  block_size_ = side_->size();
  workspace_size_ = workspace;
  workspace_ = side_->memory() + mirrored + states + outputs;
  std::byte *const state = side_->memory() + mirrored, *const output = state + states;
  states = 0;
  for (unit& u : units_) {
    device_unit& d = *u.device;
    d.event = side_->make_event();
    if (!d.event) return fail(c_.error, DR_E_MEMORY, "sender: the device makes no event");
    uint64_t kept = 0, lent = 0;
    if (const dr_status s = lay_out_device(u, state + states, output, kept, lent)) return s;
    states += kept;
    const auto write_sizes = [&](uint64_t at, size_t n) {
      const size_t size = sizeof(dr_result);
      for (size_t i = 0; i < n; ++i) std::memcpy(side_->host() + at + i * size, &size, sizeof size);
    };
    std::memcpy(side_->host() + d.bounds_at, u.bounds.data(), u.bounds.size() * sizeof(uint64_t));
    std::memcpy(side_->host() + d.sum_bounds_at, u.sum_bounds.data(), u.sum_bounds.size() * sizeof(uint64_t));
    write_sizes(d.results_at, d.parts.size());
    write_sizes(d.report_at + sizeof(slot_report), d.checks());
    if (d.sums.empty()) continue;
    write_sizes(d.sum_results_at, u.frames.size());
    write_sizes(d.sum_report_at + sizeof(slot_report), u.frames.size());
  }
  return side_->start(mirrored + states);
}

// Places the memory of a unit, or measures it (nullptr). kept: bytes of states; lent: of what a call needs, and other units
// use, too.
dr_status sender::lay_out_device(unit& u, std::byte* state, std::byte* output, uint64_t& kept, uint64_t& lent) {
  const auto place = [](std::byte* base, uint64_t& used, uint64_t size) {
    std::byte* const at = base ? base + used : nullptr;
    used += align(size);
    return at;
  };
  device_unit& d = *u.device;
  if (!borrows_states(u))
    for (const auto& p : d.parts)
      for (size_t k = 0; k < p->pieces.size(); ++k)
        if (const uint64_t size = p->state_bytes(k)) p->views[k].state = place(state, kept, size);
  uint64_t outputs = 0, sums = 0;
  for (const uint32_t i : u.list.tensors)
    if (is_rounded(i)) outs_[i].values = place(output, outputs, sizeof(float) * elements_out(u, i));
  for (size_t f = 0; f < u.frames.size() && !d.sums.empty(); ++f) {
    device_part& p = d.sum(f, options_.rank);
    p.sums.resize(p.pieces.size());
    p.copies.resize(p.pieces.size());
    for (size_t k = 0; k < p.pieces.size(); ++k) {
      const uint64_t n = p.pieces[k].rows, size = p.state_bytes(k);
      const uint32_t dtype = tensors_[p.pieces[k].tensor].dtype;
      p.sums[k] = reinterpret_cast<float*>(place(output, sums, sizeof(float) * n));
      p.views[k].values = dtype == DR_F32 ? static_cast<void*>(p.sums[k]) : place(output, sums, value_size(dtype) * n);
      if (!size) continue;
      p.views[k].state = place(state, kept, size);
      p.copies[k] = place(state, kept, size);
      p.views[k].state_size = size;
    }
  }
  lent = std::max(outputs, sums);
  return DR_OK;
}

// The workspace of a unit's calls.
dr_status sender::measure_device(const unit& u, uint64_t& workspace) {
  const device_unit& d = *u.device;
  const size_t frames = u.frames.size();
  uint64_t of_sums = 0;
  for (size_t range = 0; range < d.ranges; ++range) {
    const bool merges = d.ranges == 1 || range == options_.rank;
    uint64_t used = 0;
    const auto measure = [&](device_part& p, bool of_all, uint64_t& room) -> dr_status {
      size_t all = 0, one = 0;
      if (p.empty()) return DR_OK;
      if (of_all)
        if (const dr_status s = p.batch->decode_room(options_.ranks, all, c_.error)) return s;
      if (const dr_status s = p.batch->decode_room(1, one, c_.error)) return s;
      workspace = std::max<uint64_t>(workspace, p.batch->encode_room());
      p.room_at = room;
      p.room = std::max(all, one);
      room += align(p.room);
      return DR_OK;
    };
    for (size_t f = 0; f < frames; ++f) {
      if (const dr_status s = measure(d.part(f, range), merges, used)) return s;
      if (d.sums.empty()) continue;
      if (const dr_status s = measure(d.sum(f, range), false, of_sums)) return s;
    }
    workspace = std::max(workspace, used);
  }
  workspace = std::max(workspace, of_sums);
  return DR_OK;
}

// The tensors and outputs of a part, as they were placed.
void sender::bind_device(const unit& u, device_part& p) {
  p.outs.clear();
  p.residuals.clear();
  for (size_t k = 0; k < p.pieces.size(); ++k) {
    const piece& of = p.pieces[k];
    const tensor_view& given = views_[of.tensor];
    tensor_view& v = p.views[k];
    const auto* const values = static_cast<const std::byte*>(given.values);
    v.values = values ? values + of.first * value_size(given.dtype) : nullptr;
    if (borrows_states(u)) v.state = given.state;
    v.state_size = v.state ? p.state_bytes(k) : 0;
    // (The output of a scatter is this rank's shard alone. The others' are not delivered, nor are the parts of a sum.)
    tensor_out& o = p.outs.emplace_back(outs_[of.tensor]);
    o.universe = of.rows;
    if (!p.plans[k]->keeps_residual()) continue;
    tensor_out& residual = p.residuals.emplace_back(o);
    residual.values = v.state ? residual_of(v.state) : nullptr;
  }
}

}  // namespace dr
