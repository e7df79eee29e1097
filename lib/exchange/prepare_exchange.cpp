// Making an exchange: plans, ranges, memory.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "exchange/rank_exchange.hpp"
#include "pipeline/tensor_check.hpp"
#include "primitive/rng.hpp"

namespace dr {
namespace {

constexpr uint32_t ranks_max = 65536;
constexpr uint64_t default_timeout_ns = 60'000'000'000;
// A message of the transport is numbered below it.
constexpr uint64_t tag_end = uint64_t{1} << 28;

uint64_t round_up(uint64_t size) { return (size + arena::alignment - 1) / arena::alignment * arena::alignment; }

// UNSUPPORTED: feedback that is not correct with the schedule of the exchange.
dr_status check_memory(const plan& method, uint32_t ranges, dr_error& error) {
  if (!method.keeps_feedback()) return DR_OK;
  const exchange_kind how = method.exchange.kind;
  if (method.keeps_momentum() && how != exchange_kind::gather && how != exchange_kind::owner)
    return fail(
        error, DR_E_UNSUPPORTED,
        "plan: each encode of a sum would apply the momentum of feedback=%s again; use exchange=gather or owner",
        method.feedback.codec->name);
  if (clip_of(method) > 0 && ranges > 1)
    return fail(
        error, DR_E_UNSUPPORTED,
        "plan: feedback=%s(clip=%g) requires the norm of all tensors, and the exchange encodes %u ranges apart; "
        "use exchange=gather",
        method.feedback.codec->name, clip_of(method), ranges);
  return DR_OK;
}

// Where sums alone are encoded, no batch checks the tensors.
dr_status check_all_values(std::span<const tensor_view> tensors, dr_error& error) {
  for (size_t i = 0; i < tensors.size(); ++i)
    if (const dr_status s = check_values(tensors[i], i, error)) return s;
  return DR_OK;
}

}  // namespace

dr_status exchange::check_request(const exchange_request& request) {
  const dr_transport& t = request.transport;
  const dr_exchange_options& o = request.options;
  if (!t.send || !t.recv || !t.test || !t.cancel)
    return fail(c_.error, DR_E_ARGUMENT, "transport: send, recv, test or cancel is NULL");
  if (t.ranks == 0 || t.ranks > ranks_max)
    return fail(c_.error, DR_E_ARGUMENT, "transport: %u ranks, not in 1 … %u", t.ranks, ranks_max);
  if (t.rank >= t.ranks)
    return fail(c_.error, DR_E_ARGUMENT, "transport: rank %u is not below %u ranks", t.rank, t.ranks);
  if ((o.flags & ~(DR_EXCHANGE_SUM | DR_EXCHANGE_TRACE | DR_EXCHANGE_DRY)) || o.reserved)
    return fail(c_.error, DR_E_UNSUPPORTED, "options: unknown flags 0x%x, or reserved is not 0", o.flags);
  if ((o.flags & DR_EXCHANGE_DRY) && !o.frame_size)
    return fail(c_.error, DR_E_ARGUMENT, "options: DR_EXCHANGE_DRY requires frame_size");
  if (!request.method) return fail(c_.error, DR_E_ARGUMENT, "plan is NULL");
  if (request.method->patches())
    return fail(c_.error, DR_E_UNSUPPORTED, "plan: sparsify=%s makes patches; an exchange merges gradients",
                request.method->sparsify.codec->name);
  if (request.method->takes_base())
    return fail(c_.error, DR_E_UNSUPPORTED, "plan: sparsify=%s compares with a base, which an exchange has not",
                request.method->sparsify.codec->name);
  if (o.dense_below && request.method->flat)
    return fail(c_.error, DR_E_UNSUPPORTED,
                "options: dense_below %" PRIu64 " is not supported with bucket=flat, which joins all tensors",
                o.dense_below);
  const plan& method = *request.method;
  const exchange_kind kind = method.exchange.kind;
  const bool adds_gradients = kind == exchange_kind::ring || kind == exchange_kind::hierarchy;  // to sums
  if (method.keeps_feedback() && !method.keeps_momentum() && adds_gradients)
    if (const float gamma = method.feedback_rule().weights().gamma; gamma != 1)
      return fail(c_.error, DR_E_UNSUPPORTED,
                  "plan: each encode of a sum would apply gamma=%g again; use exchange=gather or exchange=owner",
                  double{gamma});
  if (const dr_status s = check_memory(method, ranges_of(method.exchange, t.ranks, request.where.where), c_.error))
    return s;
  if (method.votes && o.dense_below)
    return fail(c_.error, DR_E_UNSUPPORTED,
                "options: dense_below %" PRIu64 " is not supported with merge=vote: means beside signs", o.dense_below);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const tensor_view& t = tensors_[i];
    tensor_shape shape;
    if (const dr_status s = read_shape(t, i, shape, c_.error)) return s;
    if (!is_value_type(shape.dtype))
      return bad_tensor(c_.error, i, DR_E_ARGUMENT, t.dtype, "dtype %u is not f32, f16 or bf16", t.dtype);
    const char* why = nullptr;
    if (t.plan) why = "has a plan of its own; an exchange has one for all tensors";
    if (t.state || t.state_size) why = "has a state; the exchange keeps the states itself";
    if (t.index_dtype && kind != exchange_kind::gather && kind != exchange_kind::owner)
      why = "is sparse, which requires exchange=gather or exchange=owner";
    if (outs_[i].index_dtype && kind != exchange_kind::gather)
      why = "its output is sparse, which requires exchange=gather";
    if (outs_[i].universe != t.universe || std::max(1u, outs_[i].width) != std::max(1u, t.width))
      why = "its output differs in shape";
    if (method.votes && !(o.flags & DR_EXCHANGE_DRY) && request.transport.ranks > exact_counts(outs_[i].dtype))
      why = "its output's type does not count so many votes exactly; vote into f32";
    if (!why) continue;
    fail(c_.error, DR_E_ARGUMENT, "tensor %zu: %s", i, why);
    c_.error.tensor = i;
    return DR_E_ARGUMENT;
  }
  return DR_OK;
}

