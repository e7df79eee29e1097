// Creates a sender (units, ranges, memory) and describes it to callers.
#include "sender/rank_sender.hpp"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "core/arena.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

constexpr uint32_t known_flags = DR_SENDER_SUM | DR_SENDER_F32 | DR_SENDER_CALLER_STATES | DR_SENDER_SKIP |
                                 DR_SENDER_SCATTER | DR_SENDER_DRY | DR_SENDER_HALVES | DR_SENDER_ZEROS;

// Whether frames of the same tensors have one size for all values. FIXED_SIZE means equal sizes for equal counts, but the
// number of elements that a sparsifier or an index codec selects depends on the gradient.
bool has_one_size(const plan& p) {
  constexpr uint32_t all = DR_PLAN_FIXED_SIZE | DR_PLAN_LOSSY_SUPPORT, none = DR_PLAN_SPARSIFIES;
  const uint32_t flags = traits_of(p).flags;
  return (flags & all) == all && !(flags & none);
}

}  // namespace

sender::~sender() {
  if (block_) c_.release(block_, block_size_);
}

dr_status sender::check_options() {
  const sender_options& o = options_;
  if (o.rank >= o.ranks)
    return fail(c_.error, DR_E_ARGUMENT, "options: rank %u is not below %u ranks", o.rank, o.ranks);
  if (o.flags & ~known_flags) return fail(c_.error, DR_E_UNSUPPORTED, "options: unknown flags 0x%x", o.flags);
  if ((o.flags & DR_SENDER_ZEROS) && !side_)
    return fail(c_.error, DR_E_ARGUMENT, "options: DR_SENDER_ZEROS is of devices");
  if ((o.flags & DR_SENDER_SKIP) && side_)
    return fail(
        c_.error, DR_E_UNSUPPORTED,
        "options: DR_SENDER_SKIP runs on the CPU only: no rank knows ahead whether values on a device are finite");
  if (o.rules.flat > DR_NOT_FLAT)
    return fail(c_.error, DR_E_ARGUMENT, "options: flat is %u, not one of DR_FLAT_*", o.rules.flat);
  return DR_OK;
}

dr_status sender::create(std::vector<named_tensor> tensors, sender_options options) {
  tensors_ = std::move(tensors);
  options_ = std::move(options);
  options_.rules.ranks = options_.ranks;
  options_.rules.scatters = options_.flags & DR_SENDER_SCATTER;
  options_.rules.reduces_halves = options_.flags & DR_SENDER_HALVES;
  if (const dr_status s = check_options()) return s;
  if (const dr_status s = plan_units(tensors_, options_.rules, plans_, c_.error)) return s;
  given_.resize(tensors_.size());
  given_outs_.resize(tensors_.size());
  unit_of_.resize(tensors_.size());
  position_of_.resize(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const named_tensor& t = tensors_[i];
    tensor_view v{};
    v.struct_size = sizeof v;
    v.dtype = t.dtype;
    v.universe = t.elements;
    v.width = 1;
    v.key = plans_.keys[i];
    v.base = plans_.methods[i]->takes_base() ? t.base : nullptr;
    v.rows = plans_.methods[i]->has_tiles() ? t.rows : 0;
    views_.push_back(v);
    tensor_out o{};
    o.struct_size = sizeof o;
    o.dtype = DR_F32;  // (an output of another type is rounded once, after the sum)
    o.universe = t.elements;
    o.width = 1;
    outs_.push_back(o);
    if (clip_of(*plans_.methods[i]) > 0) clipped_.push_back(static_cast<uint32_t>(i));
  }
  sum_plans_ = plans_.methods;
  for (size_t u = 0; u < plans_.units.size(); ++u) {
    unit_list& list = plans_.units[u];
    if (list.kind == DR_UNIT_OWNER && !is_dry())
      for (const uint32_t i : list.tensors)
        if (const dr_status s = bind_sum(plans_.methods[i], sum_plans_[i], c_.error)) return s;
    for (uint32_t i = 0; i < list.tensors.size(); ++i) {
      unit_of_[list.tensors[i]] = static_cast<uint32_t>(u);
      position_of_[list.tensors[i]] = i;
    }
    units_.emplace_back();
    units_.back().list = std::move(list);
    if (const dr_status s = prepare(units_.back())) return s;
  }
  // A single frame clips by its own norm. The norm of several is known when all tensors are placed.
  size_t parts = 0;
  for (const unit& u : units_)
    for (const frame& f : u.frames)
      if (std::ranges::any_of(f.tensors, [&](uint32_t i) { return clip_of(*plans_.methods[i]) > 0; }))
        parts += static_cast<size_t>(std::ranges::count_if(f.ranges, [](const range_work& r) { return !r.empty(); }));
  if (parts > 1) clip_ = clip_of(*plans_.methods[clipped_[0]]);
  return is_dry() ? dr_status{DR_OK} : side_ ? take_device_memory() : take_memory();
}

