// fit_poly's CUDA operations, on a GPU that the CPU plays, against its CPU operations: every byte, every verdict.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "codecs/value/fit_poly/fit_poly_decode_tile.hpp"
#include "codecs/value/fit_poly/fit_poly_encode_tile.hpp"
#include "core/registry.hpp"
#include "cuda/device.hpp"
#include "deepreduce/deepreduce.h"
#include "primitive/bits.hpp"
#include "primitive/rng.hpp"
#include "primitive/value_type.hpp"

namespace {

using dr::ceil_div, dr::draw;
using bytes = std::vector<uint8_t>;

constexpr uint8_t poison = 0xc3;  // not the emulator's own

const dr_codec& codec() { return *dr::find_codec(DR_ROLE_VALUE, "fit_poly"); }

// Bytes at a multiple of 64, plus `off`, behind and before which poison stays.
class guarded {
 public:
  guarded(uint64_t size, uint64_t off = 0, uint8_t fill = poison) : size_(size), room_(size + off + 3 * 64, poison) {
    at_ = room_.data() + 64 + (64 - reinterpret_cast<uintptr_t>(room_.data()) % 64) % 64 + off;
    std::memset(at_, fill, size);
  }
  uint8_t* data() { return at_; }
  bool untouched(uint64_t from) const {  // behind the first `from` bytes, and before all
    const auto is_poison = [](uint8_t b) { return b == poison; };
    return std::all_of(room_.data(), const_cast<const uint8_t*>(at_), is_poison) &&
           std::all_of(const_cast<const uint8_t*>(at_) + from, room_.data() + room_.size(), is_poison);
  }
  bytes first(uint64_t n) const { return {at_, at_ + n}; }
  uint64_t size() const { return size_; }

 private:
  uint64_t size_;
  bytes room_;
  uint8_t* at_;
};

struct input {
  bytes in;  // values, or a payload
  uint64_t count = 0, count_max = 0, size = 0;
  bool faulted = false, tell = true;
};

struct output {
  bytes out, tell;
  uint64_t size = 0, told = 0;
  dr_fault fault{.struct_size = sizeof(dr_fault)};
};

constexpr uint64_t unset = 0x5555;

// Runs an operation over jobs, on the CPU (device null) or emulated.
struct runner {
  dr::device* device;
  uint32_t dtype;
  uint64_t degree, knots;

  std::vector<output> encode(const std::vector<input>& inputs) { return run(inputs, true); }
  std::vector<output> decode(const std::vector<input>& inputs) { return run(inputs, false); }

 private:
  std::vector<output> run(const std::vector<input>& inputs, bool encode) {
    const size_t n = inputs.size();
    const uint64_t value_size = dr::value_size(dtype), fields[] = {degree, knots, 0};
    const dr_params params{sizeof(dr_params), nullptr, fields};
    std::vector<dr_job> jobs(n);
    std::vector<output> results(n);
    std::vector<std::unique_ptr<guarded>> in, out, tell;
    for (size_t i = 0; i < n; ++i) {
      const input& x = inputs[i];
      dr_job& j = jobs[i];
      output& r = results[i];
      j = dr_job{};
      j.struct_size = sizeof j;
      j.universe = 1u << 30;
      j.count_max = x.count_max;
      j.count = x.count == x.count_max && i % 2 ? nullptr : &x.count;
      j.dtype = dtype;
      j.width = 1;
      r.size = r.told = unset;
      if (x.faulted) r.fault.code = DR_E_PEER;
      j.fault = &r.fault;
      j.out_size = &r.size;
      // Encode: values at a multiple of their size. Decode: zeros up to 16 bytes behind the next multiple of 16.
      const uint64_t readable = encode ? x.count_max * value_size : (x.in.size() + 15) / 16 * 16 + 16;
      in.push_back(std::make_unique<guarded>(readable, encode ? value_size * (i % 4) : 0, uint8_t{0}));
      std::copy(x.in.begin(), x.in.end(), in.back()->data());
      j.in = in.back()->data();
      j.in_max = encode ? x.in.size() : x.size + i % 3 * 4;
      j.in_size = j.in_max == x.size && i % 2 ? nullptr : &x.size;
      dr_need need{.struct_size = sizeof(dr_need)};
      REQUIRE(codec().cpu->need(&params, &j, 1, &need) == DR_OK);
      j.out_capacity = encode ? need.payload : x.count_max * value_size;
      out.push_back(std::make_unique<guarded>((j.out_capacity + 15) / 16 * 16));
      j.out = out.back()->data();
      tell.push_back(std::make_unique<guarded>(encode ? 4 * x.count_max : 0));
      if (encode && x.tell) {
        j.tell = tell.back()->data();
        j.tell_capacity = x.count_max;
        j.tell_count = &r.told;
      }
    }
    if (device)
      on_device(params, jobs, encode);
    else
      on_cpu(params, jobs, encode);
    for (size_t i = 0; i < n; ++i) {
      output& r = results[i];
      const bool written = r.size != unset;
      REQUIRE((!written || r.size <= jobs[i].out_capacity));
      r.out = out[i]->first(written ? r.size : 0);
      // Encode may fill its last word of 16 bytes; what decode wrote before a fault was noticed does not matter.
      const uint64_t writable = inputs[i].faulted ? 0
                                : encode          ? (written ? (r.size + 15) / 16 * 16 : 0)
                                                  : inputs[i].count * value_size;
      CHECK(out[i]->untouched(writable));
      const uint64_t told = r.told == unset ? 0 : 4 * r.told;
      r.tell = tell[i]->first(told);
      CHECK(tell[i]->untouched(told));
    }
    return results;
  }

