// What exchanges cost beside bytes and codecs: messages, the bucket of a shaped link, cores that ranks share.
#include <doctest/doctest.h>

#include "predict_parts.hpp"

using namespace parts;

namespace {

// Frames of 1 byte an element; computing is free.
exchange_work bytes_only() {
  exchange_work w;
  w.frame.slope = 1, w.frame.floor = 1;
  return w;
}

constexpr double verdict = 256;  // bytes

double gather_ns(double elements, uint32_t ranks, const dr::predict::link& port) {
  return model_exchange("", elements, bytes_only(), ranks, port).total_ns;
}

}  // namespace

TEST_CASE("a message costs its sender and its receiver half of message_ns each, verdicts too") {
  dr::predict::link fast{8e12, 1000, true};
  const double without = gather_ns(1000, 2, fast);
  fast.message_ns = 4000;
  // A frame and a verdict, one behind the other; both ranks send, then receive.
  CHECK(gather_ns(1000, 2, fast) == doctest::Approx(without + 2 * 4000).epsilon(1e-3));
  // Among four ranks each sends three of both.
  const double three = gather_ns(1000, 4, fast);
  fast.message_ns = 0;
  CHECK(three - gather_ns(1000, 4, fast) == doctest::Approx(6 * 4000).epsilon(0.05));  // (they hide some latency)
}

TEST_CASE("what fits the bucket of a link passes at its own rate, what is beyond waits for the bucket to fill") {
  dr::predict::link shaped{8e6, 0, true};  // 1 byte a us
  shaped.burst_bytes = 10'000, shaped.burst_bits_per_second = 8e9;
  CHECK(gather_ns(5000, 2, shaped) == doctest::Approx(5000 + verdict).epsilon(1e-3));
  // 20,000 bytes: the bucket, which goes on filling for 10 us, and the rest at 1 us a byte.
  const double filled = 10'000 * 1e9 / (1e9 - 1e6);
  CHECK(gather_ns(20'000, 2, shaped) ==
        doctest::Approx(filled + 1000 * (20'000 - filled) + 1000 * verdict).epsilon(1e-3));
  shaped.burst_bytes = 0;
  CHECK(gather_ns(20'000, 2, shaped) == doctest::Approx(1000 * (20'000 + verdict)).epsilon(1e-3));
}

TEST_CASE("a bucket that was emptied fills with time") {
  dr::predict::link shaped{8e6, 0, true};
  shaped.burst_bytes = 10'000, shaped.burst_bits_per_second = 8e9;
  exchange_work slow = bytes_only();
  const auto owner_ns = [&](double sum_ns) {
    slow.first.base = sum_ns;  // between the frame and the sum's frame: the bucket fills
    return model_exchange("exchange=owner", 20'000, slow, 2, shaped).total_ns - 3 * sum_ns;
  };
  CHECK(owner_ns(0) > 9'000e3);
  CHECK(owner_ns(20'000e3) < 500e3);
}

TEST_CASE("a port has the message's cost of its link, and its bucket only if the rate is not stated") {
  network n;
  n.ranks = 2, n.wire = {1e9, 7000, false}, n.stated = false;
  n.measured = measured_link{"mpi", 2, 1, 7000, 1e9, 0, {}, {}};
  CHECK(n.port("ring").latency_ns == 7000);
  n.measured->hop_ns = 50'000, n.measured->message_ns = 20'000;
  n.measured->burst_bytes = 3e4, n.measured->burst_bits_per_second = 1e10;
  dr::predict::link port = n.port("ring");
  CHECK((port.latency_ns == 30'000 && port.message_ns == 20'000 && port.burst_bytes == 3e4));
  n.stated = true, n.wire.has_latency = true;
  port = n.port("ring");
  CHECK((port.latency_ns == 7000 && port.message_ns == 20'000 && port.burst_bytes == 0));
}

TEST_CASE("ranks that outnumber the cores share them") {
  profile p = parse_profile(profile_json(), "toy.json");  // 2 cores
  CHECK((sharing(p, 1) == 1 && sharing(p, 2) == 1 && sharing(p, 4) == 2));
  p.threads = 2;
  CHECK(sharing(p, 4) == 4);
  p.threads = 1, p.ranks = 4;  // costs have it
  CHECK((sharing(p, 4) == 1 && sharing(p, 8) == 2 && sharing(p, 1) == 1));
  p.cores = 0;  // unknown
  CHECK(sharing(p, 64) == 1);
}

TEST_CASE("adding a dense tensor costs what was measured of it, else a merge") {
  nlohmann::json text = profile_json();
  note_list notes;
  const auto add_of = [&] {
    const profile p = parse_profile(text, "toy.json");
    const plan_work exact = plan_work::exact(p, notes);
    return plan_work(p, sparse_plan, notes).as_exchange_work(2, exact).add(1e6);
  };
  CHECK(add_of() == doctest::Approx(0.25e6));
  text["costs"].push_back(
      {{"plan", "index=all value=raw"}, {"operation", "add"}, {"base_ns", 0}, {"per_element_ns", 0.1}});
  CHECK(add_of() == doctest::Approx(0.1e6));
}
