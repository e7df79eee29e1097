// Large index sets: their blocks are coded in parallel, and no byte shows it.
#include <doctest/doctest.h>

#include <vector>

#include "core/pool.hpp"
#include "core/registry.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/rng.hpp"
#include "stage/chain.hpp"

namespace dr {
namespace {

struct outcome {
  std::vector<uint8_t> payload;
  std::vector<uint32_t> decoded;
  dr_fault fault{.struct_size = sizeof(dr_fault)};
};

outcome code(const std::vector<uint32_t>& x, uint64_t universe, std::vector<uint64_t> fields, uint32_t workers,
             const std::vector<uint8_t>* payload = nullptr) {
  const dr_codec& golomb = *find_codec(DR_ROLE_INDEX, "golomb");
  const dr_params params{sizeof(dr_params), nullptr, fields.data()};
  outcome result;
  dr_job job = shape_job({universe, x.size(), 0, 1});
  job.fault = &result.fault;
  dr_need need{.struct_size = sizeof(dr_need)};
  REQUIRE(golomb.cpu->need(&params, &job, 1, &need) == DR_OK);
  pool p(workers);
  std::vector<uint64_t> scratch((need.encode_scratch + 64) / 8 * workers);
  const stage_runner run{scratch.data(), (need.encode_scratch + 63) / 64 * 64, &p};
  const dr_exec exec = run.exec();
  uint64_t size = 0;
  job.out_size = &size;
  if (payload) {
    result.decoded.resize(x.size());
    job.in = payload->data(), job.in_max = payload->size();
    job.out = result.decoded.data(), job.out_capacity = 4 * x.size();
    REQUIRE(golomb.cpu->decode(&exec, &params, &job, 1) == DR_OK);
  } else {
    result.payload.resize(need.payload);
    job.in = x.data(), job.in_max = 4 * x.size();
    job.out = result.payload.data(), job.out_capacity = need.payload;
    REQUIRE(golomb.cpu->encode(&exec, &params, &job, 1) == DR_OK);
    result.payload.resize(size);
  }
  return result;
}

}  // namespace

TEST_CASE("a large index set has the same payload, and is read alike, for any number of workers") {
  std::vector<uint32_t> x;
  for (uint64_t at = 0, i = 0; i < 200001; ++i)
    x.push_back(static_cast<uint32_t>(at += 1 + mix64(i) % (i % 9000 < 800 ? 3 : 300)));
  const uint64_t universe = x.back() + uint64_t{17};
  for (const auto& fields : {std::vector<uint64_t>{9, 0}, {12, 0}, {12, 1}}) {
    const outcome one = code(x, universe, fields, 1);
    for (const uint32_t workers : {2, 3, 8}) {
      REQUIRE(code(x, universe, fields, workers).payload == one.payload);
      REQUIRE(code(x, universe, fields, workers, &one.payload).decoded == x);
    }
    // Two faults: the first is reported, whichever worker finds it.
    for (const size_t where : {size_t{0}, one.payload.size() / 3, one.payload.size() / 2}) {
      std::vector<uint8_t> bad = one.payload;
      bad[where] ^= 0x10, bad[one.payload.size() - 2] ^= 0x10;
      const outcome alone = code(x, universe, fields, 1, &bad), together = code(x, universe, fields, 4, &bad);
      REQUIRE(alone.fault.code == DR_E_CORRUPT);
      REQUIRE(together.fault.code == DR_E_CORRUPT);
      REQUIRE(together.fault.where == alone.fault.where);
    }
  }
}

}  // namespace dr
