#include "device/twin.hpp"

#include <algorithm>
#include <deque>

namespace dr::device_tests {
namespace {

using properties::guarded_bytes;

constexpr uint64_t untouched = 0xdead0000beef;  // in words that only the device writes
constexpr uint8_t poison = 0xa5;

constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

uint32_t stream_of(const subject& s) {
  return s.is(DR_ROLE_INDEX) ? DR_STREAM_INDEX : s.is(DR_ROLE_VALUE) ? DR_STREAM_VALUE : DR_STREAM_ORDER;
}
unsigned element_size(const subject& s, uint32_t dtype) {
  return s.is(DR_ROLE_VALUE) ? cases::format_of(dtype).bytes : 4;
}

dr_job shape(const subject& s, uint64_t universe, uint64_t count_max, uint32_t dtype, uint32_t width) {
  return shape_job({universe, count_max, s.is(DR_ROLE_VALUE) ? dtype : 0, width});
}

bool holds(std::span<const uint8_t> bytes, uint8_t value) {
  return std::ranges::all_of(bytes, [&](uint8_t b) { return b == value; });
}
template <class... T>
std::string say(const T&... parts) {
  std::string out;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>)
      out += std::to_string(part);
    else
      out += part;
  };
  (add(parts), ...);
  return out;
}
std::string first_difference(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  const auto [at, other] = std::ranges::mismatch(a, b);
  return say("byte ", at - a.begin(), " of ", a.size(), " differs");
}

// A job in device memory.
struct stream {
  enum kind { true_one, faulty, empty } what;
  guarded_bytes in, out, tell, base;
  uint64_t count = 0, in_size = 0, out_size = untouched, tell_count = 0;
  dr_fault fault{.struct_size = sizeof(dr_fault)};

  void attach(dr_job& job) {
    if (what == faulty) fault = {sizeof(dr_fault), DR_E_PEER, 7, 8, 9, nullptr};
    job.in = in.data();
    job.base = base.size() ? base.data() : nullptr;
    job.count = &count;
    job.in_size = &in_size;
    job.out = out.data();
    job.out_size = &out_size;
    job.fault = &fault;
  }
  // Faults that are independent of the outcome.
  std::string complaint() const {
    if (!in.intact() || !out.intact() || !tell.intact() || !base.intact()) return "it wrote beside its memory";
    if (what == true_one) return "";
    if (!holds(out.bytes(), poison) || !holds(tell.bytes(), poison))
      return what == faulty ? "a job with a fault was written" : "a job without elements was written";
    if (what == faulty && (out_size != untouched || fault.code != DR_E_PEER || fault.stream != 7 || fault.where != 8))
      return "a job with a fault got a size or another fault";
    if (what == empty && fault.code) return say("a job without elements got fault ", fault.code);
    if (what == empty && out_size != 0) return "a job without elements got a size that is not 0";
    return "";
  }
};

using operation = dr_status (*)(const dr_exec*, const dr_params*, const dr_job*, size_t);

std::string run(const subject& s, operation what, const dr_params& params, const std::vector<dr_job>& jobs,
                uint64_t dr_need::*scratch_of, uint16_t launches_max, const order& how) {
  std::vector<dr_need> needs(jobs.size(), dr_need{sizeof(dr_need)});
  if (const dr_status status = s.codec().cuda->need(&params, jobs.data(), jobs.size(), needs.data()))
    return say("need gives ", status);
  uint64_t size = 0;
  for (const dr_need& need : needs) size += round_up(need.*scratch_of, 64);
  const guarded_bytes scratch(size, 64);
  std::fill_n(scratch.data(), size, 0);

  device_queue queue;
  dr_error error{sizeof(dr_error)};
  if (find_device({sizeof(dr_place), DR_PLACE_EMULATED, how.seed, nullptr, 0, 0}, queue.where, error))
    return "no device";
  emulator().strands = how.strands;
  emulator().threads = how.threads;
  emulator().jitter = how.jitter;
  const dr_exec exec = queue.exec(scratch.data(), size);
  dr_status status = DR_OK;
  const bool inside = properties::stays_inside([&] { status = what(&exec, &params, jobs.data(), jobs.size()); });
  emulator().strands = 0;
  emulator().threads = 1;
  emulator().jitter = 0;
  if (!inside) return "it touched memory that is not its own";
  if (status) return say("the call gives ", status);
  if (!scratch.intact()) return "it wrote beside its scratch";
  const uint64_t rounds = (jobs.size() + 399) / 400;  // what is promised holds for 400 jobs
  if (queue.launches > rounds * launches_max) return say(queue.launches, " launches; ", launches_max, " were promised");
  return "";
}

