// What a decoder allocates and how long it works is bounded by what arrives and what leaves (dr_decode_options says the multiples), whatever a frame
// says: every codec, alone and with one or two bytes codecs behind it, with forged fields, rows and streams. All memory counts: the
// context's callbacks, and operator new, which this program replaces for the library too.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <numeric>

#include "client.hpp"
#include "properties/forged_frame.hpp"

namespace {

std::atomic<uint64_t> live{0}, peak{0};
constexpr size_t head = 64;

void* take(size_t size, size_t alignment) {
  const size_t offset = alignment > head ? alignment : head;
  char* const block = static_cast<char*>(std::aligned_alloc(offset, (size + offset + offset - 1) / offset * offset));
  if (!block) return nullptr;
  reinterpret_cast<size_t*>(block + offset)[-1] = size;
  reinterpret_cast<size_t*>(block + offset)[-2] = offset;
  const uint64_t now = live += size;
  for (uint64_t most = peak; now > most && !peak.compare_exchange_weak(most, now);) continue;
  return block + offset;
}

void give(void* memory) {
  if (!memory) return;
  const auto* const at = static_cast<size_t*>(memory);
  live -= at[-1];
  std::free(static_cast<char*>(memory) - at[-2]);
}

}  // namespace

#include "replaced_new.hpp"

