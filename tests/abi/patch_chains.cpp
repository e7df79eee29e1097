// Histories of weights: sender and receivers of a chain of patches advance them alike, and go by them.
#include "abi/segmented.hpp"
#include "abi/weights.hpp"

namespace {

using abi::weights;
using client::bytes;

constexpr const char* by_history = "sparsify=changed index=history value=history";

dr_tensor sent_by(const weights& base, const weights& now, bytes& history, std::vector<uint64_t>* sums = nullptr) {
  dr_tensor t = abi::patch_of(base, now, sums);
  t.history = history.data();
  return t;
}
dr_tensor_out received_by(weights& w, bytes& history, std::vector<uint64_t>* sums = nullptr) {
  dr_tensor_out o = w.out(sums);
  o.history = history.data();
  return o;
}
bool mentions(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

// A step whose words go on as they went: the same ones, most of them the same way.
weights stepped(const weights& base, uint64_t step, double share) {
  client::rng who{5}, what{step};
  weights now = base;
  for (uint64_t i = 0; i < now.words(); ++i) {
    const bool active = who.uniform() < share, up = who.next() & 64;
    const uint64_t any = what.next();
    if (active && any % 4) now.set(i, now.word(i) + (up == ((any >> 8 & 15) > 0) ? 1 : -1));
  }
  return now;
}

struct chain {
  weights here, there;
  bytes sent, received;

  explicit chain(abi::word_kind kind, uint64_t rows, uint32_t width = 1)
      : here(abi::some_weights(kind, rows, width)), there(here), sent(here.words()), received(here.words()) {}
  bytes send(client::context& c, const std::string& text, const weights& now) {
    const bytes frame = client::encode(c, text, {sent_by(here, now, sent)});
    here = now;
    return frame;
  }
  void receive(client::context& c, const bytes& frame) {
    const dr_status s = abi::apply(c, frame, {received_by(there, received)});
    INFO(c.error());
    REQUIRE(s == DR_OK);
    REQUIRE(there.data == here.data);
    REQUIRE(received == sent);
  }
};

}  // namespace

TEST_CASE("a chain of patches goes by its history: of every type, width and plan both sides advance it alike") {
  client::context one, threads(3);
  for (const abi::word_kind kind : abi::word_kinds)
    for (const uint32_t width : {1u, 3u})
      for (const char* text :
           {by_history, "sparsify=changed index=golomb value=history", "sparsify=changed index=all value=history",
            "sparsify=changed(max_ratio=0.05) index=golomb value=history", "sparsify=changed index=auto value=ulp",
            "sparsify=changed index=history value=raw"}) {
        if (width > 1 && (mentions(text, "index=history") || mentions(text, "auto"))) continue;
        INFO(text << ", " << kind.name << " of width " << width);
        chain run(kind, 3001, width);
        for (const double share : {0.1, 0.1, 0.0, 1.0, 0.02, 0.1, 0.1, 0.5})
          run.receive(threads, run.send(one, text, stepped(run.here, run.sent[7] + 3, share)));
        CHECK(std::count(run.sent.begin(), run.sent.end(), 0) < static_cast<long>(run.sent.size()) / 4);
      }
}

TEST_CASE("a chain of weights that continue as they went is a fifth shorter by its history") {
  client::context c;
  chain with(abi::word_kinds[2], 200000);
  size_t by_it = 0, without = 0;
  for (uint64_t step = 0; step < 12; ++step) {
    const weights now = stepped(with.here, step, 0.05);
    without += client::encode(c, "sparsify=changed index=auto value=ulp", {abi::patch_of(with.here, now)}).size();
    const bytes frame = with.send(c, by_history, now);
    by_it += frame.size();
    with.receive(c, frame);
  }
  CHECK(by_it < 0.8 * without);
}

TEST_CASE("a history in segments and of several tensors, with sums: pairs read it as whole weights do") {
  client::context c;
  dr_call call{};
  for (const uint64_t rows : {4096, 9000}) {
    call.segment_rows = rows;
    chain a(abi::word_kinds[2], 20001), b(abi::word_kinds[0], 50);
    std::vector<uint64_t> ours = a.here.sums(), theirs = ours;
    for (uint64_t step = 0; step < 5; ++step) {
      const weights now = stepped(a.here, step, 0.1), small = stepped(b.here, step, 0.5);
      const bytes before(a.received),
          frame = abi::encode_segmented(c, by_history,
                                        {sent_by(a.here, now, a.sent, &ours), sent_by(b.here, small, b.sent)}, call);
      a.here = now;
      b.here = small;
      // As pairs: sums and history move, the weights do not.
      bytes other = a.received, other_small = b.received;
      abi::word_pairs got{std::vector<uint64_t>(20001), bytes(2 * 20001)};
      dr_tensor_out pairs = received_by(a.there, other);
      pairs.index_dtype = DR_U64;
      pairs.indices = got.indices.data();
      pairs.base = a.there.data.data();
      pairs.values = got.values.data();
      pairs.capacity = 20001;
      weights copy = b.there;
      std::vector<dr_tensor_out> outs{pairs, received_by(copy, other_small)};
      const dr_decode_options options = abi::applying();
      REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), &options, outs.data(), sizeof pairs, 2) ==
              DR_OK);
      got.indices.resize(outs[0].count);
      got.values.resize(2 * outs[0].count);
      CHECK(got == abi::difference(a.there, now));
      CHECK(other == a.sent);
      REQUIRE(abi::apply(c, frame, {received_by(a.there, a.received, &theirs), received_by(b.there, b.received)}) ==
              DR_OK);
      CHECK(a.there.data == now.data);
      CHECK(b.there.data == small.data);
      CHECK(a.received == a.sent);
      CHECK(b.received == b.sent);
      CHECK(theirs == now.sums());
    }
  }
}