  void on_cpu(const dr_params& params, const std::vector<dr_job>& jobs, bool encode) {
    uint64_t most = 0;
    for (const dr_job& j : jobs) most = std::max(most, 8 * j.count_max);
    guarded scratch(most);
    dr_exec e{};
    e.struct_size = sizeof e;
    e.scratch = scratch.data();
    e.scratch_size = most;
    e.workers = 1;
    e.parallel = [](void*, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
      for (size_t i = 0; i < n; ++i) f(arg, i, 0);
    };
    CHECK((encode ? codec().cpu->encode : codec().cpu->decode)(&e, &params, jobs.data(), jobs.size()) == DR_OK);
  }

  void on_device(const dr_params& params, const std::vector<dr_job>& jobs, bool encode) {
    std::vector<dr_need> cpu(jobs.size(), dr_need{sizeof(dr_need)}), cuda(jobs.size(), dr_need{sizeof(dr_need)});
    REQUIRE(codec().cpu->need(&params, jobs.data(), jobs.size(), cpu.data()) == DR_OK);
    REQUIRE(codec().cuda->need(&params, jobs.data(), jobs.size(), cuda.data()) == DR_OK);
    uint64_t all = 0;
    for (size_t i = 0; i < jobs.size(); ++i) {
      CHECK(cpu[i].payload == cuda[i].payload);
      CHECK(cpu[i].tell == cuda[i].tell);
      all += ceil_div(encode ? cuda[i].encode_scratch : cuda[i].decode_scratch, 64) * 64;
    }
    guarded scratch(all, 0, 0);
    dr::device_queue q{device};
    const dr_exec e = q.exec(scratch.data(), all);
    CHECK((encode ? codec().cuda->encode : codec().cuda->decode)(&e, &params, jobs.data(), jobs.size()) == DR_OK);
    CHECK(scratch.untouched(all));
    if (jobs.size() <= 400) CHECK(q.launches <= codec().cuda->launches[encode ? 0 : 1]);
  }
};

dr::device* emulated(int seed) {
  dr::device* d = nullptr;
  dr_error error{sizeof(dr_error)};
  REQUIRE(dr::find_device({sizeof(dr_place), DR_PLACE_EMULATED, seed}, d, error) == DR_OK);
  return d;
}

bytes values_of(uint32_t dtype, const std::vector<double>& numbers) {
  bytes out(numbers.size() * dr::value_size(dtype));
  dr::with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < numbers.size(); ++i)
      dr::store(out.data() + i * sizeof(typename T::bits), T::from_f64(dr::saturate<T>(numbers[i])));
  });
  return out;
}

