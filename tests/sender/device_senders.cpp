// Senders on a device, an emulated one: the same means and residuals as on the CPU, errors a step later, no call that waits.
#include <deepreduce/deepreduce.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device_world.hpp"

using namespace sending;

namespace {

constexpr const char* coded[] = {
    "*: sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd",
    "*: sparsify=topr(ratio=0.1) feedback=residual(beta=0.5,gamma=0.75) index=golomb value=raw",
    "*: sparsify=topr(ratio=0.02) index=rice value=qsgd(levels=7)",
    // Two frames in each slot: with a residual, and without one.
    "a*: sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd\n*: sparsify=topr(ratio=0.3) index=raw "
    "value=raw",
    "*: index=all value=uniform_quant(bits=8) feedback=residual"};

const std::vector<tensor> tensors = {{"a1", 3000}, {"a2", 700}, {"b", 9000}, {"c", 1}};

world made(const std::string& book, bool on_device, uint32_t flags = 0, dr_dtype dtype = DR_F32, int32_t order = 0,
           uint32_t ranks = 3, uint32_t flat = DR_NOT_FLAT) {
  std::vector<tensor> list = tensors;
  for (tensor& t : list) t.dtype = dtype;
  return {list,
          {.book = book,
           .ranks = ranks,
           .flags = flags,
           .flat = flat,
           .dense_below = flat == DR_NOT_FLAT ? 0 : DR_DENSE_BELOW_BY_PLAN,
           .unit_bytes = 16000,
           .on_device = on_device,
           .order = order}};
}

}  // namespace

TEST_CASE("a sender on a device: outputs and residuals of the CPU's, bit for bit, over steps") {
  for (const char* const book : coded)
    for (const dr_dtype dtype : {DR_F32, DR_BF16, DR_F16})
      for (const uint32_t flags : {0u, uint32_t{DR_SENDER_SUM}, uint32_t{DR_SENDER_F32}, uint32_t{DR_SENDER_ZEROS}}) {
        if (dtype == DR_F16 && flags) continue;
        // By default a plan that sparsifies sends the tensors of a unit as one.
        // (One that quantises all sends its small ones exactly then.)
        const uint32_t flat = flags == DR_SENDER_SUM || dtype == DR_F16 ? DR_FLAT_BY_PLAN : DR_NOT_FLAT;
        CAPTURE(book);
        CAPTURE(dtype);
        CAPTURE(flags);
        world cpu = made(book, false, flags & ~uint32_t{DR_SENDER_ZEROS}, dtype, 0, 3, flat);
        world device = made(book, true, flags, dtype, static_cast<int32_t>(flags + dtype), 3, flat);
        REQUIRE(world::units(*cpu.ranks[0]) > 1);
        for (uint64_t step = 0; step < 4; ++step) {
          CAPTURE(step);
          cpu.set_random(step);
          device.set_random(step);
          REQUIRE(cpu.all_ok(step));
          REQUIRE(device.all_ok(step));
          CHECK(device.agree());
          CHECK(cpu.ranks[0]->out == device.ranks[0]->out);
        }
        for (size_t r = 0; r < cpu.ranks.size(); ++r) CHECK(same_residuals(cpu, device, r));
      }
}

