#include "codec_run.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <thread>

namespace dr::plugin_test {
namespace {

constexpr uint64_t max_bytes = 1 << 26;  // of one stream: extreme parameters may require any size

unsigned element_size(const subject& s, uint32_t dtype) {
  return s.is(DR_ROLE_VALUE) ? cases::format_of(dtype).bytes : s.is(DR_ROLE_BYTES) ? 1 : 4;
}

// ---- Parameters ------------------------------------------------------------------------------------------

std::string choice_at(std::string_view choices, double position) {
  for (; position > 0; --position) choices.remove_prefix(choices.find('|') + 1);
  return std::string(choices.substr(0, choices.find('|')));
}

double first_of(const dr_param& p) {
  if (!p.required) return p.fallback;
  return p.type == DR_PARAM_CHOICE ? 0 : p.minimum;
}

subject with_values(const dr_codec& codec, const std::vector<double>& numbers) {
  subject s{&codec, std::string("plugin.") + codec.name, {}};
  char open = '(';
  for (size_t i = 0; i < numbers.size(); ++i) {
    const dr_param& p = *dr_param_at(codec.params, i);
    const bool given = p.required || numbers[i] != p.fallback;
    s.values.push_back({sizeof(dr_value), given, 0, numbers[i]});
    if (!given) continue;
    s.call += open;
    open = ',';
    s.call += p.name;
    s.call += '=' + (p.type == DR_PARAM_CHOICE ? choice_at(p.choices, numbers[i]) : fmt::format("{}", numbers[i]));
  }
  if (open == ',') s.call += ')';
  return s;
}

// ---- Operations ------------------------------------------------------------------------------------------

using operation = dr_status (*)(const dr_exec*, const dr_params*, const dr_job*, size_t);

// dr_exec.parallel: threads that share the items.
void on_threads(void* workers, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
  const uint32_t count = *static_cast<const uint32_t*>(workers);
  std::atomic<size_t> next{0};
  const auto work = [&](size_t worker) {
    for (size_t i; (i = next.fetch_add(1)) < n;) f(arg, i, worker);
  };
  std::vector<std::jthread> others;
  for (uint32_t w = 1; w < count; ++w) others.emplace_back(work, w);
  work(0);
}

void run(const char* name, operation what, const dr_params& params, std::span<const dr_job> jobs, uint64_t scratch,
         uint32_t workers, uint8_t poison) {
  const uint64_t stride = (scratch + 63) / 64 * 64;
  // Directly before the guard page, without rounding if there is one worker.
  guarded_bytes memory(workers > 1 ? stride * workers : scratch, 64);
  memory.fill(poison);
  lending lend;
  lend.add("the scratch", memory);
  dr_exec exec{};
  exec.struct_size = sizeof exec;
  exec.scratch = memory.data();
  exec.scratch_size = stride;
  exec.workers = workers;
  exec.pool = &workers;
  exec.parallel = on_threads;
  const dr_status status = what(&exec, &params, jobs.data(), jobs.size());
  if (status != DR_OK)
    throw failure(fmt::format("{} returns {}; what data gets wrong is the fault of its job", name, status));
  if (!memory.intact()) throw failure(fmt::format("{} writes beside its scratch of {} bytes", name, scratch));
}

dr_job shape(const subject& s, uint64_t universe, uint64_t count_max, uint32_t dtype, uint32_t width) {
  dr_job job{};
  job.struct_size = sizeof job;
  job.universe = universe;
  job.count_max = count_max;
  job.dtype = s.is(DR_ROLE_VALUE) ? dtype : s.is(DR_ROLE_BYTES) ? 0 : uint32_t{DR_U32};
  job.width = width;
  return job;
}

dr_job shape(const subject& s, const input& in, bool spare) {
  const uint64_t more = spare ? std::min<uint64_t>((in.universe - in.count) / 2, 1000) : 0;
  dr_job job = shape(s, in.universe, in.count + more, in.dtype, in.width);
  job.in_max = s.is(DR_ROLE_BYTES) ? in.elements.size() + (spare ? 1000 : 0)
                                   : job.count_max * in.width * element_size(s, in.dtype);
  return job;
}

}  // namespace

std::vector<subject> subjects_of(const dr_codec& codec) {
  std::vector<double> usual;
  for (size_t i = 0; i < codec.param_count; ++i) usual.push_back(first_of(*dr_param_at(codec.params, i)));
  std::vector<subject> list{with_values(codec, usual)};
  const auto add = [&](size_t i, double number) {
    std::vector<double> other = usual;
    other[i] = number;
    subject s = with_values(codec, other);
    if (std::ranges::none_of(list, [&](const subject& known) { return known.call == s.call; }))
      list.push_back(std::move(s));
  };
  for (size_t i = 0; i < codec.param_count; ++i) {
    const dr_param& p = *dr_param_at(codec.params, i);
    if (p.type == DR_PARAM_CHOICE) {
      const std::string_view choices = p.choices;
      for (ptrdiff_t c = 0; c <= std::ranges::count(choices, '|'); ++c) add(i, static_cast<double>(c));
    } else {
      add(i, p.minimum);
      add(i, p.maximum);
    }
  }
  return list;
}

std::vector<input> inputs_of(const subject& s) {
  std::vector<input> list;
  cases::random_source random("large");
  switch (s.codec->role) {
    case DR_ROLE_INDEX: {
      // (A codec that replaces the support reads the whole universe.)
      list = cases::supports("supports", s.has(DR_REPLACES_SUPPORT) ? 40000 : cases::largest_universe);
      list.push_back(cases::support("large", 300000, random.subset(300000, 100003)));
      break;
    }
    case DR_ROLE_VALUE: {
      const auto add = [&](std::vector<input> more) {
        for (input& in : more)
          if (s.codec->dtypes & DR_DTYPE_BIT(in.dtype)) list.push_back(std::move(in));
      };
      add(cases::all_values("values", s.has(DR_NEEDS_FINITE), {1}));
      if (!s.has(DR_REORDERS)) add(cases::all_values("rows", s.has(DR_NEEDS_FINITE), {3}));
      for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
        add({cases::values("large", dtype, 1, 100003, [&](uint64_t) { return 0.01 * random.laplace(); })});
      break;
    }
    case DR_ROLE_ORDER: list = cases::permutations(); break;
    default: list = cases::byte_strings();
  }
  return list;
}

std::string quoted(const input& in) { return '\'' + in.name + '\''; }

bool resolve(const subject& s, const input& in, wire_fields& fields) {
  const dr_ops& ops = *s.codec->cpu;
  const dr_job job = shape(s, in, false);
  if (ops.resolve) {
    const dr_params params{sizeof params, s.values.data(), fields.data(), 0, 0};
    dr_fault fault{.struct_size = sizeof(dr_fault)};
    about(quoted(in));
    note("resolve");
    const dr_status status = ops.resolve(&params, &job, fields.data(), &fault);
    if (status == DR_E_ARGUMENT) return false;
    if (status != DR_OK) throw failure(fmt::format("{}: resolve returns {}, not OK or ARGUMENT", quoted(in), status));
    for (size_t i = 0; i < s.codec->field_count; ++i) {
      const dr_field& f = *dr_field_at(s.codec->fields, i);
      if (fields[i] < f.minimum || fields[i] > f.maximum)
        throw failure(fmt::format("{}: resolve returns the wire field {} = {}, which is not in {} … {}", quoted(in),
                                  f.name, fields[i], f.minimum, f.maximum));
    }
  }
  dr_need need{.struct_size = sizeof(dr_need)};
  const dr_params params{sizeof params, s.values.data(), fields.data(), 0, 0};
  about(quoted(in));
  note("need");
  const dr_status status = ops.need(&params, &job, 1, &need);
  // If a frame cannot represent the result of an index codec, it falls back to raw keys.
  if (status == DR_E_CORRUPT && s.has(DR_REPLACES_SUPPORT)) return false;
  if (status != DR_OK)
    throw failure(fmt::format("{}: need returns {} for the fields that resolve gave", quoted(in), status));
  return need.payload <= max_bytes && need.encode_scratch <= max_bytes && need.decode_scratch <= max_bytes;
}

std::vector<encoded> encode(const subject& s, const wire_fields& fields, const std::vector<const input*>& inputs,
                            const encode_how& how) {
  struct stream {
    guarded_bytes in, out, tell;
    uint64_t count, in_size, out_size = 0, tell_count = 0;
    dr_fault fault{.struct_size = sizeof(dr_fault)};
  };
  std::deque<stream> streams;
  std::vector<dr_job> jobs;
  for (const input* in : inputs) jobs.push_back(shape(s, *in, how.spare));
  const dr_params params{sizeof params, s.values.data(), fields.data(), 0, 0};
  std::vector<dr_need> needs(jobs.size(), dr_need{.struct_size = sizeof(dr_need)});
  about(quoted(*inputs[0]));
  note("need");
  if (s.codec->cpu->need(&params, jobs.data(), jobs.size(), needs.data()) != DR_OK)
    throw failure(quoted(*inputs[0]) + ": need does not return OK for all jobs of a call");
  lending lend;
  uint64_t scratch = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const input& in = *inputs[i];
    dr_job& job = jobs[i];
    scratch = std::max(scratch, needs[i].encode_scratch);
    const uint64_t report_max = !s.tells() || !how.ask ? 0 : s.is(DR_ROLE_INDEX) ? needs[i].tell : job.count_max;
    job.tell_capacity = std::min(report_max, i == 0 ? how.tell_capacity : UINT64_MAX);
    const unsigned alignment = element_size(s, in.dtype);
    stream& o =
        streams.emplace_back(stream{guarded_bytes(in.elements.size(), alignment), guarded_bytes(needs[i].payload, 16),
                                    guarded_bytes(4 * job.tell_capacity, 4), in.count, in.elements.size()});
    o.in.fill(in.elements);
    o.out.fill(how.poison);
    o.tell.fill(how.poison);
    if (i == 0) o.fault.code = how.fault;
    job.in = o.in.data();
    job.in_size = &o.in_size;
    job.count = s.is(DR_ROLE_BYTES) ? nullptr : &o.count;
    job.out = o.out.data();
    job.out_capacity = needs[i].payload;
    job.out_size = &o.out_size;
    if (report_max) job.tell = o.tell.data();
    job.tell_count = &o.tell_count;
    job.shared_key = how.shared_key;
    job.private_key = how.private_key;
    job.fault = &o.fault;
    lend.add("the elements", o.in);
    lend.add("the room for the payload (need.payload bytes)", o.out);
    lend.add("the room for `tell`", o.tell);
  }
  note("encode");
  run("encode", s.codec->cpu->encode, params, jobs, scratch, how.workers, how.poison);
  std::vector<encoded> made;
  for (size_t i = 0; i < jobs.size(); ++i) {
    stream& o = streams[i];
    const std::string name = quoted(*inputs[i]);
    const dr_need& need = needs[i];
    if (!o.out.intact())
      throw failure(fmt::format("{}: encode writes past need.payload = {} bytes", name, need.payload));
    if (!o.tell.intact())
      throw failure(fmt::format("{}: encode writes past tell_capacity = {} elements", name, jobs[i].tell_capacity));
    if (!o.in.intact() || !std::ranges::equal(o.in.bytes(), inputs[i]->elements))
      throw failure(name + ": encode writes to its input");
    if (o.fault.code == DR_OK && o.out_size > need.payload)
      throw failure(fmt::format("{}: encode reports {} bytes; need.payload is {}", name, o.out_size, need.payload));
    if (o.tell_count > jobs[i].tell_capacity)
      throw failure(fmt::format("{}: encode reports {} elements; tell_capacity is {}", name, o.tell_count,
                                jobs[i].tell_capacity));
    const bool asked_for = i == 0 && (how.fault != DR_OK || how.tell_capacity != UINT64_MAX);
    if (!asked_for && o.fault.code != DR_OK && (o.fault.code != DR_E_ARGUMENT || s.has(DR_TOTAL)))
      throw failure(fmt::format(
          "{}: encode has the fault {} ({}); {}", name, o.fault.code, o.fault.message ? o.fault.message : "no message",
          s.has(DR_TOTAL) ? "a codec with DR_TOTAL never fails" : "only ARGUMENT refuses an input"));
    const auto payload = o.out.first(o.fault.code == DR_OK ? o.out_size : 0);
    made.push_back({inputs[i],
                    {payload.begin(), payload.end()},
                    cases::words(o.tell.first(o.fault.code == DR_OK ? 4 * o.tell_count : 0)),
                    need,
                    o.fault});
  }
  return made;
}

