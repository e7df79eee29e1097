// The controller on made-up links: what it settles at, how fast, and that all ranks do the same.
#include <deepreduce/control.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client.hpp"

namespace {

constexpr uint64_t ms = 1'000'000;
// A ladder of five: dense, half, 8 bit, 10 %, 1 %.
const std::vector<uint64_t> ladder = {4'000'000, 2'000'000, 1'000'000, 150'000, 15'000};

struct control {
  dr_control* handle = nullptr;
  explicit control(const std::string& options, const std::vector<uint64_t>& bytes = ladder) {
    dr_error error{};
    error.struct_size = sizeof error;
    const dr_status s = dr_control_create(options.c_str(), bytes.data(), bytes.size(), &handle, &error);
    INFO(error.message);
    REQUIRE(s == DR_OK);
  }
  ~control() { dr_control_destroy(handle); }
  control(const control&) = delete;
  control& operator=(const control&) = delete;
  dr_control_info info() const {
    dr_control_info i{};
    i.struct_size = sizeof i;
    REQUIRE(dr_control_describe(handle, &i, nullptr) == DR_OK);
    return i;
  }
  std::string line() const {
    char text[1024];
    size_t size = 0;
    REQUIRE(dr_control_log(handle, text, sizeof text, &size) == DR_OK);
    return {text, size};
  }
};

struct wire {
  double bytes_per_second, latency_ns;
  uint64_t time(uint64_t bytes) const {
    return static_cast<uint64_t>(latency_ns + 1e9 * static_cast<double>(bytes) / bytes_per_second);
  }
};
constexpr wire fast{125e6, 50e3}, slow{12.5e6, 50e3};

// Ranks that all use a link, each of which may measure something else, or nothing (0). Returns the rung of each step.
using noise = std::function<uint64_t(uint64_t ns, size_t rank, uint64_t step)>;
std::vector<uint32_t> train(
    std::vector<control*> ranks, uint64_t steps, const std::function<wire(uint64_t)>& at,
    const noise& measured = [](uint64_t ns, size_t, uint64_t) { return ns; }, std::vector<std::string>* log = nullptr) {
  std::vector<uint32_t> rungs;
  for (uint64_t step = 0; step < steps; ++step) {
    const dr_control_info info = ranks[0]->info();
    rungs.push_back(info.rung);
    const wire l = at(step);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const uint64_t bytes = ladder[info.rung];
      if (const uint64_t ns = measured(l.time(bytes), r, step))
        REQUIRE(dr_control_observe(ranks[r]->handle, bytes, ns) == DR_OK);
    }
    if (step + 1 < info.next_step) continue;
    for (control* const c : ranks)
      REQUIRE(dr_control_observe(c->handle, 0, static_cast<uint64_t>(l.latency_ns)) == DR_OK);
    std::vector<uint64_t> words(ranks.size() * DR_CONTROL_WORDS);
    for (size_t r = 0; r < ranks.size(); ++r)
      REQUIRE(dr_control_report(ranks[r]->handle, &words[r * DR_CONTROL_WORDS]) == DR_OK);
    for (control* const c : ranks) {
      dr_error error{};
      error.struct_size = sizeof error;
      const dr_status s = dr_control_decide(c->handle, step + 1, words.data(), ranks.size(), &error);
      INFO(error.message);
      REQUIRE(s == DR_OK);
    }
    if (log) log->push_back(ranks[0]->line());
  }
  return rungs;
}

size_t changes(const std::vector<uint32_t>& rungs, size_t from) {
  size_t n = 0;
  for (size_t i = from + 1; i < rungs.size(); ++i) n += rungs[i] != rungs[i - 1];
  return n;
}
bool by_one(const std::vector<uint32_t>& rungs) {
  for (size_t i = 1; i < rungs.size(); ++i)
    if (std::max(rungs[i], rungs[i - 1]) - std::min(rungs[i], rungs[i - 1]) > 1) return false;
  return true;
}

const char* const laws[] = {"aimd", "fit"};

}  // namespace

