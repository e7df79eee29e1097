// Calls that are wrong: each is an error that says what is wrong, and the sender goes on.
#include <array>

#include "sender_world.hpp"

using namespace sending;

namespace {

constexpr const char* owners = "*: index=golomb value=raw exchange=owner";
constexpr const char* factors = "*: transform=lowrank(rank=2) feedback=residual";

// Of the sender's first rank.
struct caller {
  world w;
  rank& me;
  std::vector<client::bytes> rooms;  // slots of the units
  client::bytes sum;

  caller(std::vector<tensor> tensors, settings how) : w(std::move(tensors), std::move(how)), me(*w.ranks[0]) {
    for (size_t u = 0; u < world::units(me); ++u) {
      rooms.emplace_back(w.unit(u).slots * w.unit(u).bound);
      sum.resize(std::max<size_t>(sum.size(), w.unit(u).sum_bound));
    }
    w.set_random(1);
  }

  std::string words() const { return me.context.error(); }
  bool says(dr_status made, dr_status expected, const std::string& part) const {
    INFO(words());
    CHECK(made == expected);
    return words().find(part) != std::string::npos;
  }
  dr_status encode(size_t unit = 0, dr_call call = world::call(0, 0)) {
    return dr_sender_encode(me.sender, unit, &call, rooms[0].data(), rooms[0].size(), nullptr);
  }
  dr_status merge(std::vector<dr_bytes> slots, dr_call call = world::call(0, 0)) {
    return dr_sender_merge(me.sender, 0, &call, slots.data(), slots.size(), nullptr);
  }
  dr_status add_up(std::vector<dr_bytes> slots, dr_call call = world::call(0, 0)) {
    return dr_sender_sum(me.sender, 0, &call, slots.data(), slots.size(), sum.data(), sum.size(), nullptr);
  }
  dr_bytes slot() const { return {rooms[0].data(), rooms[0].size()}; }
};

dr_status create(const settings& how, const tensor& of, std::string& words, uint32_t rank = 0) {
  world w({}, {.ranks = 0});
  w.tensors = {of};
  w.how = how;
  dr_status status = DR_OK;
  w.make(rank, status, words);
  return status;
}

}  // namespace

TEST_CASE("options and tensors that no sender has are refused, by name") {
  const tensor a{.name = "a", .elements = 300};
  std::string words;
  const auto refused = [&](const settings& how, const tensor& of, dr_status status, const char* part,
                           uint32_t rank = 0) {
    CHECK(create(how, of, words, rank) == status);
    INFO(words);
    CHECK(words.find(part) != std::string::npos);
  };
  refused({.ranks = 65537}, a, DR_E_ARGUMENT, "65537 ranks, not in 1 … 65536");
  refused({.ranks = 3}, a, DR_E_ARGUMENT, "rank 3 is not below 3 ranks", 3);
  refused({.flags = 1u << 20}, a, DR_E_UNSUPPORTED, "unknown flags 0x100000");
  refused({.flags = DR_SENDER_ZEROS}, a, DR_E_ARGUMENT, "DR_SENDER_ZEROS is of devices");
  refused({.flags = DR_SENDER_SKIP, .on_device = true}, a, DR_E_UNSUPPORTED, "DR_SENDER_SKIP runs on the CPU only");
  refused({.flat = 9}, a, DR_E_ARGUMENT, "flat is 9");
  refused({.ranks = 2, .flags = DR_SENDER_SCATTER}, {.name = "a", .elements = 301}, DR_E_ARGUMENT,
          "a: 301 elements are not shards for 2 ranks");
  refused({.book = factors, .ranks = 2, .flags = DR_SENDER_SCATTER}, {.name = "a", .elements = 40000, .rows = 200},
          DR_E_UNSUPPORTED, "shards have no matrices");
  refused({.book = "*: sparsify=changed index=golomb value=ulp"}, a, DR_E_UNSUPPORTED, "makes patches of weights");
  refused({.book = "*: transform=dct index=all"}, {.name = "a", .elements = 3000, .dtype = DR_BF16}, DR_E_ARGUMENT,
          "a is bf16; the plan `index=all value=raw transform=dct` accepts f32");
  const auto sparse = [](uint64_t elements, uint64_t rows) {
    return tensor{.name = "a", .elements = elements, .plan = "index=golomb value=raw", .rows = rows, .is_sparse = true};
  };
  refused({}, {.name = "a", .elements = uint64_t{1} << 57}, DR_E_ARGUMENT,
          "a: 144115188075855872 elements; at most 72057594037927936");
  refused({}, {.name = "a", .elements = 301, .rows = 2}, DR_E_ARGUMENT, "a: 301 elements are not 2 rows");
  refused({}, sparse(0, 30), DR_E_ARGUMENT, "a: rows of 0 elements");
  refused({}, sparse(uint64_t{30} << 32, 30), DR_E_UNSUPPORTED,
          "a: a row of 4294967296 elements, 2^32 - 1 is the most");
}