TEST_CASE("a sender on a device: tensors that go exactly, and plans that send all, have the CPU's bits") {
  struct mix {
    const char* book;
    uint64_t dense_below;
    size_t frames;  // of the unit of the small tensors: sparse or coded ones, and exact ones
  };
  for (const mix& of :
       {mix{coded[0], 1000, 2}, mix{coded[1], 100000, 1}, mix{coded[4], DR_DENSE_BELOW_BY_PLAN, 2},
        mix{"*: index=all value=half", 0, 1}, mix{"*: dense", 0, 1},
        mix{"a1: sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd\n*: dense", 0, 2},
        mix{"*: sparsify=topr(ratio=0.05) feedback=residual(beta=0.5,gamma=0.75) index=all value=sign(scale=mean)",
            1000, 2},
        mix{"*: index=all value=ternary bucket=flat feedback=residual", 0, 1}})
    for (const dr_dtype dtype : {DR_F32, DR_BF16})
      for (const uint32_t flags : {0u, uint32_t{DR_SENDER_F32}}) {
        if (dtype != DR_F32 && std::string(of.book).find("half") != std::string::npos) continue;
        CAPTURE(of.book);
        CAPTURE(dtype);
        CAPTURE(flags);
        const auto start = [&](bool on_device) {
          std::vector<tensor> list = tensors;
          for (tensor& t : list) t.dtype = dtype;
          return world(list, {.book = of.book,
                              .ranks = 3,
                              .flags = flags,
                              .flat = DR_NOT_FLAT,
                              .dense_below = of.dense_below,
                              .unit_bytes = 16000,
                              .on_device = on_device,
                              .order = static_cast<int32_t>(dtype)});
        };
        world cpu = start(false), device = start(true);
        CHECK(device.unit(device.sent_tensor(1).unit).frames == of.frames);
        for (uint64_t step = 0; step < 4; ++step) {
          CAPTURE(step);
          for (world* const w : {&cpu, &device}) {
            w->set_random(step);
            if (step == 2 && of.dense_below) w->set(1, 3, {std::nanf("")});  // (exact: it goes as it is)
            REQUIRE(w->all_ok(step));
          }
          CHECK(device.agree());
          CHECK(cpu.ranks[0]->out == device.ranks[0]->out);
        }
        for (size_t r = 0; r < cpu.ranks.size(); ++r) CHECK(same_residuals(cpu, device, r));
      }
}

TEST_CASE("a sender on a device: a rank that cannot encode is named by all, a step later, and nothing is lost") {
  struct spoiled {
    const char* book;
    size_t tensor, sound;  // sound: of another unit
    bool keeps;            // a residual
    uint32_t flat = DR_NOT_FLAT;
  };
  // (value=raw sends a NaN as it is.)
  for (const spoiled& of : {spoiled{coded[0], 2, 0, true}, spoiled{coded[2], 2, 0, false},
                            spoiled{coded[3], 0, 2, true}, spoiled{coded[0], 1, 2, true, DR_FLAT_BY_PLAN},
                            spoiled{coded[4], 2, 0, true}, spoiled{coded[4], 0, 2, true, DR_FLAT_BY_PLAN}}) {
    const std::string book = of.book;
    CAPTURE(book);
    world cpu = made(book, false, 0, DR_F32, 0, 3, of.flat), device = made(book, true, 0, DR_F32, 0, 3, of.flat),
          zeros = made(book, true, DR_SENDER_ZEROS, DR_F32, 0, 3, of.flat);
    REQUIRE(cpu.sent_tensor(of.tensor).unit != cpu.sent_tensor(of.sound).unit);
    for (world* const w : {&cpu, &device, &zeros}) {
      w->set_random(1);
      REQUIRE(w->all_ok(1));
      w->set_random(2);
      spoil(*w, 1, of.tensor, 77);
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
        CHECK(w->ranks[r]->error.tensor == of.tensor);
        CHECK(std::string(w->ranks[r]->error.message) == cpu.ranks[r]->error.message);
      }
    }
    // Units that were sound were merged. That of the tensor was not.
    for (size_t r = 0; r < 3; ++r) {
      CHECK(device.ranks[r]->out[of.tensor] == before[of.tensor]);
      CHECK(device.ranks[r]->out[of.sound] != before[of.sound]);
      CHECK(zeros.ranks[r]->out[of.tensor] == client::bytes(before[of.tensor].size()));
      CHECK(zeros.ranks[r]->out[of.sound] == device.ranks[r]->out[of.sound]);
    }
    // What the others sent of that unit is back, as on the CPU.
    if (of.keeps)
      for (const size_t r : {0, 2}) CHECK(cpu.residual(r, of.tensor) == device.residual(r, of.tensor));
    // All ranks count the failure, so they are in step.
    for (uint64_t step = 3; step < 6; ++step)
      for (world* const w : {&device, &zeros}) {
        w->set_random(step);
        CHECK(w->all_ok(step));
        CHECK(w->agree());
      }
  }
}