TEST_CASE("on a constant link it settles in 20 decisions at the densest rung that meets the target, and stays") {
  struct row {
    wire l;
    uint64_t target_ms;
    uint32_t rung;  // 0.05 ms + bytes / rate
  };
  const row rows[] = {{fast, 41, 0},                 // 32 ms
                      {fast, 20, 1},                 // 16 ms
                      {fast, 10, 2},                 // 8 ms
                      {slow, 15, 3},                 // 12 ms
                      {slow, 20, 3},  {slow, 5, 4},  // 1.2 ms
                      {slow, 1000, 0}};
  for (const char* const law : laws)
    for (const row& r : rows)
      for (const uint32_t start : {0u, 2u, 4u}) {
        INFO(law << ", target " << r.target_ms << " ms, from rung " << start);
        control c(std::string(law) + "(target_ms=" + std::to_string(r.target_ms) +
                  ",retry=0,start=" + std::to_string(start) + ")");
        const std::vector<uint32_t> rungs = train({&c}, 200, [&](uint64_t) { return r.l; });
        CHECK(by_one(rungs));
        CHECK(changes(rungs, 20) == 0);
        CHECK(rungs.back() == r.rung);
      }
}

TEST_CASE("a rung that was too slow is tried again seldom, and more and more seldom") {
  control c("aimd(target_ms=20,retry=20)");
  const std::vector<uint32_t> rungs = train({&c}, 1000, [](uint64_t) { return slow; });
  // From 20 decisions up to 160 between trials; a trial goes there and back.
  CHECK(changes(rungs, 20) <= 2 * 9);
  CHECK(changes(rungs, 20) >= 2);
  CHECK(std::count(rungs.begin(), rungs.end(), 3u) > 970);
  // Also where the first step of a rung is not measured.
  for (const char* const patience : {"1", "3"}) {
    control d(std::string("aimd(target_ms=20,retry=20,patience=") + patience + ")");
    uint64_t before = 0;
    const auto later = [&before](uint64_t ns, size_t, uint64_t) { return std::exchange(before, ns) == ns ? ns : 0; };
    CHECK(changes(train(
                      {&d}, 1000, [](uint64_t) { return slow; }, later),
                  20) <= 2 * 9);
  }
}

TEST_CASE("when the link gets slower it comes down from the top, and up again when it is fast") {
  for (const char* const law : laws) {
    INFO(std::string(law));
    control c(std::string(law) + "(target_ms=40)");
    const std::vector<uint32_t> rungs =
        train({&c}, 300, [](uint64_t step) { return step >= 100 && step < 200 ? slow : fast; });
    CHECK(std::all_of(rungs.begin(), rungs.begin() + 100, [](uint32_t r) { return r == 0; }));
    CHECK(rungs[120] == 3);
    CHECK(rungs[199] == 3);
    CHECK(rungs[299] == 0);
    CHECK(by_one(rungs));
  }
}

TEST_CASE("times within the dead band change nothing") {
  for (const char* const law : laws) {
    control c(std::string(law) + "(target_ms=16,band=0.3,start=1)");
    const std::vector<uint32_t> rungs = train(
        {&c}, 200, [](uint64_t) { return fast; },
        [](uint64_t ns, size_t, uint64_t step) { return ns * (80 + step * 37 % 41) / 100; });
    CHECK(changes(rungs, 0) == 0);
  }
}

TEST_CASE("one slow step among fast ones changes nothing: the median of the window counts") {
  for (const char* const law : laws) {
    control c(std::string(law) + "(target_ms=40,window=3)");
    const std::vector<uint32_t> rungs = train(
        {&c}, 200, [](uint64_t) { return fast; },
        [](uint64_t ns, size_t, uint64_t step) { return step % 10 == 5 ? 20 * ns : ns; });
    CHECK(changes(rungs, 0) == 0);
  }
}

