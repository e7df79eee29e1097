#include "device/whole.hpp"

#include <algorithm>

#include "core/registry.hpp"

namespace dr::device_tests {
namespace {

using properties::guarded_bytes;

constexpr size_t steps = 3;
constexpr uint8_t poison = 0xa5;

unsigned value_bytes(dr_dtype dtype) { return dtype == DR_F32 ? 4 : 2; }
unsigned index_bytes(dr_dtype dtype) { return dtype == DR_U64 || dtype == DR_I64 ? 8 : 4; }

// What one step sees of one tensor.
struct gradient {
  std::vector<uint8_t> values, indices, base;
};
gradient make(const whole_tensor& t, bool patch, cases::random_source& random) {
  gradient g;
  std::vector<uint32_t> bits((t.count ? t.count : t.universe) * t.width);
  for (uint64_t row = 0; row < bits.size() / t.width; ++row) {
    const bool zero = !patch && random.unit() < t.zeros;
    for (uint32_t w = 0; w < t.width; ++w)
      bits[row * t.width + w] = zero ? 0 : cases::bits_of(t.dtype, random.laplace());
    if (t.plateau > 0 && random.unit() < t.plateau)
      bits[row * t.width] = cases::bits_of(t.dtype, 4) + (random.unit() < 0.5);
  }
  g.values = cases::bytes_of(bits, value_bytes(t.dtype));
  if (patch) {
    // Mostly by a place or two; now and then everything.
    for (uint32_t& x : bits)
      if (random.unit() >= t.zeros) x += random.unit() < 0.95 ? 1 + random.below(3) : random.below(60000);
    g.base = cases::bytes_of(bits, value_bytes(t.dtype));
  }
  if (t.count) {
    for (const uint32_t i : random.subset(t.universe, t.count)) {
      const uint64_t wide = i;
      const auto* const from = reinterpret_cast<const uint8_t*>(&wide);
      g.indices.insert(g.indices.end(), from, from + index_bytes(t.index_dtype));
    }
  }
  return g;
}

struct context {
  dr_context* handle = nullptr;
  context() { (void)dr_context_create(nullptr, &handle, nullptr); }
  ~context() { dr_context_destroy(handle); }
  context(const context&) = delete;
  context& operator=(const context&) = delete;
  std::string says(const char* what) const { return std::string(what) + ": " + dr_last_error(handle)->message; }
};

dr_call call_of(size_t step, uint64_t segment_rows) {
  dr_call call{};
  call.struct_size = sizeof call;
  call.step = step;
  call.seed = 5;
  call.private_seed = 6;
  call.segment_rows = segment_rows;
  return call;
}

constexpr float weights[steps] = {0.5f, -1, 0.25f};

dr_decode_options options_of(uint32_t flags) {
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = flags;
  return options;
}

}  // namespace

struct whole_call::parts {
  std::string text;
  std::vector<whole_tensor> tensors;
  uint64_t segment_rows = 0;
  dr_plan* plan = nullptr;
  bool patches = false;
  std::vector<gradient> data[steps];
  size_t bound = 0;
  std::vector<uint8_t> frames[steps];
  std::vector<std::vector<uint8_t>> states[steps], outputs[steps];  // behind each step, of each tensor
  std::vector<std::vector<uint8_t>> sums;                           // added to the outputs of the first
  struct refused {
    std::vector<uint8_t> frame;
    dr_status status;
    dr_status known;  // to who knows the batch: another plan than its own, and no later version, is corrupt
    std::vector<std::vector<uint8_t>> before;  // what the outputs hold
  };
  std::vector<refused> damaged;

  ~parts() { dr_plan_destroy(plan); }

