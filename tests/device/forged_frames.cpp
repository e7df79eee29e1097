// Frames that no encoder makes, on a GPU that the CPU plays: their fields and modes are what a test says, and their
// checks are right. The device thinks what the CPU thinks, to the bit, in any order of its lanes.
#include <algorithm>
#include <map>

#include "../client.hpp"
#include "../properties/forged_frame.hpp"
#include "../sweep.hpp"

namespace {

constexpr int part = dr::sanitized ? 2 : 1;  // of the rounds

using client::bytes;
using client::context;
using client::floats;

// place.device: the order of the lanes.
dr_place emulated(int32_t order) {
  dr_place p{};
  p.struct_size = sizeof p;
  p.kind = DR_PLACE_EMULATED;
  p.device = order;
  return p;
}
constexpr int32_t orders[] = {0, 1, 2, 5};

struct shape {
  uint64_t universe;
  uint32_t width;
};

struct decoded {
  dr_status status;
  std::vector<floats> values;
};

// One frame is decoded, several are added up.
decoded decode_at(const dr_place* place, const std::vector<bytes>& frames, const std::vector<shape>& shapes) {
  const context c;
  const std::vector<bytes> memory = frames;  // aligned as device memory is, and not a byte longer
  std::vector<dr_bytes> f;
  for (const bytes& b : memory) f.push_back({b.data(), b.size()});
  decoded d;
  for (const shape& s : shapes) d.values.emplace_back(s.universe * s.width, -77.0f);
  std::vector<dr_tensor_out> outs;
  for (size_t i = 0; i < shapes.size(); ++i) outs.push_back(client::dense_out(d.values[i], shapes[i].width));
  d.status = f.size() == 1
                 ? dr_decode(c.handle, place, f[0].data, f[0].size, nullptr, outs.data(), sizeof outs[0], outs.size())
                 : dr_merge(c.handle, place, f.data(), floats(f.size(), 0.5f).data(), f.size(), nullptr, outs.data(),
                            sizeof outs[0], outs.size());
  return d;
}

bool same(const decoded& a, const decoded& b) {
  const auto same_bits = [](const floats& x, const floats& y) {
    return x.size() == y.size() && (x.empty() || !std::memcmp(x.data(), y.data(), 4 * x.size()));
  };
  return a.status == b.status && std::equal(a.values.begin(), a.values.end(), b.values.begin(), same_bits);
}

// Whether the CPU takes the frames. What has no path on a device is refused there, and neither counted nor compared.
enum class verdict { taken, refused, no_path };
verdict compare(const std::vector<bytes>& frames, const std::vector<shape>& shapes) {
  const decoded host = decode_at(nullptr, frames, shapes);
  for (const int32_t order : orders) {
    const dr_place place = emulated(order);
    const decoded device = decode_at(&place, frames, shapes);
    if (device.status == DR_E_UNSUPPORTED && host.status != DR_E_UNSUPPORTED) return verdict::no_path;
    INFO(frames.size() << " frames, order " << order << ": CPU " << host.status << ", device " << device.status);
    // (Of a decode that fails the CPU's outputs are unspecified; a device's are as they were.)
    if (host.status && frames.size() == 1) {
      CHECK(device.status == host.status);
      for (const floats& v : device.values) CHECK(std::all_of(v.begin(), v.end(), [](float x) { return x == -77.0f; }));
      continue;
    }
    CHECK(same(host, device));
  }
  return host.status ? verdict::refused : verdict::taken;
}

const dr_codec* codec_named(dr_role role, const std::string& name) {
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (dr_codec_at(i)->role == role && dr_codec_at(i)->name == name) return dr_codec_at(i);
  FAIL("no codec " << name);
  return nullptr;
}

bytes from_hex(const std::string& text) {
  bytes out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return out;
}

// ---- Frames at random --------------------------------------------------------------------------------------

struct random_numbers {
  uint64_t state;
  uint64_t next() { return frame_check::mix64(state += 0x9e3779b97f4a7c15); }
  uint64_t below(uint64_t n) { return next() % n; }
  template <class T>
  const T& of(const std::vector<T>& from) {
    return from[below(from.size())];
  }
};

// The least, the most and the default of a field, numbers beside them, and others.
uint64_t field_value(random_numbers& r, const dr_field& f) {
  const uint64_t range = f.maximum - f.minimum;
  switch (r.below(6)) {
    case 0: return f.minimum;
    case 1: return f.maximum;
    case 2: return f.fallback;
    case 3: return f.minimum + std::min<uint64_t>(range, r.below(4));
    case 4: return f.minimum + std::min(range, r.next() >> (32 + r.below(32)));
    default: return f.minimum + (range == UINT64_MAX ? r.next() : r.below(range + 1));
  }
}

// Of a codec with any fields, or with such as fit these rows, if a few draws find them.
forged::stage one_stage(random_numbers& r, const dr_codec* codec, const forged::entry& e, bool fits) {
  forged::stage s{codec, {}};
  dr_need need{};
  for (int draws = 0; draws == 0 || (fits && draws < 50); ++draws) {
    s.fields.clear();
    for (size_t i = 0; i < codec->field_count; ++i) s.fields.push_back(field_value(r, *dr_field_at(codec->fields, i)));
    if (forged::need_of(s, e.dtype, e.width, 1, 1, need) && forged::need_of(s, e.dtype, e.width, 1000, 40, need)) break;
  }
  return s;
}

// What the codec makes of elements, if it makes anything of them with these fields; or bytes that it would not make.
bytes section_of(random_numbers& r, const forged::stage& s, const forged::entry& e, uint64_t universe, uint64_t count,
                 const bytes& elements, bytes* told) {
  dr_need need{};
  if (!forged::need_of(s, e.dtype, e.width, universe, count, need)) return bytes(r.below(40), 0xff);
  std::vector<uint64_t> out(need.payload / 8 + 8), scratch(need.encode_scratch / 8 + 1), tell(universe + count + 8);
  bytes in = elements;
  in.resize(in.size() + 64);
  dr_fault fault{.struct_size = sizeof(dr_fault)};
  dr_job job{.struct_size = sizeof(dr_job)};
  uint64_t out_size = 0, tell_count = 0;
  job.universe = universe;
  job.count_max = count;
  job.dtype = e.dtype;
  job.width = e.width;
  job.in = in.data();
  job.in_max = elements.size();
  job.out = out.data();
  job.out_capacity = need.payload;
  job.out_size = &out_size;
  job.tell = tell.data();
  job.tell_capacity = universe;
  job.tell_count = &tell_count;
  job.fault = &fault;
  dr_exec exec{.struct_size = sizeof(dr_exec)};
  exec.scratch = scratch.data();
  exec.scratch_size = 8 * scratch.size();
  exec.workers = 1;
  exec.parallel = [](void*, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
    for (size_t i = 0; i < n; ++i) f(arg, i, 0);
  };
  dr_params params{.struct_size = sizeof(dr_params)};
  params.fields = s.fields.data();
  std::vector<dr_value> values;  // encode takes parameters, too: the defaults
  for (size_t i = 0; i < s.codec->param_count; ++i) {
    values.push_back({});
    values.back().struct_size = sizeof(dr_value);
    values.back().number = dr_param_at(s.codec->params, i)->fallback;
  }
  params.values = values.data();
  const bool made = s.codec->cpu->encode(&exec, &params, &job, 1) == DR_OK && fault.code == DR_OK;
  const auto* const first = reinterpret_cast<const uint8_t*>(out.data());
  if (told)
    told->assign(reinterpret_cast<const uint8_t*>(tell.data()),
                 reinterpret_cast<const uint8_t*>(tell.data()) + 4 * tell_count);
  bytes payload = made ? bytes(first, first + out_size) : bytes(need.payload, 0xff);
  if (r.below(24) == 0) std::fill(payload.begin(), payload.end(), static_cast<uint8_t>(r.below(2) ? 0xff : 0));
  // Often empty: behind a section come zeros, not what was there before.
  if (r.below(24) == 0) payload.resize(r.below(2) ? 0 : r.below(payload.size() + 1));
  return payload;
}

// Lists some blocks of a universe, or their elements; now and then, if no encoder reads them, some that are none. Returns
// the number of elements.
uint64_t put_blocks(random_numbers& r, uint64_t block, uint64_t universe, bool elements, bool any, bytes& keys) {
  const uint64_t all = (universe + block - 1) / block, n = 1 + r.below(std::min<uint64_t>(all, 9));
  std::vector<uint64_t> list;
  for (uint64_t i = 0; i < n; ++i) list.push_back(i * all / n);
  if (r.below(3) == 0) list.back() = all - 1;
  uint64_t count = 0;
  for (const uint64_t b : list) count += std::min(block, universe - b * block);
  switch (any ? r.below(8) : 4 + r.below(8)) {
    case 0: list.back() = all + r.below(3) * (uint64_t{1} << 30); break;
    case 1: std::swap(list.front(), list.back()); break;
    case 2: list.back() = all > 1 ? all - 2 : 0; break;
    case 3:
    case 4: list.back() = all - 1; break;  // perhaps a short one that is not counted as such
    default: break;
  }
  for (const uint64_t b : list)
    for (uint64_t i = 0; i < (elements ? block : 1); ++i)
      if (!elements || keys.size() < 4 * count) forged::put_number(keys, elements ? b * block + i : b, 4);
  return count;
}

struct forgery {
  bytes frame;
  std::vector<shape> shapes;
};

// Several rows by one plan: in it (if `coded`), with raw keys, dense, and empty, in any order. joins: a bit for each row that
// says that it is of the tensor of the one before.
forgery forge(random_numbers& r, const forged::entry& e, const std::vector<uint64_t>& universes, bool coded,
              uint64_t joins) {
  forgery out;
  std::vector<forged::row> rows;
  const bool replaces = e.index[0].codec->traits & DR_REPLACES_SUPPORT;
  const uint64_t value_size = e.width * (e.dtype == DR_F32 ? 4u : 2u);
  const bool raw = e.index[0].codec->name == std::string("raw");
  const uint64_t block = e.block.empty() ? 1 : uint64_t{1} << e.block[0].fields[0];
  for (const uint64_t universe : universes) {
    forged::row row;
    row.mode = static_cast<uint32_t>(coded ? r.below(3) : 1 + r.below(2));
    row.universe = universe;
    row.count = r.below(4) ? 1 + r.below(std::min<uint64_t>(universe, 40)) : 0;
    bytes values;
    const auto fill_values = [&](uint64_t n) {
      for (uint64_t i = 0; i < n * value_size; ++i)
        values.push_back(static_cast<uint8_t>(i % 4 == 3 || (value_size % 4 && i % 2) ? 0x3c : r.next()));
    };
    if (row.mode == 2) {
      fill_values(universe);
      row.value = values;
    } else if (row.count) {
      bytes keys;
      if (block == 1)
        for (uint64_t i = 0; i < row.count; ++i) forged::put_number(keys, i * universe / row.count, 4);
      else
        row.count = put_blocks(r, block, universe, row.mode == 1, row.mode == 1 || raw, keys);
      row.support = row.count;
      if (row.mode == 1)
        row.index = keys;
      else {
        bytes told;
        row.index = section_of(r, e.index[0], e, (universe + block - 1) / block, keys.size() / 4, keys,
                               replaces ? &told : nullptr);
        if (replaces && !told.empty() && r.below(8)) row.support = told.size() / 4;
      }
      if (block > 1 && r.below(12) == 0) row.support = row.count = std::min(universe, row.count + 1 + r.below(3));
      fill_values(row.support);
      bytes order;
      row.value = section_of(r, e.value[0], e, universe, row.support, values, e.order.empty() ? nullptr : &order);
      if (!e.order.empty()) {
        order.resize(4 * row.support);
        row.order = section_of(r, e.order[0], e, universe, row.support, order, nullptr);
      }
    }
    row.continues = joins >> rows.size() & 1;
    if (row.continues && !rows.empty())
      out.shapes.back().universe += universe;
    else
      out.shapes.push_back({universe, e.width});
    rows.push_back(row);
  }
  out.frame = forged::frame_of({e}, rows);
  return out;
}

// (Those of patches need a base: tests/cuda/gpu_patches.cpp.)
std::vector<const dr_codec*> on_devices(dr_role role) {
  std::vector<const dr_codec*> out;
  for (size_t i = 0; i < dr_codec_count(); ++i) {
    const dr_codec& c = *dr_codec_at(i);
    if (c.role == role && c.cuda && !(c.traits & DR_NEEDS_BASE)) out.push_back(&c);
  }
  return out;
}

// Segments of a tensor, by keys as they are.
forged::row plain_row(uint64_t universe, const std::vector<uint32_t>& keys, bool continues) {
  forged::row row;
  row.universe = universe;
  row.count = row.support = keys.size();
  row.continues = continues;
  for (const uint32_t k : keys) {
    forged::put_number(row.index, k, 4);
    forged::put_number(row.value, 0x3f800000 + k, 4);
  }
  return row;
}

}  // namespace