TEST_CASE("places that a tensor cannot have are refused, by its name, and the others stay") {
  const std::string residual = "*: sparsify=topr(ratio=0.1) feedback=residual index=golomb";
  caller plain({{"a", 300}, {"b", 300}}, {.book = residual}),
      lent({{"a", 300}}, {.book = residual, .flags = DR_SENDER_CALLER_STATES});
  alignas(8) std::array<std::byte, 2000> room{};
  void* const good = room.data();
  void* const odd = room.data() + 1;
  void* const none = nullptr;
  const auto place = [](caller& c, size_t first, size_t n, void* const* in, void* const* out, void* const* states) {
    return dr_sender_place(c.me.sender, first, n, in, out, states);
  };
  CHECK(plain.says(place(plain, 1, 2, &good, nullptr, nullptr), DR_E_ARGUMENT, "tensors 1 … 3: the sender has 2"));
  CHECK(plain.says(place(plain, 3, 0, nullptr, nullptr, nullptr), DR_E_ARGUMENT, "the sender has 2"));
  CHECK(plain.says(place(plain, 0, 1, nullptr, nullptr, &good), DR_E_ARGUMENT,
                   "created without DR_SENDER_CALLER_STATES"));
  CHECK(plain.says(place(plain, 1, 1, &none, nullptr, nullptr), DR_E_ARGUMENT, "b: in is NULL"));
  CHECK(dr_last_error(plain.me.context.handle)->tensor == 1);
  CHECK(plain.says(place(plain, 0, 1, &odd, nullptr, nullptr), DR_E_ARGUMENT, "a: in is not aligned to its type"));
  CHECK(plain.says(place(plain, 0, 1, nullptr, &none, nullptr), DR_E_ARGUMENT, "a: out is NULL"));
  CHECK(plain.says(place(plain, 0, 1, nullptr, &odd, nullptr), DR_E_ARGUMENT, "a: out is not aligned to its type"));
  CHECK(lent.says(place(lent, 0, 1, nullptr, nullptr, &none), DR_E_ARGUMENT, "a: its state is NULL"));
  CHECK(lent.says(place(lent, 0, 1, nullptr, nullptr, &odd), DR_E_ARGUMENT, "a: its state is not aligned to 8"));
  CHECK(plain.w.all_ok(0));
}

TEST_CASE("calls that do not fit their unit are refused, and the next step is sound") {
  caller c({{"a", 3000}}, {});
  CHECK(c.says(c.encode(1), DR_E_ARGUMENT, "unit: 1 is not below the 1 units"));
  const dr_call of_step = world::call(0, 0);
  const dr_bytes none{};
  CHECK(c.says(dr_sender_merge(c.me.sender, 1, &of_step, &none, 1, nullptr), DR_E_ARGUMENT,
               "unit: 1 is not below the 1 units"));
  dr_call tagged = world::call(0, 0);
  tagged.tag = 7;
  CHECK(c.says(c.encode(0, tagged), DR_E_UNSUPPORTED, "step, seeds and trace only"));
  CHECK(c.says(c.merge({c.slot(), c.slot()}, tagged), DR_E_UNSUPPORTED, "step, seeds and trace only"));
  const dr_call call = world::call(0, 0);
  CHECK(c.says(dr_sender_encode(c.me.sender, 0, &call, c.rooms[0].data(), 10, nullptr), DR_E_CAPACITY,
               "slots: 10 bytes; "));
  CHECK(dr_last_error(c.me.context.handle)->needed == c.rooms[0].size());
  CHECK(c.says(dr_sender_encode(c.me.sender, 0, &call, nullptr, 0, nullptr), DR_E_ARGUMENT, "slots is NULL; "));
  CHECK(c.says(c.add_up({c.slot(), c.slot()}), DR_E_ARGUMENT, "there are no sums"));
  CHECK(c.encode() == DR_OK);
  CHECK(c.says(c.merge({c.slot()}), DR_E_ARGUMENT, "slots: 1; the sender is one of 2 ranks"));
  CHECK(c.says(c.merge({c.slot(), c.slot()}, world::call(5, 0)), DR_E_ARGUMENT,
               "slots: of step 0, and the call is of step 5"));
  CHECK(c.says(dr_sender_use_stream(c.me.sender, nullptr), DR_E_ARGUMENT, "on the CPU"));
  CHECK(c.says(dr_sender_scale(c.me.sender, NAN), DR_E_ARGUMENT, "factor: nan is not finite"));
  alignas(8) std::array<std::byte, 64> state{};
  CHECK(c.says(dr_sender_read_state(c.me.sender, 0, 3, state.data(), 64), DR_E_ARGUMENT,
               "which: 3 is not one of DR_STATE_*"));
  CHECK(c.says(dr_sender_read_state(c.me.sender, 0, 0, state.data(), 64), DR_E_ARGUMENT, "a: its state has "));
  for (const auto& r : c.w.ranks) CHECK(dr_sender_take_back(r->sender, 0) == DR_OK);
  CHECK(c.w.all_ok(1));
}

