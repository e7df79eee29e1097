// value=qsgd and index=bloom on the emulated GPU, byte for byte against the CPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "codecs/value/qsgd/qsgd_kernel.hpp"
#include "core/registry.hpp"
#include "cuda/device.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/block.hpp"
#include "primitive/divisor.hpp"
#include "primitive/rng.hpp"
#include "primitive/sum_tree_tile.hpp"
#include "primitive/value_type.hpp"

namespace {

struct random_source {
  uint64_t key, position = 0;
  uint64_t operator()() { return dr::draw(key, position++); }
  uint64_t below(uint64_t n) { return (*this)() % n; }
};

// Memory at a multiple of 64 bytes and `offset`, between poison that is to stay.
class room {
 public:
  explicit room(size_t size, uint8_t fill = 0xcd, size_t offset = 0)
      : size_(size), all_(new uint8_t[size + offset + 192]) {
    at_ = all_.get() + 64 + (64 - reinterpret_cast<uintptr_t>(all_.get()) % 64) % 64 + offset;
    std::memset(at_ - 64 - offset, poison, 64 + offset);
    std::memset(at_, fill, size);
    std::memset(at_ + size, poison, 64);
  }
  uint8_t* data() { return at_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(at_);
  }
  bool intact(size_t written = SIZE_MAX) const {
    const auto poisoned = [](uint8_t x) { return x == poison; };
    return std::all_of(at_ - 64, at_, poisoned) &&
           std::all_of(at_ + std::min(size_, written), at_ + size_ + 64, poisoned);
  }

 private:
  static constexpr uint8_t poison = 0xcd;
  size_t size_;
  std::unique_ptr<uint8_t[]> all_;
  uint8_t* at_;
};

dr_exec cpu_exec() {
  dr_exec e{};
  e.struct_size = sizeof e;
  e.workers = 1;
  e.parallel = [](void*, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
    for (size_t i = 0; i < n; ++i) f(arg, i, 0);
  };
  return e;
}

dr::device* emulated(int32_t seed) {
  dr::device* device = nullptr;
  dr_error error{sizeof(dr_error)};
  REQUIRE(dr::find_device({.struct_size = sizeof(dr_place), .kind = DR_PLACE_EMULATED, .device = seed}, device,
                          error) == DR_OK);
  return device;
}

// The numbers of a job that depend on data. Sizes that are not written keep their mark.
struct device_words {
  static constexpr uint64_t mark = 0x1234567812345678;
  uint64_t count = 0, in_size = 0, out_size = mark, told = mark;
  dr_fault fault{.struct_size = sizeof(dr_fault)};
};

// One job, on the CPU and on the GPU.
struct twin {
  dr_job job{.struct_size = sizeof(dr_job)};  // bounds
  uint64_t count = 0;
  dr_status fault_before = DR_OK;
  const void* in = nullptr;
  uint64_t in_size = 0;
  uint64_t stated = device_words::mark;  // decode: of the support
  device_words cpu, gpu;
  std::unique_ptr<room> cpu_out, gpu_out, cpu_tell, gpu_tell;

