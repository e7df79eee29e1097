// Slots whose headers are sealed as a sender seals them, with fields that no sender writes.
#include <algorithm>

#include "sender_world.hpp"
#include "slot_check.hpp"

using namespace sending;

namespace {

using slot_check::field, slot_check::fields, slot_check::head_size;

uint64_t read(const client::bytes& slot, const field& f) {
  uint64_t x = 0;
  std::memcpy(&x, slot.data() + f.at, f.bytes);
  return x;
}
void write(client::bytes& slot, const field& f, uint64_t x) { std::memcpy(slot.data() + f.at, &x, f.bytes); }

std::vector<uint64_t> hostile(uint64_t x, size_t bytes) {
  const uint64_t max = bytes == 8 ? UINT64_MAX : UINT32_MAX;
  std::vector<uint64_t> all{0, 1, 2, 4, 0x80, 0x100, 0x300, 0x400, x - 1, x + 1, max / 2 + 1, max - 1, max};
  for (uint64_t& v : all) v &= max;
  std::erase(all, x);
  return all;
}

struct way {
  const char* book;
  uint32_t flags;
};
const way ways[] = {
    {"a*: sparsify=topr(ratio=0.05) feedback=residual index=golomb\n*: index=all value=sign feedback=residual", 0},
    {"*: sparsify=topr(ratio=0.05) feedback=residual index=golomb", DR_SENDER_SKIP},
    {"a*: index=all value=uniform_quant(bits=4) exchange=owner\n*: index=golomb value=raw exchange=owner", 0},
    {"*: index=all value=uniform_quant(bits=8)", DR_SENDER_SCATTER},
};
constexpr size_t me = 0, liar = 1;

// What the receiver makes of slots of which the liar's `f` is `x`. untouched: the outputs, if it fails.
struct answer {
  dr_status status;
  dr_sent sent;
  dr_error error;
  bool untouched;
};

}  // namespace

TEST_CASE("a sealed header with a field out of its range is an error that names rank and field, and outputs stay") {
  for (const way& how : ways)
    for (const bool to_owner : {false, true}) {
      CAPTURE(how.book);
      CAPTURE(to_owner);
      world w({{"a", 3000}, {"b", 600}}, {.book = how.book, .ranks = 3, .flags = how.flags, .dense_below = 0});
      w.set_random(1);
      REQUIRE(w.all_ok(0));
      w.set_random(2);
      REQUIRE(w.all_ok(1));
      rank& self = *w.ranks[me];
      for (size_t u = 0; u < world::units(self); ++u) {
        const dr_unit_info info = w.unit(u);
        const bool owns = info.kind == DR_UNIT_OWNER, of_sums = owns && !to_owner;
        if (to_owner && !owns) continue;
        std::vector<client::bytes> sound = to_owner ? self.received[u] : self.all[u];
        const dr_call c = world::call(1, me);
        const auto ask = [&](const std::vector<client::bytes>& slots) {
          std::vector<dr_bytes> list;
          for (const auto& slot : slots) list.push_back({slot.data(), slot.size()});
          answer a{};
          a.sent.struct_size = sizeof a.sent;
          const auto outs = self.out;
          client::bytes sum(info.sum_bound);
          if (to_owner)
            a.status = dr_sender_sum(self.sender, u, &c, list.data(), list.size(), sum.data(), sum.size(), &a.sent);
          else
            a.status = dr_sender_merge(self.sender, u, &c, list.data(), list.size(), &a.sent);
          a.error = *dr_last_error(self.context.handle);
          a.untouched = outs == self.out;
          return a;
        };
        // (What it says in its own slot of a sum is the error that follows.)
        const auto status_of = [&](const answer& a) { return to_owner && !a.status ? a.sent.fault : a.status; };
        const answer good = ask(sound);
        REQUIRE(status_of(good) == DR_OK);
        if (to_owner && !good.sent.frames) continue;  // this rank owns nothing: what it got says nothing to it
        {                                             // the seal of this test is the sender's
          auto again = sound;
          slot_check::seal(again[liar].data(), info.frames);
          REQUIRE(again == sound);
        }
        std::vector<field> all(std::begin(fields), std::end(fields));
        for (size_t f = 0; f < info.frames; ++f) all.push_back({"size", head_size + 8 * f, 8});
        for (const field& f : all)
          for (const uint64_t x : hostile(read(sound[liar], f), f.bytes)) {
            CAPTURE(f.name);
            CAPTURE(x);
            auto slots = sound;
            write(slots[liar], f, x);
            slot_check::seal(slots[liar].data(), info.frames);
            const answer a = ask(slots);
            const std::string name = f.name, words = a.error.message;
            INFO(words);
            const dr_status status = status_of(a);
            const uint64_t before = read(sound[liar], f);
            const bool is_legal =
                name == "failed" ||  // of failures that all have it says nothing
                (name == "longest" && (!status || status == DR_E_CAPACITY)) ||  // the rest is to come
                (name == "tensor" && x <= w.tensors.size()) ||
                (name == "flags" && x == 1 && how.flags & DR_SENDER_SKIP) ||
                (name == "flags" && of_sums && x >> 8 && x >> 8 <= 3 && !(x & 0xff)) ||
                (to_owner && (name == "tag" || name == "failures"));  // this rank says it when it has the sums
            if (is_legal) {
              CHECK(a.sent.needed <= info.bound + info.sum_bound);
              if (name == "flags" && x == 1) CHECK(a.untouched);
              continue;
            }
            CHECK(status != DR_OK);
            CHECK(status != DR_E_CAPACITY);
            CHECK(a.untouched);
            CHECK(a.sent.needed == 0);
            CHECK(a.sent.skips == 0);
            CHECK(words.find("rank 1") != std::string::npos);
            if (name != "tag" || x >> 32 != before >> 32) CHECK(a.error.frame == liar);
            const char* const field_word = name == "tag" && x >> 32 == before >> 32 ? "step"
                                           : name == "tag"                          ? "sends other tensors"
                                           : name == "failures"                     ? "behind"
                                           : name == "longest"                      ? "its longest has"
                                           : name == "size"                         ? ""
                                           : name == "flags" && x == 2 && of_sums   ? "out of step"
                                           : name == "flags" && x == 1              ? "skip"
                                                                                    : name.c_str();
            CHECK(words.find(field_word) != std::string::npos);
          }
      }
    }
}