TEST_CASE("a patch that goes by another history is refused, says so, and nothing is written") {
  client::context c;
  for (const char* text :
       {by_history, "sparsify=changed index=golomb value=history", "sparsify=changed index=history value=raw"}) {
    INFO(text);
    chain run(abi::word_kinds[2], 5000);
    // Before the first patch a history is zeros, as none is.
    const bytes first = run.send(c, text, stepped(run.here, 1, 0.2));
    weights late = run.there;
    CHECK(abi::apply(c, first, {late.out()}) == DR_OK);
    CHECK(late.data == run.here.data);
    run.receive(c, first);
    std::vector<uint64_t> sums = run.there.sums(), kept = sums;
    const bytes second = run.send(c, text, stepped(run.here, 2, 0.2)), had = run.received, words = run.there.data;
    bytes wrong = had;
    size_t at = 0;  // of a word that changes: of others a value codec sees nothing
    while (run.there.word(at) == run.here.word(at)) ++at;
    wrong[at] ^= 1;
    for (bytes* history : {static_cast<bytes*>(nullptr), &wrong}) {
      dr_tensor_out out = run.there.out(&sums);
      if (history) out.history = history->data();
      const bytes before = wrong;
      CHECK(abi::apply(c, second, {out}) == DR_E_CORRUPT);
      CHECK(mentions(c.error(), "the history of these weights is another than their sender's"));
      CHECK(run.there.data == words);
      CHECK(sums == kept);
      CHECK(wrong == before);
    }
    run.receive(c, second);
  }
}

TEST_CASE("histories stay where a call fails: no room for a frame, another base, a damaged patch") {
  client::context c;
  chain run(abi::word_kinds[2], 5000);
  run.receive(c, run.send(c, by_history, stepped(run.here, 1, 0.2)));
  const weights now = stepped(run.here, 2, 0.2);
  const bytes had = run.sent;
  const client::plan plan(by_history);
  const dr_tensor t = sent_by(run.here, now, run.sent);
  bytes room(64);
  dr_result result{.struct_size = sizeof(dr_result)};
  CHECK(dr_encode(c.handle, plan.handle, nullptr, nullptr, &t, sizeof t, 1, room.data(), room.size(), &result) ==
        DR_E_CAPACITY);
  CHECK(run.sent == had);
  bytes frame = run.send(c, by_history, now);
  weights other = run.there;
  other.set(9, other.word(9) ^ 1);
  CHECK(abi::apply(c, frame, {received_by(other, run.received)}) == DR_E_ARGUMENT);
  CHECK(run.received == had);
  frame[frame.size() / 2] ^= 4;
  CHECK(abi::apply(c, frame, {received_by(run.there, run.received)}) == DR_E_CORRUPT);
  CHECK(run.received == had);
  frame[frame.size() / 2] ^= 4;
  run.receive(c, frame);
}

TEST_CASE("a history is of patches: gradients have none, and neither have their outputs") {
  client::context c;
  client::floats g = client::laplace(100, 3);
  bytes history(100);
  dr_tensor t = client::dense(g);
  t.history = history.data();
  const client::plan plan("sparsify=topr(ratio=0.1) index=golomb");
  bytes room(4096);
  dr_result result{.struct_size = sizeof(dr_result)};
  CHECK(dr_encode(c.handle, plan.handle, nullptr, nullptr, &t, sizeof t, 1, room.data(), room.size(), &result) ==
        DR_E_ARGUMENT);
  CHECK(mentions(c.error(), "has a history"));
  t.history = nullptr;
  const bytes frame = client::encode(c, "sparsify=topr(ratio=0.1) index=golomb", {t});
  dr_tensor_out out = client::dense_out(g);
  out.history = history.data();
  CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == DR_E_ARGUMENT);
  CHECK(mentions(c.error(), "has a history"));
  dr_error error{.struct_size = sizeof(dr_error)};
  dr_plan* p = nullptr;
  for (const char* text : {"index=history value=raw", "index=raw value=history"}) {
    CHECK(dr_plan_parse(text, &p, &error) == DR_E_ARGUMENT);
    CHECK(mentions(error.message, "sparsify=changed"));
  }
}
