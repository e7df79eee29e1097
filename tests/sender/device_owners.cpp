// exchange=owner on a device, an emulated one: the means, residuals and sums' residuals of the CPU, errors a step later.
#include <deepreduce/deepreduce.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device_world.hpp"
#include "sender/slot_kernel.hpp"
#include "sweep.hpp"

using namespace sending;

namespace {

constexpr const char* coded[] = {
    "*: sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd exchange=owner",
    "*: sparsify=topr(ratio=0.1) feedback=residual(beta=0.5,gamma=0.75) index=golomb value=raw exchange=owner",
    "*: index=golomb value=uniform_quant(bits=4) feedback=residual exchange=owner",
    "*: sparsify=topr(ratio=0.3) index=rice value=qsgd(levels=7) exchange=owner",
    // Two frames in each slot: with a residual, and without one.
    "a*: index=golomb value=uniform_quant(bits=8) feedback=residual exchange=owner\n*: sparsify=topr(ratio=0.3) "
    "index=raw "
    "value=raw exchange=owner",
    // By its default small tensors go exactly, in a frame of their own.
    "*: index=all value=uniform_quant(bits=4) feedback=residual exchange=owner"};

// Tensors that ranges cut, and that they do not; with eight ranks some own nothing of a unit.
const std::vector<tensor> tensors = {{"a1", 9000}, {"a2", 700}, {"b", 30000}, {"c", 1}};

world made(const std::string& book, bool on_device, uint32_t ranks = 3, uint32_t flags = 0, dr_dtype dtype = DR_F32,
           int32_t order = 0, uint32_t flat = DR_NOT_FLAT) {
  std::vector<tensor> list = tensors;
  for (tensor& t : list) t.dtype = dtype;
  return {list,
          {.book = book,
           .ranks = ranks,
           .flags = flags,
           .flat = flat,
           .dense_below = flat == DR_NOT_FLAT ? 0 : DR_DENSE_BELOW_BY_PLAN,
           .unit_bytes = 40000,
           .on_device = on_device,
           .order = order}};
}

bool same_sums(const world& x, const world& y, size_t rank) {
  for (size_t t = 0; t < x.tensors.size(); ++t)
    if (x.residual(rank, t, DR_STATE_SUM) != y.residual(rank, t, DR_STATE_SUM)) return false;
  return true;
}

void change(client::bytes& slot, const std::function<void(dr::slot_head&, uint64_t*)>& f, size_t frames) {
  dr::slot_head head;
  std::memcpy(&head, slot.data(), sizeof head);
  std::vector<uint64_t> words(dr::words_a_frame * frames);
  std::memcpy(words.data(), slot.data() + sizeof head, words.size() * sizeof words[0]);
  f(head, words.data());
  head.check = dr::check_of(head, words.data(), words.size());
  std::memcpy(slot.data(), &head, sizeof head);
  std::memcpy(slot.data() + sizeof head, words.data(), words.size() * sizeof words[0]);
}

}  // namespace

TEST_CASE("owners on a device: means and residuals of the CPU's, bit for bit, over steps") {
  for (const uint32_t ranks : {1u, 2u, 3u, 8u})
    for (const char* const book : coded)
      for (const dr_dtype dtype : {DR_F32, DR_BF16, DR_F16})
        for (const uint32_t flags : {0u, uint32_t{DR_SENDER_SUM}, uint32_t{DR_SENDER_F32}, uint32_t{DR_SENDER_ZEROS}}) {
          if (flags && (ranks != 3 || dtype == DR_F16)) continue;
          if (dr::sanitized && ranks == 8 && book != coded[dtype % 3]) continue;
          const uint32_t flat = flags == DR_SENDER_SUM || dtype == DR_F16 ? DR_FLAT_BY_PLAN : DR_NOT_FLAT;
          CAPTURE(ranks);
          CAPTURE(book);
          CAPTURE(dtype);
          CAPTURE(flags);
          world cpu = made(book, false, ranks, flags & ~uint32_t{DR_SENDER_ZEROS}, dtype, 0, flat);
          world device = made(book, true, ranks, flags, dtype, static_cast<int32_t>(ranks + flags + dtype), flat);
          REQUIRE(device.unit(0).kind == DR_UNIT_OWNER);
          REQUIRE(device.unit(0).slots == ranks);
          REQUIRE(device.unit(0).sum_slot == device.unit(0).sum_bound);
          for (uint64_t step = 0; step < 3; ++step) {
            CAPTURE(step);
            cpu.set_random(step);
            device.set_random(step);
            REQUIRE(cpu.all_ok(step));
            REQUIRE(device.all_ok(step));
            CHECK(device.agree());
            CHECK(cpu.ranks[0]->out == device.ranks[0]->out);
          }
          for (size_t r = 0; r < ranks; ++r) {
            CHECK(same_residuals(cpu, device, r));
            CHECK(same_sums(cpu, device, r));
          }
        }
}