TEST_CASE("segments that lie about where they are, how many, or what they hold: the device thinks what the CPU does") {
  forged::entry e;
  e.value = {{codec_named(DR_ROLE_VALUE, "raw"), {}}};
  e.index = {{codec_named(DR_ROLE_INDEX, "raw"), {}}};
  const auto says = [&](std::vector<forged::row> rows, const std::vector<shape>& shapes) {
    return compare({forged::frame_of({e}, rows)}, shapes);
  };
  const forged::row a = plain_row(100, {0, 99}, false), b = plain_row(70, {3, 69}, true), c = plain_row(5, {}, true);
  CHECK(says({a, b, c}, {{175, 1}}) == verdict::taken);
  CHECK(says({a, b, c, a, a, c, b}, {{175, 1}, {100, 1}, {175, 1}}) == verdict::taken);
  // Of no rows, first and in between.
  CHECK(says({plain_row(0, {}, false), b, plain_row(0, {}, true), c}, {{75, 1}}) == verdict::taken);
  CHECK(says({a, b, c}, {{100, 1}, {75, 1}}) == verdict::no_path);  // one tensor for two outputs
  // Tensors of other lengths than the outputs; the first that continues one; keys that are of the next segment, or the last.
  CHECK(says({a, b, c, a}, {{100, 1}, {75, 1}, {100, 1}}) == verdict::refused);
  CHECK(says({a, b, a}, {{270, 1}}) == verdict::refused);
  CHECK(says({b, c}, {{75, 1}}) == verdict::refused);
  CHECK(says({plain_row(100, {0, 100}, false), b}, {{170, 1}}) == verdict::refused);
  CHECK(says({a, plain_row(70, {103, 169}, true)}, {{170, 1}}) == verdict::refused);
  CHECK(says({a, plain_row(70, {69, 3}, true)}, {{170, 1}}) == verdict::refused);
  forged::row many = b;
  many.count = many.support = 71;
  CHECK(says({a, many}, {{170, 1}}) == verdict::refused);
  many.count = many.support = 1;
  CHECK(says({a, many}, {{170, 1}}) == verdict::refused);
  many.mode = 2;
  CHECK(says({a, many}, {{170, 1}}) == verdict::refused);
}

