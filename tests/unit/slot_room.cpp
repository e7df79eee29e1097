// How large slots are made for frames whose sizes change from step to step.
#include <algorithm>
#include <random>

#include <doctest/doctest.h>
#include "sender/slot.hpp"

TEST_CASE("the room of a slot is little for frames that change little, and a step in 20 or fewer has a rest") {
  // Sizes as a training has them: they fall or grow slowly, and each step differs a little.
  struct {
    double drift, noise;
  } const cases[] = {{0, 0.01}, {0.002, 0.003}, {-0.002, 0.01}, {0, 0.05}};
  for (const auto& c : cases) {
    CAPTURE(c.drift);
    CAPTURE(c.noise);
    std::mt19937 random(1);
    std::normal_distribution<double> normal;
    dr::slot_room room(1'000'000'000, 48, false);
    double size = 100'000, sent = 0, needed = 0;
    int rests = 0;
    for (int step = 0; step < 400; ++step) {
      size *= 1 + c.drift;
      const auto longest = static_cast<uint64_t>(size * (1 + c.noise * normal(random)));
      rests += longest > room.size();
      sent += static_cast<double>(std::max(room.size(), longest));
      needed += static_cast<double>(longest);
      room.observe(longest);
    }
    CHECK(sent < (1.02 + 2.5 * c.noise) * needed);
    CHECK(rests <= 20);
  }
}