TEST_CASE("slots of another unit are refused") {
  caller a({{"a", 3000}}, {}), b({{"b", 3000}}, {});
  REQUIRE(a.encode() == DR_OK);
  REQUIRE(b.encode() == DR_OK);
  CHECK(a.says(a.merge({b.slot(), b.slot()}), DR_E_ARGUMENT, "of other tensors, or another plan, than this unit"));
}

TEST_CASE("tensors that were not placed are named") {
  client::context other;
  for (const char* const plan :
       {"sparsify=topr(ratio=0.1) feedback=residual index=golomb", "index=golomb value=raw exchange=owner"}) {
    dr_named_tensor n{};
    n.struct_size = sizeof n;
    n.name = "a";
    n.dtype = DR_F32;
    n.elements = 3000;
    const client::plan p(plan);
    n.plan = p.handle;
    dr_sender* s = nullptr;
    REQUIRE(dr_sender_create(other.handle, nullptr, nullptr, &n, sizeof n, 1, nullptr, &s) == DR_OK);
    client::bytes room(100000);
    const dr_call call = world::call(0, 0);
    CHECK(dr_sender_encode(s, 0, &call, room.data(), room.size(), nullptr) == DR_E_ARGUMENT);
    CHECK(other.error() == "a: was not placed");
    std::vector<float> values(3000, 1);
    const void* in = values.data();
    REQUIRE(dr_sender_place(s, 0, 1, &in, nullptr, nullptr) == DR_OK);
    REQUIRE(dr_sender_encode(s, 0, &call, room.data(), room.size(), nullptr) == DR_OK);
    const dr_bytes slot{room.data(), room.size()};
    CHECK(dr_sender_merge(s, 0, &call, &slot, 1, nullptr) == DR_E_ARGUMENT);
    CHECK(other.error() == "a: its output was not placed");
    dr_sender_destroy(s);
  }
}

TEST_CASE("a clip names the tensor that was not placed") {
  client::context context;
  const client::plan plan("sparsify=topr(ratio=0.1) feedback=dgc(clip=1) index=golomb");
  dr_named_tensor named[2]{};
  for (size_t t = 0; t < 2; ++t)
    named[t] = {
        .struct_size = sizeof *named, .name = t ? "b" : "a", .dtype = DR_F32, .elements = 3000, .plan = plan.handle};
  const dr_sender_options options{.struct_size = sizeof options, .ranks = 1, .unit_bytes = 1};
  dr_sender* s = nullptr;
  REQUIRE(dr_sender_create(context.handle, nullptr, nullptr, named, sizeof *named, 2, &options, &s) == DR_OK);
  dr_sender_info info{sizeof info};
  REQUIRE(dr_sender_describe(s, &info, nullptr) == DR_OK);
  REQUIRE(info.clips == 1);
  const std::vector<float> values(3000, 1);
  const void* in = values.data();
  REQUIRE(dr_sender_place(s, 0, 1, &in, nullptr, nullptr) == DR_OK);
  CHECK(dr_sender_clip(s) == DR_E_ARGUMENT);
  CHECK(context.error() == "b: was not placed");
  REQUIRE(dr_sender_place(s, 1, 1, &in, nullptr, nullptr) == DR_OK);
  CHECK(dr_sender_clip(s) == DR_OK);
  dr_sender_destroy(s);
}