// Where the job with a fault and the one without elements come in.
template <class F>
void with_strangers(size_t n, F&& f) {
  for (size_t i = 0; i < n; ++i) {
    f(i, stream::true_one);
    if (i == 0) f(i, stream::faulty);
    if (i == n / 2) f(i, stream::empty);
  }
}

std::string fault_differs(const subject& s, dr_status expected, const dr_fault& got) {
  if (got.code != expected) return say("fault ", got.code, ", the CPU's is ", expected);
  if (expected && got.stream != stream_of(s))
    return say("a fault of stream ", got.stream, " instead of ", stream_of(s));
  return "";
}

}  // namespace

// Plans whose wire fields only the CPU's operations know have nothing to compare here.
const std::vector<const subject*>& subjects() {
  static const std::vector<const subject*> list = [] {
    std::vector<const subject*> out;
    for (const subject& s : properties::subjects()) {
      if (!s.codec().cuda) continue;
      const auto all = properties::groups(s);
      if (runs_on_cuda({&s.codec(), nullptr, all[0].fields})) out.push_back(&s);
    }
    return out;
  }();
  return list;
}

std::vector<group> device_groups(const subject& s, bool spare) {
  auto all = properties::groups(s, spare);
  std::erase_if(all, [&](const group& g) { return s.has_type() && !is_value_type(g.inputs[0]->dtype); });
  return all;
}

// ---- Encode ----------------------------------------------------------------------------------------------

encode_call make_encode_call(const subject& s, const group& g, const properties::encode_options& options) {
  return {&s, g.fields, g.inputs, properties::encode(s, g, options), options};
}

std::string encode_differs(const encode_call& call, const order& how) {
  const subject& s = *call.codec;
  const dr_params params{sizeof params, s.stage->values.data(), call.fields.data()};
  std::deque<stream> streams;
  std::vector<dr_job> jobs;
  std::vector<size_t> of;  // which input
  std::string wrong;
  with_strangers(call.inputs.size(), [&](size_t i, stream::kind what) {
    const input& in = *call.inputs[i];
    const unsigned unit = element_size(s, in.dtype);
    dr_job& job =
        jobs.emplace_back(shape(s, in.universe, properties::count_max_of(in, call.options.spare), in.dtype, in.width));
    job.in_max = job.count_max * in.width * unit;
    if (const auto differs = need_differs(s, params, job); !differs.empty()) wrong = differs;
    dr_need need{.struct_size = sizeof(dr_need)};
    (void)s.codec().cpu->need(&params, &job, 1, &need);
    const uint64_t told_max = !s.tells() || !call.options.ask ? 0 : s.is(DR_ROLE_INDEX) ? need.tell : job.count_max;
    job.tell_capacity = std::min(told_max, i == 0 ? call.options.tell_capacity : UINT64_MAX);
    // Elements lie at multiples of their size, everything else at multiples of 16.
    stream& o =
        streams.emplace_back(stream{what, guarded_bytes(in.elements.size(), 1, jobs.size() * unit % 16),
                                    guarded_bytes(round_up(need.payload, 16), 16),
                                    guarded_bytes(4 * job.tell_capacity, 4), guarded_bytes(in.base.size(), unit)});
    o.in.fill(in.elements);
    o.base.fill(in.base);
    o.out.fill(poison);
    o.tell.fill(poison);
    o.count = what == stream::empty ? 0 : in.count;
    o.in_size = what == stream::empty ? 0 : in.elements.size();
    o.attach(job);
    job.out_capacity = need.payload;
    if (told_max) job.tell = o.tell.data();
    job.tell_count = &o.tell_count;
    job.shared_key = call.options.shared_key;
    job.private_key = call.options.private_key;
    of.push_back(i);
  });
  const auto about = [&](const std::string& what, size_t job) {
    return say(s.text, ": encode, seed ", how.seed, ", ", call.inputs[of[job]]->name, ": ", what);
  };
  if (!wrong.empty()) return about(wrong, 0);
  const dr_ops& ops = *s.codec().cuda;
  if (const auto e = run(s, ops.encode, params, jobs, &dr_need::encode_scratch, ops.launches[0], how); !e.empty())
    return about(e, 0);
  for (size_t j = 0; j < jobs.size(); ++j) {
    const stream& o = streams[j];
    if (const auto e = o.complaint(); !e.empty()) return about(e, j);
    if (!std::ranges::equal(o.in.bytes(), call.inputs[of[j]]->elements)) return about("the input has changed", j);
    if (o.what != stream::true_one) continue;
    const encoded& expected = call.expected[of[j]];
    if (const auto e = fault_differs(s, expected.fault.code, o.fault); !e.empty()) return about(e, j);
    if (expected.fault.code) continue;
    if (o.out_size != expected.payload.size())
      return about(say(o.out_size, " bytes instead of ", expected.payload.size()), j);
    if (!std::ranges::equal(o.out.first(o.out_size), expected.payload))
      return about("payload: " + first_difference(o.out.first(o.out_size), expected.payload), j);
    if (!jobs[j].tell) continue;
    if (o.tell_count != expected.told.size())
      return about(say("it tells ", o.tell_count, " elements instead of ", expected.told.size()), j);
    if (cases::words(o.tell.first(4 * o.tell_count)) != expected.told) return about("it tells something else", j);
  }
  return "";
}

