#include "properties/harness.hpp"

#include <algorithm>
#include <deque>
#include <map>

#include "core/registry.hpp"
#include "stage/chain.hpp"

namespace dr::properties {
namespace {

unsigned element_size(const subject& s, uint32_t dtype) {
  return s.is(DR_ROLE_VALUE) ? cases::word_size(dtype) : s.is(DR_ROLE_BYTES) ? 1 : 4;
}

subject bind(const cases::codec_case& c, const char* text) {
  // Each role in the plan that puts it to work.
  const dr_codec* const codec = find_codec(c.role, c.name);
  REQUIRE(codec);
  const std::string plan_text = c.role == DR_ROLE_ORDER   ? "value=fit_poly order=" + std::string(text)
                                : c.role == DR_ROLE_BYTES ? "index=raw+" + std::string(text)
                                : codec->traits & DR_NEEDS_BASE
                                    ? "sparsify=changed " + std::string(role_name(c.role)) + "=" + text
                                    : std::string(role_name(c.role)) + "=" + text;
  subject s{&c, text, nullptr, nullptr};
  dr_error error{sizeof(dr_error)};
  INFO(plan_text);
  const dr_status status = bind_plan(plan_text, s.bound, error);
  INFO(std::string(error.message));
  REQUIRE(status == DR_OK);
  const plan& p = *s.bound;
  s.stage = c.role == DR_ROLE_INDEX   ? &p.index[0]
            : c.role == DR_ROLE_VALUE ? &p.value[0]
            : c.role == DR_ROLE_ORDER ? &p.order[0]
                                      : &p.index[1];
  REQUIRE(std::string(s.codec().name) == c.name);
  return s;
}

dr_job shape_of(const subject& s, uint64_t universe, uint64_t count_max, uint32_t dtype, uint32_t width) {
  return shape_job({universe, count_max, s.has_type() ? dtype : 0, width});
}

dr_job job_of(const subject& s, const input& in, bool spare) {
  dr_job job = shape_of(s, in.universe, count_max_of(in, spare), in.dtype, in.width);
  job.in_max = s.is(DR_ROLE_BYTES) ? in.elements.size() + (spare ? 1000 : 0)
                                   : job.count_max * in.width * element_size(s, in.dtype);
  return job;
}

using operation = dr_status (*)(const dr_exec*, const dr_params*, const dr_job*, size_t);

// Poisons the scratch of `scratch` bytes a worker and runs. False if the codec left its memory.
bool run(operation what, const dr_params& params, std::span<const dr_job> jobs, uint64_t scratch, uint32_t workers,
         uint8_t poison) {
  static std::map<uint32_t, std::unique_ptr<pool>> pools;
  static guarded_bytes memory(64, 64);
  auto& threads = pools[workers];
  if (!threads) threads = std::make_unique<pool>(workers);
  const uint64_t stride = (scratch + 63) / 64 * 64;
  if (memory.size() < stride * workers || memory.size() > 8 * stride * workers + 64)
    memory = guarded_bytes(stride * workers, 64);
  memory.fill(poison);
  const dr_exec exec = stage_runner{memory.data() + memory.size() - stride * workers, stride, threads.get()}.exec();
  dr_status status = DR_OK;
  const bool inside = stays_inside([&] { status = what(&exec, &params, jobs.data(), jobs.size()); });
  REQUIRE(status == DR_OK);  // what data gets wrong is the fault of a job
  return inside && memory.intact();
}

}  // namespace

const std::vector<subject>& every_subject() {
  static const std::vector<subject> list = [] {
    std::vector<subject> out;
    for (const cases::codec_case& c : cases::all())
      for (const char* text : c.plans) out.push_back(bind(c, text));
    return out;
  }();
  return list;
}

const std::vector<subject>& subjects() {
  static const std::vector<subject> list = [] {
    std::vector<subject> out = every_subject();
    std::erase_if(out, [](const subject& s) { return !cases::is_asked_for(s.described->role, s.described->name); });
    return out;
  }();
  return list;
}

uint64_t count_max_of(const input& in, bool spare) {
  return in.count + (spare ? std::min<uint64_t>((in.universe - in.count) / 2, 1000) : 0);
}

std::vector<group> groups(const subject& s, bool spare) {
  std::map<std::pair<std::vector<uint32_t>, wire_fields>, group> by_header;
  for (const input& in : s.described->inputs) {
    wire_fields fields{};
    if (s.codec().cpu->resolve) {
      const dr_job job = job_of(s, in, spare);
      const dr_params params{sizeof params, s.stage->values.data(), fields.data()};
      dr_fault fault{.struct_size = sizeof(dr_fault)};
      const dr_status status = s.codec().cpu->resolve(&params, &job, fields.data(), &fault);
      if (status == DR_E_ARGUMENT) continue;  // parameters that do not go with such an input
      REQUIRE(status == DR_OK);
    }
    // What no frame says of such an input goes as keys instead (the gate of decode has no parameters).
    const uint64_t most = count_max_of(in, true);
    dr_need need{};
    if (s.has(DR_REPLACES_SUPPORT) && need_of(s, fields, {in.universe, most, most, in.dtype, in.width, 0}, need))
      continue;
    group& g = by_header[{{s.has_type() ? in.dtype : 0, in.width}, fields}];
    g.fields = fields;
    g.inputs.push_back(&in);
  }
  std::vector<group> out;
  for (auto& [key, g] : by_header) {
    g.inputs.push_back(g.inputs.front());  // so that no call has one job only
    out.push_back(std::move(g));
  }
  return out;
}

std::vector<encoded> encode(const subject& s, const group& g, const encode_options& options) {
  struct stream {
    guarded_bytes in, out, tell, base, history;
    uint64_t count, in_size, out_size = 0, tell_count = 0;
    dr_fault fault{.struct_size = sizeof(dr_fault)};
  };
  std::deque<stream> streams;
  std::vector<dr_job> jobs;
  for (const input* in : g.inputs) jobs.push_back(job_of(s, *in, options.spare));
  const dr_params params{sizeof params, s.stage->values.data(), g.fields.data()};
  std::vector<dr_need> needs(jobs.size(), dr_need{sizeof(dr_need)});
  REQUIRE(s.codec().cpu->need(&params, jobs.data(), jobs.size(), needs.data()) == DR_OK);
  uint64_t scratch = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const input& in = *g.inputs[i];
    dr_job& job = jobs[i];
    scratch = std::max(scratch, needs[i].encode_scratch);
    const uint64_t told_max = !s.tells() || !options.ask ? 0 : s.is(DR_ROLE_INDEX) ? needs[i].tell : job.count_max;
    job.tell_capacity = std::min(told_max, i == 0 ? options.tell_capacity : UINT64_MAX);
    stream& o = streams.emplace_back(stream{guarded_bytes(in.elements.size()), guarded_bytes(needs[i].payload, 16),
                                            guarded_bytes(4 * job.tell_capacity), guarded_bytes(in.base.size(), 16),
                                            guarded_bytes(in.history.size(), 1), in.count, in.elements.size()});
    o.in.fill(in.elements);
    o.base.fill(in.base);
    o.history.fill(in.history);
    o.out.fill(options.poison);
    o.tell.fill(options.poison);
    if (i == 0) o.fault.code = options.fault;
    job.in = o.in.data();
    job.in_size = &o.in_size;
    job.count = s.is(DR_ROLE_BYTES) ? nullptr : &o.count;
    job.out = o.out.data();
    job.out_capacity = needs[i].payload;
    job.out_size = &o.out_size;
    if (told_max) job.tell = o.tell.data();
    job.tell_count = &o.tell_count;
    job.shared_key = options.shared_key;
    job.private_key = options.private_key;
    job.fault = &o.fault;
    if (s.has(DR_NEEDS_BASE)) job.base = o.base.data();
    if (s.has(DR_NEEDS_HISTORY) && !in.history.empty()) job.history = o.history.data();
  }
  INFO(s.text << ": encode");
  REQUIRE(run(s.codec().cpu->encode, params, jobs, scratch, options.workers, options.poison));
  std::vector<encoded> made;
  for (size_t i = 0; i < jobs.size(); ++i) {
    stream& o = streams[i];
    INFO(g.inputs[i]->name);
    const bool intact = o.in.intact() && o.out.intact() && o.tell.intact() && o.base.intact() && o.history.intact();
    REQUIRE(intact);
    REQUIRE(std::ranges::equal(o.in.bytes(), g.inputs[i]->elements));
    REQUIRE(o.out_size <= needs[i].payload);
    REQUIRE(o.tell_count <= jobs[i].tell_capacity);
    const auto payload = o.out.first(o.out_size);
    made.push_back({{payload.begin(), payload.end()}, cases::words(o.tell.first(4 * o.tell_count)), needs[i], o.fault});
  }
  return made;
}

