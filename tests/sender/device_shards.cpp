// A reduce-scatter on a device, an emulated one: the shards and residuals of the CPU, errors a step later, hostile slots.
#include <deepreduce/deepreduce.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device_world.hpp"
#include "sender/slot_kernel.hpp"

using namespace sending;

namespace {

constexpr const char* coded[] = {
    "*: sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd",
    "*: sparsify=topr(ratio=0.1) feedback=residual(beta=0.5,gamma=0.75) index=golomb value=raw",
    "*: index=golomb value=uniform_quant(bits=4) feedback=residual",
    "*: sparsify=topr(ratio=0.02) index=rice value=qsgd", "*: index=all value=uniform_quant(bits=4) feedback=residual"};
constexpr uint64_t shards[] = {1001, 3, 2500};  // elements of a shard: parts of tensors begin anywhere

world made(const std::string& book, bool on_device, uint32_t ranks = 3, uint32_t flags = 0, dr_dtype dtype = DR_F32,
           int32_t order = 0) {
  std::vector<tensor> list;
  for (const uint64_t shard : shards) list.push_back({"w" + std::to_string(shard), ranks * shard, dtype});
  return {list,
          {.book = book,
           .ranks = ranks,
           .flags = flags | DR_SENDER_SCATTER,
           .flat = DR_NOT_FLAT,
           .dense_below = flags & DR_SENDER_SUM ? DR_DENSE_BELOW_BY_PLAN : 0,  // (of shards)
           .on_device = on_device,
           .order = order}};
}

std::vector<float> part(const std::vector<float>& x, size_t range, size_t shard) {
  const auto at = x.begin() + static_cast<std::ptrdiff_t>(range * shard);
  return {at, at + static_cast<std::ptrdiff_t>(shard)};
}

// A slot of a device, with other words behind the sizes of its one frame, sealed again.
void set_reason(client::bytes& slot, std::vector<uint64_t> words) {
  dr::slot_head head;
  std::memcpy(&head, slot.data(), sizeof head);
  std::memcpy(slot.data() + dr::prefix_size(1), words.data(), words.size() * sizeof words[0]);
  head.check = dr::check_of(head, slot.data() + sizeof head, dr::words_a_frame);
  std::memcpy(slot.data(), &head, sizeof head);
}

}  // namespace

TEST_CASE("a reduce-scatter on a device: shards and residuals of the CPU's, bit for bit, over steps") {
  for (const uint32_t ranks : {1u, 2u, 3u, 8u})
    for (const char* const book : coded)
      for (const dr_dtype dtype : {DR_F32, DR_BF16, DR_F16})
        for (const uint32_t flags : {0u, uint32_t{DR_SENDER_SUM}, uint32_t{DR_SENDER_F32}, uint32_t{DR_SENDER_ZEROS}}) {
          if (flags && (ranks == 8 || dtype == DR_F16)) continue;
          CAPTURE(ranks);
          CAPTURE(book);
          CAPTURE(dtype);
          CAPTURE(flags);
          world cpu = made(book, false, ranks, flags & ~uint32_t{DR_SENDER_ZEROS}, dtype);
          world device = made(book, true, ranks, flags, dtype, static_cast<int32_t>(ranks + flags + dtype));
          REQUIRE(device.unit(0).kind == DR_UNIT_SCATTER);
          REQUIRE(device.unit(0).slots == ranks);
          REQUIRE(device.unit(0).slot == device.unit(0).bound);
          for (uint64_t step = 0; step < 3; ++step) {
            CAPTURE(step);
            cpu.set_random(step);
            device.set_random(step);
            REQUIRE(cpu.all_ok(step));
            REQUIRE(device.all_ok(step));
            for (size_t r = 0; r < ranks; ++r) CHECK(cpu.ranks[r]->out == device.ranks[r]->out);
          }
          for (size_t r = 0; r < ranks; ++r) CHECK(same_residuals(cpu, device, r));
        }
}