  // `values`, `indices` and `states`: where they lie.
  template <class Place>
  std::vector<dr_tensor> describe(Place&& place) const {
    std::vector<dr_tensor> out;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const whole_tensor& t = tensors[i];
      dr_tensor& d = out.emplace_back();
      d.struct_size = sizeof d;
      d.dtype = t.dtype;
      d.universe = t.universe;
      d.width = t.width;
      if (t.count) {
        d.index_dtype = t.index_dtype;
        d.count = t.count;
      }
      place(i, d);
    }
    return out;
  }
  std::vector<dr_tensor_out> describe_outs(std::span<uint8_t* const> where) const {
    std::vector<dr_tensor_out> outs;
    for (size_t i = 0; i < tensors.size(); ++i) {
      dr_tensor_out& o = outs.emplace_back();
      o.struct_size = sizeof o;
      o.dtype = tensors[i].dtype;
      o.universe = tensors[i].universe;
      o.width = tensors[i].width;
      o.values = where[i];
    }
    return outs;
  }
  // What outputs hold before a decode: poison, or the bases of a step.
  std::vector<std::vector<uint8_t>> before(size_t step) const {
    std::vector<std::vector<uint8_t>> out;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (patches)
        out.push_back(data[step][i].base);
      else
        out.emplace_back(output_size(i), poison);
    return out;
  }
  dr_decode_options decoding() const { return options_of(patches ? uint32_t{DR_DECODE_APPLY} : 0u); }
  size_t output_size(size_t i) const { return tensors[i].universe * tensors[i].width * value_bytes(tensors[i].dtype); }
  size_t state_size(size_t i) const {
    const auto shapes = describe([](size_t, dr_tensor&) {});
    size_t size = 0;
    (void)dr_state_size(plan, &shapes[i], &size, nullptr);
    return size;
  }
  std::string work_out();
};

// On the CPU.
std::string whole_call::parts::work_out() {
  const context c;
  dr_error error{sizeof(dr_error)};
  if (dr_plan_parse(text.c_str(), &plan, &error)) return error.message;
  dr_plan_info info{};
  info.struct_size = sizeof info;
  if (dr_plan_describe(plan, &info, &error)) return error.message;
  patches = info.flags & DR_PLAN_PATCH;
  cases::random_source random("whole plans");
  for (auto& step : data)
    for (const whole_tensor& t : tensors) step.push_back(make(t, patches, random));
  std::vector<std::vector<uint8_t>> state;
  for (size_t i = 0; i < tensors.size(); ++i) state.emplace_back(state_size(i));
  const auto outs_of = [&](std::vector<std::vector<uint8_t>>& memory) {
    std::vector<uint8_t*> where;
    for (auto& m : memory) where.push_back(m.data());
    return describe_outs(where);
  };
  for (size_t step = 0; step < steps; ++step) {
    const auto in = describe([&](size_t i, dr_tensor& t) {
      t.values = data[step][i].values.data();
      if (patches) t.base = data[step][i].base.data();
      if (t.index_dtype) t.indices = data[step][i].indices.data();
      if (state[i].empty()) return;
      t.state = state[i].data();
      t.state_size = state[i].size();
    });
    const dr_call call = call_of(step, segment_rows);
    if (dr_bound(c.handle, plan, &call, nullptr, in.data(), sizeof in[0], in.size(), &bound)) return c.says("bound");
    frames[step].resize(bound);
    dr_result result{.struct_size = sizeof(dr_result)};
    if (dr_encode(c.handle, plan, &call, nullptr, in.data(), sizeof in[0], in.size(), frames[step].data(), bound,
                  &result))
      return c.says("encode");
    frames[step].resize(result.size);
    states[step] = state;
    outputs[step] = before(step);
    auto outs = outs_of(outputs[step]);
    const dr_decode_options options = decoding();
    if (dr_decode(c.handle, nullptr, frames[step].data(), frames[step].size(), &options, outs.data(), sizeof outs[0],
                  outs.size()))
      return c.says("decode");
  }
  sums = outputs[0];
  auto outs = outs_of(sums);
  std::vector<dr_bytes> list;
  for (const auto& f : frames) list.push_back({f.data(), f.size()});
  const dr_decode_options options = options_of(DR_DECODE_ADD);
  if (!patches &&
      dr_merge(c.handle, nullptr, list.data(), weights, steps, &options, outs.data(), sizeof outs[0], outs.size()))
    return c.says("merge");
  const auto damage = [&](std::vector<uint8_t> frame, std::vector<std::vector<uint8_t>> held) {
    auto untouched = held;
    auto room = outs_of(untouched);
    const dr_decode_options how = decoding();
    const dr_status status =
        dr_decode(c.handle, nullptr, frame.data(), frame.size(), &how, room.data(), sizeof room[0], room.size());
    const bool foreign = status == DR_E_UNSUPPORTED && frame[2] == frames[0][2];
    if (status)
      damaged.push_back({std::move(frame), status, foreign ? dr_status{DR_E_CORRUPT} : status, std::move(held)});
  };
  const size_t size = frames[0].size();
  for (const size_t at : {size_t{2}, size_t{5}, size_t{12}, size_t{17}, size_t{40}, size / 4, size / 2, size - 5}) {
    auto frame = frames[0];
    frame[std::min(at, size - 1)] ^= 4;
    damage(std::move(frame), before(0));
  }
  damage({frames[0].begin(), frames[0].begin() + static_cast<ptrdiff_t>(size / 2)}, before(0));
  for (size_t i = 0; patches && i < tensors.size(); ++i) {
    auto other = before(0);  // the base of something else
    if (!other[i].empty()) other[i].back() ^= 2;
    damage(frames[0], std::move(other));
  }
  return damaged.empty() ? "no frame could be damaged" : "";
}