// Tensors that are sent dense have the plan's feedback, too, so that a failed exchange loses nothing of them.
dr_status exchange::make_plans(const exchange_request& request) {
  plans_.method = request.method;
  plans_.dense_below = options_.dense_below;
  if (const dr_status s = bind_exact(plans_.method, plans_.exact, c_.error)) return s;
  plans_.sum = plans_.method;
  plans_.exact_sum = plans_.exact;
  if (plans_.method->exchange.kind != exchange_kind::owner) return DR_OK;
  if (const dr_status s = bind_sum(plans_.method, plans_.sum, c_.error)) return s;
  return bind_sum(plans_.exact, plans_.exact_sum, c_.error);
}

// inner=1: each rank is alone, and there is nothing to sum up.
dr_status exchange::prepare_host(const exchange_request& request) {
  const exchange_stage& how = request.method->exchange;
  const bool collects = request.where.where && how.kind == exchange_kind::hierarchy && how.inner > 1;
  if (!collects) {
    if (!options_.nccl || (request.where.where && how.kind == exchange_kind::hierarchy)) return DR_OK;
    return fail(c_.error, DR_E_ARGUMENT, "options: nccl is for exchange=hierarchy with a place on a device");
  }
  if (!options_.nccl)
    return fail(c_.error, DR_E_ARGUMENT,
                "options: exchange=hierarchy(inner=%u) on a device requires nccl, a communicator of the %u ranks of "
                "this host",
                how.inner, how.inner);
  if (transport_.ranks % how.inner)
    return fail(c_.error, DR_E_ARGUMENT,
                "plan: exchange=hierarchy(inner=%u) on a device requires whole hosts; %u ranks are not a multiple",
                how.inner, transport_.ranks);
  host_ = std::make_unique<host_sum>(c_, *device_);
  return host_->create(options_.nccl, how.inner, transport_.rank % how.inner);
}

dr_status exchange::prepare_factors() {
  if (dry())
    return fail(c_.error, DR_E_UNSUPPORTED, "options: DR_EXCHANGE_DRY models frames; `%s` makes none",
                plans_.method->text.c_str());
  factors_ = std::make_unique<factor_work>(c_, transport_.ranks);
  return factors_->create(*plans_.method, memory(), options_.dense_below);
}

dr_status exchange::prepare_ranges() {
  std::vector<const plan*> methods;
  std::vector<std::shared_ptr<const plan>> own, sums;
  for (const tensor_view& t : tensors_) {
    own.push_back(plans_.of(t));
    sums.push_back(plans_.of_sum(t));
    methods.push_back(own.back().get());
  }
  const std::vector<range_uses> uses = uses_of(program_);
  uint64_t key = 1;
  std::vector<piece_list> lists = cut(tensors_, methods, program_.ranges);
  ranges_.reserve(lists.size());
  for (uint32_t j = 0; j < lists.size(); ++j) {
    const uint64_t first_key = key;
    key += lists[j].size();
    ranges_.emplace_back(c_, std::move(lists[j]), uses[j]);
    if (!dry() && !ranges_[j].empty())
      if (const dr_status s = ranges_[j].prepare({own, sums, plans_.exact}, memory(), first_key, lists.size() == 1))
        return ranges_[j].name_tensor(s);
    if (dry()) ranges_[j].count_elements(tensors_);
  }
  return device_ ? prepare_device_ranges(uses, {own, sums, plans_.exact}) : dr_status{DR_OK};
}

