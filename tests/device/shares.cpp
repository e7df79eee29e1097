// A device that has less than it says: room for fewer blocks at once, a sort that wants more memory, tensors that are too long for it.
#include <deepreduce/deepreduce.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "client.hpp"
#include "cuda/device.hpp"

namespace {

using namespace client;

struct settings {
  settings() { dr::emulator() = {}; }
  ~settings() { dr::emulator() = {}; }
  settings(const settings&) = delete;
  settings& operator=(const settings&) = delete;
};

dr_place emulated(uint32_t flags = 0) {
  dr_place p{};
  p.struct_size = sizeof p;
  p.kind = DR_PLACE_EMULATED;
  p.device = 1;
  p.flags = flags;
  return p;
}

struct told {
  dr_status status;
  std::vector<uint8_t> frame;
  std::string error;
};

told encode(const std::string& text, const floats& values, const dr_place* at) {
  context c;
  const plan p(text);
  const dr_tensor t = dense(values);
  alignas(16) static uint8_t room[1 << 20];
  dr_result result{sizeof result};
  const dr_status s = dr_encode(c.handle, p.handle, nullptr, at, &t, sizeof t, 1, room, sizeof room, &result);
  if (s) return {s, {}, c.error()};
  return {result.status, {room, room + result.size}, ""};
}

// The error of dr_batch_create; "" if there is none.
std::string batch_error(const std::string& text, dr_dtype dtype, uint64_t universe, uint64_t count = 0,
                        uint32_t flags = 0) {
  context c;
  const plan p(text);
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = dtype;
  t.universe = universe;
  t.values = &t;  // any address: it is not read
  if (count) {
    t.index_dtype = DR_U32;
    t.indices = &t;
    t.count = count;
  }
  const dr_place at = emulated(flags);
  dr_batch* batch = nullptr;
  const dr_status s = dr_batch_create(c.handle, p.handle, &at, &t, sizeof t, 1, 0, &batch);
  dr_batch_destroy(batch);
  if (s == DR_OK) return "";
  CHECK(s == DR_E_UNSUPPORTED);
  return c.error();
}

const std::string usual = "sparsify=topr(ratio=0.1) index=golomb value=qsgd";

// Two values: the sample cannot tell them apart, so the fall-back selects.
floats two_values(uint64_t d) {
  floats all(d);
  for (uint64_t i = 0; i < d; ++i) all[i] = i * 2654435761u % 97 < 3 ? -2.0f : 0.5f;
  return all;
}

}  // namespace

TEST_CASE("a stream with room for fewer blocks than the device has selects the same") {
  const settings restored;
  const floats hard = two_values(150000), easy = laplace(40000, 3);
  const dr_place at = emulated();
  for (const floats* const values : {&hard, &easy}) {
    const told want = encode(usual, *values, nullptr);
    REQUIRE(want.status == DR_OK);
    for (const uint32_t most : {1u, 2u, 3u, 5u, 100u}) {
      INFO(most << " blocks");
      std::vector<uint32_t> used;
      dr::emulator().cooperative_most = most;
      dr::emulator().seen = [&](const dr_kernel& k, uint32_t blocks) {
        if (k.grid_phases > 1) used.push_back(blocks);
      };
      const told got = encode(usual, *values, &at);
      CHECK(got.error == "");
      CHECK(got.frame == want.frame);
      REQUIRE(used.size() == 1);
      CHECK(used[0] <= most);
      CHECK(2 * used[0] + 1 >= std::min(most, 5u));  // halved until it fits, no further
    }
  }
}

TEST_CASE("without room for a single block the error says so") {
  const settings restored;
  dr::emulator().cooperative_most = 0;
  const dr_place at = emulated();
  const told got = encode(usual, two_values(150000), &at);
  CHECK(got.status == DR_E_DEVICE);
  CHECK(got.error == "device: a launch failed: too many blocks in cooperative launch, on the emulated device");
  // What needs no such launch goes on.
  CHECK(encode("sparsify=threshold(value=1) index=golomb value=qsgd", two_values(150000), &at).status == DR_OK);
}

TEST_CASE("a sort that asks for more memory than was promised is refused when the batch is made") {
  const settings restored;
  const std::string text = "sparsify=topr(ratio=0.5) index=raw value=fit_poly";
  CHECK(batch_error(text, DR_F32, 200000) == "");
  uint64_t asked = 0;
  dr::emulator().sort_temp = [&](uint64_t n) { return asked = dr_sort_temp(n) + 1; };
  CHECK(batch_error(text, DR_F32, 200000) ==
        "fit_poly: its launch failed: a sort asks for more memory than dr_sort_temp");
  CHECK(asked > 100000 / 2);
  dr::emulator().sort_temp = [](uint64_t n) { return n / 4; };
  CHECK(batch_error(text, DR_F32, 200000) == "");
}

TEST_CASE("a tensor that is too long for the lists of a device is refused with the limit, when the batch is made") {
  const uint64_t most = (uint64_t{1} << 31) - 2;
  for (const std::string rest : {" index=raw value=raw", " index=golomb value=raw"}) {
    CHECK(batch_error("sparsify=threshold(value=1)" + rest, DR_BF16, most) == "");
    for (const uint64_t d : {most + 1, (uint64_t{1} << 32) - 1}) {
      CHECK(batch_error("sparsify=threshold(value=1)" + rest, DR_BF16, d) ==
            "tensor 0: threshold lists up to " + std::to_string(d) +
                " elements; on CUDA fewer than 2147483647; DR_PLACE_ALLOW_HOST runs it on the CPU, with copies and a "
                "wait");
      // Of more than these it lists none.
      CHECK(batch_error("sparsify=threshold(value=1,max_ratio=0.01)" + rest, DR_BF16, d) == "");
    }
    CHECK(batch_error("sparsify=threshold(value=1,max_ratio=0.5)" + rest, DR_BF16, (uint64_t{1} << 32) - 1)
              .starts_with("tensor 0: threshold lists up to 2147483647 "));
    CHECK(batch_error("sparsify=topr(ratio=0.0001)" + rest, DR_BF16, (uint64_t{1} << 32) - 1) == "");
    CHECK(batch_error("sparsify=topr(ratio=0.9)" + rest, DR_BF16, (uint64_t{1} << 32) - 1)
              .starts_with("tensor 0: topr lists up to "));
    CHECK(batch_error("sparsify=threshold(value=1)" + rest, DR_BF16, most + 1, 0, DR_PLACE_ALLOW_HOST) == "");
  }
  CHECK(batch_error("index=golomb value=raw", DR_F32, (uint64_t{1} << 32) - 1, most) == "");
  CHECK(batch_error("index=golomb value=raw", DR_F32, (uint64_t{1} << 32) - 1, most + 1)
            .starts_with("tensor 0: none lists up to 2147483647 "));
  CHECK(batch_error("index=all value=raw", DR_BF16, (uint64_t{1} << 32) - 1) == "");
}