TEST_CASE("owners on a device: a rank that cannot encode is named by all, a step later, and nothing is lost") {
  for (const char* const book : {coded[0], coded[2], coded[3], coded[5]})
    for (const size_t element : {size_t{5}, size_t{29000}}) {  // of the first owner's range, of the last one's
      constexpr size_t tensor = 2, sound = 0;
      CAPTURE(book);
      CAPTURE(element);
      world cpu = made(book, false), device = made(book, true), zeros = made(book, true, 3, DR_SENDER_ZEROS);
      REQUIRE(cpu.sent_tensor(tensor).unit != cpu.sent_tensor(sound).unit);
      for (world* const w : {&cpu, &device, &zeros}) {
        w->set_random(1);
        REQUIRE(w->all_ok(1));
      }
      std::vector<std::vector<float>> sums;
      for (size_t r = 0; r < 3; ++r) sums.push_back(device.residual(r, tensor, DR_STATE_SUM));
      for (world* const w : {&cpu, &device, &zeros}) {
        w->set_random(2);
        spoil(*w, 1, tensor, element);
      }
      const auto before = device.ranks[0]->out;
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
        CHECK(device.ranks[r]->out[tensor] == before[tensor]);
        CHECK(device.ranks[r]->out[sound] == cpu.ranks[r]->out[sound]);
        CHECK(zeros.ranks[r]->out[tensor] == client::bytes(before[tensor].size()));
        if (r != 1) CHECK(cpu.residual(r, tensor) == device.residual(r, tensor));
        // No owner's sum has changed: it was not to be sent.
        CHECK(device.residual(r, tensor, DR_STATE_SUM) == sums[r]);
        CHECK(cpu.residual(r, tensor, DR_STATE_SUM) == sums[r]);
      }
      for (uint64_t step = 3; step < 6; ++step)
        for (world* const w : {&device, &zeros}) {
          w->set_random(step);
          CHECK(w->all_ok(step));
          CHECK(w->agree());
        }
    }
}