  dr_job side(device_words& w, room& out, room* tell) {
    w.count = count;
    w.in_size = in_size;
    w.told = stated;
    w.fault = {};
    w.fault.code = fault_before;
    dr_job j = job;
    j.struct_size = sizeof j;
    j.count = &w.count;
    j.in = in;
    j.in_size = &w.in_size;
    j.out = out.data();
    j.out_size = &w.out_size;
    j.tell = tell ? tell->data() : nullptr;
    j.tell_count = &w.told;
    j.fault = &w.fault;
    return j;
  }
};

enum class direction { encode, decode };

// Runs twins on both; the CPU's `out_capacity` in decode is what the frame states, as its pipeline has it.
void run(const dr_codec& codec, direction way, const dr_params& p, std::vector<twin>& twins, int32_t seed) {
  std::vector<dr_job> on_cpu, on_gpu;
  std::vector<dr_need> needs(twins.size(), dr_need{sizeof(dr_need)}), cpu_needs(twins.size(), dr_need{sizeof(dr_need)});
  for (twin& t : twins) {
    on_cpu.push_back(t.side(t.cpu, *t.cpu_out, t.cpu_tell.get()));
    if (t.stated != device_words::mark) on_cpu.back().out_capacity = 4 * t.stated;
    on_gpu.push_back(t.side(t.gpu, *t.gpu_out, t.gpu_tell.get()));
  }
  const dr_exec e = cpu_exec();
  REQUIRE((way == direction::encode ? codec.cpu->encode : codec.cpu->decode)(&e, &p, on_cpu.data(), on_cpu.size()) ==
          DR_OK);
  REQUIRE(codec.cuda->need(&p, on_gpu.data(), on_gpu.size(), needs.data()) == DR_OK);
  REQUIRE(codec.cpu->need(&p, on_cpu.data(), on_cpu.size(), cpu_needs.data()) == DR_OK);
  uint64_t scratch_size = 0;
  for (size_t i = 0; i < needs.size(); ++i) {
    CHECK(needs[i].payload == cpu_needs[i].payload);
    CHECK(needs[i].tell == cpu_needs[i].tell);
    scratch_size += ((way == direction::encode ? needs[i].encode_scratch : needs[i].decode_scratch) + 63) / 64 * 64;
  }
  room scratch(scratch_size, 0);
  dr::device_queue q{emulated(seed)};
  const dr_exec d = q.exec(scratch.data(), scratch_size);
  REQUIRE((way == direction::encode ? codec.cuda->encode : codec.cuda->decode)(&d, &p, on_gpu.data(), on_gpu.size()) ==
          DR_OK);
  CHECK(q.launches == codec.cuda->launches[way == direction::decode] * ((twins.size() + 399) / 400));
  CHECK(scratch.intact());
}

// ---- qsgd -------------------------------------------------------------------------------------------------

struct qsgd_shape {
  uint64_t count_max, count;
  uint32_t width;
  dr_status fault_before = DR_OK;
};

enum kind { ordinary, zeros, huge, tiny, any_bits, kinds };

template <class T>
std::vector<uint8_t> values_of(kind k, uint64_t n, random_source& random) {
  using bits = typename T::bits;
  std::vector<uint8_t> bytes(n * sizeof(bits));
  const unsigned sign = 8 * sizeof(bits) - 1;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t x = random();
    bits v = T::from_f64((static_cast<double>(x >> 40) * 0x1p-23 - 1) * (1 + (x & 7)));
    if (k == zeros || (k == ordinary && x % 11 == 0)) v = 0;
    if (k == huge) v = static_cast<bits>(T::infinity - 1 - (x >> 20) % 50);
    if (k == tiny) v = static_cast<bits>((x >> 20) % 40);
    if (k == any_bits) v = static_cast<bits>(random()) % T::infinity;
    v |= static_cast<bits>((x >> 8 & 1) << sign);
    std::memcpy(bytes.data() + i * sizeof(bits), &v, sizeof v);
  }
  return bytes;
}

void check_qsgd(uint32_t dtype, uint64_t levels, uint64_t bucket, const std::vector<qsgd_shape>& shapes, int32_t seed,
                random_source& random) {
  CAPTURE(dtype);
  CAPTURE(levels);
  CAPTURE(bucket);
  CAPTURE(seed);
  const dr_codec& codec = *dr::find_codec(DR_ROLE_VALUE, "qsgd");
  const uint64_t fields[] = {levels, bucket};
  const dr_params p{sizeof p, nullptr, fields};
  const unsigned size = dr::value_size(dtype);
  std::vector<twin> encodes(shapes.size()), decodes(shapes.size());
  std::vector<std::unique_ptr<room>> ins, payloads;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto& [count_max, count, width, fault_before] = shapes[i];
    twin& t = encodes[i];
    t.job.universe = 1 << 30;
    t.job.count_max = count_max;
    t.job.dtype = dtype;
    t.job.width = width;
    t.job.private_key = random();
    t.count = count;
    t.fault_before = fault_before;
    const auto values = dr::with_value_type(dtype, [&](auto type) {
      return values_of<decltype(type)>(static_cast<kind>(i % kinds), count * width, random);
    });
    ins.push_back(std::make_unique<room>(values.size(), 0, size));
    std::copy(values.begin(), values.end(), ins.back()->data());
    t.in = ins.back()->data();
    dr_need need{.struct_size = sizeof(dr_need)};
    REQUIRE(codec.cpu->need(&p, &t.job, 1, &need) == DR_OK);
    t.job.out_capacity = need.payload;
    t.cpu_out = std::make_unique<room>((need.payload + 15) / 16 * 16);
    t.gpu_out = std::make_unique<room>((need.payload + 15) / 16 * 16);
  }
  run(codec, direction::encode, p, encodes, seed);
  for (size_t i = 0; i < shapes.size(); ++i) {
    CAPTURE(i);
    twin& t = encodes[i];
    CHECK(t.gpu.fault.code == t.fault_before);
    CHECK(t.gpu.out_size == t.cpu.out_size);
    const bool written = !t.fault_before && t.count;
    const uint64_t n = written ? t.cpu.out_size : 0;
    CHECK(std::memcmp(t.gpu_out->data(), t.cpu_out->data(), n) == 0);
    CHECK(t.gpu_out->intact((n + 15) / 16 * 16));

    twin& d = decodes[i];
    d.job = t.job;
    d.count = t.count;
    d.fault_before = t.fault_before;
    d.in_size = n;
    payloads.push_back(std::make_unique<room>((n + 15) / 16 * 16 + 16, 0));
    std::memcpy(payloads.back()->data(), t.cpu_out->data(), n);
    d.in = payloads.back()->data();
    d.job.in_max = t.job.out_capacity;
    d.job.out_capacity = t.job.count_max * t.job.width * size;
    d.cpu_out = std::make_unique<room>(d.job.out_capacity);
    d.gpu_out = std::make_unique<room>(d.job.out_capacity);
  }
  run(codec, direction::decode, p, decodes, seed);
  for (size_t i = 0; i < shapes.size(); ++i) {
    CAPTURE(i);
    twin& t = decodes[i];
    CHECK(t.gpu.fault.code == t.fault_before);
    CHECK(t.gpu.out_size == t.cpu.out_size);
    const uint64_t n = t.fault_before ? 0 : t.count * t.job.width * size;
    CHECK(std::memcmp(t.gpu_out->data(), t.cpu_out->data(), n) == 0);
    CHECK(t.gpu_out->intact(n));
  }
}

}  // namespace