// The ranges of a frame's elements: one, or one for each rank.
dr_status sender::cut(frame& f, const unit& u, std::vector<piece_list>& ranges) {
  if (u.list.kind == DR_UNIT_FRAMES) {
    ranges.resize(1);
    for (const uint32_t i : f.tensors) ranges[0].push_back({i, 0, tensors_[i].elements});
    return DR_OK;
  }
  if (u.list.kind == DR_UNIT_SCATTER) {
    ranges.resize(options_.ranks);
    for (const uint32_t i : f.tensors) {
      const uint64_t shard = tensors_[i].elements / options_.ranks;
      if (shard * options_.ranks != tensors_[i].elements) {
        fail(c_.error, DR_E_ARGUMENT, "%.80s: %" PRIu64 " elements are not shards for %u ranks",
             tensors_[i].name.c_str(), tensors_[i].elements, options_.ranks);
        return c_.error.tensor = i, DR_E_ARGUMENT;
      }
      for (uint32_t rank = 0; rank < options_.ranks; ++rank) ranges[rank].push_back({i, rank * shard, shard});
    }
    return DR_OK;
  }
  std::vector<tensor_view> views;
  std::vector<const plan*> methods;
  for (const uint32_t i : f.tensors) {
    views.push_back(views_[i]);
    methods.push_back(plans_.methods[i].get());
  }
  ranges = dr::cut(views, methods, options_.ranks);
  for (piece_list& list : ranges)
    for (piece& p : list) p.tensor = f.tensors[p.tensor];
  return DR_OK;
}