uint64_t cost_of(const subject& s, const wire_fields& fields, const input& in) {
  guarded_bytes bytes(in.elements.size(), element_size(s, in.dtype));
  bytes.fill(in.elements);
  uint64_t cost = 0, size = in.elements.size();
  dr_fault fault{.struct_size = sizeof(dr_fault)};
  dr_job job = shape(s, in, true);
  job.in = bytes.data();
  job.in_size = &size;
  if (!s.is(DR_ROLE_BYTES)) job.count = &in.count;
  job.fault = &fault;
  const dr_params params{sizeof params, s.values.data(), fields.data(), 0, 0};
  uint32_t workers = 1;
  const dr_exec exec{sizeof exec, nullptr, 0, nullptr, 1, 0, &workers, on_threads, nullptr, nullptr, nullptr};
  about(quoted(in));
  note("cost");
  if (const dr_status status = s.codec->cpu->cost(&exec, &params, &job, 1, &cost);
      status != DR_OK || fault.code != DR_OK)
    throw failure(fmt::format("{}: cost returns {}, fault {}", quoted(in), status, fault.code));
  return cost;
}

uint64_t claim::out_capacity(const subject& s) const {
  return s.is(DR_ROLE_BYTES) ? elements_size : support * width * element_size(s, dtype);
}