TEST_CASE("a divisor yields quotient and remainder") {
  random_source random{1};
  const auto check = [](uint32_t d, uint32_t x) {
    const auto by = dr::divisor::of(d);
    if (by.quotient(x) != x / d || by.remainder(x) != x % d) FAIL(x << " by " << d);
  };
  std::vector<uint32_t> edges{0xffffffff, 0xfffffffe, 0x80000001};
  for (unsigned s = 0; s < 32; ++s)
    for (int64_t x = (int64_t{1} << s) - 1; x <= (int64_t{1} << s) + 1; ++x) edges.push_back(static_cast<uint32_t>(x));
  for (int i = 0; i < 3000; ++i) edges.push_back(static_cast<uint32_t>(random() >> (32 + random.below(32))));
  for (const uint32_t d : edges) {
    if (d == 0) continue;
    for (const uint32_t x : edges) check(d, x);
    // About every multiple that there may be.
    for (uint64_t q = 0; q * d < uint64_t{1} << 32; q = q * 9 / 8 + 1)
      for (const uint64_t x : {q * d, q * d - 1, q * d + d - 1}) check(d, static_cast<uint32_t>(x));
  }
}

TEST_CASE("a block adds up tiles in the order of the tree") {
  random_source random{2};
  std::vector<double> terms(3 * 1024);
  for (double& t : terms) t = static_cast<double>(static_cast<int64_t>(random())) * (random.below(2) ? 1 : 0x1p-40);
  std::vector<uint32_t> order(256);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = 256; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  for (uint32_t most = 1; most <= 1024; most += most < 70 ? 1 : 53)
    for (const uint32_t n : {most, most - 1, most / 2 + 1, most / 3}) {
      const uint32_t group = dr::tree_lanes(most);
      REQUIRE(std::has_single_bit(group));
      REQUIRE(group * dr::tree_fold_terms >= most);
      dr::emulated_grid grid;
      grid.lane_order = order;
      dr::host_block<256> b(grid, 0);
      double part[256];
      std::fill_n(part, 256, -1e300);
      const auto term = [&](uint32_t tile, uint32_t i) { return i < n ? terms[(tile * 7 + i) % terms.size()] : 0.0; };
      dr::tree_sums(b, part, group, term);
      for (uint32_t t = 0; t < 256 / group; ++t) {
        const double expected = dr::tree_sum(n, [&](uint64_t i) { return term(t, static_cast<uint32_t>(i)); });
        CHECK(part[t * group] == expected);
      }
    }
}

