// A device that has less than it says: room for fewer blocks at once, a launch that fails, a sort that wants more memory, tensors that are too long for it.
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

floats decode(const std::vector<uint8_t>& frame, uint64_t universe, const dr_place* at) {
  context c;
  floats values(universe, -77);
  dr_tensor_out out = dense_out(values);
  alignas(16) static uint8_t room[1 << 20];
  std::copy(frame.begin(), frame.end(), room);
  const dr_status s = dr_decode(c.handle, at, room, frame.size(), nullptr, &out, sizeof out, 1);
  INFO(c.error());
  CHECK(s == DR_OK);
  return values;
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

// A stream may have a share of the device (a green context, MPS): nothing may depend on how many blocks run at once.
TEST_CASE("no launch is cooperative, and blocks select the same one after the other and side by side") {
  const settings restored;
  const floats hard = two_values(150000), easy = laplace(70000, 3);
  const dr_place at = emulated();
  for (const floats* const values : {&hard, &easy}) {
    const told want = encode(usual, *values, nullptr);
    REQUIRE(want.status == DR_OK);
    for (const uint32_t threads : {1u, 2u, 4u}) {
      INFO(threads << " blocks at once");
      uint32_t blocks_of_fallback = 0;
      dr::emulator().threads = threads;
      dr::emulator().seen = [&](const dr_kernel& k, uint32_t blocks) {
        CHECK(k.grid_phases == 1);
        if (k.name == std::string("select_fallback")) blocks_of_fallback = blocks;
      };
      const told got = encode(usual, *values, &at);
      CHECK(got.error == "");
      CHECK(got.frame == want.frame);
      CHECK(blocks_of_fallback > threads);  // some wait for room
    }
  }
}

// On a GPU the first launch of a stream runs beside the last launch of the other stream; here it runs before that.
TEST_CASE("indices and values need nothing of one another's launches") {
  const settings restored;
  const floats values = laplace(150000, 5);
  const dr_place at = emulated();
  for (const char* const index : {"golomb", "rice", "raw", "bloom(policy=p0,fpr=0.01)", "bloom(policy=leftmost)"})
    for (const char* const value :
         {"raw", "qsgd", "log_quant", "uniform_quant(bits=4)", "uniform_quant(error=0.01)", "half", "sign",
          "sign(scale=means)", "ternary", "fit_poly", "fit_poly order=bitpack"}) {
      const std::string text = "sparsify=topr(ratio=0.1) index=" + std::string(index) + " value=" + value;
      CAPTURE(text);
      const told want = encode(text, values, nullptr);
      REQUIRE(want.status == DR_OK);
      const floats by_cpu = decode(want.frame, values.size(), nullptr);
      dr::emulator().swaps = true;
      const told got = encode(text, values, &at);
      CHECK(got.error == "");
      CHECK(got.frame == want.frame);
      CHECK(decode(want.frame, values.size(), &at) == by_cpu);
      dr::emulator().swaps = false;
    }
}

// The fall-back stands beside select_compact, the decode of what feedback subtracts beside pack_frame.
TEST_CASE("of a tensor one selection is made, and feedback subtracts what was sent, in any order of launches") {
  const settings restored;
  const dr_place at = emulated();
  for (const floats& values : {two_values(150000), laplace(150000, 11)})
    for (const char* const value : {"qsgd", "log_quant", "half", "lloyd", "fit_poly"}) {
      const std::string text = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=" + std::string(value);
      CAPTURE(text);
      const plan p(text);
      std::vector<uint64_t> states[2];
      for (uint64_t step = 0; step < 2; ++step) {
        std::vector<uint8_t> frames[2];
        for (const bool there : {false, true}) {
          context c;
          std::vector<uint64_t>& state = states[there];
          state.resize((16 + 4 * values.size() + 7) / 8);
          dr_tensor t = dense(values);
          t.state = state.data();
          t.state_size = 8 * state.size();
          dr_call call{};
          call.struct_size = sizeof call;
          call.step = step;
          alignas(16) static uint8_t room[1 << 20];
          dr_result result{sizeof result};
          dr::emulator().swaps = there;
          CHECK(dr_encode(c.handle, p.handle, &call, there ? &at : nullptr, &t, sizeof t, 1, room, sizeof room,
                          &result) == DR_OK);
          dr::emulator().swaps = false;
          CHECK(c.error() == "");
          frames[there] = {room, room + result.size};
        }
        CHECK(frames[0] == frames[1]);
        CHECK(states[0] == states[1]);
      }
    }
}

// Codecs read a frame where it is, and beside the launch that checks it; here before that.
TEST_CASE("a damaged frame is refused though codecs read it before its check, and no byte behind it is read") {
  const settings restored;
  const floats values = laplace(30000, 9);
  const dr_place at = emulated();
  const auto read = [&](const std::vector<uint8_t>& frame, const dr_place* where, floats& to) {
    context c;
    dr_tensor_out out = dense_out(to);
    const std::vector<uint8_t> exact = frame;  // (behind it AddressSanitizer sees any access)
    return dr_decode(c.handle, where, exact.data(), exact.size(), nullptr, &out, sizeof out, 1);
  };
  for (const char* const index : {"golomb", "rice", "raw", "bloom(policy=p0,fpr=0.01)", "all"})
    for (const char* const value : {"raw", "qsgd", "log_quant", "uniform_quant(bits=4)", "half", "sign(scale=means)",
                                    "ternary", "lloyd", "fit_poly", "fit_poly order=bitpack"}) {
      const bool whole = index == std::string("all"), fits = std::string(value).starts_with("fit_poly");
      if (whole && fits) continue;
      const std::string text =
          (whole ? "" : "sparsify=topr(ratio=0.1) ") + ("index=" + std::string(index)) + " value=" + value;
      CAPTURE(text);
      const told sound = encode(text, values, nullptr);
      REQUIRE(sound.error == "");
      for (uint32_t k = 0; k < 24; ++k) {
        CAPTURE(k);
        std::vector<uint8_t> frame = sound.frame;
        if (k) frame[k < 4 ? frame.size() - k : k * 2654435761u % frame.size()] ^= static_cast<uint8_t>(1 << k % 8);
        floats by_cpu(values.size(), -77), there(values.size(), -77);
        CHECK((read(frame, nullptr, by_cpu) == DR_OK) == (k == 0));
        dr::emulator().swaps = true;
        CHECK((read(frame, &at, there) == DR_OK) == (k == 0));
        dr::emulator().swaps = false;
        CHECK(there == (k ? floats(values.size(), -77) : by_cpu));
      }
    }
}

// The small one's launch stands beside the read of the others, which of empty ones is no launch.
TEST_CASE("a small tensor beside an empty one is selected from after the call has begun") {
  const settings restored;
  const floats small = laplace(3000, 7);
  const client::plan top("sparsify=topr(ratio=0.1) index=golomb value=qsgd"),
      all("sparsify=none index=golomb value=raw");
  dr_tensor tensors[] = {dense(small), dense(small)};
  tensors[0].plan = top.handle;
  tensors[1].plan = all.handle;
  tensors[1].universe = 0;
  tensors[1].width = 2;
  const dr_place at = emulated();
  const auto encoded = [&](const dr_place* where) {
    context c;
    bytes frame(1 << 16);
    dr_result result{};
    result.struct_size = sizeof result;
    const dr_status s =
        dr_encode(c.handle, nullptr, nullptr, where, tensors, sizeof *tensors, 2, frame.data(), frame.size(), &result);
    INFO(c.error());
    CHECK(s == DR_OK);
    frame.resize(result.size);
    return frame;
  };
  const bytes want = encoded(nullptr);
  dr::emulator().swaps = true;
  CHECK(encoded(&at) == want);
}

TEST_CASE("a launch that fails is an error that says why") {
  const settings restored;
  dr::emulator().refused_kernel = "select_fallback";
  const dr_place at = emulated();
  const told got = encode(usual, two_values(150000), &at);
  CHECK(got.status == DR_E_DEVICE);
  CHECK(got.error == "device: a launch failed: refused, on the emulated device");
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