TEST_CASE("all ranks decide alike although they measure differently; who is late counts by choice") {
  const noise late = [](uint64_t ns, size_t rank, uint64_t step) {
    return ns + (rank == step % 3 ? 0 : 30 * ms) + rank;  // one is late, the others wait for it
  };
  for (const char* const law : laws)
    for (const char* const choice : {"min", "mean", "max"}) {
      INFO(law << " " << choice);
      const std::string options = std::string(law) + "(target_ms=41,agree=" + choice + ")";
      control a(options), b(options), c(options);
      const std::vector<uint32_t> rungs = train(
          {&a, &b, &c}, 100, [](uint64_t) { return fast; }, late);
      CHECK(a.line() == b.line());
      CHECK(a.line() == c.line());
      CHECK((rungs.back() == 0) == (std::string(choice) == "min"));
    }
}

TEST_CASE("ranks that are out of step, or have other options, are informed and nothing changes") {
  control a("aimd(target_ms=40)"), b("aimd(target_ms=41)"), d("aimd(target_ms=40)");
  train({&d}, 1, [](uint64_t) { return slow; });
  for (const control* const other : {&b, &d}) {
    uint64_t words[2 * DR_CONTROL_WORDS];
    REQUIRE(dr_control_report(a.handle, words) == DR_OK);
    REQUIRE(dr_control_report(other->handle, words + DR_CONTROL_WORDS) == DR_OK);
    dr_error error{};
    error.struct_size = sizeof error;
    CHECK(dr_control_decide(a.handle, 1, words, 2, &error) == DR_E_ARGUMENT);
    CHECK(error.frame == 1);
    CHECK(std::string(error.message).find("out of step") != std::string::npos);
    CHECK((std::string(error.message).find("other options") != std::string::npos) == (other == &b));
    CHECK(a.info().decisions == 0);
  }
  dr_error error{};
  error.struct_size = sizeof error;
  uint64_t words[DR_CONTROL_WORDS];
  REQUIRE(dr_control_report(a.handle, words) == DR_OK);
  CHECK(dr_control_decide(a.handle, 0, words, 1, &error) == DR_E_ARGUMENT);
  CHECK(std::string(error.message) == "control: step 0 is before 1, at which a decision is due");
}

TEST_CASE("bounds: no denser rung than densest, none smaller than smallest, and the share of the smallest") {
  for (const char* const law : laws) {
    INFO(std::string(law));
    control top(std::string(law) + "(target_ms=1000,densest=1,smallest=3,start=3)");
    CHECK(train({&top}, 60, [](uint64_t) { return fast; }).back() == 1);
    CHECK(top.info().reason == DR_CONTROL_DENSEST);
    control bottom(std::string(law) + "(target_ms=0.01,densest=1,smallest=3)");
    CHECK(train({&bottom}, 60, [](uint64_t) { return slow; }).back() == 3);
    CHECK(bottom.info().reason == DR_CONTROL_SMALLEST);
    control share(std::string(law) + "(target_ms=0.01,share=0.25)");
    const std::vector<uint32_t> rungs = train({&share}, 200, [](uint64_t) { return slow; });
    for (size_t i = 0; i + 20 <= rungs.size(); ++i)
      CHECK(std::count(rungs.begin() + static_cast<std::ptrdiff_t>(i),
                       rungs.begin() + static_cast<std::ptrdiff_t>(i) + 20, 4u) <= 5);
    CHECK(std::count(rungs.begin(), rungs.end(), 4u) >= 30);
    CHECK(by_one(rungs));
  }
}

TEST_CASE("an interval: decisions are due every so many steps") {
  control c("aimd(target_ms=15,interval=5)");
  const std::vector<uint32_t> rungs = train({&c}, 100, [](uint64_t) { return slow; });
  for (size_t i = 1; i < rungs.size(); ++i)
    if (rungs[i] != rungs[i - 1]) CHECK(i % 5 == 0);
  CHECK(c.info().decisions == 20);
  CHECK(c.info().next_step == 105);
}

TEST_CASE("too slow: the budget becomes a share of what was sent") {
  for (const size_t rung : {0, 1, 2}) {
    control c("aimd(target_ms=1,decrease=0.5,increase=0.1,window=1)");
    train({&c}, rung + 1, [](uint64_t) { return slow; });
    CHECK(c.info().budget == 0.5 * static_cast<double>(ladder[rung]));
  }
}