namespace {

// Device memory: guarded, and poisoned but for what is copied there.
struct device_memory {
  std::vector<guarded_bytes> held;
  uint8_t* poisoned(size_t size, size_t alignment) {
    held.emplace_back(size, alignment).fill(poison);
    return held.back().data();
  }
  uint8_t* copy(std::span<const uint8_t> from, size_t alignment) {
    held.emplace_back(from.size(), alignment).fill(from);
    return held.back().data();
  }
  bool intact() const {
    return std::ranges::all_of(held, [](const guarded_bytes& g) { return g.intact(); });
  }
};

bool same(const uint8_t* got, std::span<const uint8_t> expected) {
  return std::ranges::equal(std::span(got, expected.size()), expected);
}

// A prepared batch in the emulated place. Each step says what is wrong, "" if nothing.
template <class Parts>
class device_run {
 public:
  device_run(const Parts& p, int32_t seed) : p_(p) {
    place_.struct_size = sizeof place_;
    place_.kind = DR_PLACE_EMULATED;
    place_.device = seed;
    info_.struct_size = sizeof info_;
  }
  ~device_run() { dr_batch_destroy(batch_); }
  device_run(const device_run&) = delete;
  device_run& operator=(const device_run&) = delete;

  std::string all() {
    std::string wrong = prepare();
    for (size_t step = 0; step < steps && wrong.empty(); ++step) {
      wrong = encode(step);
      if (wrong.empty()) wrong = decode(step);
    }
    if (wrong.empty() && !p_.patches) wrong = merge();
    for (size_t i = 0; i < p_.damaged.size() && wrong.empty(); ++i) wrong = refuse(p_.damaged[i]);
    if (wrong.empty()) wrong = encode_without_room();
    if (wrong.empty() && !memory_.intact()) wrong = "it wrote beside its memory";
    return wrong;
  }

 private:
  std::string prepare() {
    const auto shapes = p_.describe([&](size_t i, dr_tensor& t) { t.state_size = p_.states[0][i].size(); });
    if (dr_batch_create(c_.handle, p_.plan, &place_, shapes.data(), sizeof shapes[0], shapes.size(), p_.segment_rows,
                        &batch_))
      return c_.says("batch");
    if (dr_batch_describe(batch_, &info_, nullptr) || dr_batch_merge_workspace(batch_, steps, &merge_room_, nullptr))
      return "the batch does not describe itself";
    workspace_ = memory_.poisoned(std::max<size_t>(info_.workspace, merge_room_), 64);
    for (const auto& s : p_.states[0]) {
      state_.push_back(memory_.poisoned(s.size(), 8));
      std::fill_n(state_.back(), s.size(), 0);
    }
    return "";
  }