namespace {

// Places two tensors with states of the caller's, which it returns after a step.
std::vector<std::vector<uint64_t>> states_of_one_step(caller& c) {
  std::vector<std::vector<uint64_t>> memory;
  std::vector<void*> states;
  for (size_t t = 0; t < 2; ++t) {
    memory.emplace_back(c.w.sent_tensor(t).state / 8 + 1);
    states.push_back(memory[t].data());
  }
  std::vector<const void*> in{c.me.in[0].data(), c.me.in[1].data()};
  std::vector<void*> out{c.me.out[0].data(), c.me.out[1].data()};
  REQUIRE(dr_sender_place(c.me.sender, 0, 2, in.data(), out.data(), states.data()) == DR_OK);
  REQUIRE(c.encode() == DR_OK);
  REQUIRE(c.merge({c.slot()}) == DR_OK);
  return memory;
}

}  // namespace

TEST_CASE("frames: a state of the caller that does not fit is named, and the others stay") {
  caller c({{.name = "a", .elements = 3000}, {.name = "b", .elements = 2000}},
           {.ranks = 1, .flags = DR_SENDER_CALLER_STATES});
  std::vector<std::vector<uint64_t>> memory = states_of_one_step(c);
  const auto before = memory;
  const auto outs = c.me.out;
  std::vector<uint64_t> other = memory[1];
  other[1] ^= 7;  // its elements, say
  void* const moved = other.data();
  REQUIRE(dr_sender_place(c.me.sender, 1, 1, nullptr, nullptr, &moved) == DR_OK);
  const dr_call next = world::call(1, 0);
  CHECK(c.encode(0, next) == DR_E_ARGUMENT);
  INFO(c.words());
  CHECK(c.words().rfind("b: ", 0) == 0);
  CHECK(dr_last_error(c.me.context.handle)->tensor == 1);
  REQUIRE(dr_sender_take_back(c.me.sender, 1) == DR_OK);
  CHECK(memory == before);
  CHECK(c.me.out == outs);
  void* const back = memory[1].data();
  REQUIRE(dr_sender_place(c.me.sender, 1, 1, nullptr, nullptr, &back) == DR_OK);
  CHECK(c.encode(0, world::call(2, 0)) == DR_OK);
  CHECK(c.merge({c.slot()}, world::call(2, 0)) == DR_OK);
}

TEST_CASE("sums: calls that do not fit are refused") {
  caller c({{"a", 3000}}, {.book = owners, .dense_below = 0});
  REQUIRE(c.encode() == DR_OK);
  const dr_call call = world::call(0, 0);
  const dr_bytes slots[] = {c.slot(), c.slot()};
  CHECK(c.says(dr_sender_sum(c.me.sender, 0, &call, slots, 2, c.sum.data(), 3, nullptr), DR_E_CAPACITY,
               "slots: 3 bytes"));
  CHECK(c.says(dr_sender_sum(c.me.sender, 9, &call, slots, 2, c.sum.data(), c.sum.size(), nullptr), DR_E_ARGUMENT,
               "unit: 9"));
  dr_call tagged = call;
  tagged.tag = 1;
  CHECK(c.says(c.add_up({c.slot(), c.slot()}, tagged), DR_E_UNSUPPORTED, "step, seeds and trace only"));
}

