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
                                          "exchange=owner",
                                          "",
                                          "transform=lowrank",
                                          "a gradient of sparse rows (DR_NAMED_ROWS)",
                                          "an all-reduce of halves (DR_SENDER_HALVES)"};
  const auto refuse = [&](uint32_t tensor, const char* what) {
    fail(c_.error, DR_E_UNSUPPORTED, "%.80s: %s has no path on a device", tensors_[tensor].name.c_str(), what);
    c_.error.tensor = tensor;
    return DR_E_UNSUPPORTED;
  };
  if (!makes_frames(u) || u.list.kind == DR_UNIT_OWNER) return refuse(u.list.tensors[0], kinds[u.list.kind]);
  if (u.list.frames.size() > gates_max)
    return refuse(u.list.tensors[0], "a unit of more than 64 frames (flat plans, each with its own)");
  u.list.digest = static_cast<uint32_t>(combine(u.list.digest, device_mark) >> 32);
  u.device = std::make_unique<device_unit>();
  device_unit& d = *u.device;
  d.ranges = slots_of(u);
  uint64_t at = device_prefix(u.list.frames.size());
  for (const auto& list : u.list.frames) {
    frame& f = u.frames.emplace_back();
    f.tensors = list;
    f.votes = plans_.methods[list[0]]->votes;
    std::vector<piece_list> ranges;
    if (const dr_status s = cut(f, u, ranges)) return s;
    uint64_t bound = 0;
    for (piece_list& pieces : ranges) {
      device_part& p = *d.parts.emplace_back(std::make_unique<device_part>());
      p.pieces = std::move(pieces);
      if (const dr_status s = prepare_part(p)) {
        drop_advice(c_.error);
        name_tensor(p.pieces);
        return s;
      }
      bound = std::max(bound, p.batch.bound());
    }
    d.at.push_back(at);
    u.bounds.push_back(aligned_to_16(bound));
    at += u.bounds.back();
  }
  u.room = slot_room(at, 0, true);
  return DR_OK;
}

dr_status sender::prepare_part(device_part& p) {
  tensor_list tensors;
  for (const piece& of : p.pieces) {
    tensor_view v = views_[of.tensor];
    v.universe = of.rows;
    v.key += of.first;
    v.plan = nullptr;
    tensors.views.push_back(v);
    tensors.plans.push_back(plans_.methods[of.tensor]);
  }
  if (const dr_status s = p.batch.place(c_.request_for(nullptr, 0), tensors, side_->where(), c_.error)) return s;
  p.views = std::move(tensors.views);
  return p.batch.load_decode(c_.error, true);
}

uint64_t sender::state_bytes(const piece& p) const {
  const plan& method = *plans_.methods[p.tensor];
  return method.keeps_feedback() ? state_size_of(method.feedback_rule().kind, p.rows) : 0;
}

// One block: counts, reports and results, which the host has, too; states; f32 sums of the largest unit of another type; a
// workspace for all units.
dr_status sender::take_device_memory() {
  uint64_t mirrored = align(sizeof(step_counts)), states = 0, outputs = 0, workspace = 0;
  for (unit& u : units_) {
    const size_t frames = u.frames.size();
    device_unit& d = *u.device;
    d.results_at = mirrored;
    mirrored += align(d.parts.size() * sizeof(dr_result));
    d.report_at = mirrored;
    d.report_size = sizeof(slot_report) + frames * sizeof(dr_result) + options_.ranks * device_prefix(frames);
    mirrored += align(d.report_size);
    uint64_t room = 0, sums = 0;
    for (size_t range = 0; range < d.ranges; ++range) {
      const bool merges = d.ranges == 1 || range == options_.rank;
      uint64_t used = 0;
      for (size_t f = 0; f < frames; ++f) {
        device_part& p = d.part(f, range);
        size_t of_all = 0, of_one = 0;
        if (merges)
          if (const dr_status s = p.batch.decode_room(options_.ranks, of_all, c_.error)) return s;
        if (const dr_status s = p.batch.decode_room(1, of_one, c_.error)) return s;
        workspace = std::max<uint64_t>(workspace, p.batch.encode_room());
        p.room_at = used;
        p.room = std::max(of_all, of_one);
        used += align(p.room);
        for (const piece& of : p.pieces)
          if (!borrows_states(u)) states += align(state_bytes(of));
      }
      room = std::max(room, used);
    }
    workspace = std::max(workspace, room);
    for (const uint32_t i : u.list.tensors)
      if (is_rounded(i)) sums += align(sizeof(float) * elements_out(u, i));
    outputs = std::max(outputs, sums);
  }
  if (const dr_status s = side_->allocate(mirrored, mirrored + states + outputs + align(workspace))) return s;
  block_size_ = side_->size();
  workspace_size_ = workspace;
  workspace_ = side_->memory() + mirrored + states + outputs;
  std::byte* state = side_->memory() + mirrored;
  for (unit& u : units_) {
    device_unit& d = *u.device;
    d.event = side_->make_event();
    if (!d.event) return fail(c_.error, DR_E_MEMORY, "sender: the device makes no event");
    std::byte* sum = side_->memory() + mirrored + states;
    for (const uint32_t i : u.list.tensors)
      if (is_rounded(i)) {
        outs_[i].values = sum;
        sum += align(sizeof(float) * elements_out(u, i));
      }
    for (const auto& p : d.parts)
      for (size_t k = 0; k < p->pieces.size() && !borrows_states(u); ++k)
        if (const uint64_t size = state_bytes(p->pieces[k])) {
          p->views[k].state = state;
          state += align(size);
        }
    const auto write_sizes = [&](uint64_t at, size_t n) {
      const size_t size = sizeof(dr_result);
      for (size_t i = 0; i < n; ++i) std::memcpy(side_->host() + at + i * size, &size, sizeof size);
    };
    write_sizes(d.results_at, d.parts.size());
    write_sizes(d.report_at + sizeof(slot_report), u.frames.size());
  }
  return side_->start(mirrored + states);
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
    v.state_size = v.state ? state_bytes(of) : 0;
    // (The output of a scatter is this rank's shard alone. The others' are not delivered.)
    tensor_out& o = p.outs.emplace_back(outs_[of.tensor]);
    o.universe = of.rows;
    if (!plans_.methods[of.tensor]->keeps_residual()) continue;
    tensor_out& residual = p.residuals.emplace_back(o);
    residual.values = v.state ? residual_of(v.state) : nullptr;
  }
}

}  // namespace dr