TEST_CASE("by steps: each rung lasts as many, whatever the times are, and the last one stays") {
  control c("steps(each=7,densest=1,smallest=3)");
  std::vector<std::string> log;
  const std::vector<uint32_t> rungs = train(
      {&c}, 40, [](uint64_t step) { return step % 3 ? slow : fast; }, [](uint64_t ns, size_t, uint64_t) { return ns; },
      &log);
  for (size_t i = 0; i < rungs.size(); ++i) CHECK(rungs[i] == std::min<size_t>(1 + i / 7, 3));
  CHECK(c.info().changes == 2);
  CHECK(log.front().find("its steps are over: the next rung") != std::string::npos);
  CHECK(log.back().find("stays: the last rung, or its steps are not over") != std::string::npos);
}

TEST_CASE("the fit finds latency and rate") {
  control c("fit(target_ms=15)");
  train({&c}, 50, [](uint64_t) { return slow; });
  CHECK(c.info().base_ns == doctest::Approx(50e3).epsilon(0.01));
  CHECK(1e9 / c.info().per_byte_ns == doctest::Approx(12.5e6).epsilon(0.01));
}

TEST_CASE("sizes that are not known are measured, and the ladder works without them") {
  for (const char* const law : laws) {
    INFO(std::string(law));
    control c(std::string(law) + "(target_ms=15)", {0, 0, 0, 0, 0});
    const std::vector<uint32_t> rungs = train({&c}, 100, [](uint64_t step) { return step < 50 ? slow : fast; });
    CHECK(rungs[20] == 3);
    CHECK(rungs.back() <= 2);
  }
}

TEST_CASE("the same inputs yield the same log") {
  const auto link_at = [](uint64_t step) { return wire{step / 40 % 2 ? 12.5e6 : 125e6, 1e5}; };
  for (const char* const law : laws) {
    std::vector<std::string> first, again;
    for (std::vector<std::string>* const log : {&first, &again}) {
      control a(std::string(law) + "(target_ms=20)"), b(std::string(law) + "(target_ms=20)");
      train(
          {&a, &b}, 200, link_at,
          [](uint64_t ns, size_t rank, uint64_t step) { return ns + (rank + step) * 7919 % ms; }, log);
    }
    CHECK(first.size() == 200);
    CHECK(first == again);
    // What the log says of the ranks is all that a controller needs to decide the same.
    control replayed(std::string(law) + "(target_ms=20)");
    for (const std::string& line : first) {
      const auto number = [&](const std::string& key) {
        return std::stoull(line.substr(line.find("\"" + key + "\":") + key.size() + 3));
      };
      uint64_t words[DR_CONTROL_WORDS];
      REQUIRE(dr_control_report(replayed.handle, words) == DR_OK);
      words[0] = number("transfer_ns"), words[1] = number("bytes"), words[2] = number("empty_ns");
      REQUIRE(dr_control_decide(replayed.handle, number("step"), words, 1, nullptr) == DR_OK);
      REQUIRE(replayed.line() == line);
    }
  }
}

TEST_CASE("a rank that measured nothing has no say; if none did, nothing changes") {
  control a("aimd(target_ms=1)"), b("aimd(target_ms=1)");
  uint64_t words[2 * DR_CONTROL_WORDS];
  for (const bool measured : {false, true}) {
    if (measured) REQUIRE(dr_control_observe(b.handle, 4'000'000, 320 * ms) == DR_OK);
    REQUIRE(dr_control_report(a.handle, words) == DR_OK);
    REQUIRE(dr_control_report(b.handle, words + DR_CONTROL_WORDS) == DR_OK);
    for (const control* const c : {&a, &b})
      REQUIRE(dr_control_decide(c->handle, measured + 1u, words, 2, nullptr) == DR_OK);
    CHECK(a.info().rung == measured);
    CHECK(a.info().reason == (measured ? DR_CONTROL_SLOW : DR_CONTROL_NOTHING));
  }
}