// ---- Decode ----------------------------------------------------------------------------------------------

namespace {

// More elements than the frame says, as a host may have to assume.
uint64_t spare_of(const claim& says) {
  return says.count > says.universe ? 0 : std::min<uint64_t>((says.universe - says.count) / 2, 1000);
}
dr_job decode_job(const subject& s, const decode_call& call, const decode_item& item) {
  const uint64_t more = call.spare ? spare_of(item.says) : 0;
  dr_job job = shape(s, item.says.universe, item.says.count + more, item.says.dtype, item.says.width);
  job.in_max = item.payload.size() + (call.spare ? 100 : 0);
  claim bound = item.says;
  bound.support += more;
  job.out_capacity = bound.out_capacity(s);
  return job;
}

}  // namespace

bool add_item(decode_call& call, const claim& says, std::vector<uint8_t> payload, std::string& wrong) {
  const subject& s = *call.codec;
  decode_item item{says, std::move(payload)};
  const dr_params params{sizeof params, nullptr, call.fields.data()};
  const dr_job job = decode_job(s, call, item);
  if (const auto differs = need_differs(s, params, job); !differs.empty()) wrong = s.text + ": " + differs;
  dr_need need{.struct_size = sizeof(dr_need)};
  if (properties::need_of(s, call.fields, says, need) || s.codec().cpu->need(&params, &job, 1, &need)) return false;
  if (s.codec().cuda->need(&params, &job, 1, &need) == DR_E_UNSUPPORTED) return false;  // the pipeline would not ask
  properties::incoming stream(s, says, item.payload);
  properties::incoming* const one[] = {&stream};
  if (!properties::decode(s, call.fields, one)) wrong = s.text + ": the CPU left its memory";
  item.verdict = stream.fault.code;
  const auto decoded = stream.decoded();
  if (!item.verdict) item.elements.assign(decoded.begin(), decoded.end());
  call.items.push_back(std::move(item));
  return true;
}

std::string decode_differs(const decode_call& call, const order& how, size_t begin, size_t end) {
  const subject& s = *call.codec;
  end = std::min(end, call.items.size());
  const dr_params params{sizeof params, nullptr, call.fields.data()};
  std::deque<stream> streams;
  std::deque<uint64_t> supports;
  std::vector<dr_job> jobs;
  std::vector<size_t> of;
  with_strangers(end - begin, [&](size_t i, stream::kind what) {
    const decode_item& item = call.items[begin + i];
    dr_job& job = jobs.emplace_back(decode_job(s, call, item));
    const unsigned unit = element_size(s, item.says.dtype);
    stream& o = streams.emplace_back(stream{what, guarded_bytes(round_up(item.payload.size(), 16) + 16, 16),
                                            guarded_bytes(job.out_capacity, 16), guarded_bytes(0),
                                            guarded_bytes(item.says.base_size(s), unit)});
    for (size_t k = 0; k < o.base.size(); k += item.says.base.size())
      std::copy_n(item.says.base.begin(), std::min(item.says.base.size(), o.base.size() - k), o.base.data() + k);
    o.in.fill(uint8_t{0});
    o.in.fill(item.payload);
    o.out.fill(poison);
    o.count = what == stream::empty ? 0 : item.says.count;
    o.in_size = what == stream::empty ? 0 : item.payload.size();
    o.attach(job);
    if (s.has(DR_REPLACES_SUPPORT))
      job.tell_count = &supports.emplace_back(what == stream::empty ? 0 : item.says.support);
    of.push_back(begin + i);
  });
  const auto about = [&](const std::string& what, size_t job) {
    const decode_item& item = call.items[of[job]];
    return say(s.text, ": decode, seed ", how.seed, ", item ", of[job], " (", item.payload.size(), " bytes for ",
               item.says.count, " of ", item.says.universe, "): ", what);
  };
  if (jobs.empty()) return "";
  const dr_ops& ops = *s.codec().cuda;
  if (const auto e = run(s, ops.decode, params, jobs, &dr_need::decode_scratch, ops.launches[1], how); !e.empty())
    return about(e, 0);
  for (size_t j = 0; j < jobs.size(); ++j) {
    const stream& o = streams[j];
    const decode_item& item = call.items[of[j]];
    if (const auto e = o.complaint(); !e.empty()) return about(e, j);
    if (o.what != stream::true_one) continue;
    if (const auto e = fault_differs(s, item.verdict, o.fault); !e.empty()) return about(e, j);
    if (item.verdict) continue;
    if (o.out_size != item.elements.size())
      return about(say(o.out_size, " bytes instead of ", item.elements.size()), j);
    if (!std::ranges::equal(o.out.first(o.out_size), item.elements))
      return about(first_difference(o.out.first(o.out_size), item.elements), j);
  }
  return "";
}

