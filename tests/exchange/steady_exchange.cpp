// Nothing is allocated once an exchange has run; where there is no memory, it stays as it was.
#include <atomic>
#include <cstdlib>

namespace {

std::atomic<size_t> allocations{0}, last_good{SIZE_MAX};
constexpr size_t head = 16;

void* take(size_t size, size_t alignment) {
  if (++allocations > last_good) return nullptr;
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void give(void* memory) { std::free(memory); }

}  // namespace

#include "replaced_new.hpp"
#include "world.hpp"

TEST_CASE("an exchange in steady state allocates nothing") {
  std::vector<std::pair<std::string, uint32_t>> cases;
  for (const std::string& schedule : world::schedules) cases.emplace_back(schedule, 0);
  for (const char* schedule : {"gather", "gather(parts=3)", "owner", "ring"}) cases.emplace_back(schedule, UINT32_MAX);
  for (const auto& [schedule, on_device] : cases) {
    CAPTURE(schedule);
    CAPTURE(on_device);
    world::options o;
    o.ranks = 4;
    o.plan = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant exchange=" + schedule;
    o.sizes = {30000, 500};
    o.on_device = on_device;
    world::group g(o);
    g.draw(0);
    g.run_well(0);
    std::vector<dr::exchange*> list;
    for (const auto& r : g.ranks) list.push_back(r->exchange.get());
    std::vector<dr_status> statuses(4);
    // Each has its ranks in another order, in which the loopback's queues may be longer than before: so the least of several.
    size_t least = SIZE_MAX;
    for (uint64_t step = 1; step < 20; ++step) {
      dr_call call{};
      call.step = step;
      const size_t before = allocations;
      for (dr::exchange* const x : list) (void)x->start(call);
      g.net.run(list, statuses);
      least = std::min<size_t>(least, allocations - before);
      for (const dr_status s : statuses) REQUIRE(s == DR_OK);
    }
    CHECK(least == 0);
  }
}

TEST_CASE("a rebind that runs out of memory leaves an exchange bound as before") {
  world::options o;
  o.ranks = 2;
  o.plan = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw exchange=gather(parts=4)";
  o.sizes = {3000, 20, 5000, 1};
  world::group g(o);
  world::rank& r = *g.ranks[0];
  world::tensors in, out;
  for (const size_t n : o.sizes) in.emplace_back(n), out.emplace_back(n, 7.0f);
  world::rank other;
  other.in = in, other.out = out;
  const auto views = world::group::views(o, other);
  const auto outs = world::group::outs(o, other);
  dr_status s = DR_E_MEMORY;
  for (size_t allowed = 0; s == DR_E_MEMORY; ++allowed) {
    auto views_now = views;
    auto outs_now = outs;
    last_good = allocations + allowed;
    try {
      s = r.exchange->rebind(std::move(views_now), std::move(outs_now));
    } catch (const std::bad_alloc&) {  // (the C ABI answers MEMORY)
      s = DR_E_MEMORY;
    }
    last_good = SIZE_MAX;
    if (s == DR_OK) break;
    CAPTURE(allowed);
    g.draw(allowed);
    g.run_well(allowed);
    REQUIRE(g.all_alike());
    for (const world::floats& x : other.out) REQUIRE(x == world::floats(x.size(), 7.0f));
  }
  CHECK(s == DR_OK);
}