dr_status sender::prepare(unit& u) {
  for (const uint32_t i : u.list.tensors) u.bytes += tensors_[i].elements * value_size(tensors_[i].dtype);
  if (is_dry()) return DR_OK;
  if (side_) return prepare_device(u);
  switch (u.list.kind) {
    case DR_UNIT_HALVES: return prepare_halves(u);
    case DR_UNIT_FACTORS: return prepare_factors(u);
    case DR_UNIT_ROWS: return prepare_rows(u);
    default: break;
  }
  const bool owns = u.list.kind == DR_UNIT_OWNER;
  bool fixed = true;
  for (auto& list : u.list.frames) {
    frame& f = u.frames.emplace_back();
    f.tensors = list;
    f.votes = plans_.methods[list[0]]->votes;
    std::vector<piece_list> ranges;
    if (const dr_status s = cut(f, u, ranges)) return s;
    uint64_t bound = 0, sum_bound = 0;
    for (uint32_t j = 0; j < ranges.size(); ++j) {
      range_uses uses;
      const bool mine = u.list.kind == DR_UNIT_FRAMES || j == options_.rank;
      uses.encodes[at(frame_kind::part)] = uses.restores[at(residual_kind::own)][at(frame_kind::part)] = true;
      uses.summed = owns && mine ? options_.ranks : 1;
      uses.borrows_states = borrows_states(u);
      if (owns) {
        uses.merges[at(frame_kind::sum)] = true;
        uses.merged = 1;
        if (mine) {
          uses.sums[at(frame_kind::part)] = uses.encodes[at(frame_kind::sum)] = true;
          uses.residual = residual_kind::sum;
          uses.restores[at(residual_kind::sum)][at(frame_kind::sum)] = true;
          uses.restores[at(residual_kind::sum)][at(frame_kind::part)] = true;
        }
      } else if (mine) {
        uses.merges[at(frame_kind::part)] = true;
        uses.merged = options_.ranks;
      }
      range_work& r = f.ranges.emplace_back(c_, std::move(ranges[j]), uses);
      if (r.empty()) continue;
      const bool alone = u.list.frames.size() * ranges.size() == 1;
      if (const dr_status s = r.prepare({plans_.methods, sum_plans_, nullptr}, memory(), 1, alone)) {
        if (c_.error.tensor < r.pieces().size()) name_tensor(f, j);
        return s;
      }
      bound = std::max(bound, r.frame_bound(frame_kind::part));
      if (owns) sum_bound = std::max(sum_bound, r.frame_bound(frame_kind::sum));
    }
    // (A status frame may take its place.)
    u.bounds.push_back(std::max<uint64_t>(bound, status_frame_max));
    u.sum_bounds.push_back(std::max<uint64_t>(sum_bound, status_frame_max));
    for (const uint32_t i : list) fixed &= has_one_size(*plans_.methods[i]) && !(owns && f.votes);
  }
  const auto room_of = [&](std::span<const uint64_t> bounds) {
    uint64_t bound = prefix_size(bounds.size());
    for (const uint64_t b : bounds) bound += b;
    return slot_room(bound, prefix_size(bounds.size()), fixed);
  };
  u.room = room_of(u.bounds);
  if (owns) u.sum_room = room_of(u.sum_bounds);
  u.sent.resize(slots_of(u) * u.frames.size());
  return DR_OK;
}

// One block: states and sums; the f32 outputs of the largest unit of another type; a workspace for all units.
dr_status sender::take_memory() {
  uint64_t states = 0, outputs = 0, workspace = 0;
  const auto out_size = [&](const unit& u, uint32_t i) { return align(sizeof(float) * elements_out(u, i)); };
  std::vector<uint64_t> begins;
  for (unit& u : units_) {
    uint64_t of_unit = 0;
    decode_memory decoded;
    for (const uint32_t i : u.list.tensors) of_unit += makes_frames(u) && is_rounded(i) ? out_size(u, i) : 0;
    outputs = std::max(outputs, of_unit);
    for (frame& f : u.frames)
      for (range_work& r : f.ranges) {
        if (r.empty()) continue;
        begins.push_back(states);
        states += align(r.place(nullptr));
        r.make_bindings();
        if (const dr_status s = r.measure_workspace(workspace)) return s;
        decode_memory needed;
        if (!r.merges()) continue;
        if (const dr_status s = r.decode_memory_of(needed)) return s;
        decoded.stored += needed.stored;
        decoded.transient = std::max(decoded.transient, needed.transient);
      }
    workspace = std::max(workspace, decoded.stored + decoded.transient);
  }
  workspace_size_ = workspace;
  block_size_ = states + outputs + workspace;
  if (!block_size_) return DR_OK;
  block_ = static_cast<std::byte*>(c_.allocate(block_size_));
  if (!block_) return fail(c_.error, DR_E_MEMORY, "sender: cannot allocate %zu bytes", block_size_);
  std::memset(block_, 0, states);
  workspace_ = block_ + states + outputs;
  size_t next = 0;
  for (unit& u : units_) {
    std::byte* out = block_ + states;
    for (const uint32_t i : u.list.tensors)
      if (makes_frames(u) && is_rounded(i)) {
        outs_[i].values = out;
        out += out_size(u, i);
      }
    for (frame& f : u.frames)
      for (range_work& r : f.ranges) {
        if (r.empty()) continue;
        r.place(block_ + begins[next++]);
        r.lend_workspace(workspace_);
      }
  }
  return DR_OK;
}