namespace {

using clock_type = std::chrono::steady_clock;
using forged::bytes;

// What dr_decode_options says of decode without limits.
constexpr uint64_t workspace_factor = 256, workspace_least = 1 << 20, asked_factor = 4096, asked_least = 1 << 20;
constexpr auto hang = std::chrono::seconds(20);  // a backstop: measured well below a second without sanitizers

dr_context* counting_context(uint32_t threads = 1) {
  dr_context_options options{};
  options.struct_size = sizeof options;
  options.allocate = [](void*, size_t size, size_t alignment) { return take(size, alignment); };
  options.release = [](void*, void* memory, size_t) { give(memory); };
  options.threads = threads;
  dr_context* c = nullptr;
  REQUIRE(dr_context_create(&options, &c, nullptr) == DR_OK);
  return c;
}

// Status of a call and what it took at most, of a context that has nothing yet.
struct outcome {
  dr_status status;
  uint64_t taken;
  std::string error;
};
outcome measured(const std::function<dr_status(dr_context*)>& call, uint32_t threads = 1) {
  dr_context* const c = counting_context(threads);
  const uint64_t before = live;
  peak = before;
  const auto begin = clock_type::now();
  const dr_status s = call(c);
  const auto time = clock_type::now() - begin;
  const uint64_t most = peak - before;
  outcome o{s, most, dr_last_error(c)->message};
  dr_context_destroy(c);
  CHECK(time < hang);
  return o;
}

// ---- Chains -------------------------------------------------------------------------------------------------

const dr_codec& codec(dr_role role, const std::string& name) {
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (const dr_codec* c = dr_codec_at(i); c->role == role && c->name == name) return *c;
  FAIL("no codec " << name);
  return *dr_codec_at(0);
}

std::vector<const dr_codec*> codecs(dr_role role) {
  std::vector<const dr_codec*> out;
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (dr_codec_at(i)->role == role && !(dr_codec_at(i)->traits & DR_PREFIX)) out.push_back(dr_codec_at(i));
  return out;
}

// Bytes codecs behind another: none, one, two.
std::vector<forged::list> tails() {
  std::vector<forged::list> out{{}};
  const auto all = codecs(DR_ROLE_BYTES);
  for (const dr_codec* a : all) {
    out.push_back({{a, {}}});
    for (const dr_codec* b : all) out.push_back({{a, {}}, {b, {}}});
  }
  return out;
}

// `size` bytes of one value as a list of bytes codecs packs them: short, whatever the size. Made by encoding values of that.
bytes packed(const forged::list& tail, uint64_t size, uint8_t value) {
  if (tail.empty() || size == 0) return bytes(size, value);
  static std::map<std::string, bytes> made;
  std::string text = "index=golomb value=raw";
  for (const forged::stage& s : tail) text += std::string("+") + s.codec->name;
  size = (size + 1) / 2 * 2;
  bytes& out = made[text + ' ' + std::to_string(size) + ' ' + std::to_string(value)];
  if (!out.empty()) return out;
  const bytes content(size, value);
  std::vector<uint32_t> every(size / 2);  // sparse, so that zeros are sent
  std::iota(every.begin(), every.end(), 0);
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = DR_F16;
  t.index_dtype = DR_U32;
  t.universe = t.count = every.size();
  t.values = content.data();
  t.indices = every.data();
  client::context c;
  const bytes frame = client::encode(c, text, {t});
  dr_frame_info info{};
  const dr_tensor_info tensor = client::inspect(frame, &info);
  if (tensor.fallback) return out = bytes(2, value);  // so small that no packing helps: any stream will do
  const auto from = frame.begin() + static_cast<ptrdiff_t>(info.header_size);
  return out = bytes(from, from + static_cast<ptrdiff_t>(tensor.value_size));
}

// Fields at their ends, and by chance.
std::vector<std::vector<uint64_t>> forged_fields(const dr_codec& c, client::rng& random) {
  std::vector<std::vector<uint64_t>> out(1);
  for (size_t f = 0; f < c.field_count; ++f) out[0].push_back(c.fields[f].fallback);
  const auto within = [&](size_t f, uint64_t kind) {
    const dr_field& x = c.fields[f];
    const uint64_t range = x.maximum - x.minimum;
    switch (kind % 5) {
      case 0: return x.minimum;
      case 1: return x.maximum;
      case 2: return x.fallback;
      case 3: return x.minimum + (range == UINT64_MAX ? random.next() : random.next() % (range + 1));
      default: return x.minimum + (range >> random.next() % 64);
    }
  };
  for (int i = 0; c.field_count && i < 12; ++i) {
    out.push_back(out[0]);
    for (size_t f = 0; f < c.field_count; ++f) out.back()[f] = within(f, random.next());
  }
  return out;
}

// ---- Decode ---------------------------------------------------------------------------------------------------

struct verdicts {
  size_t decoded = 0, refused = 0, limited = 0;
};

// Decodes a frame of one row to dense and to sparse outputs.
void check_bounds(const bytes& frame, const forged::entry& e, const forged::row& r, verdicts& seen) {
  const uint64_t value_size = e.dtype == DR_F32 ? 4 : 2;
  const bytes base(e.patch ? r.universe * e.width * value_size : 0);  // (as the outputs are: zeros)
  dr_tensor_out out{};
  out.struct_size = sizeof out;
  out.dtype = e.dtype;
  out.universe = r.universe;
  out.width = e.width;
  for (const bool sparse : {false, true}) {
    const uint64_t rows = sparse ? r.support : r.universe;
    bytes values(rows * e.width * value_size);
    std::vector<uint64_t> indices(sparse ? r.support : 0);
    out.values = values.data();
    out.index_dtype = sparse ? DR_U64 : 0;
    out.indices = indices.data();
    out.capacity = r.support;
    out.base = sparse && e.patch ? base.data() : nullptr;
    const uint64_t both = frame.size() + values.size() + 8 * indices.size() + (sparse ? base.size() : 0);
    // Dense outputs: the codecs satisfy it without a limit. Sparse ones: the default limits of decode.
    dr_decode_options limits{};
    limits.struct_size = sizeof limits;
    limits.max_workspace = sparse ? 0 : UINT64_MAX;
    limits.flags = e.patch ? DR_DECODE_APPLY : 0;
    const outcome o = measured(
        [&](dr_context* c) { return dr_decode(c, nullptr, frame.data(), frame.size(), &limits, &out, sizeof out, 1); });
    INFO((sparse ? "sparse" : "dense") << ": " << o.error);
    CHECK(o.taken <= workspace_factor * both + workspace_least);
    if (o.status == DR_OK)
      ++seen.decoded;
    else if (o.status == DR_E_CORRUPT)
      ++seen.refused;
    else if (sparse && o.status == DR_E_CAPACITY)
      ++seen.limited;
    else
      FAIL_CHECK("status " << o.status);
  }
}

uint64_t check_of_zeros(uint64_t size) {
  const bytes zeros(size);
  std::vector<uint64_t> sums((size + 4095) / 4096);
  CHECK(dr_base_sums(zeros.data(), size, sums.data(), sums.size(), nullptr) == DR_OK);
  return dr_base_check(sums.data(), sums.size());
}

struct shape {
  uint64_t universe, count, support;
};

// Sizes of a stream of `need` bytes: none, all of one value, a part, and too many.
std::vector<bytes> streams(const forged::list& list, uint64_t need, client::rng& random) {
  const forged::list tail(list.begin() + 1, list.end());
  std::vector<bytes> out;
  if (forged::fixed_size(list)) {
    if (need > 1 << 22) return {};  // that many have to arrive
    for (const uint8_t value : {0x00, 0xff}) out.emplace_back(need, value);
    return out;
  }
  for (const uint64_t size : {uint64_t{0}, std::min<uint64_t>(need, 1 << 22), need / 2, uint64_t{1} << 22})
    for (const uint8_t value : {0x00, 0xff})
      out.push_back(packed(tail, std::min<uint64_t>(size, tail.empty() ? 5000 : size), value));
  bytes noise(1 + random.next() % 200);
  for (uint8_t& b : noise) b = static_cast<uint8_t>(random.next());
  out.push_back(noise);
  return out;
}

// All of one role, with streams of zeros beside them that are as short as can be.
verdicts attack(dr_role role, bool blocks = false) {
  verdicts seen;
  client::rng random{static_cast<uint64_t>(role)};
  const forged::stage raw{&codec(DR_ROLE_VALUE, "raw"), {}}, huffman{&codec(DR_ROLE_BYTES, "huffman"), {}},
      all{&codec(DR_ROLE_INDEX, "all"), {}};
  for (const dr_codec* first : codecs(role))
    for (const forged::list& tail : tails())
      for (const auto& fields : forged_fields(*first, random)) {
        forged::entry e;
        e.dtype = DR_F16;
        if (role == DR_ROLE_VALUE && !(first->dtypes & DR_DTYPE_BIT(DR_F16))) e.dtype = DR_F32;
        forged::list list{{first, fields}};
        list.insert(list.end(), tail.begin(), tail.end());
        const bool reorders = role == DR_ROLE_ORDER || (first->traits & DR_REORDERS);
        e.value = role == DR_ROLE_VALUE ? list : forged::list{raw, huffman};
        if (role == DR_ROLE_ORDER) e.value = {{&codec(DR_ROLE_VALUE, "fit_dexp"), {}}, huffman};
        e.index = role == DR_ROLE_INDEX ? list : forged::list{all};
        if (reorders)
          e.order = role == DR_ROLE_ORDER ? list : forged::list{{&codec(DR_ROLE_ORDER, "bitpack"), {}}, huffman};
        const uint64_t universe = 1 + random.next() % 16384, count = 1 + random.next() % universe;
        const bool replaces = first->traits & DR_REPLACES_SUPPORT;
        const uint64_t log2_size = blocks ? 1 + random.next() % 5 : 0, size = uint64_t{1} << log2_size;
        e.patch = first->traits & DR_NEEDS_BASE;
        if (e.patch && blocks) continue;  // a patch has none
        if (blocks) e.block = {{&codec(DR_ROLE_INDEX, "block"), {log2_size}}};
        const auto in_blocks = [&](uint64_t n) { return (n + size - 1) / size; };
        std::vector<shape> shapes{{universe, universe, universe}};
        if (role == DR_ROLE_INDEX) {
          shapes.push_back({universe, count, count});
          shapes.push_back({uint64_t{1} << 20, 1 + random.next() % 40, 0});
          if (replaces) shapes.push_back({universe, universe, 1 + random.next() % universe});
        }
        for (const shape& s : shapes) {
          forged::row r;
          // Whole blocks, without the last one of the universe.
          const auto whole = [&](uint64_t n) { return n == s.universe || n < size ? n : n / size * size; };
          r.universe = s.universe;
          r.count = whole(s.count);
          r.support = s.support ? whole(s.support) : r.count;
          dr_need need{.struct_size = sizeof(dr_need)};
          if (!forged::need_of(list[0], e.dtype, 1, in_blocks(r.universe),
                               in_blocks(role == DR_ROLE_INDEX ? r.count : r.support), need)) {
            ++seen.refused;
            need = {};
            if (forged::fixed_size(list)) continue;
            need.payload = 5000;
          }
          const bytes zeros = packed({huffman}, 2 * r.support, 0);
          for (const bytes& stream : streams(list, need.payload, random)) {
            r.value = role == DR_ROLE_VALUE ? stream : role == DR_ROLE_ORDER ? packed({huffman}, 36, 0) : zeros;
            r.index = role == DR_ROLE_INDEX ? stream : bytes();
            if (e.patch) r.checks[0] = check_of_zeros(2 * r.universe);
            r.order = role == DR_ROLE_ORDER ? stream : reorders ? packed({huffman}, 2 * r.support, 0) : bytes();
            const bytes frame = forged::frame_of({e}, {r});
            INFO(first->name << " of " << list.size() << " stages, universe " << r.universe << ", count " << r.count
                             << ", support " << r.support << ", stream of " << stream.size() << " bytes, fields "
                             << doctest::toString(fields.empty() ? 0 : fields[0]));
            check_bounds(frame, e, r, seen);
          }
        }
      }
  return seen;
}

TEST_CASE("memory of decode is bounded by what arrives and what leaves: index codecs") {
  const verdicts seen = attack(DR_ROLE_INDEX);
  MESSAGE(seen.decoded << " decoded, " << seen.refused << " corrupt, " << seen.limited << " beyond the limits");
  CHECK(seen.decoded > 100);
  CHECK(seen.refused > 100);
}
TEST_CASE("memory of decode is bounded by what arrives and what leaves: index codecs of blocks") {
  const verdicts seen = attack(DR_ROLE_INDEX, true);
  MESSAGE(seen.decoded << " decoded, " << seen.refused << " corrupt, " << seen.limited << " beyond the limits");
  CHECK(seen.decoded > 100);
  CHECK(seen.refused > 100);
}
TEST_CASE("memory of decode is bounded by what arrives and what leaves: value codecs") {
  const verdicts seen = attack(DR_ROLE_VALUE);
  MESSAGE(seen.decoded << " decoded, " << seen.refused << " corrupt, " << seen.limited << " beyond the limits");
  CHECK(seen.decoded > 100);
  CHECK(seen.refused > 100);
}
TEST_CASE("memory of decode is bounded by what arrives and what leaves: order codecs") {
  const verdicts seen = attack(DR_ROLE_ORDER);
  MESSAGE(seen.decoded << " decoded, " << seen.refused << " corrupt, " << seen.limited << " beyond the limits");
  CHECK(seen.refused > 100);
}

// ---- Work and scratch: from `need` alone, for all that its gate lets through --------------------------------------

TEST_CASE("payload and scratch of every codec are a stated multiple of rows and universe, whatever the fields") {
  client::rng random{5};
  for (const dr_role role : {DR_ROLE_INDEX, DR_ROLE_VALUE, DR_ROLE_ORDER})
    for (const dr_codec* c : codecs(role))
      for (int round = 0; round < 300; ++round)
        for (const auto& fields : forged_fields(*c, random)) {
          const uint64_t universe = 1 + random.next() % (uint64_t{2} << random.next() % 31),
                         count = 1 + random.next() % universe;
          dr_need need{.struct_size = sizeof(dr_need)};
          if (!forged::need_of({c, fields}, DR_F32, 1, universe, count, need)) continue;
          INFO(c->name << ": universe " << universe << ", count " << count);
          // A filter has 16 bits an element of its universe, a bitmap one; no index takes 6 bytes, no value 8.
          CHECK(need.payload <= 8 * count + 2 * universe + 4096);
          // p2: 6 bytes a bit of the filter, 20 a positive.
          CHECK(need.decode_scratch <= 116 * universe + (1 << 18));
        }
}

TEST_CASE("bloom hashes no more than its universe bounds, whatever the fields") {
  client::rng random{6};
  const dr_codec& bloom = codec(DR_ROLE_INDEX, "bloom");
  size_t let_through = 0;
  for (int round = 0; round < 20000; ++round)
    for (const auto& fields : forged_fields(bloom, random)) {
      const uint64_t universe = 1 + random.next() % (uint64_t{2} << random.next() % 31),
                     count = 1 + random.next() % universe;
      dr_need need{.struct_size = sizeof(dr_need)};
      if (!forged::need_of({&bloom, fields}, DR_F32, 1, universe, count, need)) continue;
      ++let_through;
      // Asking: k an element at most. p2: six rounds over the hashes of so many positives.
      const uint64_t k = fields[1], positives = std::min(universe, 4 * count + universe / 32 + 4096);
      CHECK(k <= 64);
      if (fields[5] == 0) CHECK(k * count <= 12 * universe + count + 2900);
      CHECK(6 * k * positives <= 6 * (64 * universe));
      if (count < universe / 64) CHECK(k * positives <= 7 * universe + 64 * 4096);
    }
  CHECK(let_through > 1000);
}

// ---- Sparse outputs of huge universes -----------------------------------------------------------------------------

TEST_CASE("a sparse output of a huge universe is not scanned for a few bytes, unless the receiver permits it") {
  const dr_codec& bloom = codec(DR_ROLE_INDEX, "bloom");
  forged::entry e;
  e.value = {{&codec(DR_ROLE_VALUE, "raw"), {}}};
  e.index = {{&bloom, {0, 1, 65536 * 32, 0, 0, 0}}};
  for (const uint64_t universe : {uint64_t{1} << 20, uint64_t{1} << 24, uint64_t{0xffffffff}}) {
    forged::row r;
    r.universe = universe;
    r.count = r.support = 1;
    r.value = bytes(4, 0);
    r.index = bytes(4, 0x80);
    const bytes frame = forged::frame_of({e}, {r});
    float value = 0;
    uint32_t index = 0;
    dr_tensor_out out{};
    out.struct_size = sizeof out;
    out.dtype = DR_F32;
    out.index_dtype = DR_U32;
    out.universe = universe;
    out.values = &value;
    out.indices = &index;
    out.capacity = 1;
    CAPTURE(universe);
    const auto decode = [&](uint64_t max_elements) {
      dr_decode_options limits{};
      limits.struct_size = sizeof limits;
      limits.max_elements = max_elements;
      return measured([&](dr_context* c) {
        return dr_decode(c, nullptr, frame.data(), frame.size(), &limits, &out, sizeof out, 1);
      });
    };
    const uint64_t allowed = asked_factor * (frame.size() + 8) + asked_least;
    const outcome o = decode(0);
    CHECK(o.status == (universe > allowed ? DR_E_CAPACITY : DR_OK));
    if (universe > allowed) CHECK(o.error.find(std::to_string(allowed)) != std::string::npos);
    CHECK(decode(universe - 1).status == DR_E_CAPACITY);
    CHECK(decode(universe).status == DR_OK);  // leftmost: it ends at the first
  }
}

// ---- Headers --------------------------------------------------------------------------------------------------------

// A plan table of as many entries as there is room for, of 4 bytes each.
forged::entry small_entry() {
  forged::entry e;
  e.value = {{&codec(DR_ROLE_VALUE, "raw"), {}}};
  e.index = {{&codec(DR_ROLE_INDEX, "raw"), {}}};
  return e;
}

TEST_CASE("plans that no row names take no memory, however many there are") {
  const std::vector<forged::entry> entries(16383, small_entry());
  forged::row r;
  r.universe = 100;
  const bytes frame = forged::frame_of(entries, {r});
  REQUIRE(frame.size() > 65000);
  std::vector<float> x(100);
  dr_tensor_out out = client::dense_out(x);
  const std::vector<dr_bytes> frames(100, {frame.data(), frame.size()});
  for (const uint64_t max_workspace : {uint64_t{0}, uint64_t{1} << 20}) {
    dr_decode_options options{};
    options.struct_size = sizeof options;
    options.max_workspace = max_workspace;
    const outcome one = measured([&](dr_context* c) {
      return dr_decode(c, nullptr, frame.data(), frame.size(), &options, &out, sizeof out, 1);
    });
    CHECK(one.status == DR_OK);
    CHECK(one.taken < 300000);
    // A table of each is stored, because a device needs it.
    const outcome all = measured([&](dr_context* c) {
      return dr_merge(c, nullptr, frames.data(), nullptr, frames.size(), &options, &out, sizeof out, 1);
    });
    CHECK(all.status == (max_workspace ? DR_E_CAPACITY : DR_OK));
    CHECK(all.taken < (max_workspace ? 2 << 20 : 10 << 20));
  }
}

TEST_CASE("headers count against max_workspace, before they are stored") {
  const std::vector<forged::entry> entries(8192, small_entry());
  std::vector<forged::row> rows(8192);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].entry = i;
  const bytes frame = forged::frame_of(entries, rows);
  dr_tensor_out none{};
  none.struct_size = sizeof none;
  none.dtype = DR_F32;
  std::vector<dr_tensor_out> outs(rows.size(), none);
  const auto decode = [&](uint64_t max_workspace) {
    dr_decode_options limits{};
    limits.struct_size = sizeof limits;
    limits.max_workspace = max_workspace;
    return measured([&](dr_context* c) {
      return dr_decode(c, nullptr, frame.data(), frame.size(), &limits, outs.data(), sizeof none, outs.size());
    });
  };
  const outcome free = decode(0);
  CHECK(free.status == DR_OK);
  CHECK(free.taken <= workspace_factor * frame.size() + workspace_least);
  const outcome tight = decode(1 << 20);
  CHECK(tight.status == DR_E_CAPACITY);
  CHECK(tight.error.find("header") != std::string::npos);
  CHECK(tight.taken < (1 << 20) + 100 * rows.size());  // and our copy of the outputs
}

TEST_CASE("a hundred thousand empty tensors take memory and time by their number") {
  std::vector<forged::row> rows(100000);
  const bytes frame = forged::frame_of({small_entry()}, rows);
  dr_tensor_out none{};
  none.struct_size = sizeof none;
  none.dtype = DR_F32;
  std::vector<dr_tensor_out> outs(rows.size(), none);
  const outcome o = measured([&](dr_context* c) {
    return dr_decode(c, nullptr, frame.data(), frame.size(), nullptr, outs.data(), sizeof none, outs.size());
  });
  CHECK(o.status == DR_OK);
  CHECK(o.taken <= workspace_factor * frame.size() + workspace_least);
}

}  // namespace