// flat: coefficients behind the first are what the order of addition leaves of 0.
// strangers: what was selected, and a few values about zero, as behind a Bloom filter.
enum kind { laplace, positive, negative, zeros, ties, flat, extreme, strangers, kinds };

input sample(uint32_t dtype, kind k, uint64_t n, uint64_t key, uint64_t more = 0) {
  std::vector<double> v(n);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t r = draw(key, i);
    const double magnitude = -0.01 * std::log(dr::unit_interval(draw(key + 1, i)) + 0x1p-30);
    v[i] = r & 1 ? magnitude : -magnitude;
    if (k == positive) v[i] = magnitude;
    if (k == negative) v[i] = -magnitude;
    if (k == zeros) v[i] = r % 3 ? v[i] : r & 4 ? 0.0 : -0.0;
    if (k == ties) v[i] = static_cast<double>(static_cast<int>(r % 7) - 3);
    if (k == strangers && r >> 8 & 15) v[i] = std::copysign(0.046 + magnitude, v[i]);
    if (k == flat) v[i] = r & 1 ? 0.1 : -0.3;
    if (k == extreme) {  // the largest of each type, and subnormals of f32, f16 and bf16
      const double sizes[] = {1e300, 1e37, 3e4, 1e-3, 3e-8, 1e-7, 1e-40, 1e-45};
      v[i] = std::copysign(sizes[r >> 8 & 7], v[i]) * (1 + magnitude);
    }
  }
  input x;
  x.in = values_of(dtype, v);
  x.in.resize((n + more) * dr::value_size(dtype), 0x3c);  // behind the count lies anything
  x.count = n;
  x.count_max = n + more;
  return x;
}

void check_same(const std::vector<output>& cpu, const std::vector<output>& cuda, const std::vector<input>& inputs) {
  REQUIRE(cpu.size() == cuda.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    CAPTURE(i);
    CAPTURE(inputs[i].count);
    CHECK(cpu[i].fault.code == cuda[i].fault.code);
    if (cpu[i].fault.code != DR_OK && !inputs[i].faulted) {
      CHECK(cuda[i].fault.stream == DR_STREAM_VALUE);
      CHECK(cpu[i].fault.where == cuda[i].fault.where);
      CHECK(cpu[i].fault.what == cuda[i].fault.what);
    }
    CHECK(cpu[i].size == cuda[i].size);
    CHECK(cpu[i].told == cuda[i].told);
    CHECK((cpu[i].out == cuda[i].out));
    CHECK((cpu[i].tell == cuda[i].tell));
  }
}

// Payloads as a decoder receives them, and the counts of their sources.
std::vector<input> payloads(const std::vector<output>& encoded, const std::vector<input>& from) {
  std::vector<input> all;
  for (size_t i = 0; i < encoded.size(); ++i) {
    input x;
    x.count = from[i].count;
    x.count_max = from[i].count_max;
    x.faulted = from[i].faulted;
    x.in = encoded[i].out;
    x.size = x.in.size();
    all.push_back(x);
  }
  return all;
}

constexpr uint64_t all_knots[] = {dr::fit_poly_fractions, dr::fit_poly_jump};

void check_round_trip(uint32_t dtype, uint64_t degree, const std::vector<input>& inputs, std::vector<int> seeds) {
  CAPTURE(dtype);
  CAPTURE(degree);
  for (const uint64_t knots : all_knots) {
    CAPTURE(knots);
    runner cpu{nullptr, dtype, degree, knots};
    const auto encoded = cpu.encode(inputs);
    const auto received = payloads(encoded, inputs);
    const auto decoded = cpu.decode(received);
    for (const int seed : seeds) {
      CAPTURE(seed);
      runner cuda{emulated(seed), dtype, degree, knots};
      check_same(encoded, cuda.encode(inputs), inputs);
      check_same(decoded, cuda.decode(received), received);
    }
  }
}

constexpr uint32_t dtypes[] = {DR_F32, DR_F16, DR_BF16};
constexpr uint64_t degrees[] = {0, 1, 5, 9};

}  // namespace