uint64_t claim::out_capacity(const subject& s) const {
  return s.is(DR_ROLE_BYTES) ? elements_size : support * width * element_size(s, dtype);
}

claim claim_of(const subject& s, const input& in, const encoded& e) {
  return {in.universe, in.count,  s.is(DR_ROLE_INDEX) ? e.told.size() : in.count,
          in.dtype,    in.width,  in.elements.size(),
          in.base,     in.history};
}

// (A claim may be a lie: then what there is comes again and again.)
uint64_t claim::base_size(const subject& s) const {
  if (!s.has(DR_NEEDS_BASE)) return 0;
  return (s.is(DR_ROLE_INDEX) ? universe : count) * width * cases::word_size(dtype);
}

namespace {

dr_job job_of(const subject& s, const claim& c) { return shape_of(s, c.universe, c.count, c.dtype, c.width); }

}  // namespace

dr_status need_of(const subject& s, const wire_fields& fields, const claim& c, dr_need& need) {
  dr_job job = job_of(s, c);
  job.in_max = c.elements_size;
  const dr_params params{sizeof params, nullptr, fields.data()};
  return s.codec().cpu->need(&params, &job, 1, &need);
}

incoming::incoming(const subject& s, const claim& c, std::span<const uint8_t> payload, size_t gap, placement where)
    : says(c),
      in(payload.size(), 1, gap, where),
      out(c.out_capacity(s), 16),
      base(c.base_size(s), 16),
      history(c.history.empty() ? 0 : c.base_size(s) / cases::word_size(c.dtype)) {
  in.fill(payload);
  for (size_t i = 0; i < history.size(); i += c.history.size())
    std::copy_n(c.history.begin(), std::min(c.history.size(), history.size() - i), history.data() + i);
  for (size_t i = 0; i < base.size(); i += c.base.size())
    std::copy_n(c.base.begin(), std::min(c.base.size(), base.size() - i), base.data() + i);
}

