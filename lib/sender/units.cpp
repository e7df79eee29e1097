#include "sender/units.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <map>
#include <unordered_set>

#include "primitive/rng.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

// On links of 100 Mbit/s units of 2 to 4 MiB, which backward hides, shortened the step of a GPT of 13 MB by a quarter
// compared with one unit; at 1 Gbit/s there was no difference (bench/results/hook_steps.md).
constexpr uint64_t unit_bytes = uint64_t{4} << 20;
// For tensors that are sent as factors: the second factors of a unit are sent after backward.
constexpr uint64_t factor_bytes = uint64_t{25} << 20;
// A separate tensor has a row of the header and levels of its own. Below this size they gain little, and such tensors are
// 1 to 3 % of the bytes. In one flat tensor small ones cost nothing.
constexpr uint64_t small_elements = 1000;

constexpr std::array<uint32_t, 256> crc_table = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    table[byte] = crc;
  }
  return table;
}();

// That of zlib. Saved states depend on it: it makes their keys.
uint32_t crc32_of(std::string_view text) {
  uint32_t crc = ~0u;
  for (const char c : text) crc = crc >> 8 ^ crc_table[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

// The ids of value=half, which rounds each value by itself, without levels of its tensor, and of index=all.
constexpr uint32_t half_id = 4, all_elements_id = 11;

bool sends_values_alone(const plan& p) { return p.value_choices.empty() && p.value[0].codec->id == half_id; }

// Plans derived from those of the lines. A plan is derived once, because hundreds of tensors have one line.
struct derived_plans {
  std::map<const plan*, plan_ptr> flat, exact;
};

// make(out): derives the plan.
template <class F>
dr_status derive_once(std::map<const plan*, plan_ptr>& known, plan_ptr& method, F&& make) {
  const auto found = known.find(method.get());
  if (found != known.end()) return method = found->second, DR_OK;
  const plan* const of = method.get();
  if (const dr_status s = make(method)) return s;
  known.emplace(of, method);
  return DR_OK;
}

dr_status fail_at(dr_error& error, uint64_t tensor, dr_status status) {
  error.tensor = tensor;
  return status;
}

// Adds bucket=flat if the tensors of the plan are to be one. A sparsifier selects best among all elements. Levels are best
// for one tensor: in a transformer one tensor has 98 % of the gradient's square, and 4 bits reach a loss of 2.095 with
// levels for each tensor, 2.360 as one tensor (docs/PYTORCH.md). If a plan sends each value by itself, it saves
// headers.
dr_status make_flat(plan_ptr& method, uint32_t flat, dr_error& error) {
  const plan& p = *method;
  const uint32_t flags = traits_of(p).flags;
  const bool by_plan = (flags & DR_PLAN_SPARSIFIES) || !(flags & DR_PLAN_LOSSY_VALUES) || sends_values_alone(p);
  if (p.flat || p.transforms() || p.has_tiles() ||
      !(flat == DR_FLAT_BY_PLAN ? by_plan && !p.takes_base() : flat == DR_FLAT))
    return DR_OK;
  const plan_ptr before = method;
  return bind_with(*before, "bucket=flat", method, error);
}

// Derives the plan by which a tensor is sent from that of its line.
dr_status choose_plan(const named_tensor& t, const unit_rules& rules, const plan_ptr& dense, derived_plans& known,
                      plan_ptr& out, dr_error& error) {
  out = t.method ? t.method : dense;
  const plan_ptr own = out;
  if (own->patches())
    return fail(error, DR_E_UNSUPPORTED, "%.80s: `%.80s` makes patches of weights, not means of gradients",
                t.name.c_str(), own->text.c_str());
  if (own->takes_base() && !t.is_rows && t.elements && !t.base)
    return fail(error, DR_E_UNSUPPORTED,
                "%.80s: `%.80s` compares with the weights that the tensor is to move, and the sender has none "
                "(dr_named_tensor.base is NULL); deepreduce.outer.Outer has them",
                t.name.c_str(), own->text.c_str());
  if (t.is_rows) {
    if (const dr_status s = bind_rows(*own, out, error))
      return prefix(error, "%.80s: its gradient is sparse: ", t.name.c_str()), s;
  } else {
    const auto flatten = [&](plan_ptr& method) { return make_flat(method, rules.flat, error); };
    const auto make_exact = [&](plan_ptr& method) -> dr_status {
      const plan_ptr large = method;
      if (const dr_status s = bind_exact(large, method, error)) return s;
      if (const plan_ptr with_tiles = method; with_tiles->has_tiles())
        if (const dr_status s = bind_with(*with_tiles, "transform=none", method, error)) return s;
      return method->votes ? dr_status{DR_OK} : make_flat(method, DR_FLAT, error);
    };
    if (const dr_status s = derive_once(known.flat, out, flatten)) return s;
    const uint64_t elements = t.elements / (rules.scatters ? rules.ranks : 1);
    if (elements < dense_below_of(*out, rules.dense_below))
      if (const dr_status s = derive_once(known.exact, out, make_exact)) return s;
  }
  const exchange_kind how = out->exchange.kind;
  if (how != exchange_kind::gather && how != exchange_kind::owner)
    return fail(
        error, DR_E_UNSUPPORTED,
        "%.80s: exchange=%s: a sender's frames go by exchange=gather or exchange=owner; dr_exchange has the others",
        t.name.c_str(), how == exchange_kind::ring ? "ring" : "hierarchy");
  if (rules.scatters && (out->transforms() || out->has_tiles()))
    return fail(error, DR_E_UNSUPPORTED, "%.80s: `%.80s`: shards have no matrices", t.name.c_str(), own->text.c_str());
  // (Copies in f32 are what a transform sees.)
  const uint32_t types = traits_of(out->transforms() ? *dense : *out).dtypes;
  if (types & DR_DTYPE_BIT(t.dtype)) return DR_OK;
  std::string names;
  for (const dr_dtype type : {DR_F32, DR_F16, DR_BF16})
    if (types & DR_DTYPE_BIT(type)) names += (names.empty() ? "" : ", ") + std::string(dtype_name(type));
  return fail(error, DR_E_ARGUMENT, "%.80s is %s; the plan `%.80s` accepts %s", t.name.c_str(), dtype_name(t.dtype),
              own->text.c_str(), names.c_str());
}

// how: that of the plan of its line, because small tensors are exchanged as the others are.
uint32_t kind_of(const named_tensor& t, const plan& method, exchange_kind how, const unit_rules& rules) {
  if (t.is_rows) return DR_UNIT_ROWS;
  if (method.transforms()) return DR_UNIT_FACTORS;
  if (rules.scatters) return DR_UNIT_SCATTER;
  if (rules.reduces_halves && half_of(method)) return DR_UNIT_HALVES;
  return how == exchange_kind::owner ? DR_UNIT_OWNER : DR_UNIT_FRAMES;
}

// The frames of a unit: one for each flat plan; for the rest one for each kind of feedback and decay of residuals, so that a
// frame can be taken back to all its residuals, and withdrawn from them after they have decayed. Votes have a frame of their
// own, because their weights differ. Frames of a fixed size are first: those behind them do not move.
void cut_frames(unit_list& unit, const unit_plan& all) {
  std::vector<std::pair<std::string, std::vector<uint32_t>>> frames;
  for (const uint32_t i : unit.tensors) {
    const plan& p = *all.methods[i];
    std::string key = p.flat ? p.text : p.votes ? "votes " : "";
    if (!p.flat) key += p.keeps_feedback() ? p.feedback_rule().kind.entry.name : "none";
    if (!p.flat && decay_of(p) != 1) key += " " + std::to_string(std::bit_cast<uint32_t>(decay_of(p)));
    auto at = std::ranges::find(frames, key, &decltype(frames)::value_type::first);
    if (at == frames.end()) at = frames.insert(at, {key, {}});
    at->second.push_back(i);
  }
  const auto has_fixed_size = [&](const std::vector<uint32_t>& list) {
    return (traits_of(*all.methods[list[0]]).flags & DR_PLAN_FIXED_SIZE) != 0;
  };
  unit.tensors.clear();
  for (const bool fixed : {true, false})
    for (auto& [key, list] : frames)
      if (!list.empty() && has_fixed_size(list) == fixed) {
        unit.tensors.insert(unit.tensors.end(), list.begin(), list.end());
        unit.frames.push_back(std::move(list));
        list.clear();
      }
}

uint32_t digest_of(const unit_list& unit, std::span<const named_tensor> tensors, const unit_plan& all) {
  uint64_t sum = unit.kind;
  const auto add = [&](std::string_view text) { sum = combine(combine(sum, text.size()), crc32_of(text)); };
  for (const uint32_t i : unit.tensors) {
    add(tensors[i].name);
    sum = combine(combine(sum, tensors[i].elements), tensors[i].dtype);
    add(all.methods[i]->text);
  }
  return static_cast<uint32_t>(sum >> 32);
}

dr_status check_clips(std::span<const named_tensor> tensors, const unit_plan& all, dr_error& error) {
  size_t first = SIZE_MAX;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const double clip = clip_of(*all.methods[i]);
    if (!(clip > 0)) continue;
    if (first == SIZE_MAX) first = i;
    const double other = clip_of(*all.methods[first]);
    if (clip == other) continue;
    fail(error, DR_E_ARGUMENT, "%.80s has clip=%g, %.80s clip=%g: the norm is of the whole gradient, and has one bound",
         tensors[first].name.c_str(), other, tensors[i].name.c_str(), clip);
    return fail_at(error, i, DR_E_ARGUMENT);
  }
  return DR_OK;
}

}  // namespace