TEST_CASE("a value of qsgd without a division is the one with it, for any norm and any levels") {
  random_source random{8};
  size_t wrong = 0;
  for (uint32_t levels = 1; levels <= 32767; levels += levels < 300 ? 1 : 1 + static_cast<uint32_t>(random.below(40))) {
    const double inverse = 1.0 / levels;
    for (const uint32_t bits : {0u, 1u, 0x007fffffu, 0x00800000u, 0x3f800000u, 0x7f7fffffu}) {
      const auto all = [&](uint32_t norm_bits, uint32_t code) {
        const auto norm = std::bit_cast<float>(norm_bits);
        wrong += std::bit_cast<uint64_t>(dr::qsgd_value_by(inverse, code, norm, levels)) !=
                 std::bit_cast<uint64_t>(dr::qsgd_value(code, norm, levels));
      };
      for (const uint32_t level : {0u, 1u, levels / 2, levels - 1, levels}) all(bits, 2 * level + 1);
      for (int k = 0; k < 60; ++k)
        all(static_cast<uint32_t>(random.below(0x7f800000)), static_cast<uint32_t>(random.below(2 * levels + 2)));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("qsgd on a GPU yields the CPU's bytes and values") {
  random_source random{3};
  const std::vector<qsgd_shape> shapes = {
      {1, 1, 1},       {5, 0, 1},         {0, 0, 3},       {7, 7, 3},         {31, 31, 1},
      {32, 32, 1},     {33, 33, 1},       {300, 256, 1},   {900, 257, 3},     {2047, 2047, 1},
      {2048, 2048, 1}, {2049, 2049, 1},   {3000, 1366, 3}, {4096, 4095, 1},   {40, 30, 1, DR_E_ARGUMENT},
      {4097, 4097, 1}, {20000, 10000, 1}, {5001, 5001, 3}, {12288, 12288, 1}, {9999, 1, 1}};
  int32_t seed = 0;
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
    for (const uint64_t levels : {1, 2, 5, 63, 127, 1000, 32767})
      for (const uint64_t bucket : {1, 3, 7, 512, 1000, 1024, 1025, 2048, 5000, 1 << 20})
        check_qsgd(dtype, levels, bucket, shapes, seed++ % 6, random);
}

TEST_CASE("qsgd on a GPU: random buckets and levels") {
  random_source random{4};
  for (int i = 0; i < 60; ++i) {
    const uint64_t bucket = 1 + random.below(uint64_t{1} << (1 + random.below(14)));
    const uint64_t levels = 1 + random.below(uint64_t{1} << (1 + random.below(15))) % 32767;
    std::vector<qsgd_shape> shapes;
    for (int j = 0; j < 6; ++j) {
      const uint64_t most = random.below(9000);
      shapes.push_back({most, random.below(most + 1), static_cast<uint32_t>(1 + random.below(3))});
    }
    check_qsgd(static_cast<uint32_t>(DR_F32 + i % 3), levels, bucket, shapes, i % 6, random);
  }
}

TEST_CASE("qsgd on a GPU: a bucket whose codes end with a word only after 32 of them") {
  random_source random{5};
  check_qsgd(DR_F32, 63, 2501, {{200000, 200000, 1}, {2501 * 32 + 1, 2501 * 32 + 1, 1}, {2501, 2501, 1}}, 1, random);
}

TEST_CASE("qsgd on a GPU accepts many jobs in a launch") {
  random_source random{6};
  for (const size_t n : {40, 41, 400, 403, 900}) {
    std::vector<qsgd_shape> shapes;
    for (size_t i = 0; i < n; ++i) {
      const uint64_t most = random.below(i % 50 == 0 ? 6000 : 40);
      shapes.push_back({most, random.below(most + 1), 1, i % 17 == 3 ? DR_E_CAPACITY : DR_OK});
    }
    check_qsgd(DR_F32, 127, 512, shapes, static_cast<int32_t>(n % 6), random);
    check_qsgd(DR_BF16, 5, 7, shapes, static_cast<int32_t>((n + 1) % 6), random);
  }
}

TEST_CASE("qsgd on a GPU refuses what the CPU refuses") {
  random_source random{7};
  const dr_codec& codec = *dr::find_codec(DR_ROLE_VALUE, "qsgd");
  struct set {
    uint64_t levels, bucket, n;
  };
  for (const auto& [levels, bucket, n] :
       {set{5, 7, 61}, {127, 512, 40}, {1, 3, 100}, {1000, 20, 61}, {32767, 9, 30}, {62, 512, 4111}, {100, 1025, 2999}})
    for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16}) {
      CAPTURE(levels);
      CAPTURE(bucket);
      CAPTURE(dtype);
      const uint64_t fields[] = {levels, bucket};
      const dr_params p{sizeof p, nullptr, fields};
      dr_job job{.struct_size = sizeof(dr_job)};
      job.count_max = n;
      job.width = 1;
      job.dtype = dtype;
      dr_need need{.struct_size = sizeof(dr_need)};
      REQUIRE(codec.cpu->need(&p, &job, 1, &need) == DR_OK);
      const unsigned size = dr::value_size(dtype);
      job.in_max = need.payload;
      job.out_capacity = n * size;
      // Norms 1, levels 0 … levels, padding 0.
      std::vector<uint8_t> good((need.payload + 15) / 16 * 16 + 16);
      const uint64_t buckets = (n + bucket - 1) / bucket;
      const unsigned width = dr::ceil_log2(levels + 1) + 1;
      for (uint64_t b = 0; b < buckets; ++b) dr::store(good.data() + 4 * b, 1.0f);
      dr::bit_writer writer(good.data() + 4 * buckets);
      for (uint64_t i = 0; i < n; ++i) writer.put(2 * random.below(levels + 1) + random.below(2), width);
      writer.finish();
      // Every bit of a short payload, some of a long one; then whole bytes of noise.
      const uint64_t bits = 8 * need.payload, flips = std::min<uint64_t>(bits, 700), noises = 40;
      std::vector<std::unique_ptr<room>> payloads;
      std::vector<twin> twins(flips + noises);
      for (size_t i = 0; i < twins.size(); ++i) {
        twin& t = twins[i];
        t.job = job;
        t.count = n;
        t.in_size = need.payload;
        payloads.push_back(std::make_unique<room>(good.size(), 0));
        uint8_t* bytes = payloads.back()->data();
        std::copy(good.begin(), good.end(), bytes);
        if (i < flips) {
          const uint64_t at = flips == bits ? i : i < 30 ? bits - 1 - i : random.below(bits);
          bytes[at / 8] ^= static_cast<uint8_t>(1u << at % 8);
        } else {
          for (uint64_t k = 0; k < 1 + random.below(9); ++k)
            bytes[random.below(need.payload)] = static_cast<uint8_t>(random());
        }
        t.in = bytes;
        t.cpu_out = std::make_unique<room>(n * size);
        t.gpu_out = std::make_unique<room>(n * size);
      }
      run(codec, direction::decode, p, twins, static_cast<int32_t>(levels % 6));
      size_t refused = 0;
      for (size_t i = 0; i < twins.size(); ++i) {
        CAPTURE(i);
        const twin& t = twins[i];
        refused += t.cpu.fault.code != DR_OK;
        CHECK(t.gpu.fault.code == t.cpu.fault.code);
        if (t.cpu.fault.code) {
          CHECK(t.gpu.fault.stream == DR_STREAM_VALUE);
          if (i < flips) CHECK(t.gpu.fault.where == t.cpu.fault.where);
          if (i < flips) CHECK(t.gpu.fault.what == t.cpu.fault.what);
        } else {
          CHECK(t.gpu.out_size == t.cpu.out_size);
          CHECK(std::memcmp(twins[i].gpu_out->data(), twins[i].cpu_out->data(), n * size) == 0);
        }
        CHECK(t.gpu_out->intact());
      }
      CHECK(refused > 0);
      CHECK(refused < twins.size());
    }
}

TEST_CASE("qsgd on a GPU refuses a payload of another size") {
  const dr_codec& codec = *dr::find_codec(DR_ROLE_VALUE, "qsgd");
  const uint64_t fields[] = {127, 512};
  const dr_params p{sizeof p, nullptr, fields};
  for (const uint64_t size : {0, 1, 5003, 5005}) {
    device_words w;
    w.count = 4984;  // 10 norms and a byte each: 5024
    w.in_size = size;
    room in(6000, 0), out(4 * 5000);
    dr_job job{.struct_size = sizeof(dr_job)};
    job.count_max = 5000;
    job.count = &w.count;
    job.dtype = DR_F32;
    job.width = 1;
    job.in = in.data();
    job.in_max = 6000;
    job.in_size = &w.in_size;
    job.out = out.data();
    job.out_capacity = 20000;
    job.out_size = &w.out_size;
    job.fault = &w.fault;
    dr::device_queue q{emulated(static_cast<int32_t>(size % 6))};
    const dr_exec d = q.exec();
    REQUIRE(codec.cuda->decode(&d, &p, &job, 1) == DR_OK);
    CHECK(w.fault.code == DR_E_CORRUPT);
    CHECK(w.fault.stream == DR_STREAM_VALUE);
    CHECK(w.out_size == device_words::mark);
    CHECK(out.intact(0));
  }
}

// ---- bloom ------------------------------------------------------------------------------------------------

namespace {

struct bloom_row {
  uint64_t universe, count_max, count;
  dr_status fault_before = DR_OK;
  bool asked = true;
  int64_t less_capacity = 0;  // than `need` says
};

struct bloom_plan {
  dr_value values[6]{};
  uint64_t fields[6]{};
  dr_params params{sizeof(dr_params), values, fields};

  bloom_plan(uint64_t policy, double fpr, uint64_t universe, uint64_t count, double max_ratio = 0, uint64_t seed = 9) {
    const double numbers[] = {static_cast<double>(policy), fpr, static_cast<double>(seed), max_ratio};
    for (int i = 0; i < 6; ++i) values[i] = {sizeof(dr_value), i < 4, 0, i < 4 ? numbers[i] : 0};
    dr_job job{.struct_size = sizeof(dr_job)};
    job.universe = universe;
    job.count_max = count;
    dr_fault fault{.struct_size = sizeof(dr_fault)};
    REQUIRE(dr::find_codec(DR_ROLE_INDEX, "bloom")->cpu->resolve(&params, &job, fields, &fault) == DR_OK);
  }
  bloom_plan(const bloom_plan&) = delete;
};

// `count` indices below `universe`, ascending (Knuth's algorithm S).
std::vector<uint32_t> support_of(uint64_t universe, uint64_t count, random_source& random) {
  std::vector<uint32_t> support;
  for (uint64_t i = 0; support.size() < count; ++i)
    if (random.below(universe - i) < count - support.size()) support.push_back(static_cast<uint32_t>(i));
  return support;
}

void same_fault(const twin& t) {
  CHECK(t.gpu.fault.code == t.cpu.fault.code);
  if (t.cpu.fault.code == DR_OK || t.fault_before) return;
  CHECK(t.gpu.fault.stream == DR_STREAM_INDEX);
  CHECK(t.gpu.fault.what == t.cpu.fault.what);
}

// Returns the faults that encode gave.
size_t check_bloom(const bloom_plan& plan, const std::vector<bloom_row>& rows, int32_t seed, random_source& random) {
  const dr_codec& codec = *dr::find_codec(DR_ROLE_INDEX, "bloom");
  std::vector<twin> encodes(rows.size()), decodes(rows.size());
  std::vector<std::unique_ptr<room>> ins, payloads;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bloom_row& row = rows[i];
    twin& t = encodes[i];
    t.job.universe = row.universe;
    t.job.count_max = row.count_max;
    t.job.width = 1;
    t.count = row.count;
    t.fault_before = row.fault_before;
    const auto support = support_of(row.universe, row.count, random);
    ins.push_back(std::make_unique<room>(4 * support.size(), 0, 4));
    std::copy(support.begin(), support.end(), ins.back()->as<uint32_t>());
    t.in = ins.back()->data();
    dr_need need{.struct_size = sizeof(dr_need)};
    REQUIRE(codec.cpu->need(&plan.params, &t.job, 1, &need) == DR_OK);
    t.job.out_capacity = need.payload;
    t.job.tell_capacity =
        static_cast<uint64_t>(std::max<int64_t>(0, static_cast<int64_t>(need.tell) - row.less_capacity));
    t.cpu_out = std::make_unique<room>((need.payload + 15) / 16 * 16);
    t.gpu_out = std::make_unique<room>((need.payload + 15) / 16 * 16);
    if (row.asked) {
      t.cpu_tell = std::make_unique<room>(4 * t.job.tell_capacity);
      t.gpu_tell = std::make_unique<room>(4 * t.job.tell_capacity);
    }
  }
  run(codec, direction::encode, plan.params, encodes, seed);
  size_t faults = 0;
  std::vector<size_t> kept;
  for (size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    twin& t = encodes[i];
    if (t.fault_before || t.count == 0) {
      CHECK(t.gpu.fault.code == t.fault_before);
      CHECK(t.gpu.out_size == (t.fault_before ? device_words::mark : 0));
      CHECK(t.gpu_out->intact(0));
      if (t.gpu_tell) CHECK(t.gpu_tell->intact(0));
      continue;
    }
    same_fault(t);
    CHECK(t.gpu.out_size == t.cpu.out_size);
    CHECK(std::memcmp(t.gpu_out->data(), t.cpu_out->data(), t.cpu.out_size) == 0);
    CHECK(t.gpu_out->intact((t.cpu.out_size + 15) / 16 * 16));
    CHECK(t.gpu.told == t.cpu.told);
    if (t.gpu_tell) CHECK(t.gpu_tell->intact());
    faults += t.cpu.fault.code != DR_OK;
    if (!t.gpu_tell || t.cpu.fault.code) continue;
    CHECK(std::memcmp(t.gpu_tell->data(), t.cpu_tell->data(), 4 * t.cpu.told) == 0);
    CHECK(t.gpu_tell->intact(4 * t.cpu.told));
    kept.push_back(i);
  }
  decodes.resize(kept.size());
  for (size_t k = 0; k < kept.size(); ++k) {
    const twin& t = encodes[kept[k]];
    twin& d = decodes[k];
    d.job = t.job;
    d.count = t.count;
    d.in_size = t.cpu.out_size;
    payloads.push_back(std::make_unique<room>((d.in_size + 15) / 16 * 16 + 16, 0));
    std::memcpy(payloads.back()->data(), t.cpu_out->data(), d.in_size);
    d.in = payloads.back()->data();
    d.job.in_max = t.job.out_capacity;
    d.stated = t.cpu.told + (k % 5 == 3) - (k % 5 == 4);
    d.job.out_capacity = 4 * (d.stated + random.below(9));
    d.cpu_out = std::make_unique<room>(4 * d.stated);
    d.gpu_out = std::make_unique<room>(d.job.out_capacity);
  }
  if (decodes.empty()) return faults;
  run(codec, direction::decode, plan.params, decodes, seed);
  for (size_t k = 0; k < decodes.size(); ++k) {
    CAPTURE(k);
    twin& d = decodes[k];
    same_fault(d);
    CHECK((d.cpu.fault.code == DR_OK) == (k % 5 < 3));
    CHECK(d.gpu.out_size == d.cpu.out_size);
    CHECK(d.gpu_out->intact(4 * d.stated));
    if (d.cpu.fault.code == DR_OK) CHECK(std::memcmp(d.gpu_out->data(), d.cpu_out->data(), 4 * d.stated) == 0);
  }
  return faults;
}

}  // namespace