TEST_CASE("a sender on a device: a slot that is damaged on the way to all is CORRUPT, and nothing is lost") {
  for (size_t at : {size_t{3}, size_t{50}, size_t{90}, size_t{130}, size_t{400}}) {  // head, reasons, frame
    CAPTURE(at);
    world w = made(coded[0], true);
    balance sums;
    for (uint64_t step = 0; step < 5; ++step) {
      CAPTURE(step);
      w.set_random(step);
      sums.add_gradients(w);
      if (step == 2)
        w.on_the_way = [&](size_t u, size_t from, size_t, client::bytes& slot) {
          if (u == 0 && from == 2) slot[at] ^= 0x40;
        };
      const auto status = w.step(step);
      w.on_the_way = nullptr;
      for (size_t r = 0; r < 3; ++r) {
        if (step != 2) {
          CHECK(status[r] == DR_OK);
          continue;
        }
        INFO(w.ranks[r]->error.message);
        CHECK(status[r] == DR_E_CORRUPT);
        CHECK(w.ranks[r]->error.frame == 2);
        CHECK(std::string(w.ranks[r]->error.message).starts_with("rank 2: "));
      }
      // The outputs of the failed unit are those of the step before.
      if (step == 2)
        for (size_t t = 0; t < tensors.size(); ++t)
          sums.got += w.ranks[0]->sent.size() && w.sent_tensor(t).unit != 0 ? balance::sum(w.out(0, t)) : 0;
      else
        sums.add_means(w);
    }
    // (Rank 2's own part comes back from the slot that was damaged on its way: where its frame was hit, it is lost.)
    if (at < 80) CHECK(sums.gap(w) < 0.05);
  }
}

TEST_CASE("a sender on a device: a rank that failed alone is behind, and all name it in the next step") {
  world w = made(coded[0], true);
  for (uint64_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    w.set_random(step);
    if (step == 1)
      w.on_the_way = [](size_t u, size_t from, size_t to, client::bytes& slot) {
        if (u == 0 && from == 0 && to == 2) slot[300] ^= 1;
      };
    const auto status = w.step(step);
    w.on_the_way = nullptr;
    for (size_t r = 0; r < 3; ++r) {
      CAPTURE(r);
      if (step == 1) CHECK(status[r] == (r == 2 ? dr_status{DR_E_CORRUPT} : dr_status{DR_OK}));
      if (step == 2) {
        CHECK(status[r] == DR_E_ARGUMENT);
        CHECK(w.ranks[r]->error.reason == DR_REASON_OUT_OF_STEP);
        uint32_t behind = 9;
        CHECK(dr_sender_behind(w.ranks[r]->sender, &behind, 1) == 1);
        CHECK(behind == 2);
        CHECK(w.ranks[r]->error.where == 1);
      }
      if (step != 1 && step != 2) CHECK(status[r] == DR_OK);
    }
  }
}

TEST_CASE("a sender on a device: ranks that resume with the same counts go on, one with others is behind") {
  world w = made(coded[0], true);
  w.set_random(0);
  REQUIRE(w.all_ok(0));
  for (const auto& r : w.ranks) REQUIRE(dr_sender_resume(r->sender, 3, 7) == DR_OK);
  w.set_random(1);
  REQUIRE(w.all_ok(8));
  dr_sender_info info{sizeof info};
  REQUIRE(dr_sender_describe(w.ranks[1]->sender, &info, nullptr) == DR_OK);
  CHECK(info.failures == 3);
  CHECK(info.failed == 7);
  REQUIRE(dr_sender_resume(w.ranks[1]->sender, 4, 8) == DR_OK);
  w.set_random(2);
  for (const dr_status s : w.step(9)) CHECK(s == DR_E_ARGUMENT);
  for (const auto& r : w.ranks) {
    CHECK(r->error.reason == DR_REASON_OUT_OF_STEP);
    CHECK(r->error.where == 8);
    uint32_t behind = 9;
    CHECK(dr_sender_behind(r->sender, &behind, 1) == 1);
    CHECK(behind == 1);
  }
  w.set_random(3);
  CHECK(w.all_ok(10));
}