  std::string run_encode(size_t step, uint8_t* frame, size_t capacity, dr_result& result) {
    const auto in = p_.describe([&](size_t i, dr_tensor& t) {
      t.values = memory_.copy(p_.data[step][i].values, p_.patches && step == 0 ? 16 : value_bytes(t.dtype));
      if (p_.patches) t.base = memory_.copy(p_.data[step][i].base, step == 2 ? value_bytes(t.dtype) : 16);
      if (t.index_dtype) t.indices = memory_.copy(p_.data[step][i].indices, index_bytes(t.index_dtype));
      if (p_.states[0][i].empty()) return;
      t.state = state_[i];
      t.state_size = p_.states[0][i].size();
    });
    result.struct_size = sizeof result;
    const dr_call call = call_of(step, p_.segment_rows);
    return dr_batch_encode(c_.handle, batch_, &call, &place_, in.data(), sizeof in[0], in.size(), workspace_,
                           info_.workspace, frame, capacity, &result)
               ? c_.says("encode")
               : "";
  }
  bool states_are(size_t step) const {
    for (size_t i = 0; i < state_.size(); ++i)
      if (!same(state_[i], p_.states[step][i])) return false;
    return true;
  }

  std::string encode(size_t step) {
    const std::string at = "step " + std::to_string(step) + ": ";
    uint8_t* const frame = memory_.poisoned(info_.bound, 16);
    dr_result result{.struct_size = sizeof(dr_result)};
    if (const auto e = run_encode(step, frame, info_.bound, result); !e.empty()) return at + e;
    if (result.status) return at + "encode has status " + std::to_string(result.status);
    if (result.size != p_.frames[step].size() || !same(frame, p_.frames[step])) return at + "another frame";
    return states_are(step) ? "" : at + "another state";
  }
  std::string encode_without_room() {
    const size_t room = p_.frames[0].size() / 2 / 16 * 16;
    dr_result result{.struct_size = sizeof(dr_result)};
    if (const auto e = run_encode(0, memory_.poisoned(room, 16), room, result); !e.empty()) return e;
    if (result.status != DR_E_CAPACITY || result.needed <= room)
      return "a frame without room has status " + std::to_string(result.status);
    return "";  // (What a state holds then: tests/cuda/gpu_frames.cpp.)
  }

  std::vector<dr_tensor_out> outs_over(const std::vector<std::vector<uint8_t>>& held) {
    where_.clear();
    for (const auto& bytes : held) where_.push_back(memory_.copy(bytes, 16));
    return p_.describe_outs(where_);
  }
  bool outs_are(const std::vector<std::vector<uint8_t>>& expected) const {
    for (size_t i = 0; i < where_.size(); ++i)
      if (!same(where_[i], expected[i])) return false;
    return true;
  }
  std::string run_decode(std::span<const uint8_t> frame, std::vector<dr_tensor_out> outs, dr_result& result) {
    const dr_decode_options options = p_.decoding();
    return dr_batch_decode(c_.handle, batch_, &place_, memory_.copy(frame, 16), frame.size(), &options, outs.data(),
                           sizeof outs[0], outs.size(), workspace_, merge_room_, &result)
               ? c_.says("decode")
               : "";
  }
  std::string decode(size_t step) {
    dr_result result{.struct_size = sizeof(dr_result)};
    if (const auto e = run_decode(p_.frames[step], outs_over(p_.before(step)), result); !e.empty()) return e;
    if (result.status) return "decode has status " + std::to_string(result.status);
    return outs_are(p_.outputs[step]) ? "" : "decode gives other values";
  }
  std::string refuse(const typename Parts::refused& r) {
    dr_result result{.struct_size = sizeof(dr_result)};
    if (const auto e = run_decode(r.frame, outs_over(r.before), result); !e.empty()) return e;
    if (result.status != r.status && result.status != r.known)
      return "a damaged frame has status " + std::to_string(result.status) + ", on the CPU " + std::to_string(r.status);
    return outs_are(r.before) ? "" : "a damaged frame changes an output";
  }
  std::string merge() {
    auto outs = outs_over(p_.outputs[0]);
    std::vector<dr_bytes> list;
    for (const auto& f : p_.frames) list.push_back({memory_.copy(f, 16), f.size()});
    const dr_decode_options options = options_of(DR_DECODE_ADD);
    dr_result result{.struct_size = sizeof(dr_result)};
    if (dr_batch_merge(c_.handle, batch_, &place_, list.data(), weights, steps, &options, outs.data(), sizeof outs[0],
                       outs.size(), workspace_, merge_room_, &result))
      return c_.says("merge");
    if (result.status) return "merge has status " + std::to_string(result.status);
    return outs_are(p_.sums) ? "" : "merge gives other sums";
  }