TEST_CASE("numbers: calls that do not fit are refused, halves and factors, in f32 and half types") {
  for (const dr_dtype type : {DR_F32, DR_F16, DR_BF16})
    for (const bool halves : {false, true}) {
      CAPTURE(halves);
      const settings how{.book = halves ? "*: index=all value=half(type=bf16) feedback=residual" : factors,
                         .flags = halves ? uint32_t{DR_SENDER_HALVES} : 0u,
                         .dense_below = 0};
      caller c({{.name = "a", .elements = 3000, .dtype = type, .rows = 50}}, how);
      const dr_unit_info info = c.w.unit(0);
      REQUIRE(info.numbers);
      client::bytes shifted(c.rooms[0].size() + 8);
      const dr_call call = world::call(0, 0);
      const auto* const odd = shifted.data() + 1;
      CHECK(c.says(dr_sender_encode(c.me.sender, 0, &call, shifted.data() + 1, shifted.size() - 1, nullptr),
                   DR_E_ARGUMENT, "slots: not aligned to their numbers"));
      const auto read = [&](std::vector<dr_bytes> slots, dr_call of = world::call(0, 0)) {
        return info.sum_slot ? c.add_up(std::move(slots), of) : c.merge(std::move(slots), of);
      };
      REQUIRE(c.encode() == DR_OK);
      CHECK(c.says(read({c.slot(), c.slot()}), DR_E_ARGUMENT, "slots: 2; the sum of all ranks' is one"));
      CHECK(c.says(read({{c.rooms[0].data(), 5}}), DR_E_ARGUMENT, "slots: 5 bytes; the sum has "));
      CHECK(c.says(read({{odd, shifted.size() - 1}}), DR_E_ARGUMENT, "slots: not aligned to their numbers"));
      if (!info.sum_slot)
        CHECK(c.says(read({c.slot()}, world::call(3, 0)), DR_E_ARGUMENT, "unit: step 3 was not encoded"));
      REQUIRE(dr_sender_take_back(c.me.sender, 0) == DR_OK);
      world sound(c.w.tensors, how);
      for (uint64_t step = 0; step < 3; ++step) {
        sound.set_random(step);
        CHECK(sound.all_ok(step));
        CHECK(sound.agree());
      }
    }
}

TEST_CASE("factors: calls in another order are refused, write nothing, and the next step is sound") {
  caller c({{.name = "m", .elements = 4096, .rows = 64}, {.name = "v", .elements = 100000, .rows = 1}},
           {.book = factors, .ranks = 1, .dense_below = 0});
  REQUIRE(c.w.unit(0).sum_slot);
  const auto sum = [&] { return dr_bytes{c.sum.data(), c.sum.size()}; };
  for (uint64_t step = 0; step < 2; ++step) {
    const dr_call call = world::call(step, 0);
    CHECK(c.says(c.add_up({c.slot()}, call), DR_E_ARGUMENT, "was not encoded"));
    REQUIRE(c.encode(0, call) == DR_OK);
    CHECK(c.says(c.merge({sum()}, call), DR_E_ARGUMENT, "its sums were not given"));
    REQUIRE(c.add_up({c.slot()}, call) == DR_OK);
    CHECK(c.says(c.add_up({c.slot()}, call), DR_E_ARGUMENT, "was given already"));
    REQUIRE(c.merge({sum()}, call) == DR_OK);
    CHECK(c.says(c.merge({sum()}, call), DR_E_ARGUMENT, "was merged already"));
    CHECK(c.says(c.add_up({c.slot()}, call), DR_E_ARGUMENT, "was given already"));
  }
  const dr_call last = world::call(2, 0);
  REQUIRE(c.encode(0, last) == DR_OK);
  REQUIRE(dr_sender_take_back(c.me.sender, 2) == DR_OK);
  CHECK(c.says(c.add_up({c.slot()}, last), DR_E_ARGUMENT, "was not encoded"));
}

TEST_CASE("halves: a state of the caller that does not fit is refused, and taking the step back changes nothing") {
  caller c({{.name = "a", .elements = 300}, {.name = "b", .elements = 200}},
           {.book = "*: index=all value=half feedback=residual",
            .ranks = 1,
            .flags = DR_SENDER_HALVES | DR_SENDER_CALLER_STATES});
  std::vector<std::vector<uint64_t>> memory = states_of_one_step(c);
  const auto before = memory;
  const dr_call next = world::call(1, 0);
  memory[1][1] ^= 7;  // its elements, say
  CHECK(c.encode(0, next) == DR_E_ARGUMENT);
  CHECK(c.words().rfind("b: ", 0) == 0);
  REQUIRE(dr_sender_take_back(c.me.sender, 1) == DR_OK);
  CHECK(memory[0] == before[0]);
  memory[1] = before[1];
  REQUIRE(c.encode(0, next) == DR_OK);
}

