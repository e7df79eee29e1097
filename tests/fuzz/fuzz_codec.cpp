// Each codec by itself, through its operations: a payload of any bytes under any claim of a frame decodes to something in range or is
// CORRUPT; accepted elements encode within their bounds and decode to what was reported; and a changed payload of its
// own is judged, too.
//
// Input: codec, mode, type, width, universe, count, fields or parameters; then the payload, or elements and changes.
#include <deepreduce/deepreduce.h>

#include <cmath>
#include <memory>
#include <numeric>

#include "fuzz/script.hpp"

namespace {

using fuzz::block;
using fuzz::bytes;
using fuzz::script;
using fuzz::wrong;

constexpr uint64_t count_most = 8191, memory_most = 1 << 22;
// Codecs whose time follows the universe and not the payload; a frame's reader bounds it by what is written or by a limit.
constexpr uint64_t small_universe = 4095, based_universe = 70000;

std::vector<const dr_codec*> list_codecs() {
  std::vector<const dr_codec*> list;
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (const dr_codec* c = dr_codec_at(i); c->cpu && c->role <= DR_ROLE_BYTES && c->cpu->decode) list.push_back(c);
  return list;
}

struct stream {
  const dr_codec* codec;
  std::vector<dr_value> values;
  std::vector<uint64_t> fields;
  dr_job job{};
  std::unique_ptr<block> base, history;

