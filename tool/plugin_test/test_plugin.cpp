// `deepreduce test-plugin`: checks the promises of codecs on those of a plug-in.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>

#include "child.hpp"
#include "codec_checks.hpp"
#include "deepreduce/deepreduce.hpp"
#include "test_plugin_options.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/read/plan_text.hpp"
#include "tool/show/console.hpp"
#include "tool/show/output.hpp"

namespace dr::plugin_test {
namespace {

std::vector<check> all_checks() {
  std::vector<check> list;
  for (const auto part : {operation_checks(), hostile_checks(), frame_checks()})
    list.insert(list.end(), part.begin(), part.end());
  return list;
}

// Results of one codec over all rounds.
struct report {
  const dr_codec* codec;
  std::vector<subject> subjects;
  std::map<std::string, uint64_t> streams;                 // by check
  std::set<std::pair<std::string, std::string>> failed{};  // (call, check): not tried again
  std::vector<std::string> failures{};                     // lines
  std::string refused{};                                   // of the first call that refuses inputs

  std::string title() const {
    return fmt::format("{} codec {}, id {:#x}", compare::role_name(codec->role), codec->name, codec->id);
  }
};

void run_round(report& r, uint64_t seed, compare::console& console) {
  cases::set_seed(seed);
  const std::vector<check> checks = all_checks();
  for (const subject& s : r.subjects) {
    for (const check& c : checks) {
      if (r.failed.contains({s.call, c.name})) continue;
      console.progress(fmt::format("testing {}: {}, seed {}", s.call, c.name, seed));
      const verdict v = in_child([&] { return c.run(s); });
      r.streams[c.name] += v.streams;
      if (v.failed.empty()) continue;
      r.failed.emplace(s.call, c.name);
      r.failures.push_back(fmt::format("  FAILED {}={}: {} (seed {})\n    {}\n    promised: {}\n",
                                       compare::role_name(s.codec->role), s.call, c.name, seed, v.failed, c.promise));
      if (&c != &checks[0]) continue;
      for (const check& other : checks) r.failed.emplace(s.call, other.name);  // they would fail alike
      break;
    }
    if (r.failed.contains({s.call, checks[0].name}) || !r.refused.empty()) continue;
    const auto told = in_child([&]() -> uint64_t {
      const std::string text = refusals(s);
      return text.empty() ? 0 : throw failure(text);
    });
    r.refused = told.failed;
  }
}

std::string text_of(const report& r, uint64_t rounds) {
  std::string text = fmt::format("{}: {} parameterisations, {} round{}\n", r.title(), r.subjects.size(), rounds,
                                 rounds == 1 ? "" : "s");
  for (const check& c : all_checks()) {
    const auto failed = std::ranges::count_if(r.subjects, [&](const subject& s) {
      return r.failed.contains({s.call, c.name});
    });
    const auto found = r.streams.find(c.name);
    const uint64_t streams = found == r.streams.end() ? 0 : found->second;
    if (failed)
      text += fmt::format("  {:<13} failed, or was not run, for {} of {}\n", c.name, failed, r.subjects.size());
    else if (streams)
      text += fmt::format("  {:<13} ok  {:>8}  {}\n", c.name, streams, c.promise);
  }
  if (!r.refused.empty()) text += fmt::format("  refused       {}\n", r.refused);
  for (const std::string& line : r.failures) text += line;
  return text;
}

// A plan cannot use a value codec without types.
std::string unusable(const dr_codec& c) {
  if (c.role == DR_ROLE_VALUE && c.dtypes == 0) return "dtypes is 0: it accepts no values";
  return "";
}

}  // namespace

int run_test_plugin(const test_plugin_options& o) {
  const size_t before = dr_codec_count();
  compare::load_plugins({o.path}, "test-plugin ");
  compare::console console;
  std::vector<report> reports;
  for (size_t i = before; i < dr_codec_count(); ++i) {
    report& r = reports.emplace_back(report{dr_codec_at(i), subjects_of(*dr_codec_at(i)), {}});
    if (const std::string why = unusable(*r.codec); !why.empty()) {
      r.failures.push_back("  FAILED " + why + "\n");
      r.subjects.clear();
    }
  }
  compare::note_signals();
  using clock = std::chrono::steady_clock;
  const auto begin = clock::now();
  uint64_t rounds = 0;
  do {
    for (report& r : reports) run_round(r, o.seed + rounds, console);
    ++rounds;
  } while (std::chrono::duration<double>(clock::now() - begin).count() < o.seconds);
  console.clear();
  std::string text;
  size_t failures = 0;
  for (const report& r : reports) {
    text += text_of(r, rounds);
    failures += r.failures.size();
  }
  text += failures ? fmt::format("{} broken promise{}\n", failures, failures == 1 ? "" : "s")
                   : fmt::format("all promises hold (seeds {} … {})\n", o.seed, o.seed + rounds - 1);
  compare::write_output("", text);
  return failures ? 1 : 0;
}

}  // namespace dr::plugin_test