TEST_CASE("a reduce-scatter on a device: a rank that cannot encode one shard is named by all, and nothing is lost") {
  constexpr size_t tensor = 0, shard = shards[tensor], range = 2, sound = 2;  // sound: of another unit
  for (const char* const book : {coded[0], coded[2], coded[3], coded[4]}) {
    CAPTURE(book);
    world cpu = made(book, false), device = made(book, true), zeros = made(book, true, 3, DR_SENDER_ZEROS);
    for (world* const w : {&cpu, &device, &zeros}) {
      w->set_random(1);
      REQUIRE(w->all_ok(1));
      w->set_random(2);
      spoil(*w, 1, tensor, range * shard + 77);
    }
    std::vector<std::vector<client::bytes>> before;
    for (const auto& r : device.ranks) before.push_back(r->out);
    const auto of_cpu = cpu.step(2);
    for (world* const w : {&device, &zeros}) {
      const auto status = w->step(2);
      for (size_t r = 0; r < 3; ++r) {
        CAPTURE(r);
        CHECK(of_cpu[r] == DR_E_PEER);
        CHECK(status[r] == DR_E_PEER);
        CHECK(w->ranks[r]->error.frame == 1);
        CHECK(w->ranks[r]->error.tensor == tensor);
        CHECK(std::string(w->ranks[r]->error.message) == cpu.ranks[r]->error.message);
      }
    }
    for (size_t r = 0; r < 3; ++r) {
      CAPTURE(r);
      CHECK(device.ranks[r]->out[tensor] == before[r][tensor]);
      CHECK(device.ranks[r]->out[sound] != before[r][sound]);
      CHECK(device.ranks[r]->out[sound] == cpu.ranks[r]->out[sound]);
      CHECK(zeros.ranks[r]->out[tensor] == client::bytes(before[r][tensor].size()));
      CHECK(zeros.ranks[r]->out[sound] == device.ranks[r]->out[sound]);
      // All that was sent is back, also what the rank sent of its other shards. (Of the shard that it could not encode a
      // device keeps the sum of gradient and residual.)
      for (size_t q = 0; q < 3; ++q)
        if (r != 1 || q != range)
          CHECK(part(cpu.residual(r, tensor), q, shard) == part(device.residual(r, tensor), q, shard));
    }
    for (uint64_t step = 3; step < 6; ++step)
      for (world* const w : {&device, &zeros}) {
        w->set_random(step);
        CHECK(w->all_ok(step));
      }
  }
}

TEST_CASE("a reduce-scatter on a device: states are whole before the check, too") {
  world cpu = made(coded[0], false), device = made(coded[0], true);
  for (world* const w : {&cpu, &device}) {
    w->set_random(1);
    REQUIRE(w->all_ok(1));
    w->set_random(2);
    spoil(*w, 1, 0, 5);
  }
  (void)cpu.step(2);
  device.checks = false;
  (void)device.step(2);
  // (A device takes the unit back that failed, the CPU all of the step.)
  for (const size_t r : {0, 2}) CHECK(cpu.residual(r, 0) == device.residual(r, 0));
  for (size_t r = 0; r < 3; ++r) CHECK(device.check(r, 2) == DR_E_PEER);
  for (const size_t r : {0, 2}) CHECK(cpu.residual(r, 0) == device.residual(r, 0));  // once
}

TEST_CASE("a reduce-scatter on a device: a damaged slot is CORRUPT, and nothing is lost") {
  for (size_t at : {size_t{3}, size_t{50}, size_t{90}, size_t{130}, size_t{300}}) {  // head, reason, frame
    CAPTURE(at);
    world cpu = made(coded[1], false), device = made(coded[1], true);
    for (uint64_t step = 0; step < 5; ++step) {
      CAPTURE(step);
      for (world* const w : {&cpu, &device}) {
        w->set_random(step);
        if (step == 2)
          w->on_the_way = [hit = w == &cpu ? size_t{3} : at](size_t u, size_t from, size_t, client::bytes& slot) {
            if (u == 0 && from == 2) slot[hit] ^= 0x40;
          };
      }
      const auto before = device.ranks[0]->out;
      const auto expected = cpu.step(step), status = device.step(step);
      for (world* const w : {&cpu, &device}) w->on_the_way = nullptr;
      for (size_t r = 0; r < 3; ++r) {
        INFO(device.ranks[r]->error.message);
        CHECK(status[r] == expected[r]);
        CHECK(status[r] == (step == 2 ? dr_status{DR_E_CORRUPT} : dr_status{DR_OK}));
        if (step == 2) CHECK(device.ranks[r]->error.frame == 2);
        if (step == 2) CHECK(std::string(device.ranks[r]->error.message).starts_with("rank 2: "));
        // (A device takes the unit back that failed, the CPU all of the step.)
        if (step != 2) CHECK(cpu.ranks[r]->out[0] == device.ranks[r]->out[0]);
      }
      if (step == 2) CHECK(device.ranks[0]->out[0] == before[0]);
    }
    // (Each rank takes its own slots, which were sound, back.)
    for (size_t r = 0; r < 3; ++r) CHECK(cpu.residual(r, 0) == device.residual(r, 0));
  }
}

