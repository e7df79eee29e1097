// Nothing is allocated once an exchange has run.
#include <atomic>
#include <cstdlib>

namespace {

std::atomic<size_t> allocations{0};
constexpr size_t head = 16;

void* take(size_t size, size_t alignment) {
  ++allocations;
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void give(void* memory) { std::free(memory); }

}  // namespace

#include "replaced_new.hpp"
#include "world.hpp"

TEST_CASE("an exchange in steady state allocates nothing") {
  for (const std::string& schedule : world::schedules) {
    CAPTURE(schedule);
    world::options o;
    o.ranks = 4;
    o.plan = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant exchange=" + schedule;
    o.sizes = {30000, 500};
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