dr_dtype half_of(const plan& p) {
  if (p.transforms() || p.has_tiles() || p.patches() || p.chooses() || p.votes || p.block != 1 ||
      !sends_values_alone(p))
    return {};
  const bool codes_all = p.index.size() == 1 && p.index[0].codec->id == all_elements_id && p.value.size() == 1;
  if (!codes_all || (traits_of(p).flags & DR_PLAN_SPARSIFIES) || p.exchange.kind != exchange_kind::gather) return {};
  if (p.keeps_feedback()) {
    const bound_feedback rule = p.feedback_rule();
    if (!rule.kind.plain || rule.kind.rate || rule.weights().beta != 1 || rule.weights().gamma != 1) return {};
  }
  return p.value[0].value(0) == 0 ? DR_F16 : DR_BF16;
}

float decay_of(const plan& p) {
  if (!p.keeps_residual() || p.keeps_momentum() || p.feedback_rule().kind.rate) return 1;
  return p.feedback_rule().weights().beta;
}

uint64_t dense_below_of(const plan& method, uint64_t requested) {
  if (requested != DR_DENSE_BELOW_BY_PLAN) return requested;
  return method.flat ? 0 : small_elements;
}

dr_status plan_units(std::span<const named_tensor> tensors, const unit_rules& rules, unit_plan& out, dr_error& error) {
  plan_ptr dense;
  if (const dr_status s = bind_flat(dense, error)) return s;
  std::unordered_set<std::string_view> names;
  // Units of one kind are filled one after the other. (Kinds in the order of their first tensors.)
  struct filling {
    std::vector<unit_list> units;
    uint64_t room = 0;
  };
  std::map<std::string, size_t> kinds;
  std::vector<filling> all;
  derived_plans known;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const named_tensor& t = tensors[i];
    if (!names.insert(t.name).second) {
      fail(error, DR_E_ARGUMENT, "tensor %u: its name '%.80s' is another tensor's, too", i, t.name.c_str());
      return fail_at(error, i, DR_E_ARGUMENT);
    }
    plan_ptr method;
    if (const dr_status s = choose_plan(t, rules, dense, known, method, error)) return fail_at(error, i, s);
    const exchange_kind how = (t.method ? *t.method : *dense).exchange.kind;
    const uint32_t kind = kind_of(t, *method, how, rules);
    const bool alone = kind == DR_UNIT_ROWS || kind == DR_UNIT_SCATTER;
    std::string key = std::to_string(kind) + " " + std::to_string(t.dtype);
    if (kind == DR_UNIT_FACTORS || kind == DR_UNIT_HALVES) key += " " + method->text;
    if (alone) key += " " + std::to_string(i);
    const auto [at, is_new] = kinds.try_emplace(key, all.size());
    if (is_new) all.emplace_back();
    filling& f = all[at->second];
    const uint64_t size = t.elements * value_size(t.dtype);
    if (is_new || size > f.room) {
      f.units.push_back({.kind = kind});
      const uint64_t usual = kind == DR_UNIT_FACTORS ? factor_bytes : unit_bytes;
      f.room = std::max(size, rules.unit_bytes ? rules.unit_bytes : usual);
    }
    f.room -= size;
    f.units.back().tensors.push_back(i);
    out.methods.push_back(std::move(method));
    out.keys.push_back(uint64_t{crc32_of(t.name)} + 1);
  }
  for (filling& f : all)
    for (unit_list& unit : f.units) {
      cut_frames(unit, out);
      unit.digest = digest_of(unit, tensors, out);
      out.units.push_back(std::move(unit));
    }
  return check_clips(tensors, out, error);
}

}  // namespace dr