TEST_CASE("one job: every kind of values, every count around a boundary") {
  const uint64_t counts[] = {1, 2, 3, 9, 10, 11, 30, 31, 32, 255, 256, 257, 368, 1023, 1024, 1025, 2047, 2048, 2049};
  uint64_t key = 1;
  for (const uint32_t dtype : dtypes)
    for (const uint64_t degree : degrees)
      for (const uint64_t n : counts)
        for (int k = 0; k < kinds; ++k, ++key)
          check_round_trip(dtype, degree, {sample(dtype, static_cast<kind>(k), n, key)}, {static_cast<int>(key % 6)});
  for (int seed = 0; seed < 6; ++seed)
    for (const uint64_t n : {368u, 2048u, 2049u, 10000u})
      check_round_trip(DR_F32, 5, {sample(DR_F32, laplace, n, key++)}, {seed});
}

TEST_CASE("no curve has more tiles than its bound") {
  for (uint64_t n = 1; n < uint64_t{1} << 31; n = n < 5000 ? n + 1 : n * 9 / 8) {
    for (uint64_t k = 0; k < 6; ++k) {
      const uint64_t positives = k == 0 ? 0 : k == 1 ? n : k == 2 ? n / 2 : draw(n, k) % (n + 1);
      for (const bool jump : {false, true}) {
        const uint64_t middle = jump ? draw(n, 9 + k) % (n - positives + 1) : 0;
        uint64_t length[dr::fit_poly_segments_max], tiles = 0;
        const unsigned segments = dr::fit_poly_segments({positives, middle, n - positives - middle}, jump, length);
        REQUIRE(segments <= dr::fit_poly_segments_max);
        for (unsigned s = 0; s < segments; ++s) tiles += ceil_div(length[s], dr::sum_tile);
        REQUIRE(tiles <= dr::fit_poly_tiles_max(n, jump));
      }
    }
    for (const bool jump : {false, true})  // so a count may lie below
      REQUIRE(dr::fit_poly_tiles_max(n, jump) <= dr::fit_poly_tiles_max(n + 1, jump));
  }
}

TEST_CASE("a jump is found wherever it is, in curves so long that not every point is looked at") {
  for (const uint32_t n : {8u, 100u, 2048u, 5000u, 1000000u, 30000000u, 0xffffffffu})
    for (uint32_t k = 0; k < 20; ++k) {
      const uint32_t behind = k == 0 ? 1 : 1 + static_cast<uint32_t>(draw(n, k) % (n / 2 >> k % 8 | 1));
      CAPTURE(n);
      CAPTURE(behind);
      const auto y = [&](uint32_t x) {
        const auto left = static_cast<double>(n - x), all = static_cast<double>(n);
        return x < n - behind ? 5 + left / all : left / static_cast<double>(behind + 1);
      };
      CHECK(dr::fit_poly_behind_jump(n, y) == behind);
      CHECK(dr::fit_poly_behind_jump(n - behind, y) == 0);
    }
}

TEST_CASE("one job of many tiles") {
  uint64_t key = 100;
  for (const uint32_t dtype : dtypes)
    for (int k = 0; k < kinds; ++k, ++key)
      check_round_trip(dtype, degrees[key % 4], {sample(dtype, static_cast<kind>(k), 10000, key, key % 3 * 1000)},
                       {0, static_cast<int>(key % 5) + 1});
  for (const uint32_t dtype : dtypes)
    check_round_trip(dtype, dtype == DR_F32 ? 9 : 5, {sample(dtype, laplace, 300000, key++)},
                     {static_cast<int>(dtype)});
  dr::emulator().threads = 3;
  check_round_trip(DR_F32, 5, {sample(DR_F32, positive, 300000, key++, 5000)}, {4});
  dr::emulator().threads = 1;
}

