// Each barrier of each kernel is there for a reason: left out, some byte differs, a guard breaks, or the kernel hangs. Those
// whose loss goes unnoticed are in redundant_barriers.csv, with the reason why they remain.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "cuda/fused.hpp"
#include "device/apart.hpp"
#include "device/whole.hpp"

namespace dr::device_tests {
namespace {

// Which lanes are ahead of which is chance, so there are many. For barriers that are listed as redundant the first must do.
constexpr size_t few = 3;
constexpr order orders[] = {{0, 4}, {1, 4}, {2, 4},  {3, 4},  {4, 4},  {5, 4},
                            {6, 2}, {7, 2}, {8, 16}, {9, 16}, {10, 3}, {11, 8}};

struct site {
  std::string kernel;
  const char* file;  // where the phase stands
  unsigned line;
  friend bool operator<(const site& a, const site& b) {
    return std::tuple(a.kernel, std::string_view(a.file), a.line) <
           std::tuple(b.kernel, std::string_view(b.file), b.line);
  }
};

struct workload {
  std::function<std::string(const order&)> differs;  // from what it should be; "" if it does not
  std::set<site> sites{};
  std::chrono::nanoseconds time{};
};

// The smallest, the largest and some between.
group few_of(const group& g, size_t n) {
  std::vector<const input*> all = g.inputs;
  std::ranges::sort(all, {}, [](const input* in) { return in->elements.size(); });
  group few{g.fields, {}};
  for (size_t i = 0; i < n; ++i) few.inputs.push_back(all[i * (all.size() - 1) / (n - 1)]);
  return few;
}

std::vector<workload> workloads_of_all() {
  std::vector<workload> out;
  for (auto&& call : whole_calls()) {
    const auto shared = std::make_shared<whole_call>(std::move(call));
    out.push_back({[=](const order& how) { return shared->differs(how); }});
  }
  cases::random_source random("barriers");
  for (const subject* s : subjects()) {
    auto groups = device_groups(*s);
    // Types, widths and parameters change little of what barriers do.
    groups.resize(std::min<size_t>(groups.size(), s->text == s->described->plans[0] ? 3 : 1));
    for (const group& all : groups) {
      const group g = few_of(all, 7);
      auto encode = std::make_shared<encode_call>(make_encode_call(*s, g));
      auto decode = std::make_shared<decode_call>(decode_call{s, g.fields, false, {}});
      std::string wrong;
      for (size_t i = 0; i < g.inputs.size(); ++i) {
        const claim says = claim_of(*s, *g.inputs[i], encode->expected[i]);
        auto payload = encode->expected[i].payload;
        REQUIRE(add_item(*decode, says, payload, wrong));
        if (!payload.empty()) payload[random.below(payload.size())] ^= static_cast<uint8_t>(1u << random.below(8));
        REQUIRE(add_item(*decode, says, payload, wrong));
      }
      REQUIRE(wrong == "");
      out.push_back({[=](const order& how) { return encode_differs(*encode, how); }});
      out.push_back({[=](const order& how) { return decode_differs(*decode, how); }});
    }
  }
  return out;
}

// "golomb_tile.hpp:3": the third phase of this file that a kernel comes to, in the order of its lines, so that edits elsewhere do
// not change the name.
std::map<site, std::string> names_of(const std::map<site, std::set<phase_then>>& sites) {
  std::map<site, std::string> names;
  std::map<std::pair<std::string, std::string>, int> number;
  for (const auto& [at, then] : sites) {
    const std::string path = at.file, file = path.substr(path.rfind('/') + 1);
    names[at] = file + ":" + std::to_string(++number[{at.kernel, file}]);
  }
  return names;
}

using barrier_name = std::pair<std::string, std::string>;  // kernel, phase

std::map<barrier_name, std::string> listed_barriers() {
  std::map<barrier_name, std::string> listed;
  std::ifstream file(DR_REDUNDANT_BARRIERS);
  REQUIRE(file.good());
  std::string line;
  std::getline(file, line);
  REQUIRE(line == "kernel,phase,why");
  while (std::getline(file, line)) {
    std::istringstream row(line);
    std::string kernel, phase, why;
    std::getline(std::getline(std::getline(row, kernel, ','), phase, ','), why);
    CHECK_MESSAGE(why.size() > 10, line << ": why?");
    listed[{kernel, phase}] = why;
  }
  return listed;
}

// Whether the phase is one of a part of a fused kernel, which is also launched alone.
bool is_of_a_part(const site& at) {
  const auto is_whole = [&](const fused_kernel& k) { return at.kernel == k.whole->name; };
  return (is_whole(small_encode_kernel()) || is_whole(small_decode_kernel())) &&
         !std::string_view(at.file).ends_with("fused_tile.hpp");
}

TEST_CASE("the loss of any barrier is noticed") {
  std::vector<workload> workloads = workloads_of_all();
  std::map<site, std::set<phase_then>> sites;
  std::set<std::string> kernels;
  emulator().seen = [&](const dr_kernel& kernel, uint32_t) { kernels.insert(kernel.name); };
  for (workload& w : workloads) {
    emulator().phase_seen = [&](const dr_kernel& kernel, const char* file, unsigned line, phase_then then) {
      const site at{kernel.name, file, line};
      if (is_of_a_part(at)) return;
      sites[at].insert(then);
      w.sites.insert(at);
    };
    const auto begin = std::chrono::steady_clock::now();
    for (const order& how : {orders[0], orders[6]}) REQUIRE(w.differs(how) == "");
    w.time = std::chrono::steady_clock::now() - begin;
  }
  emulator().phase_seen = nullptr;
  emulator().seen = nullptr;
  std::ranges::sort(workloads, {}, &workload::time);

  const auto names = names_of(sites);
  auto listed = listed_barriers();
  size_t noticed = 0, collective = 0;
  for (const auto& [at, then] : sites) {
    if (then == std::set{phase_then::barrier}) {
      ++collective;  // lanes meet there, too
      continue;
    }
    emulator().planted_kernel = at.kernel.c_str();
    emulator().planted_file = at.file;
    emulator().planted_line = at.line;
    const bool known = listed.erase({at.kernel, names.at(at)}) > 0;
    const bool unnoticed = survives([&] {
      for (const order& how : std::span(orders).first(known ? few : std::size(orders)))
        for (const workload& w : workloads)
          if (w.sites.count(at) && !w.differs(how).empty()) return false;
      return true;
    });
    emulator().planted_kernel = nullptr;
    noticed += !unnoticed;
    if (unnoticed && !known)
      FAIL_CHECK(at.kernel << "," << names.at(at) << ": the barrier behind " << std::string(at.file) << ":" << at.line
                           << " may go without notice; say in redundant_barriers.csv why it stays, or do without it");
    if (!unnoticed && known && !sanitizes)  // a sanitizer notices more
      FAIL_CHECK(at.kernel << "," << names.at(at) << ": its loss is noticed now; it is no longer redundant");
  }
  for (const auto& [name, why] : listed) FAIL_CHECK(name.first << "," << name.second << ": there is no such phase");
  MESSAGE(kernels.size() << " kernels, " << sites.size() << " phases; " << noticed
                         << " barriers are missed when they go, " << collective
                         << " stand before a collective or the end");
}

}  // namespace
}  // namespace dr::device_tests
