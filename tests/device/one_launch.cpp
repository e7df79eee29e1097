// A call that has one small tensor is one launch on a GPU: what it sends and returns is the CPU's, and what one block would
// take longer for is launched as ever.
#include <algorithm>
#include <map>

#include "client.hpp"
#include "cuda/device.hpp"
#include "device/whole.hpp"

namespace dr::device_tests {
namespace {

using client::bytes;
using client::floats;

constexpr order orders[] = {{0}, {1}, {3}, {0, 4}, {1, 7}, {2, 5, 1, 9}};

// The launches of a kernel by its name, while it lives.
struct launches_seen {
  std::map<std::string, size_t> of;
  launches_seen() {
    emulator().seen = [this](const dr_kernel& k, uint32_t) { ++of[k.name]; };
  }
  ~launches_seen() { emulator().seen = nullptr; }
  launches_seen(const launches_seen&) = delete;
  launches_seen& operator=(const launches_seen&) = delete;
  size_t all() const {
    size_t n = 0;
    for (const auto& [name, times] : of) n += times;
    return n;
  }
};

dr_place emulated() {
  dr_place p{};
  p.struct_size = sizeof p;
  p.kind = DR_PLACE_EMULATED;
  p.device = 1;
  return p;
}

struct told {
  dr_status status;
  std::string error;
  bytes frame;
};
// In a context of its own. place NULL: on the CPU.
told encode(const std::string& text, const floats& values, const dr_place* place) {
  const client::plan p(text);
  const client::context c;
  const dr_tensor t = client::dense(values);
  alignas(16) static uint8_t frame[1 << 20];
  dr_result r{sizeof r};
  told out;
  out.status = dr_encode(c.handle, p.handle, nullptr, place, &t, sizeof t, 1, frame, sizeof frame, &r);
  if (out.status)
    out.error = c.error();
  else
    out.frame.assign(frame, frame + r.size);
  return out;
}
floats decode(const bytes& from, size_t d, const dr_place* place, uint32_t flags = 0) {
  const client::context c;
  floats out(d, flags & DR_DECODE_ADD ? 1.0f : -7.0f);
  dr_tensor_out o = client::dense_out(out);
  alignas(16) static uint8_t frame[1 << 20];
  REQUIRE(from.size() <= sizeof frame);
  std::copy(from.begin(), from.end(), frame);
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = flags;
  const dr_status s = dr_decode(c.handle, place, frame, from.size(), &options, &o, sizeof o, 1);
  INFO(c.error());
  REQUIRE(s == DR_OK);
  return out;
}

floats noise(size_t d, uint64_t seed) {
  cases::random_source random("small calls " + std::to_string(seed));
  floats out(d);
  for (float& x : out) x = static_cast<float>(random.laplace());
  return out;
}

TEST_CASE("a call of one small tensor is one launch, and sends what the CPU sends") {
  for (const std::string streams : {"index=golomb value=qsgd", "index=golomb value=log_quant", "index=golomb value=raw",
                                    "index=raw value=qsgd(levels=3,bucket=64)", "index=raw value=raw"})
    for (const std::string feedback : {"", " feedback=residual(beta=0.9,gamma=0.5)"})
      for (const whole_tensor& t :
           {whole_tensor{DR_F32, 36864, 1, 0.2, 0, 0}, whole_tensor{DR_F16, 20000, 1, 0.98, 0, 0},
            whole_tensor{DR_BF16, 4000, 1, 0, 0, 0}, whole_tensor{DR_F32, 50000, 3, 0, 300, DR_I64},
            whole_tensor{DR_F32, 9000, 1, 0, 0, 0, 0.5}}) {
        if (t.count && !feedback.empty()) continue;
        const whole_call call((t.count ? "" : "sparsify=topr(ratio=0.02) ") + streams + feedback, {t});
        for (const order& how : orders) {
          const launches_seen seen;
          CHECK(call.differs(how) == "");
          // Three encodes; a decode of each and a merge of all, of which merge_tiles may have too many blocks.
          CHECK(seen.of.count("small_encode"));
          CHECK(seen.of.count("small_decode"));
          for (const char* const name : {"begin_call", "select_solve", "select_adopt", "pack_frame", "subtract_rows"}) {
            CAPTURE(name);
            CHECK(!seen.of.count(name));
          }
        }
      }
}

TEST_CASE("the launches of a call of one tensor") {
  const dr_place place = emulated();
  const auto launches = [&](const std::string& text, size_t d) {
    const floats values = noise(d, d);
    const told want = encode(text, values, nullptr);
    std::array<size_t, 3> all{};  // of an encode; of a decode that adds, and of one to a fresh tensor
    const auto counted = [&](size_t i, auto&& call) {
      const launches_seen seen;
      call();
      all[i] = seen.all();
    };
    counted(0, [&] { CHECK(encode(text, values, &place).frame == want.frame); });
    for (const uint32_t flags : {uint32_t{DR_DECODE_ADD}, 0u}) {
      const floats by_cpu = decode(want.frame, d, nullptr, flags);
      counted(flags ? 1 : 2, [&] { CHECK(decode(want.frame, d, &place, flags) == by_cpu); });
    }
    return all;
  };
  const std::string usual = "sparsify=topr(ratio=0.01) index=golomb value=qsgd";
  CHECK(launches(usual, 1) == std::array<size_t, 3>{1, 1, 1});
  CHECK(launches(usual, 16384) == std::array<size_t, 3>{1, 1, 1});
  CHECK(launches(usual, 36864) == std::array<size_t, 3>{1, 1, 2});  // nine tiles are written side by side
  CHECK(launches(usual, 65536) == std::array<size_t, 3>{1, 1, 2});
  CHECK(launches(usual, 65537) == std::array<size_t, 3>{9, 1, 2});
  CHECK(launches("sparsify=topr(ratio=0.01) index=golomb value=log_quant", 36864) == std::array<size_t, 3>{1, 1, 2});
  CHECK(launches("sparsify=topr(count=1024) index=golomb value=qsgd", 65536) == std::array<size_t, 3>{1, 1, 2});
  CHECK(launches("sparsify=topr(count=1024) index=raw value=raw", 65536) == std::array<size_t, 3>{1, 1, 2});
  // More values are faster side by side.
  CHECK(launches("sparsify=topr(count=1025) index=golomb value=qsgd", 65536) == std::array<size_t, 3>{5, 6, 6});
  // What one block does not select is launched as ever: begin, filter, refine, compact, values, indices and pack.
  CHECK(launches("sparsify=threshold(value=3) index=golomb value=qsgd", 36864)[0] == 7);
  // What is no part is launched behind those that are.
  CHECK(launches("sparsify=topr(ratio=0.01) index=rice value=qsgd", 36864) == std::array<size_t, 3>{3, 5, 5});
}

// On a GPU the first launch of a stream runs beside the last launch of the other stream; here it runs before that.
TEST_CASE("behind a fused launch none runs beside it") {
  const dr_place place = emulated();
  const floats values = noise(30000, 3);
  for (const char* const index : {"golomb", "rice", "raw", "bloom(policy=p0,fpr=0.01)"})
    for (const char* const value :
         {"raw", "qsgd", "log_quant", "half", "lloyd", "fit_poly", "fit_poly order=bitpack"}) {
      const std::string text = "sparsify=topr(ratio=0.02) index=" + std::string(index) + " value=" + value;
      CAPTURE(text);
      const told want = encode(text, values, nullptr);
      REQUIRE(want.status == DR_OK);
      emulator().swaps = true;
      const told got = encode(text, values, &place);
      const floats back = decode(want.frame, values.size(), &place);
      emulator().swaps = false;
      CHECK(got.error == "");
      CHECK(got.frame == want.frame);
      CHECK(back == decode(want.frame, values.size(), nullptr));
    }
}

TEST_CASE("a fused launch that fails is an error that says why, and the next call works") {
  const dr_place place = emulated();
  const floats values = noise(1000, 7);
  const std::string usual = "sparsify=topr(ratio=0.1) index=golomb value=qsgd";
  emulator().refused_kernel = "small_encode";
  const told got = encode(usual, values, &place);
  emulator().refused_kernel = nullptr;
  CHECK(got.status == DR_E_DEVICE);
  CHECK(got.error == "device: a launch failed: refused, on the emulated device");
  CHECK(encode(usual, values, &place).frame == encode(usual, values, nullptr).frame);
}

}  // namespace
}  // namespace dr::device_tests