TEST_CASE("fields of a codec that is not called steer nothing on a device") {
  // Filters that could not be: 11 hashes of c = 7731 and 16 of 323,604 beside dense rows, 64 of 2048 beside raw keys. A
  // job without scratch drew its ticket from what lay behind: a value, the payload of one, the tickets of another.
  const bytes dense =
      from_hex("445201003bfaae98e971ea3d0100000000000b001111000009030501010904000bb33c0202020000c2020fe5");
  CHECK(compare({dense}, {{2, 1}}) == verdict::taken);

  bytes halves = from_hex("445201004757c0bdf588d1360100000000000a00111100000901020905001094e013025953000000");
  for (int i = 0; i < 83; ++i) halves.insert(halves.end(), {0x95, 0xbf, 0xd6, 0x33});
  halves.resize(halves.size() + 24);
  CHECK(compare({halves}, {{89, 1}}) == verdict::taken);

  const bytes raw = from_hex(
      "44520100d30d5e818e90beaa0100000000001000111101004901070205020209070040801080800101571111200000000800000000000000"
      "0000"
      "008000000080008000000080008000800080000000000a91e50e6b211528c033030200000005000000080000000b00000010000000110000"
      "0014"
      "000000150000001800000025000000340000003d000000430000004c0000004d000000500000005500000000");
  CHECK(compare({raw}, {{87, 1}}) == verdict::taken);
}

