// The declared memory of zstd suffices at every level, for inputs of every size up to the bound and around the sizes at
// which
// a level changes its meaning.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "codecs/builtin.hpp"
#include "primitive/rng.hpp"

TEST_CASE("zstd: its memory suffices at every level and size, and the bytes come back") {
  std::vector<uint64_t> words((uint64_t{1} << 20) / 8);
  for (size_t i = 0; i < words.size(); ++i) words[i] = dr::draw(5, i) & 0x0f0f00ff0000ffff;
  const dr_ops& ops = *dr::zstd_codec.cpu;
  dr_exec exec{};
  exec.parallel = [](void*, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
    for (size_t i = 0; i < n; ++i) f(arg, i, 0);
  };
  for (double level = 1; level <= 19; ++level) {
    const dr_value value{sizeof(dr_value), 1, 0, level};
    const dr_params params{sizeof(dr_params), &value, nullptr}, received{sizeof(dr_params), nullptr, nullptr};
    for (const uint64_t size : {0u, 1u, 16384u, 131072u, 131073u, 262145u, 1u << 20}) {
      for (const uint64_t bound : {size, uint64_t{1} << 20}) {
        if (bound != size && size % 2) continue;  // large tables take their time
        dr_fault fault{.struct_size = sizeof(dr_fault)};
        uint64_t packed_size = 0, size_back = 0;
        dr_job job{.struct_size = sizeof(dr_job)};
        job.in_max = bound;
        job.in = words.data();
        job.in_size = &size;
        job.fault = &fault;
        dr_need need{.struct_size = sizeof(dr_need)};
        REQUIRE(ops.need(&params, &job, 1, &need) == DR_OK);
        std::vector<uint64_t> packed(need.payload / 8 + 1), back(size / 8 + 1),
            scratch(std::max(need.encode_scratch, need.decode_scratch) / 8 + 8);
        exec.scratch = scratch.data() + (8 - reinterpret_cast<uintptr_t>(scratch.data()) / 8 % 8) % 8;
        exec.scratch_size = need.encode_scratch;
        job.out = packed.data();
        job.out_capacity = need.payload;
        job.out_size = &packed_size;
        CAPTURE(level);
        CAPTURE(size);
        CAPTURE(bound);
        REQUIRE(ops.encode(&exec, &params, &job, 1) == DR_OK);
        CHECK(fault.code == DR_OK);
        job.in = packed.data();
        job.in_max = packed_size;
        job.in_size = nullptr;
        job.out = back.data();
        job.out_capacity = size;
        job.out_size = &size_back;
        REQUIRE(ops.decode(&exec, &received, &job, 1) == DR_OK);
        CHECK(fault.code == DR_OK);
        REQUIRE(size_back == size);
        CHECK(!std::memcmp(back.data(), words.data(), size));
      }
    }
  }
}