TEST_CASE("bloom on a GPU yields the CPU's filter and support") {
  random_source random{8};
  const std::vector<bloom_row> rows = {{1, 1, 1},
                                       {1, 1, 0},
                                       {2, 1, 1},
                                       {64, 3, 3},
                                       {300, 300, 300},
                                       {4095, 100, 77},
                                       {4096, 100, 100},
                                       {4097, 100, 100},
                                       {5000, 5000, 5000},
                                       {9000, 50, 50, DR_E_ARGUMENT},
                                       {9000, 50, 50, DR_OK, false},
                                       {20000, 1025, 1024},
                                       {20000, 1025, 1025, DR_OK, false},
                                       {70000, 2500, 2500},
                                       {100000, 20, 1}};
  int32_t seed = 0;
  for (const uint64_t policy : {0, 1})
    for (const double fpr : {0.999, 0.5, 0.1, 0.01, 1e-3, 1e-12}) {
      CAPTURE(policy);
      CAPTURE(fpr);
      // 57 bits an index are too many for the two rows that are all of their universe.
      const size_t too_large = fpr == 1e-12 ? 2 : 0;
      CHECK(check_bloom({policy, fpr, 1 << 17, 5000}, rows, seed++ % 6, random) == too_large);
    }
}

TEST_CASE("bloom on a GPU: random rows") {
  random_source random{9};
  for (int i = 0; i < 80; ++i) {
    CAPTURE(i);
    const double fpr = std::max(1e-18, std::pow(0.7, static_cast<double>(random.below(60))) * 0.99);
    std::vector<bloom_row> rows;
    for (int j = 0; j < 4; ++j) {
      const uint64_t universe = 1 + random.below(uint64_t{1} << (1 + random.below(15)));
      const uint64_t most = random.below(universe + 1);
      rows.push_back({universe, most, random.below(most + 1)});
    }
    check_bloom({static_cast<uint64_t>(i % 2), fpr, 1 << 16, 1 << 15, 0, random() >> 32}, rows, i % 6, random);
  }
}