TEST_CASE("a reduce-scatter on a device: a rank that failed alone is behind, and all name it in the next step") {
  world w = made(coded[0], true);
  for (uint64_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    w.set_random(step);
    if (step == 1)
      w.on_the_way = [](size_t u, size_t from, size_t to, client::bytes& slot) {
        if (u == 0 && from == 0 && to == 2) slot[150] ^= 1;
      };
    const auto status = w.step(step);
    w.on_the_way = nullptr;
    for (size_t r = 0; r < 3; ++r) {
      CAPTURE(r);
      if (step == 1) CHECK(status[r] == (r == 2 ? dr_status{DR_E_CORRUPT} : dr_status{DR_OK}));
      if (step == 2) {
        CHECK(status[r] == DR_E_ARGUMENT);
        CHECK(w.ranks[r]->error.reason == DR_REASON_OUT_OF_STEP);
        CHECK(w.ranks[r]->error.where == 1);
      }
      if (step != 1 && step != 2) CHECK(status[r] == DR_OK);
    }
  }
}

TEST_CASE("a reduce-scatter on a device: reasons that no sender writes are errors that name the rank") {
  const uint64_t most = UINT64_MAX;
  for (const std::vector<uint64_t>& words : {std::vector<uint64_t>{DR_E_ARGUMENT, 0, 0, 0},
                                             {most, most, most, most},
                                             {DR_E_ARGUMENT | most << 48, 0, 0, 0},
                                             {DR_E_ARGUMENT | uint64_t{0xff} << 40, 0, 0, 0},
                                             {DR_E_ARGUMENT | uint64_t{2} << 48, most, most, most},
                                             {DR_E_CORRUPT | uint64_t{2} << 48 | uint64_t{3} << 32, 0, most, most}}) {
    CAPTURE(words[0]);
    world w = made(coded[0], true);
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    const auto before = w.ranks[0]->out;
    w.on_the_way = [&](size_t, size_t from, size_t, client::bytes& slot) {
      if (from == 1) set_reason(slot, words);
    };
    const auto status = w.step(1);
    w.on_the_way = nullptr;
    for (size_t r = 0; r < 3; ++r) {
      INFO(w.ranks[r]->error.message);
      CHECK(status[r] == DR_E_PEER);
      CHECK(w.ranks[r]->error.frame == 1);
      CHECK(std::string(w.ranks[r]->error.message).starts_with("rank 1: could not encode ("));
    }
    CHECK(w.ranks[0]->out == before);
    w.set_random(2);
    CHECK(w.all_ok(2));
  }
}