  const Parts& p_;
  const context c_;
  dr_place place_{};
  dr_batch* batch_ = nullptr;
  dr_batch_info info_{};
  size_t merge_room_ = 0;
  device_memory memory_;
  uint8_t* workspace_ = nullptr;
  std::vector<uint8_t*> state_, where_;
};

}  // namespace

std::string whole_call::differs(const order& how) const {
  std::string wrong;
  emulator().strands = how.strands;
  emulator().threads = how.threads;
  emulator().jitter = how.jitter;
  device_run run(*parts_, how.seed);
  const bool inside = properties::stays_inside([&] { wrong = run.all(); });
  emulator().strands = 0;
  emulator().threads = 1;
  emulator().jitter = 0;
  if (!inside) wrong = "it touched memory that is not its own";
  return wrong.empty() ? "" : parts_->text + ", seed " + std::to_string(how.seed) + ": " + wrong;
}

whole_call::whole_call(std::string plan, std::vector<whole_tensor> tensors, uint64_t segment_rows)
    : parts_(std::make_unique<parts>()) {
  parts_->text = std::move(plan);
  parts_->tensors = std::move(tensors);
  parts_->segment_rows = segment_rows;
  const std::string wrong = parts_->work_out();
  INFO(parts_->text);
  REQUIRE(wrong == "");
}
whole_call::~whole_call() = default;
whole_call::whole_call(whole_call&&) noexcept = default;