TEST_CASE("bloom on a GPU: p0 beyond its capacity is a fault") {
  random_source random{10};
  for (int32_t seed = 0; seed < 6; ++seed) {
    const std::vector<bloom_row> rows = {{30000, 300, 300}, {30000, 3, 3}, {9000, 9000, 9000}, {20000, 300, 200}};
    CHECK(check_bloom({1, 0.1, 30000, 300, 0.02}, rows, seed, random) >= 2);
    // To the last of them, and one fewer.
    const std::vector<bloom_row> tight = {{700, 700, 700},
                                          {700, 700, 700, DR_OK, true, 1},
                                          {5000, 5000, 5000, DR_OK, true, 1},
                                          {5000, 5000, 5000},
                                          {5000, 5000, 5000, DR_OK, true, 1000000}};
    CHECK(check_bloom({1, 0.01, 30000, 300}, tight, seed, random) == 3);
    CHECK(check_bloom({0, 0.01, 30000, 300}, tight, seed, random) == 3);
  }
}

TEST_CASE("bloom on a GPU accepts many jobs in a launch") {
  random_source random{11};
  for (const size_t n : {40, 41, 400, 401, 850})
    for (const uint64_t policy : {0, 1}) {
      std::vector<bloom_row> rows;
      for (size_t i = 0; i < n; ++i) {
        const uint64_t universe = 1 + random.below(i % 60 == 0 ? 20000 : 200), most = random.below(universe + 1);
        rows.push_back({universe, most, random.below(most + 1), i % 19 == 5 ? DR_E_CAPACITY : DR_OK, i % 13 != 7});
      }
      check_bloom({policy, 0.01, 30000, 3000}, rows, static_cast<int32_t>(n % 6), random);
    }
}

