// Memory that a context keeps on a GPU is lent to one call after the other, of whatever streams. A stream belongs to the caller, who may
// destroy it as soon as a call has returned: from then on it must not be used, and its handle may be another stream's.
#include <deepreduce/deepreduce.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client.hpp"
#include "cuda/device.hpp"

namespace {

using namespace client;

struct step {
  std::string what;
  void *stream, *event;
};

// What touches streams while it lives.
struct listener {
  std::vector<step> steps;

  listener() {
    dr::emulator().stream_seen = [this](const char* what, void* stream, void* event) {
      steps.push_back({what, stream, event});
    };
  }
  ~listener() { dr::emulator().stream_seen = nullptr; }
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;

  bool touches(const void* stream) const {
    return std::ranges::any_of(steps, [&](const step& s) { return s.stream == stream; });
  }
};

char handles[4];
void* const a = handles;
void* const b = handles + 1;

dr_place at(void* stream) {
  dr_place p{};
  p.struct_size = sizeof p;
  p.kind = DR_PLACE_EMULATED;
  p.device = 1;
  p.stream = stream;
  return p;
}

const char* const usual = "sparsify=topr(ratio=0.1) index=golomb value=qsgd";

// A frame of d values in memory that is aligned as a device's.
struct made {
  std::vector<uint64_t> words;
  uint8_t* at;
  uint64_t size = 0;
  dr_result result{sizeof result};

  explicit made(size_t room) : words(room / 8 + 2), at(reinterpret_cast<uint8_t*>(words.data())) {
    if (reinterpret_cast<uintptr_t>(at) % 16) at += 8;
  }
};

made encode(context& c, void* stream, uint64_t d, float extra = 0) {
  const plan p(usual);
  floats values = laplace(d, d);
  values[d / 2] += extra;
  const dr_tensor t = dense(values);
  const dr_place place = at(stream);
  made m(1 << 20);
  REQUIRE(dr_encode(c.handle, p.handle, nullptr, &place, &t, sizeof t, 1, m.at, 1 << 20, &m.result) == DR_OK);
  m.size = m.result.size;
  return m;
}

dr_status decode(context& c, void* stream, const made& m, uint64_t d) {
  floats values(d);
  dr_tensor_out o = dense_out(values);
  const dr_place place = at(stream);
  return dr_decode(c.handle, &place, m.at, m.size, nullptr, &o, sizeof o, 1);
}

// The call waited for the event of the one before, ahead of all that it did; and left its own at the end. Returns that.
void* check_order(const listener& l, void* stream, void* event) {
  REQUIRE(l.steps.size() > 2);
  CHECK(l.steps.front().what == "follow");
  CHECK(l.steps.front().stream == stream);
  CHECK(l.steps.front().event == event);
  CHECK(l.steps.back().what == "record");
  CHECK(l.steps.back().stream == stream);
  return l.steps.back().event;
}

}  // namespace

TEST_CASE("a call waits for the one before by an event, and never touches the stream of that again") {
  context c;
  const made first = encode(c, a, 9000);
  void* event = nullptr;
  {
    const listener l;
    encode(c, a, 9000);
    event = l.steps.back().event;
    REQUIRE(event);
  }
  // Its stream is gone.
  {
    const listener l;
    encode(c, b, 9000);
    event = check_order(l, b, event);
    CHECK(!l.touches(a));
  }
  {
    const listener l;
    CHECK(decode(c, nullptr, first, 9000) == DR_OK);
    CHECK(!l.touches(a));
    CHECK(!l.touches(b));
  }
}

TEST_CASE("a stream whose handle was another's waits as every other does") {
  context c;
  encode(c, a, 9000);
  void* event = nullptr;
  for (int i = 0; i < 3; ++i) {
    const listener l;
    encode(c, a, 9000);
    event = check_order(l, a, event ? event : l.steps.front().event);
  }
}

TEST_CASE("memory that grows, or goes with its context, waits for the event and not for a stream") {
  auto c = std::make_unique<context>();
  encode(*c, a, 2000);
  {
    const listener l;
    encode(*c, b, 200000);
    REQUIRE(l.steps.size() > 2);
    CHECK(l.steps.front().what == "wait_event");
    CHECK(l.steps.back().what == "record");
    CHECK(!l.touches(a));
  }
  {
    const listener l;
    c.reset();
    REQUIRE(l.steps.size() == 1);
    CHECK(l.steps[0].what == "wait_event");
  }
}

TEST_CASE("a call that fails has its event, too") {
  context c;
  made m = encode(c, a, 9000);
  m.at[m.size - 1] ^= 1;
  CHECK(decode(c, a, m, 9000) == DR_E_CORRUPT);
  {
    const listener l;
    CHECK(decode(c, a, m, 9000) == DR_E_CORRUPT);
    CHECK(l.steps.back().what == "record");
  }
  const listener l;
  encode(c, b, 9000);
  CHECK(l.steps.front().what == "follow");
  CHECK(!l.touches(a));
}