TEST_CASE("owners on a device: damaged slots are their senders', on all ranks, and states are as before") {
  struct hit {
    bool of_sum;
    size_t at;
  };
  for (const hit& h : {hit{false, 3}, {false, 60}, {false, 300}, {true, 3}, {true, 60}, {true, 300}}) {
    CAPTURE(h.of_sum);
    CAPTURE(h.at);
    world w = made(coded[1], true), twin = made(coded[1], true);
    for (world* const x : {&w, &twin}) {
      x->set_random(1);
      REQUIRE(x->all_ok(1));
      x->set_random(2);
    }
    std::vector<std::vector<float>> sums;
    for (size_t r = 0; r < 3; ++r) sums.push_back(w.residual(r, 2, DR_STATE_SUM));
    const auto before = w.ranks[0]->out;
    const size_t unit = w.sent_tensor(2).unit;
    size_t arrivals = 0;  // of rank 2's slots of the unit: those for owners, then its sum
    w.on_the_way = [&](size_t u, size_t from, size_t, client::bytes& slot) {
      if (u == unit && from == 2 && (arrivals++ >= 3) == h.of_sum) slot[h.at] ^= 0x40;
    };
    const auto status = w.step(2);
    w.on_the_way = nullptr;
    for (size_t r = 0; r < 3; ++r) {
      INFO(w.ranks[r]->error.message);
      CHECK(status[r] == (h.of_sum || h.at < 100 ? DR_E_CORRUPT : DR_E_PEER));  // (with every owner, or in a frame)
      CHECK(w.ranks[r]->error.frame == 2);
      CHECK(std::string(w.ranks[r]->error.message).starts_with("rank 2: "));
      CHECK(w.residual(r, 2, DR_STATE_SUM) == sums[r]);
    }
    CHECK(w.ranks[0]->out[2] == before[2]);
    // What each rank sent is back: residual (beta 0.5) plus gamma times gradient.
    for (size_t r = 0; r < 3; ++r) {
      const auto was = twin.residual(r, 2), now = w.residual(r, 2), g = w.in(r, 2);
      for (size_t i = 0; i < now.size(); ++i) REQUIRE(std::abs(now[i] - 0.5f * was[i] - 0.75f * g[i]) < 1e-4);
    }
    for (uint64_t step = 3; step < 5; ++step) {
      w.set_random(step);
      CHECK(w.all_ok(step));
      CHECK(w.agree());
    }
  }
}

TEST_CASE("owners on a device: a rank that failed alone is behind, and all name it in the next step") {
  world w = made(coded[0], true);
  for (uint64_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    w.set_random(step);
    size_t arrivals = 0;
    if (step == 1)
      w.on_the_way = [&](size_t u, size_t from, size_t to, client::bytes& slot) {
        if (u == 0 && from == 0 && to == 2 && arrivals++ == 1) slot[150] ^= 1;  // its sum
      };
    const auto status = w.step(step);
    w.on_the_way = nullptr;
    for (size_t r = 0; r < 3; ++r) {
      CAPTURE(r);
      INFO(w.ranks[r]->error.message);
      if (step == 1) CHECK(status[r] == (r == 2 ? dr_status{DR_E_CORRUPT} : dr_status{DR_OK}));
      if (step == 2) {
        CHECK(status[r] == DR_E_ARGUMENT);
        CHECK(w.ranks[r]->error.reason == DR_REASON_OUT_OF_STEP);
        CHECK(w.ranks[r]->error.where == 1);
        uint32_t behind = 9;
        CHECK(dr_sender_behind(w.ranks[r]->sender, &behind, 1) == 1);
        CHECK(behind == 2);
      }
      if (step != 1 && step != 2) CHECK(status[r] == DR_OK);
    }
  }
}