claim claim_of(const subject& s, const encoded& e) {
  const input& in = *e.in;
  return {in.universe, in.count, s.is(DR_ROLE_INDEX) ? e.reported.size() : in.count,
          in.dtype,    in.width, in.elements.size()};
}

dr_status need_of(const subject& s, const wire_fields& fields, const claim& c, dr_need& need) {
  dr_job job = shape(s, c.universe, c.count, c.dtype, c.width);
  job.in_max = c.elements_size;
  const dr_params params{sizeof params, nullptr, fields.data(), 0, 0};
  need = {.struct_size = sizeof(dr_need)};
  note("the need of a decode (values is NULL)");
  return s.codec->cpu->need(&params, &job, 1, &need);
}

incoming::incoming(const subject& s, const claim& c, std::span<const uint8_t> payload, size_t gap)
    : says(c), in(payload.size(), 1, gap), out(c.out_capacity(s), 16) {
  in.fill(payload);
}

void decode(const subject& s, const wire_fields& fields, std::span<incoming* const> streams, uint32_t workers,
            uint8_t poison) {
  const dr_params params{sizeof params, nullptr, fields.data(), 0, 0};
  std::vector<dr_job> jobs;
  uint64_t scratch = 0;
  lending lend;
  for (incoming* o : streams) {
    dr_need need;
    if (need_of(s, fields, o->says, need) != DR_OK)
      throw failure("need rejects before decode what it accepted for encode");
    scratch = std::max(scratch, need.decode_scratch);
    o->out.fill(poison);
    o->out_size = 0;
    dr_job& job = jobs.emplace_back(shape(s, o->says.universe, o->says.count, o->says.dtype, o->says.width));
    job.in = o->in.data();
    job.in_max = o->in.size();
    job.out = o->out.data();
    job.out_capacity = o->says.out_capacity(s);
    job.out_size = &o->out_size;
    job.fault = &o->fault;
    lend.add("the payload", o->in);
    lend.add("the room for the elements", o->out);
  }
  note("decode");
  run("decode", s.codec->cpu->decode, params, jobs, scratch, workers, poison);
  for (incoming* o : streams) {
    if (!o->out.intact()) throw failure(fmt::format("decode writes past out_capacity = {} bytes", o->out.size()));
    if (!o->in.intact()) throw failure("decode writes beside the payload");
    if (o->fault.code == DR_OK && o->out_size > o->out.size())
      throw failure(fmt::format("decode reports {} bytes; out_capacity is {}", o->out_size, o->out.size()));
  }
}

std::vector<uint8_t> decode_one(const subject& s, const wire_fields& fields, const encoded& e, uint8_t poison) {
  incoming stream(s, claim_of(s, e), e.payload);
  incoming* const one[] = {&stream};
  decode(s, fields, one, 1, poison);
  if (stream.fault.code != DR_OK)
    throw failure(fmt::format("{}: decode refuses the payload that encode made: fault {} at {}: {}", quoted(*e.in),
                              stream.fault.code, stream.fault.where,
                              stream.fault.message ? stream.fault.message : "no message"));
  const auto decoded = stream.decoded();
  return {decoded.begin(), decoded.end()};
}

}  // namespace dr::plugin_test
