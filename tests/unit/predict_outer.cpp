// The model of a round of an outer loop, by hand.
#include <doctest/doctest.h>

#include "predict_parts.hpp"
#include "tool/predict/outer_model.hpp"

using namespace parts;

namespace {

constexpr double ms = 1e6;
// A tensor of a million elements; 2 workers, or more, of 100 Mbit/s. Adding it to another takes 0.25 ms in the toy profile.
constexpr double add = 0.25 * ms, rate = 1e8;

}  // namespace

TEST_CASE("a dense round is an all-reduce of each tensor, and passes over the weights") {
  toy t(training_of({6e5, 4e5}, 100 * ms), rate, 2);
  const outer_exchange f32 = exchange_of_round(t.model, dense_candidate(false), false);
  CHECK(f32.exposed_ns == doctest::Approx(320 * ms));  // 2 · (4 MB / 2) at 12.5 MB/s
  // Of each weight: the difference 12 bytes, 4 to see that it is finite, 8 for the mean, 44 for Nesterov's momentum, 8 copied
  // back; adding moves 12.
  CHECK(f32.apply_ns == doctest::Approx(76.0 / 12 * add));
  CHECK(f32.total_ns == doctest::Approx(320 * ms + 76.0 / 12 * add));
  CHECK(f32.sent_bytes == doctest::Approx(4e6));
  const outer_exchange bf16 = exchange_of_round(t.model, dense_candidate(true), false);
  CHECK(bf16.total_ns == doctest::Approx(160 * ms + 80.0 / 12 * add));
  CHECK(bf16.received_bytes == doctest::Approx(2e6));
  // A book without plans is dense f32, too.
  candidate book = t.uniform(sparse_plan);
  book.choice = {-1, -1};
  CHECK(exchange_of_round(t.model, book, false).exposed_ns == doctest::Approx(320 * ms));
}

TEST_CASE("all-reduces that are issued at once share the link, and wait for its latency side by side") {
  network net{.ranks = 2, .wire = {rate, 10 * ms, true}};
  const auto all = [&](std::initializer_list<double> bytes) { return all_reduces_ns(net, std::vector(bytes)); };
  CHECK(all({4e5}) == doctest::Approx(52 * ms));  // 32 ms and two latencies
  // The link never idles: 4 · 32 ms, and the latencies of the last.
  CHECK(all({4e5, 4e5, 4e5, 4e5}) == doctest::Approx(148 * ms));
  // 1 ms each: of four, two at a time wait 20 ms. The link has the third at 21, the fourth at 22.
  CHECK(all({12500, 12500, 12500, 12500}) == doctest::Approx(43 * ms));
}

TEST_CASE("a plan's round encodes, gathers, merges all workers' frames, and applies their mean") {
  toy t(training_of({1e6}, 100 * ms), rate, 2);
  const outer_exchange x = exchange_of_round(t.model, t.uniform(sparse_plan), false);
  // A frame of 60 + 40,000 bytes, 48 of the slot, 2.4 % of room, in lines of 64 bytes: 41,088.
  CHECK(x.sent_bytes == doctest::Approx(41088));
  CHECK(x.encode_ns == doctest::Approx(0.508 * ms));
  CHECK(x.exposed_ns == doctest::Approx(3.28704 * ms));
  CHECK(x.merge_ns == doctest::Approx(0.106 * ms));
  CHECK(x.apply_ns == doctest::Approx(3 * add));  // 36 bytes: a plan that sparsifies has no momentum by default
  CHECK(x.total_ns == doctest::Approx(4.65104 * ms));
  // Of 4 workers three frames arrive, and four are merged.
  toy four(training_of({1e6}, 100 * ms), rate, 4);
  const outer_exchange y = exchange_of_round(four.model, four.uniform(sparse_plan), false);
  CHECK(y.received_bytes == doctest::Approx(3 * 41088));
  CHECK(y.total_ns == doctest::Approx(0.508 * ms + 3 * 3.28704 * ms + 0.212 * ms + 3 * add));
  // The slowest worker is waited for, once.
  four.model.how.skew_ns = 7 * ms;
  CHECK(exchange_of_round(four.model, four.uniform(sparse_plan), false).total_ns ==
        doctest::Approx(y.total_ns + 7 * ms));
}

TEST_CASE("a worker of a Folder writes one file and reads the others'") {
  toy t(training_of({1e6}, 100 * ms), rate, 3, 5 * ms);
  const outer_exchange x = exchange_of_round(t.model, t.uniform(sparse_plan), true);
  CHECK(x.sent_bytes == doctest::Approx(40060));
  CHECK(x.received_bytes == doctest::Approx(2 * 40060));
  // Three files at 12.5 MB/s; a round trip of 10 ms for each and for the list; 50 ms between polls.
  CHECK(x.exposed_ns == doctest::Approx(9.6144 * ms + 40 * ms + 50 * ms));
  CHECK(x.total_ns == doctest::Approx(0.508 * ms + 99.6144 * ms + 0.159 * ms + 3 * add));
  CHECK(overlap_of(x, 100 * ms, 30, 1).hidden_ns == 0);
  CHECK_THROWS_WITH_AS(exchange_of_round(t.model, t.uniform(std::string(lossy_plan) + " exchange=owner"), true),
                       doctest::Contains("Folder takes frames"), unsupported_model);
}

TEST_CASE("from which H little of a round waits, and to which a plan pays") {
  CHECK(least_every(161 * ms, 100 * ms, 0.1) == 15);  // of 14 steps and 161 ms 10.3 % wait, of 15 9.7 %
  CHECK(least_every(100 * ms, 100 * ms, 0.5) == 1);
  CHECK(least_every(0, 100 * ms, 0.1) == 1);
  // 50 · 100 + 5 = 5,005 is below 97 % of 5,160 = 5,005.2; 51 · 100 + 5 = 5,105 is not below 97 % of 5,260.
  CHECK(pays_to_every(5 * ms, 160 * ms, 100 * ms) == 50);
  CHECK(pays_to_every(5 * ms, 5 * ms, 100 * ms) == 0);
  CHECK(pays_to_every(160 * ms, 5 * ms, 100 * ms) == 0);
  for (const double every : {50.0, 51.0})
    CHECK((std::string(verdict_of(every * 100 + 5, every * 100 + 160)) == "pays") == (every == 50));
}

TEST_CASE("overlap hides what the worker would wait for, as far as steps go") {
  outer_exchange x;
  x.exposed_ns = x.hideable_ns = 3 * ms;
  const overlapped all = overlap_of(x, 1 * ms, 30, 1.2);
  // Three steps beside the exchange; in its 3 ms 2.5 ms of work are done.
  CHECK(all.steps == 3);
  CHECK(all.hidden_ns == doctest::Approx(2.5 * ms));
  const overlapped few = overlap_of(x, 1 * ms, 3, 1.2);
  CHECK(few.steps == 2);
  CHECK(few.hidden_ns == doctest::Approx(2 * ms));
  CHECK(overlap_of(x, 1 * ms, 1, 1.2).hidden_ns == 0);  // each step exchanges
}