TEST_CASE("owners on a device: heads and reasons that no sender writes are errors that name the rank") {
  using edit = std::function<void(dr::slot_head&, uint64_t*)>;
  const uint64_t most = UINT64_MAX;
  const std::vector<edit> edits = {[](dr::slot_head& h, uint64_t*) { h.flags = 4; },
                                   [](dr::slot_head& h, uint64_t*) { h.flags = 3u << 8; },
                                   [](dr::slot_head& h, uint64_t*) { h.flags = ~0u; },
                                   [](dr::slot_head& h, uint64_t*) { h.reserved = 1; },
                                   [](dr::slot_head& h, uint64_t*) { h.tensor = 99; },
                                   [=](dr::slot_head&, uint64_t* w) { std::fill_n(w + 1, 4, most); },
                                   [](dr::slot_head&, uint64_t* w) { w[1] = DR_E_ARGUMENT; },
                                   [=](dr::slot_head& h, uint64_t* w) {
                                     h.flags = 3u << 8;
                                     w[1] = DR_E_CORRUPT | 2u << 16 | most << 32;
                                   },
                                   [=](dr::slot_head& h, uint64_t* w) {
                                     h.flags = 3u << 8;
                                     w[1] = DR_E_CORRUPT | 1u << 16;
                                     w[2] = w[3] = most;
                                   },
                                   [](dr::slot_head&, uint64_t* w) { w[0] = ~uint64_t{0}; }};
  for (size_t i = 0; i < edits.size(); ++i)
    for (const bool of_sum : {false, true}) {
      CAPTURE(i);
      CAPTURE(of_sum);
      world w = made(coded[0], true);
      w.set_random(1);
      REQUIRE(w.all_ok(0));
      const auto before = w.ranks[0]->out;
      const size_t unit = w.sent_tensor(2).unit;
      size_t arrivals = 0;
      w.on_the_way = [&](size_t u, size_t from, size_t, client::bytes& slot) {
        if (u == unit && from == 1 && (arrivals++ >= 3) == of_sum) change(slot, edits[i], w.unit(u).frames);
      };
      const auto status = w.step(1);
      w.on_the_way = nullptr;
      for (size_t r = 0; r < 3; ++r) {
        INFO(w.ranks[r]->error.message);
        CHECK(status[r] != DR_OK);
        CHECK(std::string(w.ranks[r]->error.message).starts_with("rank "));
      }
      CHECK(w.ranks[0]->out[2] == before[2]);
      w.set_random(2);
      CHECK(w.all_ok(2));
      CHECK(w.agree());
    }
}

TEST_CASE("owners on a device: a reason names its rank, also if that rank owns nothing of the unit") {
  // (Found by fuzz_sender: the device refused the slot, and the host had no words for it.)
  for (const uint32_t from : {0u, 1u})
    for (const uint64_t reason : {uint64_t{DR_E_ARGUMENT}, uint64_t{1} << 20, uint64_t{DR_E_CORRUPT} | 2u << 16}) {
      CAPTURE(from);
      CAPTURE(reason);
      world w({{"a", 410}},
              {.book = "*: index=all value=uniform_quant(bits=4) exchange=owner", .dense_below = 0, .on_device = true});
      w.set_random(1);
      REQUIRE(w.all_ok(0));
      size_t arrivals = 0;
      w.on_the_way = [&](size_t, size_t sender, size_t, client::bytes& slot) {
        if (sender == from && arrivals++ >= 2)
          change(
              slot, [&](dr::slot_head&, uint64_t* words) { words[1] = reason; }, 1);
      };
      const auto status = w.step(1);
      w.on_the_way = nullptr;
      for (size_t r = 0; r < 2; ++r) {
        INFO(w.ranks[r]->error.message);
        CHECK(status[r] == DR_E_PEER);
        CHECK(std::string(w.ranks[r]->error.message).starts_with("rank " + std::to_string(from)));
      }
      w.set_random(2);
      CHECK(w.all_ok(2));
      CHECK(w.agree());
    }
}

