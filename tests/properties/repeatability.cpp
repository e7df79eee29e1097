// The same input gives the same bytes, whoever works and whatever lay in memory; jobs of one call know nothing of
// one another.
#include <algorithm>

#include "properties/harness.hpp"

namespace dr::properties {
namespace {

void check_same(const subject& s, const group& g, const std::vector<encoded>& a, const std::vector<encoded>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    INFO(s.text << ": " << g.inputs[i]->name);
    const bool same = a[i].payload == b[i].payload && a[i].told == b[i].told;
    CHECK(same);
  }
}

TEST_CASE("encode yields the same bytes twice, over dirty buffers and for any number of workers") {
  each_group([](const subject& s, const group& g, const std::vector<encoded>& made) {
    encode_options dirty, four;
    dirty.poison = 0xff;
    four.workers = 4;
    four.poison = 0;
    check_same(s, g, made, encode(s, g, dirty));
    check_same(s, g, made, encode(s, g, four));
  });
}

TEST_CASE("encode yields the same bytes alone and among others") {
  each_group([](const subject& s, const group& g, const std::vector<encoded>& made) {
    for (size_t i = 0; i < made.size(); ++i)
      check_same(s, {g.fields, {g.inputs[i]}}, {made[i]}, encode(s, {g.fields, {g.inputs[i]}}));
  });
}

TEST_CASE("encode yields the same bytes where it is not requested to report") {
  each_group([](const subject& s, const group& g, const std::vector<encoded>& made) {
    encode_options silent;
    silent.ask = false;
    const auto untold = encode(s, g, silent);
    for (size_t i = 0; i < made.size(); ++i) {
      INFO(s.text << ": " << g.inputs[i]->name);
      const bool same = untold[i].payload == made[i].payload && untold[i].fault.code == DR_OK;
      CHECK(same);
    }
  });
}

// All payloads of a group, decoded in one call.
std::vector<std::unique_ptr<incoming>> streams_of(const subject& s, const group& g, const std::vector<encoded>& made) {
  std::vector<std::unique_ptr<incoming>> streams;
  for (size_t i = 0; i < made.size(); ++i)
    streams.push_back(std::make_unique<incoming>(s, claim_of(s, *g.inputs[i], made[i]), made[i].payload));
  return streams;
}

bool decode_all(const subject& s, const group& g, const std::vector<std::unique_ptr<incoming>>& streams,
                const decode_options& options = {}) {
  std::vector<incoming*> all;
  for (const auto& stream : streams) all.push_back(stream.get());
  return decode(s, g.fields, all, options);
}

TEST_CASE("decode yields the same elements alone, among others, over dirty buffers and for any number of workers") {
  each_group([](const subject& s, const group& g, const std::vector<encoded>& made) {
    for (const decode_options& options : {decode_options{1, 0}, decode_options{1, 0xff}, decode_options{4, 0x33}}) {
      const auto streams = streams_of(s, g, made);
      const bool inside = decode_all(s, g, streams, options);
      CHECK(inside);
      for (size_t i = 0; i < made.size(); ++i) {
        INFO(s.text << ": " << g.inputs[i]->name);
        const bool same =
            std::ranges::equal(streams[i]->decoded(), decode_one(s, g.fields, streams[i]->says, made[i].payload));
        CHECK(same);
      }
    }
  });
}

TEST_CASE("a job with a fault is skipped, and the others continue") {
  each_group([](const subject& s, const group& g, const std::vector<encoded>& made) {
    INFO(s.text);
    encode_options options;
    options.fault = DR_E_ARGUMENT;
    const auto faulty = encode(s, g, options);
    CHECK(faulty[0].fault.code == DR_E_ARGUMENT);
    CHECK(faulty[0].payload.empty());
    check_same(s, {g.fields, {g.inputs.begin() + 1, g.inputs.end()}}, {made.begin() + 1, made.end()},
               {faulty.begin() + 1, faulty.end()});

    const auto streams = streams_of(s, g, made);
    streams[0]->fault.code = DR_E_PEER;
    const bool inside = decode_all(s, g, streams);
    CHECK(inside);
    CHECK(streams[0]->fault.code == DR_E_PEER);
    CHECK(std::ranges::all_of(streams[0]->out.bytes(), [](uint8_t b) { return b == decode_options().poison; }));
  });
}

TEST_CASE("a corrupt payload leaves the other jobs as they are") {
  cases::random_source random("corrupt among good");
  size_t refused = 0;
  each_group([&](const subject& s, const group& g, const std::vector<encoded>& made) {
    const auto streams = streams_of(s, g, made);
    const auto bad = streams[random.below(streams.size())].get();
    for (uint8_t& b : bad->in.bytes()) b = static_cast<uint8_t>(random.below(256));
    const bool inside = decode_all(s, g, streams);
    CHECK(inside);
    refused += bad->fault.code != DR_OK;
    for (size_t i = 0; i < made.size(); ++i) {
      if (streams[i].get() == bad) continue;
      INFO(s.text << ": " << g.inputs[i]->name);
      CHECK(streams[i]->fault.code == DR_OK);
      const bool same =
          std::ranges::equal(streams[i]->decoded(), decode_one(s, g.fields, streams[i]->says, made[i].payload));
      CHECK(same);
    }
  });
  CHECK(refused > 0);
}

TEST_CASE("an index codec that would report more than there is room for faults with CAPACITY, alone") {
  each_group([](const subject& s, const group& g, const std::vector<encoded>& made) {
    if (!s.has(DR_REPLACES_SUPPORT)) return;
    INFO(s.text << ": " << g.inputs[0]->name);
    encode_options options;
    options.tell_capacity = made[0].told.size() - 1;
    const auto tight = encode(s, g, options);
    CHECK(tight[0].fault.code == DR_E_CAPACITY);
    check_same(s, {g.fields, {g.inputs.begin() + 1, g.inputs.end()}}, {made.begin() + 1, made.end()},
               {tight.begin() + 1, tight.end()});
  });
}

}  // namespace
}  // namespace dr::properties