TEST_CASE("a reduce-scatter on a device: a step that the host gives up goes back to the residuals") {
  for (const bool merged : {false, true}) {
    CAPTURE(merged);
    world cpu = made(coded[1], false), device = made(coded[1], true);
    for (uint64_t step = 0; step < 4; ++step) {
      CAPTURE(step);
      for (world* const w : {&cpu, &device}) {
        w->set_random(step);
        if (step != 2) {
          REQUIRE(w->all_ok(step));
          continue;
        }
        for (size_t u = 0; u < world::units(*w->ranks[0]); ++u) {
          const dr_unit_info info = w->unit(u);
          std::vector<client::bytes> sent;
          for (size_t r = 0; r < 3; ++r) {
            const dr_call c = world::call(step, r);
            client::bytes& slots = w->ranks[r]->sent[u][0];
            slots.assign(3 * info.bound, 0);
            REQUIRE(dr_sender_encode(w->ranks[r]->sender, u, &c, slots.data(), slots.size(), nullptr) == DR_OK);
          }
          for (size_t r = 0; r < 3 && merged && w == &device; ++r) {
            const dr_call c = world::call(step, r);
            std::vector<client::bytes> whole;
            for (size_t from = 0; from < 3; ++from) {
              const auto at = w->ranks[from]->sent[u][0].begin() + static_cast<std::ptrdiff_t>(r * info.bound);
              whole.emplace_back(at, at + static_cast<std::ptrdiff_t>(info.bound));
            }
            CHECK(world::merge_on_device(*w->ranks[r], u, c, whole) == DR_OK);
          }
        }
        for (size_t r = 0; r < 3; ++r) {
          CHECK(dr_sender_take_back(w->ranks[r]->sender, step) == DR_OK);
          CHECK(w->check(r, step) == DR_OK);
        }
      }
      for (size_t r = 0; r < 3; ++r) CHECK(same_residuals(cpu, device, r));
    }
  }
}

TEST_CASE("a reduce-scatter on a device: states move to the CPU and back") {
  for (const char* const book : {coded[0], coded[1]}) {
    world cpu = made(book, false), device = made(book, true);
    for (uint64_t step = 0; step < 2; ++step) {
      device.set_random(step);
      REQUIRE(device.all_ok(step));
    }
    const auto move = [](const world& from, const world& to) {
      for (size_t r = 0; r < 3; ++r)
        for (size_t t = 0; t < from.tensors.size(); ++t) {
          std::vector<uint64_t> state((from.sent_tensor(t).state + 7) / 8);
          const size_t size = from.sent_tensor(t).state;
          REQUIRE(dr_sender_read_state(from.ranks[r]->sender, t, DR_STATE_OWN, state.data(), size) == DR_OK);
          REQUIRE(dr_sender_write_state(to.ranks[r]->sender, t, DR_STATE_OWN, state.data(), size) == DR_OK);
        }
    };
    const auto go_on = [&](uint64_t step) {
      for (world* const w : {&cpu, &device}) {
        w->set_random(step);
        REQUIRE(w->all_ok(step));
      }
      for (size_t r = 0; r < 3; ++r) {
        CHECK(cpu.ranks[r]->out == device.ranks[r]->out);
        CHECK(same_residuals(cpu, device, r));
      }
    };
    move(device, cpu);
    go_on(2);
    for (world* const w : {&cpu, &device})
      for (const auto& r : w->ranks) REQUIRE(dr_sender_scale(r->sender, 0.5) == DR_OK);
    go_on(3);
    cpu.set_random(4);
    REQUIRE(cpu.all_ok(4));
    move(cpu, device);
    for (size_t r = 0; r < 3; ++r) CHECK(same_residuals(cpu, device, r));
    go_on(5);
  }
}

TEST_CASE("a reduce-scatter on a device waits for nothing in 100 steps") {
  world w = made(coded[0], true, 2, DR_SENDER_ZEROS, DR_BF16);
  const device_listener seen;
  for (uint64_t step = 0; step < 100; ++step) {
    w.set_random(step);
    REQUIRE(w.all_ok(step));
    CHECK(w.checked.frames > 0);
  }
  CHECK(seen.launches > 1000);
  CHECK(seen.waits == 0);
  for (const auto& r : w.ranks) CHECK(waits_of(*r) == 0);
}

TEST_CASE("a reduce-scatter keeps its states itself: they are of ranges, not of tensors") {
  for (const bool on_device : {false, true}) {
    CAPTURE(on_device);
    world own = made(coded[1], on_device), given = made(coded[1], on_device, 3, DR_SENDER_CALLER_STATES);
    for (uint64_t step = 0; step < 3; ++step)
      for (world* const w : {&own, &given}) {
        w->set_random(step);
        REQUIRE(w->all_ok(step));
      }
    for (size_t r = 0; r < 3; ++r) {
      CHECK(own.ranks[r]->out == given.ranks[r]->out);
      CHECK(same_residuals(own, given, r));
    }
  }
}