TEST_CASE("a sender on a device: a skip, which no rank asks for, changes nothing") {
  world w = made(coded[0], true);
  w.set_random(0);
  REQUIRE(w.all_ok(0));
  const auto kept = w.residual(1, 0);
  const auto outs = w.ranks[1]->out;
  CHECK(dr_sender_skip(w.ranks[1]->sender, 0) == DR_OK);
  CHECK(w.ranks[1]->out == outs);
  CHECK(w.residual(1, 0) == kept);
}

TEST_CASE("a sender on a device: a step that the host gives up goes back to the residuals") {
  for (const bool merged : {false, true}) {
    CAPTURE(merged);
    world w = made(coded[0], true);
    balance sums;
    for (uint64_t step = 0; step < 4; ++step) {
      w.set_random(step);
      sums.add_gradients(w);
      if (step != 2) {
        CHECK(w.all_ok(step));
        sums.add_means(w);
        continue;
      }
      // Each rank encodes its first unit, some merge it. Then the collective of the second fails, on all.
      const dr_unit_info info = w.unit(0);
      client::bytes all(3 * info.bound);
      std::vector<dr_bytes> slots;
      for (size_t r = 0; r < 3; ++r) {
        const dr_call c = world::call(step, r);
        slots.push_back({all.data() + r * info.bound, info.bound});
        REQUIRE(dr_sender_encode(w.ranks[r]->sender, 0, &c, all.data() + r * info.bound, info.bound, nullptr) == DR_OK);
      }
      for (size_t r = 0; r < 3; ++r) {
        const dr_call c = world::call(step, r);
        if (merged) CHECK(dr_sender_merge(w.ranks[r]->sender, 0, &c, slots.data(), 3, nullptr) == DR_OK);
        CHECK(dr_sender_take_back(w.ranks[r]->sender, step) == DR_OK);
        CHECK(w.check(r, step) == DR_OK);
      }
      // The tensors of the other units were not encoded: theirs never came to the sender.
      for (size_t t = 0; t < tensors.size(); ++t)
        if (w.sent_tensor(t).unit != 0)
          for (size_t r = 0; r < 3; ++r) sums.given -= balance::sum(w.in(r, t)) / 3;
    }
    CHECK(sums.gap(w) < 0.05);
  }
}

TEST_CASE("a sender on a device: a scale is of the states that the caller has placed last") {
  for (const bool on_device : {false, true}) {
    CAPTURE(on_device);
    world w = made(coded[0], on_device, DR_SENDER_CALLER_STATES, DR_F32, 0, 1);
    const size_t n = w.tensors.size();
    std::vector<std::vector<uint64_t>> first(n), second;
    const auto place = [&](std::vector<std::vector<uint64_t>>& states) {
      std::vector<void*> at;
      for (auto& state : states) at.push_back(state.data());
      REQUIRE(dr_sender_place(w.ranks[0]->sender, 0, n, nullptr, nullptr, at.data()) == DR_OK);
    };
    for (size_t t = 0; t < n; ++t) first[t].resize(w.sent_tensor(t).state / 8 + 1);
    place(first);
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    second = first;
    const auto before = first;
    place(second);
    REQUIRE(dr_sender_scale(w.ranks[0]->sender, 0.5) == DR_OK);
    CHECK(first == before);
    for (size_t t = 0; t < n; ++t) {
      const auto residual = [&](std::vector<uint64_t>& state) {
        float* from = nullptr;
        uint64_t elements = 0;
        REQUIRE(dr_state_residual(state.data(), w.sent_tensor(t).state, &from, &elements, nullptr) == DR_OK);
        return std::vector<float>(from, from + elements);
      };
      const auto now = residual(second[t]), was = residual(first[t]);
      for (size_t i = 0; i < now.size(); ++i) REQUIRE(now[i] == was[i] / 2);
    }
  }
}