TEST_CASE("rows: calls that do not fit are refused, and a step that is skipped has one row of NaN") {
  for (const dr_dtype type : {DR_F32, DR_BF16}) {
    caller c({{.name = "a",
               .elements = 300,
               .dtype = type,
               .plan = "index=golomb value=raw",
               .rows = 30,
               .is_sparse = true}},
             {.ranks = 1, .flags = DR_SENDER_SKIP});
    alignas(8) std::array<uint32_t, 4> keys{1, 2, 3, 4};
    dr_sent_rows rows{};
    rows.struct_size = sizeof rows;
    CHECK(c.says(c.encode(), DR_E_ARGUMENT, "a: its rows were not placed"));
    CHECK(c.says(dr_sender_rows(c.me.sender, 0, &rows), DR_E_ARGUMENT, "a: no rows were merged"));
    const auto place = [&](uint64_t count, const void* indices, const void* values, dr_dtype index) {
      dr_sent_rows given{};
      given.struct_size = sizeof given;
      given.count = count;
      given.indices = indices;
      given.values = values;
      given.index_dtype = index;
      return dr_sender_place_rows(c.me.sender, 0, &given);
    };
    const uint8_t* const values = c.me.in[0].data();
    CHECK(c.says(place(4, keys.data(), values, DR_F32), DR_E_ARGUMENT, "a: rows: index_dtype is "));
    CHECK(c.says(place(31, keys.data(), values, DR_U32), DR_E_ARGUMENT, "a: rows: 31 of a tensor of 30"));
    CHECK(c.says(place(4, nullptr, values, DR_U32), DR_E_ARGUMENT, "a: rows: indices is NULL"));
    CHECK(c.says(place(4, keys.data(), nullptr, DR_U32), DR_E_ARGUMENT, "a: rows: values is NULL"));
    CHECK(c.says(place(4, reinterpret_cast<const uint8_t*>(keys.data()) + 1, values, DR_U32), DR_E_ARGUMENT,
                 "a: rows: indices or values are not aligned"));
    c.w.set(0, 0, std::vector<float>(300, std::nanf("")));
    REQUIRE(place(4, keys.data(), values, DR_U32) == DR_OK);
    REQUIRE(c.encode() == DR_OK);
    const dr_call call = world::call(0, 0);
    const dr_bytes slot = c.slot();
    dr_sent sent{};
    sent.struct_size = sizeof sent;
    REQUIRE(dr_sender_merge(c.me.sender, 0, &call, &slot, 1, &sent) == DR_OK);
    CHECK(sent.skips == 1);
    c.me.out[0].data()[0] = 7;
    REQUIRE(dr_sender_skip(c.me.sender, 0) == DR_OK);
    CHECK(c.me.out[0].data()[0] == 7);  // rows have an output of their own
    REQUIRE(dr_sender_rows(c.me.sender, 0, &rows) == DR_OK);
    CHECK(rows.count == 1);
    CHECK(std::isnan(number(static_cast<const uint8_t*>(rows.values), type)));
  }
  caller dense({{"a", 300}}, {});
  dr_sent_rows rows{};
  rows.struct_size = sizeof rows;
  CHECK(dense.says(dr_sender_place_rows(dense.me.sender, 0, &rows), DR_E_ARGUMENT, "a: its gradient is dense"));
  CHECK(dense.says(dr_sender_rows(dense.me.sender, 0, &rows), DR_E_ARGUMENT, "a: no rows were merged"));
}

TEST_CASE("a dry sender tells of units and encodes nothing, on a device, too") {
  for (const bool on_device : {false, true}) {
    const settings how{.book = owners, .flags = DR_SENDER_DRY, .on_device = on_device};
    std::string words;
    dr_status status = DR_OK;
    world w({}, {.ranks = 0});
    w.tensors = {{"a", 3000}};
    w.how = how;
    const auto r = w.make(0, status, words);
    REQUIRE(status == DR_OK);
    const dr_call call = world::call(0, 0);
    CHECK(world::units(*r) == 1);
    CHECK(dr_sender_encode(r->sender, 0, &call, r->in[0].data(), r->in[0].size(), nullptr) == DR_E_UNSUPPORTED);
    CHECK(r->context.error().find("DR_SENDER_DRY") != std::string::npos);
    CHECK(dr_sender_resume(r->sender, 2, 1) == DR_OK);
    CHECK(dr_sender_take_back(r->sender, 3) == DR_OK);
    CHECK(dr_sender_scale(r->sender, 0.5) == DR_OK);
  }
}