std::vector<whole_call> whole_calls() {
  const std::vector<whole_tensor> mixed = {
      {DR_F32, 9000, 1, 0.3, 0, 0}, {DR_F32, 3, 1, 0, 0, 0}, {DR_F16, 700, 1, 0.9, 0, 0}};
  const std::vector<whole_tensor> rows = {{DR_F32, 900, 5, 0.8, 0, 0}, {DR_BF16, 40000, 3, 0, 900, DR_I64}};
  const std::vector<whole_tensor> plateau = {{DR_F32, 70000, 1, 0, 0, DR_U32, 0.02}, {DR_F32, 3, 1, 0, 0, DR_U32}};
  const std::vector<whole_tensor> bucket = {
      {DR_F32, 700, 1, 0.9, 0, 0}, {DR_F32, 0, 1, 0, 0, 0}, {DR_F32, 9000, 1, 0.3, 0, 0}, {DR_F32, 3, 1, 0, 0, 0}};
  const std::vector<whole_tensor> plateaus = {
      {DR_F16, 6000, 1, 0, 0, 0, 0.02}, {DR_F16, 5, 1, 0, 0, 0}, {DR_F16, 9000, 1, 0, 0, 0, 0.5}};
  // Larger than what one block selects from.
  const std::vector<whole_tensor> large_bucket = {{DR_F32, 66000, 1, 0.3, 0, 0}, {DR_F32, 3, 1, 0, 0, 0}};
  const std::vector<whole_tensor> large_plateaus = {
      {DR_F16, 6000, 1, 0, 0, 0, 0.02}, {DR_F16, 5, 1, 0, 0, 0}, {DR_F16, 64000, 1, 0, 0, 0, 0.5}};
  // (The second one is sent dense.)
  const std::vector<whole_tensor> patched = {{DR_BF16, 30001, 1, 0.9, 0, 0}, {DR_F16, 3001, 1, 0.01, 0, 0},
                                             {DR_F32, 9001, 1, 0.8, 0, 0},   {DR_BF16, 5000, 1, 1, 0, 0},
                                             {DR_F32, 0, 1, 0, 0, 0},        {DR_F16, 1, 1, 0, 0, 0}};
  const std::string topr = "sparsify=topr(ratio=0.02) ", threshold = "sparsify=threshold(value=3,max_ratio=0.2) ",
                    beyond = "sparsify=threshold(value=0.5,max_ratio=0.1) ",
                    feedback = "sparsify=topr(ratio=0.05) feedback=residual(beta=0.9,gamma=0.5) ";
  const struct {
    std::string sparsifier;
    const char *index, *index_values, *value, *value_values;
    std::vector<whole_tensor> tensors;
    uint64_t segment_rows = 0;
  } list[] = {
      {topr, "raw", "", "raw", "", mixed},
      {topr, "golomb", "", "qsgd", "", mixed},
      {topr, "golomb", "", "log_quant", "", mixed},
      {topr, "golomb", "", "uniform_quant", "", mixed},
      {topr, "golomb", "", "lloyd", "", mixed},
      {feedback, "rice", "", "lloyd", "(levels=16,price=0.01)", mixed},
      {topr, "golomb", "", "half", "", mixed},
      {feedback, "golomb", "", "sign", "(scale=mean)", mixed},
      {topr, "golomb", "", "sign", "(scale=means)", mixed},
      {feedback, "golomb", "", "ternary", "", mixed},
      {topr, "rice", "", "ternary", "(clip=0)", plateau},
      {topr, "raw", "", "raw", "", plateau},
      {topr, "rice", "", "fit_poly", "", mixed},
      {threshold, "bloom", "(fpr=0.01)", "raw", "", mixed},
      {threshold, "bloom", "(policy=p0,fpr=0.02)", "qsgd", "(levels=7,bucket=100)", mixed},
      {threshold + "feedback=residual ", "golomb", "", "raw", "", mixed},
      {feedback, "golomb", "", "qsgd", "", mixed},
      {feedback, "bloom", "(policy=p0,fpr=0.01)", "fit_poly", "", mixed},
      {feedback, "raw", "", "fit_poly", "", mixed},
      {beyond, "golomb", "", "qsgd", "", mixed},
      {beyond + "feedback=residual(beta=0.9,gamma=0.5) ", "golomb", "", "ternary", "", mixed},
      {beyond + "bucket=flat feedback=residual ", "rice", "", "raw", "", plateaus},
      {beyond + "bucket=flat ", "bloom", "(policy=p0,fpr=0.02)", "raw", "", bucket},
      {topr + "bucket=flat ", "golomb", "", "qsgd", "", bucket},
      {topr + "bucket=flat ", "raw", "", "raw", "", plateaus},
      {topr + "bucket=flat ", "golomb", "", "raw", "", large_plateaus},
      {feedback + "bucket=flat ", "raw", "", "raw", "", large_bucket},
      {feedback + "bucket=flat ", "bloom", "(policy=p0,fpr=0.01)", "fit_poly", "", bucket},
      {threshold + "bucket=flat feedback=residual ", "golomb", "", "raw", "", bucket},
      {"sparsify=random(ratio=0.3) ", "golomb", "", "qsgd", "", mixed},
      {"sparsify=random(ratio=0.6) feedback=residual bucket=flat ", "golomb", "", "raw", "", bucket},
      {"sparsify=chunks(count=5,size=100) ", "golomb", "", "qsgd", "", mixed},
      {"sparsify=chunks(count=70,size=1000) feedback=residual bucket=flat ", "golomb", "", "raw", "", bucket},
      {"sparsify=chunks(ratio=0.1,size=9500) ", "raw", "", "raw", "", plateau},
      {"sparsify=blocks(ratio=0.1,block=16) ", "golomb", "", "qsgd", "", mixed},
      {"sparsify=blocks(ratio=0.2,block=1) ", "rice", "", "half", "", plateau},
      {"sparsify=blocks(ratio=0.1,block=4) feedback=residual(beta=0.9,gamma=0.5) bucket=flat ", "raw", "", "raw", "",
       bucket},
      {"sparsify=blocks(ratio=0.1,block=32) feedback=residual bucket=flat ", "golomb", "", "ternary", "", plateaus},
      {"sparsify=changed ", "golomb", "", "raw", "", patched},
      {"sparsify=changed ", "rice", "", "raw", "", {patched.begin(), patched.begin() + 1}},
      {"sparsify=changed ", "golomb", "", "ulp", "", patched},
      {"", "golomb", "", "raw", "", rows},
      {"", "raw", "", "qsgd", "", rows},
      {"", "golomb", "", "log_quant", "(bits=3,range=4)", rows},
      {"", "golomb", "", "uniform_quant", "(bits=5)", rows},
      {"", "golomb", "", "half", "(type=bf16)", rows},
      {"", "golomb", "", "lloyd", "(levels=2)", rows},
      {"", "raw", "", "sign", "", rows},
      {"", "golomb", "", "sign", "(scale=means)", rows},
      {"", "raw", "", "ternary", "", rows},
      {"", "bloom", "(fpr=0.01)", "raw", "", rows},
      {"", "all", "", "raw", "", mixed},
      {"", "all", "", "uniform_quant", "(bits=8)", mixed},
      {"", "all", "", "half", "", plateaus},
      {"", "all", "", "fit_poly", "", mixed},
      {"", "all", "", "log_quant", "", rows},
      {"", "all", "", "lloyd", "(levels=16)", rows},
      {"", "all", "", "sign", "(scale=means)", rows},
      {"feedback=residual ", "all", "", "raw", "", mixed},
      {"feedback=residual(beta=0.9,gamma=0.5) ", "all", "", "qsgd", "(levels=7,bucket=100)", mixed},
      {"feedback=residual ", "all", "", "fit_poly", "", mixed},
      {"bucket=flat ", "all", "", "raw", "", bucket},
      {"bucket=flat ", "all", "", "ternary", "", plateaus},
      {feedback + "bucket=flat ", "golomb", "", "lloyd", "(price=0.35)", bucket},
      {"bucket=flat feedback=residual ", "all", "", "uniform_quant", "(bits=4)", bucket},
      {topr, "all", "", "qsgd", "", mixed},
      {feedback, "all", "", "sign", "(scale=mean)", mixed},
      {feedback + "bucket=flat ", "all", "", "half", "", bucket},
      {"sparsify=random(ratio=0.3) regather=off ", "all", "", "raw", "", mixed},
      {topr, "golomb", "", "qsgd", "", mixed, 2080},
      {feedback, "bloom", "(policy=p0,fpr=0.01)", "fit_poly", "", mixed, 2080},
      {beyond + "feedback=residual(beta=0.9,gamma=0.5) ", "golomb", "", "raw", "", mixed, 2080},
      {beyond, "golomb", "", "qsgd", "", mixed, 8192},
      {"sparsify=changed ", "golomb", "", "ulp", "", patched, 4096},
      {"", "raw", "", "qsgd", "", rows, 320},
      {"feedback=residual ", "all", "", "uniform_quant", "(bits=4)", mixed, 2080},
  };
  std::vector<whole_call> calls;
  for (const auto& p : list) {
    const dr_codec *const index = find_codec(DR_ROLE_INDEX, p.index), *const value = find_codec(DR_ROLE_VALUE, p.value),
                          *const order = find_codec(DR_ROLE_ORDER, "bitpack");
    const bool orders = (value->traits & DR_REORDERS) && !(index->traits & DR_CARRIES_ORDER);
    if (index->cuda && value->cuda && (order->cuda || !orders))
      calls.emplace_back(p.sparsifier + "index=" + p.index + p.index_values + " value=" + p.value + p.value_values,
                         p.tensors, p.segment_rows);
  }
  return calls;
}

}  // namespace dr::device_tests