TEST_CASE("a sender on a device waits for nothing in 100 steps") {
  world w = made(coded[0], true, DR_SENDER_ZEROS, DR_BF16, 0, 2);
  device_listener seen;
  for (uint64_t step = 0; step < 100; ++step) {
    w.set_random(step);
    REQUIRE(w.all_ok(step));
    CHECK(w.checked.frames > 0);
  }
  CHECK(seen.launches > 1000);
  CHECK(seen.waits == 0);
  for (const auto& r : w.ranks) CHECK(waits_of(*r) == 0);
  // Where the device has not come so far, only the check waits, and counts it.
  dr::emulator().lags = true;
  w.set_random(100);
  CHECK(w.all_ok(100));
  dr::emulator().lags = false;
  const uint64_t units = world::units(*w.ranks[0]);
  for (const auto& r : w.ranks) CHECK(waits_of(*r) == units);
  CHECK(seen.waits == 2 * units);
  (void)w.residual(0, 0);
  CHECK(waits_of(*w.ranks[0]) == units + 1);
}

TEST_CASE("a sender on a device follows its work to another stream") {
  world w = made(coded[0], true);
  w.set_random(0);
  REQUIRE(w.all_ok(0));
  std::vector<std::string> steps;
  dr::emulator().stream_seen = [&](const char* what, void* stream, void*) {
    if (stream) steps.emplace_back(what);
  };
  char stream = 0;
  for (const auto& r : w.ranks) CHECK(dr_sender_use_stream(r->sender, &stream) == DR_OK);
  w.set_random(1);
  CHECK(w.all_ok(1));
  dr::emulator().stream_seen = nullptr;
  REQUIRE(steps.size() > 10);
  CHECK(steps[0] == "follow");
  CHECK(std::ranges::count(steps, "follow") == static_cast<std::ptrdiff_t>(w.ranks.size()));
  world cpu = made(coded[0], false);
  CHECK(dr_sender_use_stream(cpu.ranks[0]->sender, &stream) == DR_E_ARGUMENT);
}

TEST_CASE("a sender on a device refuses what has no path there, and names it") {
  const auto words = [](const std::string& book, uint32_t flags, tensor t, dr_status expected = DR_E_UNSUPPORTED) {
    world w({std::move(t)},
            {.book = book, .ranks = 0, .flags = flags, .flat = DR_NOT_FLAT, .dense_below = 0, .on_device = true});
    w.how.ranks = 2;
    dr_status status = DR_OK;
    std::string error;
    (void)w.make(0, status, error);
    CHECK(status == expected);
    return error;
  };
  const std::string top = "*: sparsify=topr(ratio=0.1) feedback=residual index=golomb value=";
  CHECK(
      words(top + "dynamic_tree", 0, {"fc.weight", 5000}).starts_with("fc.weight: dynamic_tree runs on the CPU only"));
  CHECK(words(top + "dynamic_tree", 0, {"fc.weight", 5000}).find("ALLOW_HOST") == std::string::npos);
  CHECK(words("*: feedback=dgc sparsify=topr(ratio=0.1) index=golomb value=raw", 0, {"w", 5000}).starts_with("w: dgc"));
  CHECK(words("*: feedback=residual exchange=owner index=golomb value=dynamic_tree", 0, {"w", 5000})
            .starts_with("w: dynamic_tree runs on the CPU only"));
  CHECK(words("*: transform=lowrank(rank=2) feedback=residual", 0, {"w", 5000, DR_F32, "", 50}) ==
        "w: transform=lowrank has no path on a device");
  CHECK(words("*: index=all value=half", DR_SENDER_HALVES, {"w", 5000}) ==
        "w: an all-reduce of halves (DR_SENDER_HALVES) has no path on a device");
  CHECK(
      words(top + "dynamic_tree", DR_SENDER_SCATTER, {"w", 5000}).starts_with("w: dynamic_tree runs on the CPU only"));
  CHECK(words(top + "raw", DR_SENDER_SKIP, {"w", 5000}).starts_with("options: DR_SENDER_SKIP runs on the CPU only"));
  CHECK(words(top + "raw", 0, {"w", 5000}, DR_OK).empty());
}