TEST_CASE("bloom on a GPU: any bits, any sizes") {
  random_source random{12};
  const dr_codec& codec = *dr::find_codec(DR_ROLE_INDEX, "bloom");
  size_t refused = 0, accepted = 0;
  for (int round = 0; round < 60; ++round) {
    const bloom_plan plan(static_cast<uint64_t>(round % 2), round % 3 ? 0.3 : 1e-5, 30000, 1000);
    std::vector<twin> twins(12);
    std::vector<std::unique_ptr<room>> payloads;
    for (size_t i = 0; i < twins.size(); ++i) {
      twin& t = twins[i];
      t.job.universe = 1 + random.below(i % 4 ? 12000 : 60);
      t.job.count_max = 1 + random.below(t.job.universe);
      t.count = t.job.count_max;
      dr_need need{.struct_size = sizeof(dr_need)};
      const dr_params p{sizeof p, nullptr, plan.fields};
      while (codec.cpu->need(&p, &t.job, 1, &need) != DR_OK) t.count = t.job.count_max /= 2;  // too large a filter
      t.in_size = t.job.in_max = need.payload;
      payloads.push_back(std::make_unique<room>((need.payload + 15) / 16 * 16 + 16, 0));
      const uint64_t fill = random.below(4);  // nothing, everything, noise, sparse noise
      for (uint64_t k = 0; k < need.payload; ++k)
        payloads.back()->data()[k] = static_cast<uint8_t>(fill == 0   ? 0
                                                          : fill == 1 ? 255
                                                          : fill == 2 ? random()
                                                                      : random() & random() & random());
      t.in = payloads.back()->data();
      // What the filter says, or next to it: from the CPU, which is asked for as many as there may be.
      t.stated = t.job.universe;
      t.job.out_capacity = 4 * t.job.universe;
      t.cpu_out = std::make_unique<room>(t.job.out_capacity);
      t.gpu_out = std::make_unique<room>(t.job.out_capacity);
    }
    const dr_params p{sizeof p, nullptr, plan.fields};
    run(codec, direction::decode, p, twins, round % 6);
    for (twin& t : twins) {
      same_fault(t);
      CHECK(t.gpu_out->intact());
      const uint64_t positives = t.cpu.fault.code ? t.cpu.fault.what : t.stated;
      t.stated = std::min(t.job.universe, positives + random.below(2));
      t.cpu = t.gpu = {};
      t.cpu_out = std::make_unique<room>(t.job.out_capacity);
      t.gpu_out = std::make_unique<room>(t.job.out_capacity);
    }
    run(codec, direction::decode, p, twins, (round + 1) % 6);
    for (twin& t : twins) {
      same_fault(t);
      CHECK(t.gpu_out->intact(4 * t.stated));
      ++(t.cpu.fault.code ? refused : accepted);
      if (t.cpu.fault.code == DR_OK) CHECK(std::memcmp(t.gpu_out->data(), t.cpu_out->data(), 4 * t.stated) == 0);
      t.cpu = t.gpu = {};
    }
    // A payload of another size; a statement beyond the room.
    for (twin& t : twins) {
      t.gpu_out = std::make_unique<room>(t.job.out_capacity);
      t.in_size = random.below(2) ? t.in_size + 4 : t.in_size - 4;
    }
    run(codec, direction::decode, p, twins, (round + 2) % 6);
    for (twin& t : twins) {
      CHECK(t.gpu.fault.code == DR_E_CORRUPT);
      CHECK(t.gpu.fault.stream == DR_STREAM_INDEX);
      CHECK(t.gpu_out->intact(0));
      CHECK(t.gpu.out_size == device_words::mark);
    }
  }
  CHECK(refused > 50);
  CHECK(accepted > 50);
}

