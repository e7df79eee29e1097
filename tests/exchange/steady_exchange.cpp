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

TEST_CASE("an exchange in steady state allocates nothing, nor does the loopback") {
  for (const std::string& schedule : world::schedules) {
    CAPTURE(schedule);
    world::options o;
    o.ranks = 4;
    o.plan = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant exchange=" + schedule;
    o.sizes = {30000, 500};
    world::group g(o);
    g.draw(0);
    for (uint64_t step = 0; step < 20; ++step) g.run_well(step);  // (so that the loopback has seen many orders)
    std::vector<dr::exchange*> list;
    for (const auto& r : g.ranks) list.push_back(r->exchange.get());
    std::vector<dr_status> statuses(4);
    dr_call call{};
    call.step = 20;
    const size_t before = allocations;
    for (dr::exchange* const x : list) (void)x->start(call);
    g.net.run(list, statuses);
    const size_t after = allocations;
    CHECK(after == before);
    for (const dr_status s : statuses) REQUIRE(s == DR_OK);
  }
}
