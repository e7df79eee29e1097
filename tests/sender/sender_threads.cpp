// Each rank's sender in a thread of its own, with a context of several threads: what JAX's pmap or several GPUs of a process
// are. Under ThreadSanitizer (`./dev test --all`) this is what says that senders share nothing that changes.
#include <barrier>
#include <thread>

#include "sender_world.hpp"

using namespace sending;

namespace {

// A collective of threads: each gives its bytes, and reads those of all.
class board {
 public:
  explicit board(uint32_t ranks) : slots_(ranks), all_here_(ranks) {}

  std::vector<client::bytes> gather(size_t rank, client::bytes own) {
    slots_[rank] = std::move(own);
    all_here_.arrive_and_wait();
    std::vector<client::bytes> all = slots_;
    all_here_.arrive_and_wait();
    return all;
  }
  // The sum over ranks, in their order.
  client::bytes reduce(size_t rank, client::bytes own, dr_dtype type) {
    std::vector<client::bytes> all = gather(rank, std::move(own));
    for (size_t r = 1; r < all.size(); ++r) add_numbers(all[0], all[r], type);
    return std::move(all[0]);
  }

 private:
  std::vector<client::bytes> slots_;
  std::barrier<> all_here_;
};

std::vector<dr_bytes> list_of(const std::vector<client::bytes>& slots) {
  std::vector<dr_bytes> list;
  for (const client::bytes& slot : slots) list.push_back({slot.data(), slot.size()});
  return list;
}

// A step of one rank. A call that fails is noted; the collectives go on, so that no rank waits for ever.
class stepping {
 public:
  stepping(board& b, rank& me, size_t number, uint64_t step, std::string& fault)
      : board_(b), me_(me), number_(number), call_(world::call(step, number)), fault_(fault) {}

  void run() {
    note(dr_sender_clip(me_.sender));
    const size_t units = world::units(me_);
    for (size_t u = 0; u < units; ++u) {
      const dr_unit_info info = world::unit(me_, u);
      client::bytes own(info.slots * info.bound);
      note(dr_sender_encode(me_.sender, u, &call_, own.data(), own.size(), nullptr));
      if (info.numbers)
        numbers(u, info, std::move(own));
      else if (info.kind == DR_UNIT_OWNER)
        owners(u, info, std::move(own));
      else
        merge(u, board_.gather(number_, std::move(own)));
    }
  }

 private:
  void note(dr_status s) {
    if (s && fault_.empty()) fault_ = me_.context.error();
  }
  void merge(size_t u, const std::vector<client::bytes>& slots) {
    const auto list = list_of(slots);
    note(dr_sender_merge(me_.sender, u, &call_, list.data(), list.size(), nullptr));
  }
  client::bytes sum(size_t u, const dr_unit_info& info, const std::vector<client::bytes>& slots) {
    const auto list = list_of(slots);
    client::bytes made(info.sum_bound);
    note(dr_sender_sum(me_.sender, u, &call_, list.data(), list.size(), made.data(), made.size(), nullptr));
    return made;
  }
  void numbers(size_t u, const dr_unit_info& info, client::bytes own) {
    client::bytes total = board_.reduce(number_, std::move(own), info.numbers);
    if (info.sum_slot) total = board_.reduce(number_, sum(u, info, {total}), info.numbers);
    merge(u, {total});
  }
  void owners(size_t u, const dr_unit_info& info, client::bytes own) {
    std::vector<client::bytes> mine;  // of each rank the slot for this one
    for (const client::bytes& all : board_.gather(number_, std::move(own))) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(number_ * info.bound);
      mine.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(info.bound));
    }
    merge(u, board_.gather(number_, sum(u, info, mine)));
  }

  board& board_;
  rank& me_;
  size_t number_;
  dr_call call_;
  std::string& fault_;
};

}  // namespace

TEST_CASE("senders in threads of their own have the bits of senders in one thread") {
  constexpr uint64_t steps = 3;
  const std::string rest = " feedback=residual";
  settings how{.ranks = 3, .flags = DR_SENDER_HALVES, .dense_below = 500};
  const std::vector<tensor> tensors = {
      {"frames", 20000},
      {"small", 90},
      {"owned", 9000, DR_BF16, "index=all value=uniform_quant(bits=4) exchange=owner" + rest},
      {"half", 4000, DR_F32, "index=all value=half(type=bf16)" + rest},
      {"factors", 6000, DR_F32, "transform=lowrank(rank=2)" + rest, 100},
      {"coded", 30000, DR_F32, "sparsify=topr(ratio=0.02) index=auto value=auto(error=0.05)" + rest}};
  std::vector<std::vector<std::vector<client::bytes>>> outputs;  // of steps, ranks and tensors
  how.threads = 3;
  world apart(tensors, how);
  board b(how.ranks);
  // (These come first: what a first call prepares, threads prepare here.)
  for (uint64_t step = 0; step < steps; ++step) {
    apart.set_random(step);
    std::vector<std::string> faults(how.ranks);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < how.ranks; ++r)
      threads.emplace_back([&, r] { stepping(b, *apart.ranks[r], r, step, faults[r]).run(); });
    for (std::thread& each : threads) each.join();
    for (size_t r = 0; r < how.ranks; ++r) {
      CAPTURE(r);
      CHECK(faults[r] == "");
    }
    outputs.emplace_back();
    for (const auto& rank : apart.ranks) outputs.back().push_back(rank->out);
  }
  how.threads = 1;
  world together(tensors, how);
  for (uint64_t step = 0; step < steps; ++step) {
    CAPTURE(step);
    together.set_random(step);
    REQUIRE(together.all_ok(step));
    for (size_t r = 0; r < how.ranks; ++r) CHECK(outputs[step][r] == together.ranks[r]->out);
  }
}
