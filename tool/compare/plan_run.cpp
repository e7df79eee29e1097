#include "plan_run.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <numeric>

#include "tool/read/number.hpp"
#include "verify.hpp"

namespace dr::compare {
namespace {

constexpr size_t merged_distinct = 8, merged_bytes = size_t{64} << 20;

double cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return 1e9 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec);
}

// Rotates the elements of all tensors by part / parts of their length.
subject rotated(const subject& g, size_t part, size_t parts) {
  subject turned = g;
  for (tensor& t : turned) {
    const uint64_t by = t.elements / parts * part;
    const std::span<std::byte> bytes = t.data.writable();
    std::rotate(bytes.rbegin(), bytes.rbegin() + static_cast<ptrdiff_t>(by * size_of(t.type)), bytes.rend());
  }
  return turned;
}

}  // namespace

double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- Workbench ----------------------------------------------------------------------------------------

dr_call workbench::call(uint64_t rank) const {
  auto now = sized<dr_call>();
  now.step = step;
  now.seed = settings.seed;
  now.private_seed = settings.seed + rank;
  now.segment_rows = settings.segment_rows;
  now.flags = gradient->size() == 1 ? 0 : DR_CALL_LIST;  // as in `encode`
  return now;
}

std::vector<dr_tensor_out> workbench::outs(bool flat) {
  std::vector<dr_tensor_out> list;
  if (flat) {
    list.push_back(dense_out(abi_dtype(gradient->front().type), received.writable().data(), elements_of(*gradient)));
    return list;
  }
  size_t at = 0;
  for (const tensor& t : *gradient) {
    list.push_back(dense_out(abi_dtype(t.type), received.writable().data() + at, t.elements));
    at += (t.data.size() + 3) / 4 * 4;
  }
  return list;
}

size_t workbench::copy_all() {
  size_t at = 0, bytes = 0;
  for (const tensor& t : *gradient) {
    if (!t.data.empty()) std::memcpy(received.writable().data() + at, t.data.data(), t.data.size());
    at += (t.data.size() + 3) / 4 * 4;
    bytes += t.data.size();
  }
  return bytes;
}

// ---- Plan ---------------------------------------------------------------------------------------------

plan_run::plan_run(workbench& bench, const plan& p) : method(&p), reading(read_plan(p.text())), bench_(bench) {
  auto info = sized<dr_plan_info>();
  auto e = sized<dr_error>();
  if (dr_plan_describe(p.get(), &info, &e) != DR_OK) throw error(e);
  flat = info.flags & DR_PLAN_FLAT;
  chooses = info.flags & DR_PLAN_CHOOSES;
  transforms = info.flags & DR_PLAN_TRANSFORMS;
  if (transforms) {
    factors_.emplace(bench.library, p, matrices(), bench.settings.seed);
    factor_state_ = factors_->state();
    return;
  }
  if (!(info.flags & DR_PLAN_FEEDBACK)) return;
  for (const tensor& t : *bench.gradient) left_.emplace_back((state_size(p, source_of(t, nullptr)) + 7) / 8);
}

std::vector<dr_tensor> plan_run::sources(const subject& g) {
  std::vector<dr_tensor> list;
  for (const tensor& t : g) list.push_back(source_of(t, t.data.data()));
  if (left_.empty()) return list;
  state_ = left_;
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].state = state_[i].data();
    list[i].state_size = 8 * state_[i].size();
  }
  return list;
}

std::span<const std::byte> plan_run::encode() {
  const dr_call now = bench_.call();
  const std::vector<dr_tensor> tensors = sources(*bench_.gradient);
  const size_t bound = bench_.library.bound(*method, tensors, &now);
  if (bench_.room.size() < bound) bench_.room = tensor_bytes(bound);
  return std::span(bench_.room).first(bench_.library.encode_into(bench_.room.writable(), *method, tensors, &now));
}

subject plan_run::accumulated() {
  const dr_call now = bench_.call();
  const plan all(reading.transform + " sparsify=none " + reading.feedback + " index=all value=raw");
  const dr_decode_options options = as_selected(reading);
  subject input = *bench_.gradient;
  std::vector<dr_tensor_out> outs;
  for (tensor& t : input) outs.push_back(dense_out(abi_dtype(t.type), t.data.writable().data(), t.elements));
  bench_.library.decode(bench_.library.encode(all, sources(*bench_.gradient), &now), outs, &options);
  return input;
}

void plan_run::add_loss(std::span<const std::byte> sent) {
  std::vector<dr_tensor_out> outs = bench_.outs(flat);
  bench_.library.decode(sent, outs);
  uint64_t first = 0;
  size_t at = 0;
  for (size_t i = 0; i < bench_.gradient->size(); ++i) {
    const tensor& t = (*bench_.gradient)[i];
    const auto* received = flat ? bench_.received.data() + at : static_cast<const std::byte*>(outs[i].values);
    lost_.add(t.type, reading.gamma, t.data, {received, t.data.size()}, first);
    first += t.elements;
    at += t.data.size();
  }
}

std::span<float> workbench::received_floats() {
  const std::span<std::byte> room = received.writable();
  return {reinterpret_cast<float*>(room.data()), room.size() / sizeof(float)};
}

subject plan_run::matrices() const {
  subject all;
  for (const tensor& t : *bench_.gradient) std::ranges::move(parts_of(t), std::back_inserter(all));
  return all;
}

void plan_run::transform() {
  factors_->set_state(factor_state_);
  factors_->round(matrices(), bench_.received_floats());
}

subject plan_run::transform_input() {
  factors_->set_state(factor_state_);
  return factors_->with_residual(matrices());
}

