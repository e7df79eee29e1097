// The CUDA operations of index=golomb, rice and raw and of order=bitpack, on the emulated device: every byte and verdict is
// the CPU's, and nothing is written or read outside of what a job owns.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "codecs/family/golomb/golomb.hpp"
#include "codecs/family/golomb/golomb_decode_tile.hpp"
#include "codecs/family/golomb/golomb_encode_tile.hpp"
#include "core/registry.hpp"
#include "cuda/device.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/bits.hpp"
#include "primitive/rng.hpp"

namespace {

constexpr uint8_t poison = 0xa5;

// Memory that ends where it says (a sanitizer sees who does not stop there), aligned to 64.
class memory {
 public:
  explicit memory(uint64_t size, uint8_t fill = poison) : size_(size) {
    void* p = nullptr;
    REQUIRE(posix_memalign(&p, 64, size ? size : 1) == 0);
    data_.reset(static_cast<uint8_t*>(p));
    std::memset(p, fill, size);
  }
  uint8_t* data() { return data_.get(); }
  uint64_t size() const { return size_; }
  bool untouched(uint64_t from) const {
    return std::all_of(data_.get() + from, data_.get() + size_, [](uint8_t x) { return x == poison; });
  }

 private:
  struct release {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, release> data_;
  uint64_t size_;
};

uint64_t round_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

// A codec with its wire fields.
struct coder {
  const dr_codec* codec;
  uint64_t fields[2];  // golomb: block, adaptive
  uint32_t stream;

  static coder index(const char* name, uint64_t block_log2) {
    return {dr::find_codec(DR_ROLE_INDEX, name), {block_log2, 0}, DR_STREAM_INDEX};
  }
  static coder order() { return {dr::find_codec(DR_ROLE_ORDER, "bitpack"), {0, 0}, DR_STREAM_ORDER}; }