TEST_CASE("many jobs: counts that differ, or lie below their bound, faults among them") {
  for (const size_t jobs : {2u, 41u, 400u, 401u, 830u}) {
    CAPTURE(jobs);
    for (const uint32_t dtype : dtypes) {
      std::vector<input> inputs;
      for (size_t i = 0; i < jobs; ++i) {
        const uint64_t r = draw(jobs, i);
        const uint64_t n = r % 8 == 0 ? 2000 + (r >> 8) % 4000 : 1 + (r >> 8) % (r & 8 ? 100 : 1500);
        inputs.push_back(sample(dtype, static_cast<kind>(i % kinds), n, r, r & 16 ? 0 : (r >> 32) % 3000));
        inputs.back().faulted = i % 13 == 5;
        inputs.back().tell = i % 7 != 3;
      }
      check_round_trip(dtype, degrees[jobs % 4], inputs, {0, static_cast<int>(1 + jobs % 5)});
    }
  }
}

TEST_CASE("a job that turns out to be empty writes a size of 0 and nothing else") {
  for (const uint64_t knots : all_knots)
    for (const uint64_t bound : {1u, 500u, 5000u}) {
      std::vector<input> inputs = {sample(DR_F32, laplace, 0, 1, bound), sample(DR_F32, laplace, 3000, 2),
                                   sample(DR_F32, laplace, 300, 3), sample(DR_F32, laplace, 0, 4, bound)};
      const auto encoded = runner{emulated(1), DR_F32, 5, knots}.encode(inputs);
      CHECK(encoded[0].size == 0);
      CHECK(encoded[0].told == unset);
      CHECK(encoded[3].size == 0);
      const auto decoded = runner{emulated(2), DR_F32, 5, knots}.decode(payloads(encoded, inputs));
      CHECK(decoded[0].size == 0);
      CHECK(decoded[0].fault.code == DR_OK);
      CHECK(decoded[1].size == 12000);
    }
}

TEST_CASE("hostile payloads get the CPU's verdict") {
  uint64_t key = 1000;
  for (const uint32_t dtype : dtypes)
    for (const uint64_t degree : degrees)
      for (const uint64_t n : {1u, 40u, 1100u, 4000u})
        for (const uint64_t knots : all_knots) {
          CAPTURE(knots);
          const kind k = n == 40 ? positive : knots ? strangers : laplace;
          const std::vector<input> from = {sample(dtype, k, n, ++key, n % 3)};
          const input good = payloads(runner{nullptr, dtype, degree, knots}.encode(from), from)[0];
          std::vector<input> bad;
          const auto add = [&](auto change) {
            bad.push_back(good);
            change(bad.back().in);
            bad.back().size = bad.back().in.size();
          };
          for (unsigned bit = 0; bit < 32; ++bit)
            add([&](bytes& x) { x[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8); });
          for (size_t i = 0; i < 60; ++i)
            add([&](bytes& x) {
              const uint64_t at = draw(key, i) % (8 * x.size());
              x[at / 8] ^= static_cast<uint8_t>(1u << at % 8);
            });
          for (size_t size = 0; size < good.in.size(); size += size < 12 ? 1 : 7)
            add([&](bytes& x) { x.resize(size); });
          for (size_t more : {1u, 4u, 16u}) add([&](bytes& x) { x.resize(x.size() + more); });
          for (const uint32_t count : {0u, static_cast<uint32_t>(n), static_cast<uint32_t>(n) + 1, 0xffffffffu})
            for (const size_t at : {0u, 4u}) add([&](bytes& x) { dr::store(x.data() + at, count); });
          for (const uint32_t number : {0x7f800000u, 0xff800001u, 0x7f7fffffu, 0xff7fffffu, 0x80000000u, 1u})
            for (size_t i = 0; i < 3; ++i)
              add([&](bytes& x) {  // two of them, so that the first is reported
                dr::store(x.data() + 4 + 4 * (draw(key, i) % (x.size() / 4 - 1)), number);
                dr::store(x.data() + 4 + 4 * (draw(key, i + 9) % (x.size() / 4 - 1)), number);
              });
          const auto expected = runner{nullptr, dtype, degree, knots}.decode(bad);
          CHECK(std::ranges::count_if(expected, [](const output& o) { return o.fault.code == DR_E_CORRUPT; }) > 20);
          check_same(expected, runner{emulated(static_cast<int>(key % 6)), dtype, degree, knots}.decode(bad), bad);
        }
}