TEST_CASE("a filter may be larger than that of one element in a universe of one") {
  // 5000 bits for each of 10 elements of 100,000.
  const dr_codec *const bloom = codec_named(DR_ROLE_INDEX, "bloom"), *const raw = codec_named(DR_ROLE_VALUE, "raw");
  forged::entry e;
  e.value = {{raw, {}}};
  e.index = {{bloom, {0, 1, uint64_t{5000} << 16, 7, 0, 0}}};
  forged::row row;
  row.universe = 100000;
  row.count = row.support = 10;
  row.value.assign(40, 0x3c);
  row.index.assign(50016 / 8, 0xff);
  CHECK(compare({forged::frame_of({e}, {row})}, {{row.universe, 1}}) == verdict::taken);
}

TEST_CASE("of forged fields, modes and streams a device thinks as the CPU does, of every codec with a path there") {
  random_numbers r{20261125};
  std::map<std::string, size_t> taken;
  size_t refused = 0;
  const std::vector<uint64_t> sizes = {1, 2, 31, 64, 1000, 5000};
  for (const dr_codec* index : on_devices(DR_ROLE_INDEX))
    for (const dr_codec* value : on_devices(DR_ROLE_VALUE)) {
      const bool reorders = value->traits & DR_REORDERS;
      const std::string name = std::string(index->name) + " " + value->name;
      // (A codec that reorders has one more stream that has to be sound, so fewer are taken.)
      for (int round = 0, rounds = (reorders ? 400 : 200) / part; round < rounds; ++round) {
        INFO(name << ", round " << round);
        forged::entry e;
        e.dtype = r.of(std::vector<uint32_t>{DR_F32, DR_F32, DR_F16, DR_BF16});
        e.width = r.below(4) || reorders ? 1 : 3;
        const bool index_fits = r.below(2), value_fits = r.below(8);
        e.index = {one_stage(r, index, e, index_fits)};
        e.value = {one_stage(r, value, e, value_fits)};
        if (reorders) e.order = {one_stage(r, on_devices(DR_ROLE_ORDER).at(0), e, true)};
        std::vector<uint64_t> universes;
        for (uint64_t i = 0, n = 1 + r.below(6); i < n; ++i) universes.push_back(r.of(sizes));
        const bool coded = index_fits || !r.below(4);
        // (A first row that continues a tensor is CORRUPT.)
        const uint64_t joins = r.below(3) ? 0 : r.next() & (r.below(16) ? 62 : 63);
        const forgery first = forge(r, e, universes, coded, joins), second = forge(r, e, universes, coded, joins);
        const verdict v = compare({first.frame}, first.shapes);
        taken[name] += v == verdict::taken;
        refused += v == verdict::refused;
        // Frames of one shape are decoded together, whatever the modes of their rows.
        (void)compare({first.frame, second.frame}, first.shapes);
      }
    }
  for (const auto& [name, n] : taken) {
    INFO(name);
    CHECK(n > 20u / part);
  }
  CHECK(refused > 100);
}