// One block: verdicts, states and sums, frames, a workspace for all. With a device: verdicts.
dr_status exchange::allocate_all() {
  uint64_t size = round_up(program_.ranks * sizeof(verdict));
  uint64_t workspace = 0;
  std::vector<uint64_t> range_at;
  for (range_work& r : ranges_) {
    range_at.push_back(size);
    if (!dry() && !device_ && !r.empty()) size += r.place(nullptr);
  }
  const uint64_t frames = size;
  info_.sent_max = 0;
  for (const frame_slot& slot : program_.slots) {
    slot_at_.push_back(size - frames);
    slot_room_.push_back(dry()               ? UINT64_MAX >> 1
                         : factors_          ? factors_->room(slot.range)
                         : skips(slot.range) ? 0
                                             : ranges_[slot.range].frame_bound(slot.kind));
    if (!dry()) size += round_up(slot_room_.back());
  }
  for (const step& s : program_.steps)
    if (s.what == DR_STEP_SEND && !dry()) info_.sent_max += slot_room_[s.slot];
  info_.sent_max += (program_.ranks - 1) * sizeof(verdict);
  block_size_ = device_ ? frames : size;
  // (Binding requires this block, and the sizes of workspaces are known only after binding.)
  block_ = static_cast<std::byte*>(c_.allocate(block_size_));
  if (!block_) return fail(c_.error, DR_E_MEMORY, "exchange: cannot allocate %zu bytes", block_size_);
  std::memset(block_, 0, frames);
  frames_ = block_ + frames;
  verdicts_ = {reinterpret_cast<verdict*>(block_), program_.ranks};
  info_.memory = block_size_ + (factors_ ? factors_->memory_size() : 0);
  if (dry()) return DR_OK;
  if (device_) return allocate_on_device();
  decode_memory decoded;  // of all ranges
  for (size_t j = 0; j < ranges_.size(); ++j) {
    if (ranges_[j].empty()) continue;
    ranges_[j].place(block_ + range_at[j]);
    if (const dr_status s = ranges_[j].bind(memory())) return ranges_[j].name_tensor(s);
    workspace = std::max(workspace, ranges_[j].workspace());
    decode_memory of_range;
    if (const dr_status s = ranges_[j].decode_memory_of(of_range)) return s;
    decoded.stored += of_range.stored;
    decoded.transient = std::max(decoded.transient, of_range.transient);
  }
  workspace = std::max(workspace, decoded.stored + decoded.transient);
  workspace_size_ = workspace;
  if (workspace && !(workspace_ = c_.allocate(workspace_size_)))
    return fail(c_.error, DR_E_MEMORY, "exchange: cannot allocate %zu bytes of workspace", workspace_size_);
  info_.memory += workspace_size_;
  for (range_work& r : ranges_) r.lend_workspace(workspace_);
  return DR_OK;
}

// Whether tensors with sparse outputs are not cut, and these have capacity for any union, so that no rank fails after the
// ranks have agreed.
dr_status exchange::check_room(const std::vector<tensor_out>& outs) {
  for (const range_work& r : ranges_)
    for (size_t i = 0; i < r.pieces().size() && !dry(); ++i) {
      const uint32_t tensor = r.pieces()[i].tensor;
      const tensor_out& o = outs[tensor];
      if (o.index_dtype && r.pieces()[i].rows < o.universe) {
        fail(c_.error, DR_E_UNSUPPORTED,
             "tensor %u: its output is sparse, and the exchange cuts it; use exchange=gather", tensor);
        c_.error.tensor = tensor;
        return DR_E_UNSUPPORTED;
      }
      const uint64_t rows = o.index_dtype ? r.support_max(i, program_.ranks) : 0;
      if (rows <= o.capacity) continue;
      fail(c_.error, DR_E_CAPACITY,
           "tensor %u: output capacity %" PRIu64 "; the union of the supports may have %" PRIu64 " rows", tensor,
           o.capacity, rows);
      c_.error.tensor = tensor;
      c_.error.needed = rows;
      return DR_E_CAPACITY;
    }
  return DR_OK;
}