TEST_CASE("after a hostile header the next step is sound") {
  for (const field& f : fields) {
    CAPTURE(f.name);
    world w({{"a", 3000}}, {.ranks = 3});
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    w.on_the_way = [&](size_t, size_t from, size_t, client::bytes& slot) {
      if (from != liar) return;
      write(slot, f, f.bytes == 8 ? UINT64_MAX : UINT32_MAX);
      slot_check::seal(slot.data(), w.unit(0).frames);
    };
    for (const dr_status s : w.step(1)) CHECK((s != DR_OK) == (std::string_view(f.name) != "failed"));
    w.on_the_way = nullptr;
    CHECK(w.all_ok(2));
    CHECK(w.agree());
  }
}

TEST_CASE(
    "numbers: a sealed head that blames a tensor that no sender has fails the step of all, and names its rank alone") {
  world w({{"a", 3000}, {"b", 600}},
          {.book = "*: index=all value=half(type=bf16) feedback=residual", .flags = DR_SENDER_HALVES});
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  w.on_the_way = [&](size_t, size_t from, size_t, client::bytes& bytes) {
    if (from != liar) return;
    uint8_t* const head = bytes.data() + bytes.size() - slot_check::sum_size;  // the last rank's
    number_types::put(head + 16 * 2, DR_BF16, 99);                             // a digit of its tensor
    slot_check::seal_sum(head, DR_BF16);
  };
  w.set_random(2);
  const auto outs = w.ranks[me]->out;
  for (const dr_status s : w.step(1)) CHECK(s == DR_E_PEER);
  for (const auto& r : w.ranks) {
    CHECK(std::string(r->error.message).find("rank 1: ?: could not encode: ") == 0);
    CHECK(r->error.frame == liar);
    CHECK(r->error.tensor >= w.tensors.size());
  }
  CHECK(w.ranks[me]->out == outs);
  w.on_the_way = nullptr;
  CHECK(w.all_ok(2));
  CHECK(w.agree());
}

TEST_CASE("rows: a sealed slot that has more than its frame is CORRUPT, by rank and tensor, and has no rows") {
  world w({{.name = "a", .elements = 300, .plan = "index=golomb value=raw", .rows = 30, .is_sparse = true}},
          {.ranks = 1});
  const std::vector<uint32_t> at{3, 9};
  const std::vector<float> values(20, 2);
  dr_sent_rows rows{sizeof rows, at.size(), at.data(), values.data(), DR_U32, 0};
  dr_sender* const sender = w.ranks[0]->sender;
  REQUIRE(dr_sender_place_rows(sender, 0, &rows) == DR_OK);
  client::bytes sound(w.unit(0).bound);
  const dr_call call = world::call(0, 0);
  REQUIRE(dr_sender_encode(sender, 0, &call, sound.data(), sound.size(), nullptr) == DR_OK);
  const auto merge = [&](const client::bytes& slot) {
    const dr_bytes given{slot.data(), slot.size()};
    return dr_sender_merge(sender, 0, &call, &given, 1, nullptr);
  };
  const field size{"size", head_size, 8}, longest = fields[1];
  client::bytes longer = sound;
  write(longer, size, read(sound, size) + 8);
  write(longer, longest, read(sound, longest) + 8);
  slot_check::seal(longer.data(), 1);
  CHECK(merge(longer) == DR_E_CORRUPT);
  const std::string bytes = std::to_string(read(sound, size)), more = std::to_string(read(longer, size));
  CHECK(w.ranks[0]->context.error() == "rank 0: a: frame: " + bytes + " bytes in a message of " + more);
  CHECK(dr_sender_rows(sender, 0, &rows) == DR_E_ARGUMENT);
  CHECK(merge(sound) == DR_OK);
  REQUIRE(dr_sender_rows(sender, 0, &rows) == DR_OK);
  CHECK(rows.count == 2);
}