TEST_CASE(
    "a ladder in the wrong order, of sizes that are not known: it stays where the fewest bytes are, and reports it") {
  const auto run = [](control& c, const std::vector<uint64_t>& bytes, uint64_t steps) {
    std::vector<uint32_t> rungs;
    std::vector<uint32_t> reasons;
    for (uint64_t step = 0; step < steps; ++step) {
      rungs.push_back(c.info().rung);
      uint64_t words[DR_CONTROL_WORDS];
      const uint64_t sent = bytes[rungs.back()];
      REQUIRE(dr_control_observe(c.handle, sent, slow.time(sent)) == DR_OK);
      REQUIRE(dr_control_report(c.handle, words) == DR_OK);
      REQUIRE(dr_control_decide(c.handle, step + 1, words, 1, nullptr) == DR_OK);
      reasons.push_back(c.info().reason);
    }
    return std::pair{rungs, reasons};
  };
  for (const char* const law : laws) {
    INFO(std::string(law));
    const std::string options = std::string(law) + "(target_ms=0.5,retry=100)";
    control reversed(options, {0, 0, 0});
    auto [rungs, reasons] = run(reversed, {15'000, 150'000, 4'000'000}, 90);
    CHECK(by_one(rungs));
    CHECK(std::count(rungs.begin() + 10, rungs.end(), 0u) == 80);
    CHECK(std::count(reasons.begin(), reasons.end(), uint32_t{DR_CONTROL_NO_LESS}) == 2);
    CHECK(reasons.back() == DR_CONTROL_PASSED);
    // One of the middle that sends as much as the first is passed on the way to the last.
    control middle(options, {0, 0, 0});
    std::tie(rungs, reasons) = run(middle, {4'000'000, 4'000'000, 4'000}, 90);
    CHECK(std::count(rungs.begin() + 10, rungs.end(), 2u) >= 70);
    // Where there is time, the denser of two that send as much is the one to use.
    control spare(std::string(law) + "(target_ms=1000,start=1)", {0, 0, 0});
    std::tie(rungs, reasons) = run(spare, {4'000'000, 4'000'000, 4'000}, 90);
    CHECK(std::count(rungs.begin() + 10, rungs.end(), 0u) == 80);
  }
}

TEST_CASE("extreme words are used unchanged, and no number overflows") {
  for (const char* const law : laws)
    for (const uint64_t ns : {uint64_t{0}, uint64_t{1}, UINT64_MAX})
      for (const uint64_t bytes : {uint64_t{1}, UINT64_MAX}) {
        control c(std::string(law) + "(target_ms=1,agree=mean)");
        for (uint64_t step = 1; step < 30; ++step) {
          uint64_t words[2 * DR_CONTROL_WORDS];
          REQUIRE(dr_control_report(c.handle, words) == DR_OK);
          words[0] = ns, words[1] = bytes, words[2] = step % 2 ? UINT64_MAX : 0;
          std::copy_n(words, DR_CONTROL_WORDS, words + DR_CONTROL_WORDS);
          REQUIRE(dr_control_decide(c.handle, step, words, 2, nullptr) == DR_OK);
          REQUIRE(c.info().rung < 5);
          REQUIRE(c.line().back() == '}');
        }
      }
}

TEST_CASE("NULL is an error, not a crash") {
  control c("fit(target_ms=1)");
  uint64_t words[DR_CONTROL_WORDS] = {};
  size_t size = 0;
  dr_control* other = nullptr;
  CHECK(dr_control_create(nullptr, nullptr, 1, &other, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_control_create("fit(target_ms=1)", nullptr, 1, nullptr, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_control_observe(nullptr, 1, 1) == DR_E_ARGUMENT);
  CHECK(dr_control_report(nullptr, words) == DR_E_ARGUMENT);
  CHECK(dr_control_report(c.handle, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_control_decide(nullptr, 1, words, 1, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_control_decide(c.handle, 1, nullptr, 1, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_control_decide(c.handle, 1, words, 0, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_control_describe(nullptr, nullptr, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_control_log(nullptr, nullptr, 0, &size) == DR_E_ARGUMENT);
  CHECK(dr_control_log(c.handle, nullptr, 0, &size) == DR_E_CAPACITY);
  CHECK(size > 100);
  CHECK(std::string(dr_control_reason(DR_CONTROL_SLOW)) == "too slow: one rung smaller");
  CHECK(std::string(dr_control_reason(99)) == "?");
  dr_control_destroy(nullptr);
}