uint64_t exchange::fingerprint(const exchange_request& request) const {
  uint64_t sum = combine(options_.flags & DR_EXCHANGE_SUM, options_.dense_below);
  for (const char c : request.method->text) sum = combine(sum, static_cast<uint8_t>(c));
  for (const tensor_view& t : tensors_)
    for (const uint64_t of : {t.universe, uint64_t{std::max(1u, t.width)}, std::max<uint64_t>(1, t.rows),
                              uint64_t{t.dtype}, uint64_t{t.index_dtype}, t.index_dtype ? t.count : 0})
      sum = combine(sum, of);
  return host_ ? combine(sum, program_.ranges) : sum;  // (no rank on the CPU goes with it)
}

dr_status exchange::create(const exchange_request& request, std::vector<tensor_view> tensors,
                           std::vector<tensor_out> outs) {
  tensors_ = std::move(tensors);
  outs_ = std::move(outs);
  for (const tensor_view& t : tensors_) counts_.push_back(t.count);
  transport_ = request.transport;
  options_ = request.options;
  if (!options_.timeout_ns) options_.timeout_ns = default_timeout_ns;
  options_.timeout_ns = std::min(options_.timeout_ns, uint64_t{1} << 62);
  if (const dr_status s = check_request(request)) return s;
  std::vector<out_range> ranges;
  if (!dry()) {
    if (const dr_status s = check_all_values(tensors_, c_.error)) return s;
    if (const dr_status s = list_ranges(outs_, ranges, c_.error)) return s;
  }
  if (request.method->transforms())
    if (const dr_status s = check_in_place(tensors_, ranges, c_.error)) return s;
  if (request.where.where) {
    if (dry()) return fail(c_.error, DR_E_UNSUPPORTED, "options: DR_EXCHANGE_DRY computes nothing, on no device");
    if (const dr_status s = check_device_exchange(*request.method, memory(), c_.error)) return s;
    device_ = std::make_unique<device_stream>(c_, request.where);
  }
  if (const dr_status s = prepare_host(request)) return s;
  if (const dr_status s = make_plans(request)) return s;
  if (request.method->transforms())
    if (const dr_status s = prepare_factors()) return s;
  const exchange_stage& how = request.method->exchange;
  program_ = factors_ ? compile_factors(factors_->phases(), transport_.ranks, transport_.rank)
             : host_  ? compile_by_host(how, transport_.ranks, transport_.rank)
                      : compile(how, transport_.ranks, transport_.rank);
  if (program_.tags >= tag_end)
    return fail(c_.error, DR_E_ARGUMENT, "exchange: %u ranges on %u ranks need more than 2^28 message tags",
                program_.ranges, program_.ranks);
  if (!factors_)
    if (const dr_status s = prepare_ranges()) return s;
  if (const dr_status s = check_room(outs_)) return s;
  if (const dr_status s = allocate_all()) return s;
  fingerprint_ = fingerprint(request);
  rows_.resize(tensors_.size());
  requests_.resize(program_.messages + size_t{2} * program_.ranks);
  slot_size_.resize(program_.slots.size());
  done_.resize(program_.steps.size());
  arrivals_.resize(program_.ranks);
  summed_.resize(program_.ranges);
  size_t inputs_max = 0;
  for (const step& s : program_.steps) inputs_max = std::max<size_t>(inputs_max, s.count);
  merged_.resize(inputs_max);
  weights_.resize(inputs_max);
  if (options_.flags & DR_EXCHANGE_TRACE) times_.resize(program_.steps.size());
  pc_ = program_.steps.size();
  info_.struct_size = sizeof info_;
  info_.ranks = program_.ranks;
  info_.rank = program_.rank;
  info_.ranges = program_.ranges;
  info_.steps = static_cast<uint32_t>(program_.steps.size());
  if (!dry()) make_room();
  return DR_OK;
}

exchange::~exchange() {
  for (request& r : requests_)
    if (r.open && transport_.cancel(transport_.user, r.number) != DR_OK) broken_ = true;
  if (broken_ && device_) device_->leave_host();
  // (The memory of a device is freed when all of its work is done, which that of a rank that waits for one that is gone is
  // not.)
  if (host_ && stuck_ && (collects_ || !device_->is_done())) device_->leave(!collects_);
  if (block_ && !broken_) c_.release(block_, block_size_);
  if (workspace_) c_.release(workspace_, workspace_size_);
}