TEST_CASE("of forged lists of blocks a device thinks as the CPU does") {
  random_numbers r{20261127};
  const dr_codec* const block = codec_named(DR_ROLE_INDEX, "block");
  const std::vector<uint64_t> sizes = {1, 2, 31, 64, 1000, 5003, 70001};
  for (const char* index : {"golomb", "rice", "raw"})
    for (const char* value : {"raw", "half", "qsgd"}) {
      size_t taken = 0, refused = 0;
      for (int round = 0; round < 400 / part; ++round) {
        INFO(index << " " << value << ", round " << round);
        forged::entry e;
        e.dtype = r.of(std::vector<uint32_t>{DR_F32, DR_F16, DR_BF16});
        e.block = {{block, {1 + r.below(5)}}};
        e.index = {one_stage(r, codec_named(DR_ROLE_INDEX, index), e, true)};
        e.value = {one_stage(r, codec_named(DR_ROLE_VALUE, value), e, true)};
        std::vector<uint64_t> universes;
        for (uint64_t i = 0, n = 1 + r.below(4); i < n; ++i) universes.push_back(r.of(sizes));
        const uint64_t joins = r.below(3) ? 0 : r.next();
        const forgery first = forge(r, e, universes, true, joins), second = forge(r, e, universes, true, joins);
        const verdict v = compare({first.frame}, first.shapes);
        taken += v == verdict::taken;
        refused += v == verdict::refused;
        (void)compare({first.frame, second.frame}, first.shapes);
      }
      INFO(index << " " << value << ": " << taken << " taken, " << refused << " refused");
      CHECK(taken > 40u / part);
      CHECK(refused > 40u / part);
    }
}
