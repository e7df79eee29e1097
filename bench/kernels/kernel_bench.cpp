// kernel_bench [--json FILE] [--rounds N] [FILTER]: times every kernel with every instruction set, in turn in one run,
// after a check that all write the same bytes, and a copy of as many bytes for comparison. FILTER: a part of the
// kernel's name.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/measure.hpp"
#include "kernel_bench.hpp"
#include "kernel_subjects.hpp"
#include "tool/show/machine.hpp"

int main(int argc, char** argv) {
  using namespace dr;
  using namespace dr::bench;
  std::string json_path, filter;
  int rounds = 15;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--json") && i + 1 < argc)
      json_path = argv[++i];
    else if (!std::strcmp(argv[i], "--rounds") && i + 1 < argc)
      rounds = std::max(1, std::atoi(argv[++i]));
    else if (argv[i][0] == '-')
      return std::fprintf(stderr, "usage: kernel_bench [--json FILE] [--rounds N] [FILTER]\n"), 2;
    else
      filter = argv[i];
  }
  nlohmann::ordered_json out{{"machine", compare::machine_facts()},
                             {"build", compare::build_facts()},
                             {"commit", compare::commit()},
                             {"clock", clock_name},
                             {"rounds", rounds},
                             {"rows", nlohmann::json::array()}};
  std::printf("%-24s %-34s %-7s %10s %8s %8s  %s\n", "kernel", "input", "level", "us", "+-%", "G/s", "GB/s (copy)");
  int failed = 0;
  for (const subject& s : all_subjects()) {
    if (s.kernel.find(filter) == std::string::npos) continue;
    std::vector<cpu_level> levels;
    for (const cpu_level level : s.levels)
      if (cpu_has(level)) levels.push_back(level);
    // (Subjects name x86's; on aarch64 there is one.)
    if (cpu_has(cpu_level::neon) && s.levels.size() > 1 && levels.back() != cpu_level::neon)
      levels.push_back(cpu_level::neon);
    std::vector<std::function<void()>> candidates;
    uint64_t expected = 0;
    bool same = true;
    for (const cpu_level level : levels) {
      s.run(level);
      const uint64_t found = s.digest();
      if (candidates.empty()) expected = found;
      same &= found == expected;
      candidates.push_back([&s, level] { s.run(level); });
    }
    if (!same) {
      std::printf("%-24s %-34s the levels differ\n", s.kernel.c_str(), s.input.c_str());
      failed = 1;
      continue;
    }
    // memcpy moves its size twice.
    const size_t copied = static_cast<size_t>(s.bytes / 2) + 1;
    std::vector<char> from(copied, 1), to(copied);
    candidates.push_back([&] {
      std::memcpy(to.data(), from.data(), copied);
      __asm__ volatile("" ::"r"(to.data()) : "memory");
    });
    const auto times = alternate(candidates, rounds);
    for (size_t c = 0; c < times.size(); ++c) {
      const timing& t = times[c];
      const char* name = c < levels.size() ? cpu_level_names[static_cast<uint32_t>(levels[c])] : "memcpy";
      std::printf("%-24s %-34s %-7s %10.2f %8.1f %8.3f  %.2f\n", s.kernel.c_str(), s.input.c_str(), name,
                  t.median * 1e6, 50 * (t.high - t.low) / t.median, s.items / t.median / 1e9, s.bytes / t.median / 1e9);
      out["rows"].push_back({{"kernel", s.kernel},
                             {"input", s.input},
                             {"level", name},
                             {"unit", s.unit},
                             {"items", s.items},
                             {"bytes", s.bytes},
                             {"seconds", t.median},
                             {"low", t.low},
                             {"high", t.high}});
    }
    std::fflush(stdout);
  }
  if (!json_path.empty()) std::ofstream(json_path) << out.dump(1) << '\n';
  return failed;
}