TEST_CASE("a sender on a device wants its steps checked, and slots of an all-gather") {
  world w = made(coded[0], true, 0, DR_F32, 0, 2);
  w.set_random(0);
  const dr_unit_info info = w.unit(0);
  CHECK(info.slot == info.bound);
  CHECK(info.slots == 1);
  client::bytes all(2 * info.bound + 64);
  dr_sender* const s = w.ranks[0]->sender;
  const auto error = [&] { return std::string(dr_last_error(w.ranks[0]->context.handle)->message); };
  dr_call c = world::call(0, 0);
  CHECK(dr_sender_encode(s, 0, &c, all.data() + 8, info.bound, nullptr) == DR_E_ARGUMENT);
  CHECK(error() == "slots: not aligned to 16 bytes on the device");
  for (size_t r = 0; r < 2; ++r) {
    const dr_call own = world::call(0, r);
    REQUIRE(dr_sender_encode(w.ranks[r]->sender, 0, &own, all.data() + r * info.bound, info.bound, nullptr) == DR_OK);
  }
  dr_bytes slots[2] = {{all.data(), info.bound}, {all.data() + info.bound, info.bound - 16}};
  CHECK(dr_sender_merge(s, 0, &c, slots, 2, nullptr) == DR_E_ARGUMENT);
  CHECK(error().starts_with("rank 1: slots: "));
  for (uint8_t* const at : {all.data() + info.bound + 8, all.data(), all.data() + info.bound - 16}) {
    slots[1] = {at, info.bound};
    CHECK(dr_sender_merge(s, 0, &c, slots, 2, nullptr) == DR_E_ARGUMENT);
    CHECK(error().find("one behind the other") != std::string::npos);
  }
  slots[1] = {all.data() + info.bound, info.bound};
  CHECK(dr_sender_merge(s, 0, &c, slots, 2, nullptr) == DR_OK);
  c.step = 1;
  CHECK(dr_sender_encode(s, 0, &c, all.data(), info.bound, nullptr) == DR_E_ARGUMENT);
  CHECK(error() == "step 0: call dr_sender_check for it before the next encode");
  CHECK(dr_sender_check(s, 0, nullptr) == DR_OK);
  CHECK(dr_sender_encode(s, 0, &c, all.data(), info.bound, nullptr) == DR_OK);
  // A slot of a sender on the CPU is refused: its frames are at other places.
  world cpu = made(coded[0], false, 0, DR_F32, 0, 2);
  cpu.set_random(1);
  const dr_call other = world::call(1, 1);
  client::bytes room(cpu.unit(0).bound);
  REQUIRE(dr_sender_encode(cpu.ranks[1]->sender, 0, &other, room.data(), room.size(), nullptr) == DR_OK);
  std::copy_n(room.begin(), std::min<size_t>(room.size(), info.bound),
              all.begin() + static_cast<std::ptrdiff_t>(info.bound));
  CHECK(dr_sender_merge(s, 0, &c, slots, 2, nullptr) == DR_OK);
  CHECK(dr_sender_check(s, 1, nullptr) != DR_OK);
  CHECK(error().starts_with("rank 1"));
}