  dr_params params() const { return {sizeof(dr_params), nullptr, fields}; }
  std::vector<dr_need> needs(const dr_ops& ops, const std::vector<dr_job>& jobs) const {
    std::vector<dr_need> all(jobs.size(), dr_need{sizeof(dr_need)});
    const dr_params p = params();
    REQUIRE(ops.need(&p, jobs.data(), jobs.size(), all.data()) == DR_OK);
    return all;
  }
};

void one_by_one(void*, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
  for (size_t i = 0; i < n; ++i) f(arg, i, 0);
}
void run_on_cpu(const coder& c, bool encode, const dr_job& job) {
  dr_exec exec{};
  exec.struct_size = sizeof exec;
  exec.workers = 1;
  exec.parallel = one_by_one;
  const dr_params p = c.params();
  REQUIRE((encode ? c.codec->cpu->encode : c.codec->cpu->decode)(&exec, &p, &job, 1) == DR_OK);
}
void run_on_device(const coder& c, bool encode, const std::vector<dr_job>& jobs, int32_t seed) {
  dr_error error{sizeof(dr_error)};
  dr_place place{};
  place.struct_size = sizeof place;
  place.kind = DR_PLACE_EMULATED;
  place.device = seed;
  dr::device* device = nullptr;
  REQUIRE(dr::find_device(place, device, error) == DR_OK);
  uint64_t scratch = 0;
  for (const dr_need& n : c.needs(*c.codec->cuda, jobs))
    scratch += round_up(encode ? n.encode_scratch : n.decode_scratch, 64);
  memory room(scratch + 256);
  std::memset(room.data(), 0, scratch);
  dr::device_queue queue{device};
  const dr_exec exec = queue.exec(room.data(), scratch);
  const dr_params p = c.params();
  REQUIRE((encode ? c.codec->cuda->encode : c.codec->cuda->decode)(&exec, &p, jobs.data(), jobs.size()) == DR_OK);
  CHECK(room.untouched(scratch));
  if (jobs.size() <= 400) CHECK(queue.launches <= c.codec->cuda->launches[!encode]);
}

// What a stream is encoded from; `more` elements are room that the count does not fill.
struct list {
  std::vector<uint32_t> x;
  uint64_t universe;
  uint64_t more = 0;
  bool faulty = false, tells = true, odd = false;  // odd: aligned to 4 bytes only
};

dr_job job_of(const list& l, dr_fault* fault) {
  dr_job job{.struct_size = sizeof(dr_job)};
  job.universe = l.universe;
  job.count_max = l.x.size() + l.more;
  job.dtype = DR_U32;
  job.width = 1;
  job.fault = fault;
  return job;
}

std::vector<uint8_t> cpu_payload(const coder& c, const list& l) {
  dr_fault fault{.struct_size = sizeof(dr_fault)};
  dr_job job = job_of(l, &fault);
  const uint64_t count = l.x.size();
  std::vector<uint8_t> payload(c.needs(*c.codec->cpu, {job})[0].payload);
  uint64_t size = 0;
  job.count = &count;
  job.in = l.x.data();
  job.in_max = 4 * count;
  job.out = payload.data();
  job.out_capacity = payload.size();
  job.out_size = &size;
  run_on_cpu(c, true, job);
  REQUIRE(fault.code == DR_OK);
  REQUIRE(size <= payload.size());
  payload.resize(size);
  return payload;
}

void check_encode(const coder& c, const std::vector<list>& lists, int32_t seed) {
  struct state {
    memory in, out, tell;
    uint64_t count, size = 77, told = 78;
    dr_fault fault{.struct_size = sizeof(dr_fault)};
  };
  std::vector<std::unique_ptr<state>> states;
  std::vector<dr_job> jobs;
  for (const list& l : lists) {
    dr_fault unused{.struct_size = sizeof(dr_fault)};
    const dr_job plain = job_of(l, &unused);
    const dr_need cpu = c.needs(*c.codec->cpu, {plain})[0], cuda = c.needs(*c.codec->cuda, {plain})[0];
    REQUIRE(cpu.payload == cuda.payload);
    REQUIRE(cpu.tell == cuda.tell);
    const uint64_t odd = l.odd ? 4 : 0;
    auto s = std::make_unique<state>(state{memory(odd + 4 * l.x.size()), memory(round_up(cpu.payload, 16) + 64),
                                           memory(odd + 4 * cpu.tell + 64), l.x.size()});
    if (!l.x.empty()) std::memcpy(s->in.data() + odd, l.x.data(), 4 * l.x.size());
    if (l.faulty) s->fault.code = DR_E_ARGUMENT;
    dr_job job = job_of(l, &s->fault);
    job.count = &s->count;
    job.in = s->in.data() + odd;
    job.in_max = 4 * job.count_max;
    job.out = s->out.data();
    job.out_capacity = cpu.payload;
    job.out_size = &s->size;
    if (l.tells && c.codec->role == DR_ROLE_INDEX) {
      job.tell = s->tell.data() + odd;
      job.tell_capacity = cpu.tell;
      job.tell_count = &s->told;
    }
    jobs.push_back(job);
    states.push_back(std::move(s));
  }
  run_on_device(c, true, jobs, seed);
  for (size_t i = 0; i < lists.size(); ++i) {
    INFO("job ", i, " of ", lists.size(), ", ", lists[i].x.size(), " below ", lists[i].universe);
    state& s = *states[i];
    if (lists[i].faulty) {
      CHECK(s.fault.code == DR_E_ARGUMENT);
      CHECK((s.size == 77 && s.told == 78 && s.out.untouched(0) && s.tell.untouched(0)));
      continue;
    }
    REQUIRE(s.fault.code == DR_OK);
    const std::vector<uint8_t> wanted = cpu_payload(c, lists[i]);
    REQUIRE(s.size == wanted.size());
    CHECK(std::equal(wanted.begin(), wanted.end(), s.out.data()));
    CHECK(s.out.untouched(round_up(jobs[i].out_capacity, 16)));
    const uint64_t odd = lists[i].odd ? 4 : 0, told = jobs[i].tell ? lists[i].x.size() : 0;
    if (jobs[i].tell) CHECK(s.told == told);
    if (told) CHECK(std::memcmp(s.tell.data() + odd, lists[i].x.data(), 4 * told) == 0);
    CHECK(s.tell.untouched(odd + 4 * told));
  }
}

// A payload and its sizes. The CPU's result is the expected one.
struct wire {
  std::vector<uint8_t> payload;
  uint64_t count, universe;
  uint64_t more = 0;
  bool faulty = false;
};

// Returns how many were sound.
size_t check_decode(const coder& c, const std::vector<wire>& wires, int32_t seed) {
  struct state {
    memory in, out;
    uint64_t count, in_size, size = 77;
    dr_fault fault{.struct_size = sizeof(dr_fault)};
  };
  std::vector<std::unique_ptr<state>> states;
  std::vector<dr_job> jobs;
  for (const wire& w : wires) {
    const uint64_t size = w.payload.size(), out = 4 * (w.count + w.more);
    auto s = std::make_unique<state>(
        state{memory(round_up(size, 16) + 16, 0), memory(round_up(out, 16) + 64), w.count, size});
    if (size) std::memcpy(s->in.data(), w.payload.data(), size);
    if (w.faulty) s->fault.code = DR_E_ARGUMENT;
    dr_job job = job_of({{}, w.universe, w.count + w.more}, &s->fault);
    job.count = &s->count;
    job.in = s->in.data();
    job.in_max = size + 8;
    job.in_size = &s->in_size;
    job.out = s->out.data();
    job.out_capacity = out;
    job.out_size = &s->size;
    jobs.push_back(job);
    states.push_back(std::move(s));
  }
  run_on_device(c, false, jobs, seed);
  size_t sound = 0;
  for (size_t i = 0; i < wires.size(); ++i) {
    const wire& w = wires[i];
    state& s = *states[i];
    INFO("job ", i, " of ", wires.size(), ", ", w.count, " below ", w.universe, " in ", w.payload.size(), " bytes");
    CHECK(s.out.untouched(round_up(4 * w.count, 16)));
    if (w.faulty) {
      CHECK((s.fault.code == DR_E_ARGUMENT && s.size == 77 && s.out.untouched(0)));
      continue;
    }
    if (w.count == 0) {  // the row does not ask the codec, whatever payload there is (codec.h)
      CHECK((s.fault.code == DR_OK && s.size == 0));
      ++sound;
      continue;
    }
    dr_fault fault{.struct_size = sizeof(dr_fault)};
    std::vector<uint32_t> x(w.count);
    uint64_t size = 0;
    dr_job job = job_of({{}, w.universe, w.count}, &fault);
    job.in = w.payload.data();
    job.in_max = w.payload.size();
    job.out = x.data();
    job.out_capacity = 4 * w.count;
    job.out_size = &size;
    run_on_cpu(c, false, job);
    REQUIRE(s.fault.code == fault.code);
    if (fault.code) {
      CHECK(s.fault.stream == c.stream);
      continue;
    }
    ++sound;
    REQUIRE(s.size == 4 * w.count);
    if (s.size) CHECK(std::memcmp(s.out.data(), x.data(), s.size) == 0);
  }
  return sound;
}

// ---- Lists ----------------------------------------------------------------------------------------------------

// n ascending numbers with gaps from gap(i); the universe is `slack` above the last.
template <class F>
list from_gaps(uint64_t n, F&& gap, uint64_t slack = 0) {
  list l{{}, 0};
  uint64_t x = 0;
  for (uint64_t i = 0; i < n; ++i, ++x) {
    x += gap(i);
    REQUIRE(x < 0xffffffff);
    l.x.push_back(static_cast<uint32_t>(x));
  }
  l.universe = x + slack;
  return l;
}
// Uniform in [0, universe), by a walk that always leaves room.
list uniform(uint64_t n, uint64_t universe, uint64_t key) {
  std::vector<uint64_t> cuts(n);
  for (uint64_t i = 0; i < n; ++i) cuts[i] = dr::draw(key, i) % (universe - n + 1);
  std::sort(cuts.begin(), cuts.end());
  list l{{}, universe};
  for (uint64_t i = 0; i < n; ++i) l.x.push_back(static_cast<uint32_t>(cuts[i] + i));
  return l;
}

std::vector<list> lists_of(uint64_t n, uint64_t key) {
  std::vector<list> all;
  for (const uint64_t spread : {2ull, 5ull, 60ull, 100ull, 1000ull, 60000ull})
    if (n * spread < 0xffffffff) all.push_back(uniform(n, n * spread, dr::combine(key, spread)));
  all.push_back(uniform(n, 0xffffffff, key));
  all.push_back(from_gaps(n, [](uint64_t) { return 0; }));  // dense: no gap at all
  all.push_back(from_gaps(
      n, [](uint64_t) { return 0; }, 0xffffffff - n));                                   // and far below the universe
  all.push_back(from_gaps(n, [&](uint64_t i) { return i == 0 ? 0xffffffff - n : 0; }));  // all at the end
  all.push_back(from_gaps(
      n, [&](uint64_t i) { return i + 1 == n ? 0xffffffff - n : 0; }, 0));  // all but one at the beginning
  all.push_back(from_gaps(
      n, [&](uint64_t i) { return dr::draw(key, i) % 16 ? i % 3 : 700; }, 5));
  all.push_back(from_gaps(
      n, [&](uint64_t i) { return dr::draw(key, i) % 50 ? 0 : 9000 + i; }, 1));
  all.push_back(from_gaps(
      n, [&](uint64_t i) { return dr::draw(key, i) % 64 ? i % 2 : 70000 + i; }, 300));  // above 2^16
  all.push_back(from_gaps(n, [&](uint64_t i) { return dr::draw(key, i) % 4096 ? 1 : 90000000 / (n / 4096 + 1); }));
  all.push_back(from_gaps(n, [&](uint64_t i) { return i < n / 2 ? 0 : 17; }));
  for (list& l : all) REQUIRE(l.universe <= 0xffffffff);
  return all;
}

void check_both(const coder& c, std::vector<list> lists, int32_t seed) {
  for (size_t i = 0; i < lists.size(); ++i) {
    lists[i].odd = i % 3 == 1;
    lists[i].tells = i % 4 != 2;
    lists[i].more = i % 5 == 3 && lists[i].x.size() + 5000 < lists[i].universe ? 5000 : i % 5 == 4 ? 0 : i % 2;
    if (lists[i].x.size() + lists[i].more > lists[i].universe) lists[i].more = 0;
    lists[i].faulty = i % 11 == 7;
  }
  check_encode(c, lists, seed);
  std::vector<wire> wires;
  for (const list& l : lists) wires.push_back({cpu_payload(c, l), l.x.size(), l.universe, l.more, l.faulty});
  const size_t faulty =
      static_cast<size_t>(std::count_if(lists.begin(), lists.end(), [](const list& l) { return l.faulty; }));
  CHECK(check_decode(c, wires, seed) == lists.size() - faulty);
}

std::vector<coder> index_coders() {
  std::vector<coder> all;
  for (const uint64_t block_log2 : {9, 10, 12, 13})
    for (const char* name : {"golomb", "rice"}) all.push_back(coder::index(name, block_log2));
  all.push_back(coder::index("raw", 0));
  return all;
}

}  // namespace

TEST_CASE("bits are counted as <bit> does") {
  for (unsigned shift = 0; shift <= 64; ++shift)
    for (uint64_t i = 0; i < 50; ++i) {
      const uint64_t x = shift == 64 ? 0 : dr::draw(1, i) >> shift;
      const auto low = static_cast<uint32_t>(x), high = static_cast<uint32_t>(x >> 32);
      CHECK(dr::bit_width(x) == static_cast<unsigned>(std::bit_width(x)));
      CHECK(dr::bit_floor(x) == std::bit_floor(x));
      CHECK(dr::countr_zero(low) == static_cast<unsigned>(std::countr_zero(low)));
      CHECK(dr::popcount(high) == static_cast<unsigned>(std::popcount(high)));
    }
}

TEST_CASE("every list has the CPU's payload and comes back, whatever the order of lanes and blocks") {
  for (const coder& c : index_coders()) {
    const uint64_t block = c.fields[0] ? uint64_t{1} << c.fields[0] : 2048;
    for (const uint64_t n :
         {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{31}, uint64_t{32}, uint64_t{33}, uint64_t{255}, uint64_t{256},
          uint64_t{257}, uint64_t{368}, block - 1, block, block + 1, 2 * block - 1, 2 * block, 3 * block + 7}) {
      CAPTURE(c.codec->name);
      CAPTURE(c.fields[0]);
      CAPTURE(n);
      check_both(c, lists_of(n, dr::combine(n, c.fields[0])), static_cast<int32_t>(n % 6));
    }
  }
}

TEST_CASE("every seed of the emulator, and blocks at the same time, yield the same bytes") {
  for (const coder& c :
       {coder::index("golomb", 9), coder::index("golomb", 12), coder::index("rice", 13), coder::index("raw", 0)})
    for (int32_t seed = 0; seed < 6; ++seed)
      for (const uint32_t threads : {1u, 4u}) {
        dr::emulator().threads = threads;
        std::vector<list> lists;
        for (const uint64_t n : {20000, 300, 0, 5000, 9000})
          lists.push_back(uniform(n, n * 50 + 10, dr::combine(n, static_cast<uint64_t>(seed))));
        check_encode(c, lists, seed);
        std::vector<wire> wires;
        for (const list& l : lists) wires.push_back({cpu_payload(c, l), l.x.size(), l.universe, 3});
        CHECK(check_decode(c, wires, seed) == wires.size());
        dr::emulator().threads = 1;
      }
}

TEST_CASE("calls of few and of many jobs") {
  for (const coder& c : {coder::index("golomb", 9), coder::index("rice", 12), coder::index("raw", 0)})
    for (const size_t n : {40, 41, 400, 401, 801}) {
      std::vector<list> lists;
      for (size_t i = 0; i < n; ++i) {
        const uint64_t length = dr::draw(n, i) % 30 == 0 ? 1500 : dr::draw(n, i) % 40;
        lists.push_back(uniform(length, length * 40 + 1, i));
      }
      CAPTURE(n);
      check_both(c, lists, 5);
    }
}

TEST_CASE("tables longer than a tile of decode adds up") {
  // 1024 entries are one group: two and three groups, beside a job without any and one whose count fills a part of its room.
  for (const char* name : {"golomb", "rice"}) {
    const coder c = coder::index(name, 9);
    std::vector<list> lists;
    for (const uint64_t n : {1024 * 512, 1024 * 512 + 1, 100, 2100 * 512 + 5, 700})
      lists.push_back(uniform(n, n * 9, n));
    lists.back().more = 1500 * 512;
    lists.back().universe = 1600 * 512;
    check_encode(c, lists, 3);
    std::vector<wire> wires;
    for (const list& l : lists) wires.push_back({cpu_payload(c, l), l.x.size(), l.universe, l.more});
    CHECK(check_decode(c, wires, 4) == wires.size());
    // A body of the first group says one byte more, a table is cut off, a body is missing.
    std::vector<wire> bad(5, wires[3]);
    ++bad[0].payload[6 * 3 + 4];
    bad[1].payload.resize(6 * 2100);
    bad[2].payload.resize(bad[2].payload.size() - 1);
    bad[3].payload.resize(6 * 2100 + 5);
    bad[4].payload.resize(3);
    CHECK(check_decode(c, bad, 1) == 0);
  }
}

TEST_CASE("the launches of a call") {
  const coder c = coder::index("golomb", 9);
  const auto launches = [&](uint64_t count_max, bool encode) {
    dr_fault fault{.struct_size = sizeof(dr_fault)};
    uint64_t size = 0;
    std::vector<dr_job> jobs(161, job_of({{}, 0xffffffff, count_max}, &fault));
    for (dr_job& j : jobs) {
      j.in_size = &size;
      j.out_capacity = 4 * count_max;
    }
    dr::device_queue queue;
    const dr_exec exec = queue.exec();
    const dr_params p = c.params();
    CHECK((encode ? c.codec->cuda->encode : c.codec->cuda->decode)(&exec, &p, jobs.data(), jobs.size()) == DR_OK);
    return queue.launches;
  };
  CHECK(launches(100, true) == 1);
  CHECK(launches(100, false) == 1);
  CHECK(launches(3000 * 512, true) == 1);
  CHECK(launches(1024 * 512, false) == 1);
  CHECK(launches(1024 * 512 + 1, false) == 2);
}

TEST_CASE("an order is packed as on the CPU and comes back") {
  const coder c = coder::order();
  const auto order_of = [](uint64_t n, uint64_t key) {
    list l{{}, std::max<uint64_t>(n, 1)};
    l.x.resize(n);
    std::iota(l.x.begin(), l.x.end(), 0u);
    for (uint64_t i = n; i > 1; --i) std::swap(l.x[i - 1], l.x[dr::draw(key, i) % i]);
    return l;
  };
  for (int32_t seed = 0; seed < 6; ++seed) {
    std::vector<list> lists;
    for (const uint64_t n : {0,   1,   2,   3,    4,    5,    8,    9,    31,   32,    33,    63,    64,    65,
                             255, 256, 257, 1000, 2047, 2048, 2049, 4096, 4097, 10000, 65536, 65537, 100000})
      lists.push_back(order_of(n, n));
    check_both(c, lists, seed);
  }
  std::vector<list> many;
  for (uint64_t i = 0; i < 401; ++i) many.push_back(order_of(dr::draw(3, i) % 70, i));
  check_both(c, many, 2);

  // Padding that is not zero, at every place where there is some.
  std::vector<wire> bad;
  for (const uint64_t n : {3, 5, 9, 33, 1000, 4097}) {
    const uint64_t bits = n * dr::ceil_log2(n);
    for (uint64_t bit = bits; bit < round_up(bits, 8); ++bit) {
      bad.push_back({cpu_payload(c, order_of(n, n)), n, n});
      bad.back().payload[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    }
  }
  CHECK(bad.size() > 10);
  CHECK(check_decode(c, bad, 1) == 0);
}

TEST_CASE("a raw key that is not below the universe is refused, wherever it is") {
  const coder c = coder::index("raw", 0);
  std::vector<wire> wires;
  for (const uint64_t at : {0, 1, 3, 2047, 2048, 5000, 5001}) {
    list l = uniform(5002, 100000, at);
    l.x[at] = 100000 + static_cast<uint32_t>(at % 2 * 0x7fffffff);
    wires.push_back({cpu_payload(c, l), l.x.size(), l.universe});
  }
  CHECK(check_decode(c, wires, 1) == 0);
}

namespace {

// Blocks of n indices with a divisor of our choice: what no encoder writes but every decoder reads.
std::vector<uint8_t> payload_of(const list& l, const dr::divisor_rule& rule, bool clustered) {
  const uint64_t n = l.x.size(), end = uint64_t{l.x.back()} + 1;
  std::vector<uint8_t> payload(70000);
  uint8_t* at = dr::put_varint(payload.data(), 2 * (l.universe - end) + clustered);
  at = dr::golomb_encode_block(l.x.data(), n, 0, rule.code(end, n, clustered), at);
  payload.resize(static_cast<size_t>(at - payload.data()));
  return payload;
}

void in_calls(const coder& c, const std::vector<wire>& wires, size_t& sound) {
  for (size_t i = 0; i < wires.size(); i += 400)
    sound += check_decode(c,
                          {wires.begin() + static_cast<ptrdiff_t>(i),
                           wires.begin() + static_cast<ptrdiff_t>(std::min(wires.size(), i + 400))},
                          static_cast<int32_t>(i / 400 % 6));
}

}  // namespace

TEST_CASE("blocks that are clustered without need, up to the longest strings that there are") {
  std::vector<wire> wires;
  for (const uint64_t n : {1, 2, 100, 4095, 8191, 8192})
    for (double mean = 1; mean * static_cast<double>(n) < 4294967000.0; mean *= n < 4000 ? 3.7 : 1.31) {
      const auto span = static_cast<uint64_t>(mean * static_cast<double>(n));
      for (const bool even : {true, false}) {
        const list l = even ? uniform(n, span, n) : from_gaps(n, [&](uint64_t i) { return i == n / 2 ? span - n : 0; });
        if (l.x.empty()) continue;
        const uint64_t end = uint64_t{l.x.back()} + 1;
        if (dr::golomb_divisor(end, n) > 1) wires.push_back({payload_of(l, dr::golomb_rule, true), n, l.universe});
        wires.push_back({payload_of(l, dr::golomb_rule, false), n, l.universe});
      }
    }
  size_t sound = 0;
  in_calls(coder::index("golomb", 13), wires, sound);
  CHECK(sound == wires.size());
}

TEST_CASE("no sound body is longer than the kernels' room, whatever the span") {
  uint64_t longest = 0, encoded = 0, quotients = 0;
  double least_room = 1e9;
  for (uint64_t n = 1; n <= 8192; n = n < 8191 ? std::min<uint64_t>(8191, n * 3 / 2 + 1) : n + 1)
    for (uint64_t span = n; span < 0xffffffff; span += span / 4099 + 1)
      for (const int kind : {0, 1, 2}) {
        const dr::divisor_rule& rule = kind == 2 ? dr::rice_rule : dr::golomb_rule;
        if (kind == 1 && dr::golomb_divisor(span, n) == 1) continue;
        const dr::golomb_code code = rule.code(span, n, kind == 1);
        const uint64_t q = (span - n) / code.divisor, extra = code.divisor > 1 ? n : 0;
        const uint64_t size = dr::ceil_div(n * code.low_bits, 8) + dr::ceil_div(n + q, 8) + dr::ceil_div(extra, 8);
        longest = std::max(longest, size);
        quotients = std::max(quotients, q);
        if (kind != 1) {
          encoded = std::max(encoded, size);
          // What the encoder clears.
          least_room = std::min(least_room, (n * (36 - dr::bit_width(n)) + 24) / 8.0 - static_cast<double>(size));
        }
        // Sums of remainders have 32 bits.
        if (n * (code.divisor - 1) > 0xffffffff) FAIL("remainders of ", n, " in ", span);
      }
  CHECK(longest <= dr::golomb_body_max(13));
  CHECK(encoded <= dr::golomb_body_max(13));
  CHECK(quotients + 8192 < 65536);
  CHECK(quotients > 37000);  // the comment's 4.55 · 2^13
  CHECK(least_room >= 0);
}

TEST_CASE("bytes that are not a payload have the CPU's verdict: every flipped bit") {
  size_t sound = 0, all = 0;
  for (const char* name : {"golomb", "rice"}) {
    const coder c = coder::index(name, 9);
    std::vector<list> lists = {uniform(5, 1000, 1),
                               uniform(40, 100000, 2),
                               uniform(200, 250, 3),
                               uniform(1, 1, 4),
                               uniform(1, 0xffffffff, 5),
                               uniform(600, 2000, 6),
                               uniform(1100, 7000, 7),
                               from_gaps(
                                   60, [](uint64_t i) { return i % 16 ? i % 2 : 3000; }, 1),
                               from_gaps(
                                   1030, [](uint64_t i) { return i % 16 ? i % 2 : 3000; }, 1),
                               from_gaps(513, [](uint64_t) { return 0; })};
    for (const list& l : lists) {
      const std::vector<uint8_t> good = cpu_payload(c, l);
      std::vector<wire> wires(8 * good.size(), wire{good, l.x.size(), l.universe});
      for (size_t bit = 0; bit < wires.size(); ++bit)
        wires[bit].payload[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
      all += wires.size();
      in_calls(c, wires, sound);
    }
  }
  CHECK(sound < all / 4);
  CHECK(all > 10000);
}

TEST_CASE("bytes that are not a payload have the CPU's verdict: other counts, universes, sizes, and noise") {
  size_t sound = 0, all = 0;
  for (const char* name : {"golomb", "rice"})
    for (const uint64_t block_log2 : {9, 13}) {
      const coder c = coder::index(name, block_log2);
      std::vector<wire> wires;
      uint64_t drawn = block_log2;
      const auto draw = [&](uint64_t below) { return dr::draw(drawn++, below) % below; };
      for (int i = 0; i < 1500; ++i) {
        const uint64_t n = draw(3) ? 1 + draw(700) : 1 + draw(20), universe = n + draw(1 + (uint64_t{1} << draw(32)));
        list l = uniform(n, std::min<uint64_t>(universe, 0xffffffff), draw(1000000));
        wire w{cpu_payload(c, l), n, l.universe};
        auto& p = w.payload;
        switch (draw(10)) {
          case 0: w.count = n + 1; break;
          case 1: w.count = std::max<uint64_t>(1, n - 1); break;
          case 2: w.universe = l.x.back() + draw(3); break;
          case 3: p.resize(p.size() - std::min<uint64_t>(p.size(), 1 + draw(9))); break;
          case 4: p.resize(p.size() + 1 + draw(9)); break;
          case 5:
            for (uint64_t k = draw(6) + 1; k > 0; --k) p[draw(p.size())] = static_cast<uint8_t>(draw(256));
            break;
          case 6:
            p.resize(draw(80));
            for (uint8_t& b : p) b = static_cast<uint8_t>(draw(256));
            break;
          case 7:
            for (uint64_t k = draw(p.size()); k < p.size(); ++k) p[k] = static_cast<uint8_t>(draw(2) ? 255 : 0);
            break;
          case 8: std::swap(p[draw(p.size())], p[draw(p.size())]); break;
          default:
            if (n > (uint64_t{1} << block_log2)) {  // the table: ends, sizes, flags
              const uint64_t at = draw(12);
              p[at] = static_cast<uint8_t>(p[at] + 1 + draw(255));
            }
        }
        if (w.universe < w.count) w.universe = w.count;
        wires.push_back(std::move(w));
      }
      all += wires.size();
      in_calls(c, wires, sound);
    }
  CHECK(sound > all / 20);
  CHECK(sound < all / 2);
}

TEST_CASE("bodies beyond all bounds are refused") {
  const coder c = coder::index("golomb", 13);
  std::vector<wire> wires;
  for (const uint64_t size : {22000, 22531, 22532, 22533, 32767, 32768, 40000, 70000})
    for (const uint8_t fill : {0, 255, 1}) {
      wires.push_back({std::vector<uint8_t>(size, fill), 8192, 0xffffffff});
      wires.back().payload[0] = 0;
      std::vector<uint8_t> two(size + 12, fill);  // a table of two blocks, the first of which takes what it can
      const uint32_t ends[] = {0x7fffffff, 0xffffffff};
      for (int b = 0; b < 2; ++b) std::memcpy(two.data() + 6 * b, ends + b, 4);
      const uint16_t body = static_cast<uint16_t>(std::min<uint64_t>(size, 0x7fff));
      std::memcpy(two.data() + 4, &body, 2);
      const uint16_t rest = static_cast<uint16_t>(size - body);
      std::memcpy(two.data() + 10, &rest, 2);
      wires.push_back({two, 8200, 0xffffffff});
    }
  // An end below the one before, one that leaves no room, one above the universe.
  const list l = uniform(9000, 0xffffffff, 1);
  const wire good{cpu_payload(c, l), 9000, l.universe};
  for (const uint32_t end : {0u, 8191u, 8192u, 0xfffffffeu, 0xffffffffu}) {
    wires.push_back(good);
    std::memcpy(wires.back().payload.data(), &end, 4);
  }
  wires.push_back(good);
  wires.back().universe = l.x.back();
  CHECK(check_decode(c, {good}, 0) == 1);
  CHECK(check_decode(c, wires, 2) == 0);
}

TEST_CASE("nothing is an empty payload, and what is there in its place is not looked at") {
  for (const char* name : {"golomb", "rice", "raw"}) {
    const coder c = coder::index(name, 12);
    for (const uint64_t more : {0, 1, 9000}) {
      check_encode(c, {list{{}, 10000, more}}, 1);
      CHECK(check_decode(c, {wire{{}, 0, 10000, more}}, 1) == 1);
    }
  }
  for (const char* name : {"golomb", "rice"})
    CHECK(check_decode(coder::index(name, 12), {wire{{0}, 0, 10, 5}}, 1) == 1);
}