// ---- Bounds ----------------------------------------------------------------------------------------------

std::string need_differs(const subject& s, const dr_params& params, const dr_job& job) {
  dr_size_rule rule{.struct_size = sizeof(dr_size_rule)};
  dr_need cpu{.struct_size = sizeof(dr_need)}, cuda{.struct_size = sizeof(dr_need), .rule = &rule};
  const dr_status expected = s.codec().cpu->need(&params, &job, 1, &cpu),
                  status = s.codec().cuda->need(&params, &job, 1, &cuda);
  if (status == DR_E_UNSUPPORTED) return "";  // fields that only the CPU's operations know
  if (status != expected) return say("need gives ", status, ", the CPU's ", expected);
  if (status) return "";
  if (cuda.payload != cpu.payload) return say("need.payload ", cuda.payload, " instead of ", cpu.payload);
  if (cuda.tell != cpu.tell) return say("need.tell ", cuda.tell, " instead of ", cpu.tell);
  if (!s.has(DR_FIXED_SIZE)) return "";
  // The rule is for all counts, whatever the bound.
  if (rule.granule == 0) return "need.rule is missing";
  const uint64_t most = job.count_max;
  const dr_params judged{sizeof params, nullptr, params.fields};  // for all counts that a frame may say
  for (const uint64_t count : {uint64_t{1}, most / 3, most / 2 + 1, most - 1, most}) {
    dr_job smaller = job;
    smaller.count_max = count;
    if (count == 0 || count > most || s.codec().cpu->need(&judged, &smaller, 1, &cpu)) continue;
    if (dr_rule_size(&rule, count) != cpu.payload)
      return say("need.rule gives ", dr_rule_size(&rule, count), " bytes for ", count, " rows instead of ",
                 cpu.payload);
  }
  return "";
}

launch_counts launches_of(const subject& s, const wire_fields& fields, const input& in, size_t n) {
  launch_counts counts{};
  std::deque<stream> streams;
  std::vector<dr_job> jobs;
  std::vector<dr_need> needs(n, dr_need{sizeof(dr_need)});
  const dr_params params{sizeof params, s.stage->values.data(), fields.data()};
  for (size_t i = 0; i < n; ++i) {
    dr_job& job = jobs.emplace_back(shape(s, in.universe, in.count, in.dtype, in.width));
    streams
        .emplace_back(stream{stream::true_one, guarded_bytes(0), guarded_bytes(0), guarded_bytes(0), guarded_bytes(0)})
        .attach(job);
    job.in_max = in.elements.size();
    job.tell_count = &streams.back().tell_count;
  }
  if (s.codec().cuda->need(&params, jobs.data(), n, needs.data())) return counts;
  uint64_t scratch = 0;
  for (size_t i = 0; i < n; ++i) {
    jobs[i].out_capacity = needs[i].payload;
    scratch += round_up(std::max(needs[i].encode_scratch, needs[i].decode_scratch), 64);
  }
  const auto count = [&](operation what) {
    device_queue queue;
    const dr_exec exec = queue.exec(nullptr, scratch);
    const dr_status status = what(&exec, &params, jobs.data(), n);
    return status ? UINT32_MAX : queue.launches;
  };
  counts.encode = count(s.codec().cuda->encode);
  for (size_t i = 0; i < n; ++i) {
    jobs[i].in_max = needs[i].payload;
    jobs[i].out_capacity = in.elements.size();
  }
  counts.decode = count(s.codec().cuda->decode);
  return counts;
}

}  // namespace dr::device_tests