TEST_CASE("bloom on a GPU never writes beyond its room, whatever the frame states") {
  const dr_codec& codec = *dr::find_codec(DR_ROLE_INDEX, "bloom");
  const bloom_plan plan(1, 0.5, 30000, 1000);
  for (int32_t seed = 0; seed < 6; ++seed) {
    std::vector<twin> twins(1);
    twin& t = twins[0];
    t.job.universe = t.job.count_max = t.count = 9000;
    t.in_size = t.job.in_max = dr::ceil_div(9000 * plan.fields[2] >> 16, 32) * 4;
    room in((t.in_size + 15) / 16 * 16 + 16, 0xff);
    t.in = in.data();
    t.stated = 9000;
    t.job.out_capacity = 4 * 5000;
    t.cpu_out = std::make_unique<room>(4 * 9000);
    t.gpu_out = std::make_unique<room>(4 * 5000);
    run(codec, direction::decode, plan.params, twins, seed);
    CHECK(t.cpu.fault.code == DR_OK);
    CHECK(t.gpu.fault.code == DR_E_CORRUPT);
    CHECK(t.gpu_out->intact());
  }
}

TEST_CASE("bloom on a GPU: blocks that run at the same time") {
  random_source random{13};
  dr::emulator().threads = 3;
  for (int32_t seed = 0; seed < 6; ++seed)
    for (const uint64_t policy : {0, 1})
      check_bloom({policy, 0.2, 300000, 3000}, {{300000, 3000, 2500}, {90000, 90, 90}, {5, 5, 5}}, seed, random);
  dr::emulator().threads = 1;
}