dr_status sender::check_place(size_t first, size_t n, const void* const* in, void* const* out, void* const* states) {
  if (first > tensors_.size() || n > tensors_.size() - first)
    return fail(c_.error, DR_E_ARGUMENT, "tensors %zu … %zu: the sender has %zu", first, first + n, tensors_.size());
  if (states && !(options_.flags & DR_SENDER_CALLER_STATES))
    return fail(c_.error, DR_E_ARGUMENT, "states: the sender has them; created without DR_SENDER_CALLER_STATES");
  for (size_t i = 0; i < n; ++i) {
    const named_tensor& t = tensors_[first + i];
    const char* why = nullptr;
    const auto aligned = [](const void* at, size_t to) { return reinterpret_cast<uintptr_t>(at) % to == 0; };
    const size_t to = options_.flags & DR_SENDER_F32 ? sizeof(float) : value_size(t.dtype);
    if (in && t.elements && !in[i]) why = "in is NULL";
    if (in && !aligned(in[i], value_size(t.dtype))) why = "in is not aligned to its type";
    if (out && t.elements && !out[i]) why = "out is NULL";
    if (out && !aligned(out[i], to)) why = "out is not aligned to its type";
    if (states && !states[i] && borrows_state(first + i)) why = "its state is NULL";
    if (states && !aligned(states[i], 8)) why = "its state is not aligned to 8";
    if (!why) continue;
    fail(c_.error, DR_E_ARGUMENT, "%.80s: %s", t.name.c_str(), why);
    c_.error.tensor = first + i;
    return DR_E_ARGUMENT;
  }
  return DR_OK;
}

void sender::place(size_t first, std::span<const void* const> in, std::span<void* const> out,
                   std::span<void* const> states) {
  for (size_t i = 0; i < in.size(); ++i) {
    tensor_view& v = views_[first + i];
    given_[first + i] = in[i];
    if (v.values == in[i]) continue;
    v.values = in[i];
    units_[unit_of_[first + i]].tensors_moved = true;
  }
  for (size_t i = 0; i < states.size(); ++i) {
    tensor_view& v = views_[first + i];
    void* const state = borrows_state(first + i) ? states[i] : nullptr;
    if (v.state == state) continue;
    v.state = state;
    units_[unit_of_[first + i]].tensors_moved = true;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t t = first + i;
    if (given_outs_[t] == out[i]) continue;
    given_outs_[t] = out[i];
    if (is_rounded(static_cast<uint32_t>(t))) continue;
    outs_[t].values = out[i];
    units_[unit_of_[t]].outputs_moved = true;
  }
}

dr_status sender::bind_tensors(unit& u) {
  if (!u.tensors_moved) return DR_OK;
  for (size_t f = 0; f < u.frames.size(); ++f)
    for (size_t j = 0; j < u.frames[f].ranges.size(); ++j) {
      range_work& r = u.frames[f].ranges[j];
      if (r.empty()) continue;
      if (const dr_status s = r.bind_tensors(memory())) {
        name_tensor(u.frames[f], j);
        return s;
      }
    }
  u.tensors_moved = false;
  return DR_OK;
}