bool decode(const subject& s, const wire_fields& fields, std::span<incoming* const> streams,
            const decode_options& options) {
  const dr_params params{sizeof params, nullptr, fields.data()};
  std::vector<dr_job> jobs;
  uint64_t scratch = 0;
  for (incoming* o : streams) {
    dr_need need{.struct_size = sizeof(dr_need)};
    REQUIRE(need_of(s, fields, o->says, need) == DR_OK);
    scratch = std::max(scratch, need.decode_scratch);
    o->out.fill(options.poison);
    o->out_size = 0;
    dr_job& job = jobs.emplace_back(job_of(s, o->says));
    job.in = o->in.data();
    job.in_max = o->in.size();
    job.out = o->out.data();
    job.out_capacity = o->says.out_capacity(s);
    job.out_size = &o->out_size;
    job.fault = &o->fault;
    if (s.has(DR_NEEDS_BASE)) job.base = o->base.data();
    if (s.has(DR_NEEDS_HISTORY) && o->history.size()) job.history = o->history.data();
  }
  return run(s.codec().cpu->decode, params, jobs, scratch, options.workers, options.poison) &&
         std::ranges::all_of(streams, [](const incoming* o) {
           return o->in.intact() && o->out.intact() && o->base.intact() && o->history.intact() &&
                  o->out_size <= o->out.size();
         });
}

std::vector<uint8_t> decode_one(const subject& s, const wire_fields& fields, const claim& c,
                                std::span<const uint8_t> payload, const decode_options& options) {
  incoming stream(s, c, payload);
  incoming* const one[] = {&stream};
  const bool inside = decode(s, fields, one, options);
  REQUIRE(inside);
  INFO(std::string(stream.fault.message ? stream.fault.message : ""));
  REQUIRE(stream.fault.code == DR_OK);
  const auto decoded = stream.decoded();
  return {decoded.begin(), decoded.end()};
}

}  // namespace dr::properties