dr_status exchange::rebind(std::vector<tensor_view> tensors, std::vector<tensor_out> outs) {
  if (busy()) return fail(c_.error, DR_E_ARGUMENT, "exchange: already under way");
  if (tensors.size() != tensors_.size())
    return fail(c_.error, DR_E_ARGUMENT, "exchange: %zu tensors; created for %zu", tensors.size(), tensors_.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const tensor_view &a = tensors[i], &b = tensors_[i];
    const tensor_out &x = outs[i], &y = outs_[i];
    const auto same_width = [](uint32_t v, uint32_t w) { return std::max(1u, v) == std::max(1u, w); };
    if (a.dtype == b.dtype && a.index_dtype == b.index_dtype && a.universe == b.universe &&
        same_width(a.width, b.width) && std::max<uint64_t>(1, a.rows) == std::max<uint64_t>(1, b.rows) &&
        x.dtype == y.dtype && x.index_dtype == y.index_dtype && x.universe == y.universe &&
        same_width(x.width, y.width) && a.flags == b.flags && a.key == b.key && !a.plan && !a.state && !a.state_size &&
        (!a.index_dtype || a.count <= counts_[i]))
      continue;
    fail(c_.error, DR_E_ARGUMENT, "tensor %zu: differs from the one that the exchange was created for", i);
    c_.error.tensor = i;
    return DR_E_ARGUMENT;
  }
  std::vector<out_range> ranges;
  if (!dry()) {
    if (const dr_status s = check_all_values(tensors, c_.error)) return s;
    if (const dr_status s = list_ranges(outs, ranges, c_.error)) return s;
  }
  if (factors_)
    if (const dr_status s = check_in_place(tensors, ranges, c_.error)) return s;
  if (const dr_status s = check_room(outs)) return s;
  tensors_.swap(tensors);
  outs_.swap(outs);
  dr_status status = DR_OK;
  try {
    status = bind_ranges();
  } catch (const std::bad_alloc&) {
    status = fail(c_.error, DR_E_MEMORY, "out of memory");
  }
  if (!status) return DR_OK;
  const dr_error error = c_.error;
  tensors_.swap(tensors);
  outs_.swap(outs);
  for (range_work& r : ranges_)
    if (!r.empty() && !device_) r.bind_again(memory());
  c_.error = error;
  return status;
}

dr_status exchange::bind_ranges() {
  if (host_)
    if (const dr_status s = host_->check(memory())) return s;
  for (const auto& r : device_ranges_)
    if (const dr_status s = r ? r->check(memory()) : dr_status{DR_OK}) return s;
  for (const auto& r : device_ranges_)
    if (r) r->bind();
  if (host_) host_->bind();
  for (range_work& r : ranges_)
    if (const dr_status s = dry() || device_ || r.empty() ? dr_status{DR_OK} : r.rebind(memory()))
      return r.name_tensor(s);
  return DR_OK;
}

// Grows the memory of the context that decoding and merging use, which nothing shrinks: so no rank runs out of it after all
// have agreed, and none is left behind by an exchange that it could not start.
void exchange::make_room() {
  const size_t k = std::max<size_t>(1, merged_.size());
  if (c_.frames.size() < k) c_.frames.resize(k);
  size_t rows = 0, plans = 0, table = 0;
  for (const range_work& r : ranges_)
    for (const frame_kind kind : {frame_kind::part, frame_kind::exact, frame_kind::sum})
      if (const placed_batch* const b = r.empty() ? nullptr : r.batch_if(kind)) {
        rows = std::max(rows, b->rows.size());
        plans = std::max(plans, b->wire.size());
        table = std::max(table, b->layout[1].table.size());
      }
  const auto prepare = [&](frame_view& f) {
    f.plans.reserve(plans);
    f.rows.reserve(rows);
    f.checks.reserve(rows);
    f.layout.table.reserve(table);
  };
  for (size_t i = 0; i < k; ++i) prepare(c_.frames[i]);
  prepare(view_);
  for (const auto& r : device_ranges_)
    if (r) r->make_room();
  c_.rows.reserve(k * rows);
  c_.scratches.reserve(c_.workers->workers());
}

std::span<const uint64_t> exchange::count_rows() {
  std::fill(rows_.begin(), rows_.end(), 0);
  for (const range_work& r : ranges_)
    for (size_t i = 0; i < r.pieces().size() && !dry(); ++i) rows_[r.pieces()[i].tensor] += r.counted(i);
  return rows_;
}

}  // namespace dr