  bool is(dr_role role) const { return codec->role == role; }
  bool has(uint32_t trait) const { return codec->traits & trait; }
  uint64_t word_size() const {
    if (job.dtype == DR_F32 || job.dtype == DR_U32) return 4;
    return job.dtype == DR_F64 ? 8 : job.dtype == DR_U8 ? 1 : 2;
  }
  uint64_t element_size() const { return is(DR_ROLE_BYTES) ? 1 : is(DR_ROLE_VALUE) ? job.width * word_size() : 4; }
  // Of a codec that reads one: words of a few magnitudes.
  void give_base() {
    if (!has(DR_NEEDS_BASE)) return;
    const uint64_t size = word_size();
    base = std::make_unique<block>((is(DR_ROLE_INDEX) ? job.universe : job.count_max * job.width) * size);
    uint64_t drawn = job.universe;
    for (uint64_t i = 0; i < base->size(); ++i) {
      drawn = drawn * 6364136223846793005u + 1442695040888963407u;
      base->data()[i] = static_cast<uint8_t>(i % size + 1 == size ? 0x38 + (drawn >> 61) : drawn >> 56);
    }
    job.base = base->data();
    if (!has(DR_NEEDS_HISTORY) || job.universe % 3 == 0) return;
    history = std::make_unique<block>(base->size() / size);
    for (uint64_t i = 0; i < history->size(); ++i) {
      drawn = drawn * 6364136223846793005u + 1442695040888963407u;
      history->data()[i] = static_cast<uint8_t>(drawn >> 63 ? 0 : drawn >> 55);
    }
    job.history = history->data();
  }
  dr_params params(bool encodes) const {
    dr_params p{};
    p.struct_size = sizeof p;
    p.values = encodes ? values.data() : nullptr;
    p.fields = fields.data();
    return p;
  }
  // False: the fields do not fit, or there is more to it than we have time for.
  bool need(bool encodes, dr_need& n) const {
    n = {};
    n.struct_size = sizeof n;
    const dr_params p = params(encodes);
    const dr_status s = codec->cpu->need(&p, &job, 1, &n);
    if (s != DR_OK && s != DR_E_CORRUPT) wrong("a need that is neither OK nor CORRUPT", codec->name);
    return s == DR_OK && n.payload <= memory_most && n.tell <= memory_most / 4;
  }
  template <class F>
  dr_fault run(F&& operation, bool encodes, uint64_t scratch_size, uint8_t fill) {
    dr_fault fault{};
    fault.struct_size = sizeof fault;
    job.fault = &fault;
    const block scratch((scratch_size + 63) / 64 * 64, fill);
    dr_exec exec{};
    exec.struct_size = sizeof exec;
    exec.scratch = scratch.data();
    exec.scratch_size = scratch.size();
    exec.workers = 1;
    exec.parallel = [](void*, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
      for (size_t i = 0; i < n; ++i) f(arg, i, 0);
    };
    const dr_params p = params(encodes);
    if (operation(&exec, &p, &job, 1) != DR_OK) wrong("an operation fails", codec->name);
    job.fault = nullptr;
    return fault;
  }
};

// Whether the elements of a payload are in range. `support`: their number by the frame.
bytes decode(stream& s, const bytes& payload, uint64_t support, bool sound) {
  dr_need need;
  if (!s.need(false, need)) return {};
  const uint64_t size = support * s.element_size();
  if (size > memory_most) return {};
  const block in(payload, payload.size() % 3), out(size);
  uint64_t out_size = 0;
  dr_job& job = s.job;
  job.in = in.data();
  job.in_max = in.size();
  job.in_size = nullptr;
  job.count = nullptr;
  job.out = out.data();
  job.out_capacity = size;
  job.out_size = &out_size;
  job.tell = nullptr;
  job.tell_capacity = 0;
  job.tell_count = nullptr;
  const dr_fault fault = s.run(s.codec->cpu->decode, false, need.decode_scratch, 0x5a);
  if (fault.code) {
    if (fault.code != DR_E_CORRUPT || sound) wrong("decode", fault.message ? fault.message : s.codec->name);
    if (!fault.message) wrong("a fault without a sentence", s.codec->name);
    return {};
  }
  if (out_size > size) wrong("more bytes than there is room for", s.codec->name);
  if (s.is(DR_ROLE_INDEX) && out_size == size) {
    const auto* const keys = out.as<uint32_t>();
    for (uint64_t i = 0; i < support; ++i)
      if (keys[i] >= job.universe || (!s.has(DR_CARRIES_ORDER) && i && keys[i] <= keys[i - 1]))
        wrong("indices do not ascend below the universe", s.codec->name);
  }
  return out.copy(out_size);
}

// Elements that the codec takes, of what bytes there are.
bytes elements_of(const stream& s, script& from, uint64_t count) {
  if (s.is(DR_ROLE_BYTES)) return from.take(count);
  bytes out(count * s.element_size());
  if (s.is(DR_ROLE_VALUE)) {
    const bytes raw = from.take(out.size());
    std::copy(raw.begin(), raw.end(), out.begin());
    if (s.has(DR_NEEDS_FINITE)) {
      const unsigned size = s.job.dtype == DR_F32 ? 4 : 2;
      const uint8_t top = s.job.dtype == DR_F16 ? 0x7c : 0x7f;  // of the exponent, in the last byte
      for (size_t i = size - 1; i < out.size(); i += size)
        if ((out[i] & top) == top && (s.job.dtype == DR_F16 || (out[i - 1] & 0x80))) out[i] &= 0xbf;
    }
    return out;
  }
  std::vector<uint32_t> list(count);
  if (s.is(DR_ROLE_ORDER)) {
    std::iota(list.begin(), list.end(), 0u);
    for (uint64_t i = 0; i + 1 < count; ++i) std::swap(list[i], list[i + from.up_to(count - 1 - i)]);
  } else {
    uint64_t left = s.job.universe - count, next = 0;  // the room for gaps
    for (uint32_t& key : list) {
      const uint8_t kind = from.byte();
      const uint64_t gap = kind < 200 ? std::min<uint64_t>(kind, left)
                                      : std::min<uint64_t>(uint64_t{from.byte()} << (kind - 200) % 24, left);
      left -= gap;
      next += gap;
      key = static_cast<uint32_t>(next++);
    }
    if (s.has(DR_CARRIES_ORDER) && (from.byte() & 1)) std::reverse(list.begin(), list.end());
  }
  std::memcpy(out.data(), list.data(), out.size());
  return out;
}

// What the pipeline requires of an encode: it is within its bounds, and reports what decode returns.
void encode(stream& s, script& from, uint64_t count) {
  dr_job& job = s.job;
  for (size_t i = 0; i < s.codec->param_count; ++i) {
    const dr_param& p = *dr_param_at(s.codec->params, i);
    dr_value v{};
    v.struct_size = sizeof v;
    v.number = p.fallback;
    if (const uint8_t kind = from.byte(); kind & 1 || p.required) {
      double most = p.maximum;
      if (p.type == DR_PARAM_CHOICE)
        most = static_cast<double>(std::count(p.choices, p.choices + std::strlen(p.choices), '|'));
      v.given = 1;
      const double share = static_cast<double>(from.byte()) / 255;
      v.number = kind & 2 ? p.minimum + share * (most - p.minimum) : std::min(most, p.minimum + 16 * share);
      if (kind & 4 && p.minimum > 0) v.number = p.minimum * std::pow(most / p.minimum, share);
      if (p.type != DR_PARAM_REAL) v.number = std::floor(v.number);
      v.number = std::clamp(v.number, p.minimum, most);
    }
    s.values.push_back(v);
  }
  const bytes elements = elements_of(s, from, count);
  if (s.is(DR_ROLE_BYTES)) count = elements.size();
  job.in_max = elements.size();
  if (s.codec->cpu->resolve) {
    dr_fault fault{};
    fault.struct_size = sizeof fault;
    const dr_params p = s.params(true);
    if (const dr_status e = s.codec->cpu->resolve(&p, &job, s.fields.data(), &fault)) {
      if (e != DR_E_ARGUMENT) wrong("resolve", s.codec->name);
      return;
    }
  }
  dr_need need;
  if (!s.need(true, need)) return;
  const bool tells = s.is(DR_ROLE_INDEX) || s.has(DR_REORDERS);
  const uint64_t tell_most = s.is(DR_ROLE_INDEX) ? need.tell : count;
  const block in(elements), out(need.payload), tell(tells ? 4 * tell_most : 0);
  const uint64_t in_size = in.size();
  uint64_t out_size = 0, told = 0;
  job.in = in.data();
  job.in_size = &in_size;
  job.count = s.is(DR_ROLE_BYTES) ? nullptr : &count;
  job.out = out.data();
  job.out_capacity = need.payload;
  job.out_size = &out_size;
  job.tell = tells ? tell.data() : nullptr;
  job.tell_capacity = tells ? tell_most : 0;
  job.tell_count = &told;
  uint64_t cost = UINT64_MAX;
  const auto ask = [&](const dr_exec* e, const dr_params* p, const dr_job* j, size_t n) {
    return s.codec->cpu->cost(e, p, j, n, &cost);
  };
  if (s.codec->cpu->cost && s.run(ask, true, need.encode_scratch, 0x3c).code) cost = UINT64_MAX;
  const uint64_t in_max = job.in_max;
  const dr_fault fault = s.run(s.codec->cpu->encode, true, need.encode_scratch, 0xa5);
  if (in.copy(in.size()) != elements) wrong("encode changes its input", s.codec->name);
  if (fault.code) {
    if (fault.code != DR_E_ARGUMENT && fault.code != DR_E_CAPACITY) wrong("encode", fault.message);
    return;
  }
  if (out_size > need.payload || told > tell_most) wrong("more than its bounds", s.codec->name);
  if (s.has(DR_FIXED_SIZE) && out_size != need.payload) wrong("not its fixed size", s.codec->name);
  if (cost != UINT64_MAX && cost != out_size) wrong("not the size that it told", s.codec->name);

  bytes payload = out.copy(out_size);
  const uint64_t support = s.is(DR_ROLE_INDEX) ? told : count;
  const bytes decoded = decode(s, payload, support, true);
  if (s.is(DR_ROLE_INDEX) && decoded != tell.copy(4 * told))
    wrong("it decodes to another support than it told", s.codec->name);
  if (decoded.size() != support * s.element_size()) wrong("it decodes to another size", s.codec->name);
  if (s.has(DR_EXACT) && decoded != elements) wrong("an exact codec is not", s.codec->name);

  // The same, damaged: bytes changed, cut or added, and other claims.
  job.in_max = in_max;
  while (!from.empty()) {
    const uint8_t kind = from.byte();
    if (payload.empty() || kind % 8 == 0) {
      payload.push_back(from.byte());
    } else if (kind % 8 == 1) {
      payload.resize(payload.size() - std::min<size_t>(payload.size(), from.byte()));
    } else {
      const uint64_t at = from.up_to(payload.size() - 1);
      payload[at] ^= from.byte();
    }
  }
  if (s.has(DR_FIXED_SIZE)) payload.resize(out_size);  // as a frame's reader has it
  decode(s, payload, support, false);
}

// A payload of any bytes under claims that a frame's reader lets through.
void attack(stream& s, script& from, uint64_t count) {
  for (size_t i = 0; i < s.codec->field_count; ++i) {
    const dr_field& f = *dr_field_at(s.codec->fields, i);
    const uint64_t range = f.maximum - f.minimum, x = from.up_to(std::min<uint64_t>(range, UINT32_MAX));
    s.fields[i] = f.minimum + (range == UINT64_MAX ? x : x % (range + 1));
  }
  const uint64_t support = s.has(DR_REPLACES_SUPPORT) ? 1 + from.up_to(s.job.universe - 1) : count;
  dr_need need;
  if (s.is(DR_ROLE_BYTES)) s.job.in_max = count;
  if (!s.need(false, need)) return;
  bytes payload = from.rest();
  if (s.has(DR_FIXED_SIZE)) payload.resize(need.payload);
  decode(s, payload, support, false);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<const dr_codec*> codecs = list_codecs();
  script from(data, size);
  stream s{codecs[from.up_to(codecs.size() - 1)], {}, std::vector<uint64_t>(DR_FIELDS_MAX), {}, {}};
  const uint8_t mode = from.byte();
  dr_job& job = s.job;
  job.struct_size = sizeof job;
  job.width = 1;
  job.shared_key = 11;
  job.private_key = 22;
  uint64_t count = 1 + from.up_to(count_most);
  if (s.is(DR_ROLE_VALUE)) {
    job.dtype = DR_F32 + (mode >> 1) % 3;
    if (!(s.codec->dtypes & DR_DTYPE_BIT(job.dtype))) job.dtype = DR_F32;
    if (mode & 8) job.width = 1 + from.byte() % 9;
    job.universe = count + from.up_to(UINT32_MAX) % (UINT32_MAX - count);
  } else if (s.is(DR_ROLE_INDEX)) {
    const bool small = s.has(DR_REPLACES_SUPPORT) || (mode & 8);
    const uint64_t most = small ? small_universe : UINT32_MAX;
    job.universe = std::max(count, from.up_to(s.has(DR_NEEDS_BASE) && !small ? based_universe : most));
  } else if (s.is(DR_ROLE_ORDER)) {
    job.universe = count;
  }
  if (!s.is(DR_ROLE_BYTES)) job.count_max = count;
  if (s.has(DR_NEEDS_BASE)) {
    static constexpr dr_dtype types[] = {DR_F32, DR_F16, DR_BF16, DR_F64, DR_U8, DR_U16, DR_U32};
    job.dtype = types[(mode >> 1) % 7];
  }
  s.give_base();
  if (mode & 1)
    encode(s, from, count);
  else
    attack(s, from, count);
  return 0;
}
