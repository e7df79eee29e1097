#include "predict_case.hpp"

#include <fmt/core.h>

#include <limits>

#include "predict_text.hpp"
#include "tool/read/inputs.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/read/presets.hpp"
#include "tool/read/shown_name.hpp"

namespace dr::predict {
namespace {

using compare::input_error;
using compare::usage_error;

training read_model(const case_options& o) {
  training t;
  if (!o.model.empty()) {
    t = read_training(o.model);
  } else if (!o.sizes.empty()) {
    try {
      t = sized_training(o.sizes);
    } catch (const std::invalid_argument& e) {
      throw usage_error(std::string("--sizes ") + e.what());
    }
  } else if (!o.input.empty()) {
    t.name = o.input;
    for (const compare::tensor& tensor : compare::read_input(o.input)) {
      tensor_spec spec;
      spec.name = compare::name_shown_as(tensor.name);
      spec.elements = static_cast<double>(tensor.elements);
      // A single array may be a flattened matrix; a vector among a model's tensors is a vector.
      if (tensor.shape.size() > 1)
        spec.rows = static_cast<double>(tensor.shape[0]);
      else if (!tensor.name.empty())
        spec.rows = spec.elements;
      t.tensors.push_back(std::move(spec));
    }
  } else {
    throw usage_error("no tensors: give --model, --sizes or --input");
  }
  if (!o.forward.empty()) t.forward_ns = parse_time(o.forward);
  if (!o.rest.empty()) t.rest_ns = parse_time(o.rest);
  if (!o.backward.empty()) {
    const double before = t.backward_ns;
    t.backward_ns = parse_time(o.backward);
    t.times_known = true;
    for (tensor_spec& tensor : t.tensors)
      tensor.ready_ns = t.ready_known && before > 0 ? tensor.ready_ns * t.backward_ns / before : t.backward_ns;
  }
  if (o.batch > 0) t.batch = o.batch;
  if (t.elements() <= 0) throw input_error(t.name + ": its tensors have no elements");
  if (t.elements() > 1e18)
    throw input_error(fmt::format("{}: {:g} elements in all; at most 1e+18", t.name, t.elements()));
  return t;
}

}  // namespace

std::vector<std::string> files_of(const case_options& o) {
  std::vector<std::string> files{o.profile, o.model, o.input, o.error_rows};
  files.insert(files.end(), o.plugins.begin(), o.plugins.end());
  return files;
}

predict_case read_case(const case_options& o) try {
  predict_case c;
  c.costs = std::make_unique<profile>(read_profile(o.profile));
  step_model& m = c.model;
  m.costs = c.costs.get();
  m.model = read_model(o);
  m.hook = o.hook == "exchange" ? hook_kind::exchange : hook_kind::ddp;
  m.flops = o.flops;
  m.how.bucket_bytes = o.bucket_mb * (1 << 20);
  m.how.first_bucket_bytes = std::min<double>(1 << 20, m.how.bucket_bytes);
  if (o.bypass) m.how.bypass = *o.bypass;
  m.how.slowdown = o.slowdown > 0 ? o.slowdown : c.costs->slowdown.value_or(1);
  m.how.skew_ns = !o.skew.empty() ? parse_time(o.skew) : m.model.skew_ns.value_or(c.costs->skew_ns);
  m.how.hook_ns = o.hook_time.empty() ? c.costs->hook_ns : parse_time(o.hook_time);
  if (o.slowdown <= 0 && !c.costs->slowdown)
    c.notes.insert(
        "slowdown of computing while communicating: unknown, taken as none (`calibrate --overlap` measures it)");
  const char* const transport = transport_of(m.hook);
  const auto link_of = [&](uint32_t ranks) {
    return closest_link(*c.costs, transport, ranks, o.over ? o.over->bits_per_second : 0);
  };
  const measured_link* const known = link_of(o.ranks ? o.ranks : 2);
  m.net.ranks = o.ranks ? o.ranks : known && !o.over ? known->ranks : 8;
  if (known) m.net.measured = *link_of(m.net.ranks);
  // A stated link has other hosts than the profile's.
  m.net.ranks_per_host = o.ranks_per_host   ? o.ranks_per_host
                         : known && !o.over ? std::max(m.net.measured->ranks_per_host, 1u)
                                            : 1;
  m.net.stated = o.over.has_value();
  if (o.over) {
    m.net.wire = *o.over;
    c.link_source = "stated";
  } else if (known) {
    const measured_link& l = *m.net.measured;
    m.net.wire = {l.bits_per_second, l.latency_ns, false};
    c.link_source = fmt::format("measured, {}, {} ranks", l.transport, l.ranks);
  } else {
    throw usage_error(fmt::format("{} has no links: give --link", o.profile));
  }
  if (m.net.uses_measured() && m.net.measured->transport != transport)
    c.notes.insert(
        fmt::format("the profile has no link of {}; one of {} is used", transport, m.net.measured->transport));
  m.note_link(c.notes);
  if (o.skew.empty() && m.model.skew_ns && m.model.skew_ranks > 0 && m.model.skew_ranks != m.net.ranks)
    c.notes.insert(fmt::format("extrapolation: the skew, {}, was recorded among {:g} ranks, not {}",
                               time_text(m.how.skew_ns), m.model.skew_ranks, m.net.ranks));
  if (o.ranks_per_host && m.net.ranks % o.ranks_per_host != 0)
    throw usage_error(
        fmt::format("--ranks-per-host {}: {} ranks do not fill hosts of so many", o.ranks_per_host, m.net.ranks));
  const uint32_t together =
      known && !o.over && m.net.measured->ranks_per_machine ? m.net.measured->ranks_per_machine : m.net.ranks_per_host;
  c.shared = sharing(*c.costs, std::min(together, m.net.ranks));
  if (c.shared > 1)
    c.notes.insert(fmt::format("{} ranks share {:.0f} cores: computing takes {:.2g} times as long as in the profile",
                               std::min(together, m.net.ranks), c.costs->cores, c.shared));
  m.exact = std::make_shared<const plan_work>(plan_work::exact(*c.costs, c.notes).scaled(c.shared, 1));
  return c;
} catch (const std::runtime_error& e) {
  if (dynamic_cast<const input_error*>(&e) || dynamic_cast<const usage_error*>(&e)) throw;
  throw input_error(e.what());
}

std::shared_ptr<const plan_work> read_work(predict_case& c, const std::string& text) {
  return std::make_shared<const plan_work>(plan_work(*c.costs, text, c.notes, c.model.flops).scaled(c.shared, 1));
}

std::vector<std::shared_ptr<const plan_work>> read_works(const case_options& o, predict_case& c) {
  std::vector<std::string> texts = o.plans;
  for (const std::string& name : o.presets) {
    const std::vector<std::string> named = compare::preset_plans(name, "sparsify=topr(ratio=0.01)");
    if (named.empty()) throw usage_error("--preset '" + name + "': no such name; `deepreduce presets` lists them");
    texts.insert(texts.end(), named.begin(), named.end());
  }
  const bool asked = !texts.empty();
  if (!asked)
    for (const plan_profile& known : c.costs->plans)
      if (known.encode && (known.merge || known.decode) && known.plan != c.model.exact->text() &&
          !known.plan.starts_with("powersgd"))  // (plan text: torch's own method, which is not a plan)
        texts.push_back(known.plan);
  if (!o.exchanges.empty() && c.model.hook == hook_kind::ddp)
    throw usage_error(
        "--exchange: the DDP hook has the schedule of its plan, gather or owner; others are of --hook exchange");
  // The limit is one of sweeps: a profile's own plans are as many as it has.
  const size_t limit = asked ? o.limit : std::numeric_limits<size_t>::max();
  std::vector<std::shared_ptr<const plan_work>> works;
  try {
    std::vector<std::string> crossed;
    for (const std::string& text : compare::expand_plans(texts, limit)) {
      const plan method(text);
      const std::vector<dr_stage> stages = method.stages();
      const dr_stage* const own = find_stage(stages, "exchange");
      if (o.exchanges.empty() || !own || !own->is_default) {
        crossed.push_back(text);
        continue;
      }
      for (const std::string& schedule : o.exchanges) {
        const bool has_role = schedule.starts_with("exchange=");  // (plan text: the option may leave the role out)
        crossed.push_back(text + (has_role ? " " : " exchange=") + schedule);
      }
    }
    for (const std::string& text : compare::expand_plans(crossed, limit)) works.push_back(read_work(c, text));
  } catch (const usage_error&) {
    throw;
  } catch (const std::runtime_error& e) {
    throw input_error(e.what());
  }
  for (const auto& w : works)
    if (c.model.hook == hook_kind::ddp && !w->schedule().empty() && w->schedule() != "owner")
      throw usage_error("--plan '" + w->text() + "': the DDP hook takes exchange=gather and exchange=owner");
  return works;
}

}  // namespace dr::predict