TEST_CASE("owners on a device: a step that the host gives up leaves sums as they were, and its frames go back") {
  for (const int done : {0, 1, 2}) {  // encoded; added up; merged
    CAPTURE(done);
    world w = made(coded[0], true), twin = made(coded[0], true);
    for (world* const x : {&w, &twin}) {
      x->set_random(0);
      REQUIRE(x->all_ok(0));
      x->set_random(1);
    }
    for (size_t u = 0; u < world::units(*w.ranks[0]); ++u) {
      const dr_unit_info info = w.unit(u);
      const auto slots_for = [&](size_t to, bool of_sums) {
        std::vector<client::bytes> whole;
        for (const auto& from : w.ranks) {
          const client::bytes& all = of_sums ? from->sums[u][0] : from->sent[u][0];
          const auto at = all.begin() + static_cast<std::ptrdiff_t>(of_sums ? 0 : to * info.bound);
          whole.emplace_back(at, at + static_cast<std::ptrdiff_t>(of_sums ? info.sum_bound : info.bound));
        }
        return whole;
      };
      for (size_t r = 0; r < 3; ++r) {
        const dr_call c = world::call(1, r);
        client::bytes& slots = w.ranks[r]->sent[u][0];
        REQUIRE(dr_sender_encode(w.ranks[r]->sender, u, &c, slots.data(), slots.size(), nullptr) == DR_OK);
      }
      for (size_t r = 0; r < 3 && done > 0; ++r)
        REQUIRE(world::sum_on_device(*w.ranks[r], u, world::call(1, r), slots_for(r, false)) == DR_OK);
      for (size_t r = 0; r < 3 && done > 1; ++r)
        REQUIRE(world::merge_on_device(*w.ranks[r], u, world::call(1, r), slots_for(r, true)) == DR_OK);
    }
    for (size_t r = 0; r < 3; ++r) {
      CHECK(dr_sender_take_back(w.ranks[r]->sender, 1) == DR_OK);
      CHECK(w.check(r, 1) == DR_OK);
      CHECK(same_sums(w, twin, r));
      for (size_t t = 0; t < tensors.size(); ++t) {
        const auto was = twin.residual(r, t), now = w.residual(r, t), g = w.in(r, t);
        for (size_t i = 0; i < now.size(); ++i) REQUIRE(std::abs(now[i] - was[i] - g[i]) < 1e-4);
      }
    }
    w.set_random(2);
    CHECK(w.all_ok(2));
  }
}

TEST_CASE("owners on a device: states move to the CPU and back") {
  world cpu = made(coded[1], false), device = made(coded[1], true);
  for (uint64_t step = 0; step < 2; ++step) {
    device.set_random(step);
    REQUIRE(device.all_ok(step));
  }
  const auto move = [](const world& from, const world& to) {
    for (size_t r = 0; r < 3; ++r)
      for (size_t t = 0; t < from.tensors.size(); ++t)
        for (const uint32_t which : {uint32_t{DR_STATE_OWN}, uint32_t{DR_STATE_SUM}}) {
          const dr_sent_tensor info = from.sent_tensor(t);
          const size_t size = which == DR_STATE_SUM ? info.sum_state : info.state;
          std::vector<uint64_t> state((size + 7) / 8);
          REQUIRE(dr_sender_read_state(from.ranks[r]->sender, t, which, state.data(), size) == DR_OK);
          REQUIRE(dr_sender_write_state(to.ranks[r]->sender, t, which, state.data(), size) == DR_OK);
        }
  };
  const auto go_on = [&](uint64_t step) {
    for (world* const w : {&cpu, &device}) {
      w->set_random(step);
      REQUIRE(w->all_ok(step));
    }
    CHECK(cpu.ranks[0]->out == device.ranks[0]->out);
    for (size_t r = 0; r < 3; ++r) {
      CHECK(same_residuals(cpu, device, r));
      CHECK(same_sums(cpu, device, r));
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
  go_on(5);
}

TEST_CASE("owners on a device: more gates than one launch holds") {
  const auto of = [](bool on_device) {
    std::vector<tensor> list = {{"w", 66 * 600}};
    return world(list, {.book = coded[2], .ranks = 66, .flat = DR_NOT_FLAT, .dense_below = 0, .on_device = on_device});
  };
  world cpu = of(false), device = of(true);
  for (world* const w : {&cpu, &device}) {
    w->set_random(1);
    REQUIRE(w->all_ok(1));
  }
  CHECK(device.agree());
  CHECK(cpu.ranks[0]->out == device.ranks[0]->out);
  device.set_random(2);
  device.on_the_way = [](size_t, size_t from, size_t, client::bytes& slot) {
    if (from == 65) slot[200] ^= 1;
  };
  for (const dr_status s : device.step(2)) CHECK(s != DR_OK);
  device.on_the_way = nullptr;
  CHECK(device.ranks[0]->error.frame == 65);
  device.set_random(3);
  CHECK(device.all_ok(3));
}

TEST_CASE("owners on a device wait for nothing in 100 steps") {
  world w = made(coded[2], true, 2, DR_SENDER_ZEROS, DR_BF16);
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