void plan_run::add_transform_sizes() {
  facts.plan = reading.text;
  facts.fallback = "none";
  facts.r = facts.support = facts.d;
  const uint64_t bytes = factors_->bytes();
  const double volume = static_cast<double>(bytes) / (4 * static_cast<double>(facts.d));
  facts.sizes = {.total = bytes,
                 .index = 0,
                 .value = bytes,
                 .order = 0,
                 .header = 0,
                 .relative_volume = volume,
                 .index_bits = 0,
                 .value_bits = 32 * volume,
                 .index_bound_bits = 0};
}

void plan_run::add_transform_loss() {
  uint64_t first = 0;
  for (const tensor& t : matrices()) {
    lost_.add(t.type, 1, t.data, {bench_.received.data() + 4 * first, t.data.size()}, first);
    first += t.elements;
  }
}

void plan_run::prepare_merge() {
  if (transforms) return;
  const uint32_t ranks = std::min(bench_.settings.ranks, max_merged);
  const size_t room = merged_bytes / std::max<size_t>(frame.size(), 1);
  const size_t distinct = std::clamp<size_t>(room, 1, std::min<size_t>(merged_distinct, ranks));
  others_.clear();
  for (size_t rank = 1; rank < distinct; ++rank) {
    const subject turned = rotated(*bench_.gradient, rank, distinct);
    const dr_call now = bench_.call(rank);
    others_.push_back(bench_.library.encode(*method, sources(turned), &now));
  }
  merged_.clear();
  for (uint32_t rank = 0; rank < ranks; ++rank)
    merged_.push_back(bytes_of(rank % distinct ? others_[rank % distinct - 1] : frame));
  weights_.assign(ranks, 1 / static_cast<float>(ranks));
  std::vector<uint64_t> elements;
  for (const dr_tensor_out& out : bench_.outs(flat)) elements.push_back(out.universe);
  verify_merge(bench_.library, reading, elements, frame, others_.empty() ? frame : others_[0]);
}

void plan_run::warm_up() {
  const size_t size = time_round();
  if (transforms) return rounds_.clear();
  if (!std::ranges::equal(frame, std::span(bench_.room).first(size)))
    throw verify_error("encoding the same input twice produced two different frames");
  rounds_.clear();
}

void plan_run::add_stage(void* user, const dr_trace* trace) {
  constexpr const char* names[stages] = {"sparsify", "choose", "index", "regather", "value", "order"};
  for (int i = 0; i < stages; ++i)
    if (std::strcmp(trace->stage, names[i]) == 0) {
      static_cast<round*>(user)->stage[i] += static_cast<double>(trace->end_ns - trace->begin_ns);
      return;
    }
}

// The trace costs a few clock readings per stage, and is the only source of the sparsifier's time. The CPU clock is read
// outside the timed intervals.
size_t plan_run::time_round() {
  round r{};
  if (transforms) {
    factors_->set_state(factor_state_);
    const subject tensors = matrices();
    const double cpu_begin = cpu_ns();
    const factors::times took = factors_->round(tensors, bench_.received_floats());
    r.encode = took.begin_ns, r.decode = r.merge = took.rest_ns;
    r.encode_cpu = r.decode_cpu = (cpu_ns() - cpu_begin) / 2;  // (of both together)
    rounds_.push_back(r);
    return 0;
  }
  dr_call now = bench_.call();
  now.trace = add_stage;
  now.trace_user = &r;
  const std::vector<dr_tensor> tensors = sources(*bench_.gradient);
  std::vector<dr_tensor_out> outs = bench_.outs(flat);
  const double cpu_begin = cpu_ns(), begin = now_ns();
  const size_t size = bench_.library.encode_into(bench_.room.writable(), *method, tensors, &now);
  const double encoded = now_ns(), cpu_encoded = cpu_ns(), decode_begin = now_ns();
  bench_.library.decode(std::span(bench_.room).first(size), outs);
  const double decoded = now_ns(), cpu_decoded = cpu_ns(), merge_begin = now_ns();
  bench_.library.merge(merged_, weights_, outs);
  r.merge = now_ns() - merge_begin;
  r.encode = std::max(0.0, encoded - begin - r.stage[sparsify]);
  r.decode = decoded - decode_begin;
  r.encode_cpu = cpu_encoded - cpu_begin;
  r.decode_cpu = cpu_decoded - cpu_encoded;
  rounds_.push_back(r);
  return size;
}

void plan_run::report_times(row_times& t) {
  const auto samples = [&](auto&& of) {
    std::vector<double> list;
    for (const round& x : rounds_) list.push_back(of(x));
    return list;
  };
  const auto stage = [&](int i) { return summarize(samples([i](const round& x) { return x.stage[i]; })); };
  t.rounds = rounds_.size();
  t.encode_samples = samples([](const round& x) { return x.encode; });
  t.decode_samples = samples([](const round& x) { return x.decode; });
  // (Merging is linear in the number of frames.)
  const double scale = transforms ? 1 : bench_.settings.ranks / static_cast<double>(merged_.size());
  t.merge_samples = samples([scale](const round& x) { return scale * x.merge; });
  t.sparsify = stage(sparsify);
  t.encode = summarize(t.encode_samples);
  t.decode = summarize(t.decode_samples);
  t.merge = summarize(t.merge_samples);
  t.encode_cpu = summarize(samples([](const round& x) { return x.encode_cpu; })).median;
  t.decode_cpu = summarize(samples([](const round& x) { return x.decode_cpu; })).median;
  t.choose = stage(choose).median;
  t.index = stage(index).median;
  t.regather = stage(regather).median;
  t.value = stage(value).median;
  t.order = stage(order).median;
  rounds_.clear();
}

}  // namespace dr::compare