dr_status sender::bind_outputs(unit& u) {
  if (!u.outputs_moved) return DR_OK;
  // The output of a scatter is this rank's shard alone; the whole tensor would begin before it.
  std::vector<tensor_out> outs;
  exchange_memory at = memory();
  if (u.list.kind == DR_UNIT_SCATTER) {
    outs = outs_;
    for (const uint32_t i : u.list.tensors) {
      const uint64_t before = sizeof(float) * (tensors_[i].elements / options_.ranks) * options_.rank;
      outs[i].values = std::bit_cast<void*>(std::bit_cast<uintptr_t>(outs_[i].values) - before);
    }
    at.outs = outs;
  }
  for (size_t f = 0; f < u.frames.size(); ++f)
    for (size_t j = 0; j < u.frames[f].ranges.size(); ++j) {
      range_work& r = u.frames[f].ranges[j];
      if (r.empty()) continue;
      if (const dr_status s = r.bind_outputs(at)) {
        name_tensor(u.frames[f], j);
        return s;
      }
    }
  u.outputs_moved = false;
  return DR_OK;
}

dr_sender_info sender::info() const {
  dr_sender_info i{};
  i.ranks = options_.ranks;
  i.rank = options_.rank;
  i.tensors = tensors_.size();
  i.units = units_.size();
  i.clips = clip_ > 0;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const dr_sent_tensor of = tensor_info(t);
    i.states += of.state + of.sum_state;
  }
  i.memory = block_size_;
  for (const unit& u : units_) i.memory += u.numbers ? u.numbers->memory() : 0;
  i.failures = is_behind_ ? others_failures_ : failures_;
  i.failed = is_behind_ ? others_failed_ : failed_;
  i.waits = side_ ? side_->waits() : 0;
  return i;
}

dr_unit_info sender::unit_info(size_t unit) const {
  const auto& u = units_[unit];
  dr_unit_info i{};
  i.kind = u.list.kind;
  i.frames = static_cast<uint32_t>(u.list.frames.size());
  i.tensors = u.list.tensors.data();
  i.count = u.list.tensors.size();
  i.bytes = u.bytes;
  if (u.numbers) {
    i.numbers = u.numbers->type();
    i.slots = 1;
    i.bound = i.slot = first_size(u);
    i.sum_bound = i.sum_slot = u.numbers->second() * value_size(i.numbers);
    return i;
  }
  i.bound = u.room.bound();
  i.slot = u.room.size();
  i.slots = slots_of(u);
  i.sum_bound = u.sum_room.bound();
  i.sum_slot = u.sum_room.size();
  return i;
}

dr_sent_tensor sender::tensor_info(size_t tensor) const {
  dr_sent_tensor i{};
  i.unit = unit_of_[tensor];
  i.position = position_of_[tensor];
  i.key = plans_.keys[tensor];
  if (is_dry()) return i;
  const auto size = [&](const plan& p) {
    return p.keeps_feedback() ? state_size_of(p.feedback_rule().kind, tensors_[tensor].elements) : 0;
  };
  i.state = size(*plans_.methods[tensor]);
  if (units_[i.unit].list.kind == DR_UNIT_OWNER) i.sum_state = size(*sum_plans_[tensor]);
  if (units_[i.unit].factors) i.warm_state = factor_state(tensor, DR_STATE_WARM).size_bytes();
  return i;
}

dr_status sender::name_rank(size_t rank) {
  dr_error& e = c_.error;
  const rank_names names{options_.numbers};
  e.frame = rank;
  return prefix(e, "rank %u: ", names[rank]);
}

// An error of a range counts the pieces of the range: puts in the tensor's position among all tensors, and its name.
void sender::name_tensor(const piece_list& pieces) {
  dr_error& e = c_.error;
  if (e.tensor < pieces.size()) name_tensor(pieces[e.tensor].tensor, pieces[e.tensor].first);
}

void sender::name_tensor(uint32_t tensor, uint64_t first) {
  dr_error& e = c_.error;
  // The sentence counts tensors from the frame's first.
  const char* why = after_tensor(e.message);
  why = why ? why + std::strspn(why, ",: ") : e.message;
  std::string words = tensors_[tensor].name.substr(0, 80);
  if (first) words += ", from element " + std::to_string(first) + " on";
  words += std::string(": ") + why;
  std::snprintf(e.message, sizeof e.message, "%.255s", words.c_str());
  e.tensor = tensor;
}

}  // namespace dr
