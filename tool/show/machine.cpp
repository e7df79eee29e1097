#include "machine.hpp"

#include <sys/utsname.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "commit.hpp"
#include "deepreduce/deepreduce.h"

// Defined by the build.
#ifndef DR_BUILDTYPE
#define DR_BUILDTYPE "unknown"
#endif

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

// The value of the first line `key : value` of /proc/cpuinfo.
std::string cpuinfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key))
      if (const size_t colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return {};
}

// Those that decide how fast codecs are.
ordered_json flags_of_note() {
  auto flags = ordered_json::array();
  std::istringstream words(cpuinfo("flags"));
  for (std::string word; words >> word;)
    if (word == "avx2" || word == "bmi2" || word == "popcnt" || word.starts_with("avx512")) flags.push_back(word);
  return flags;
}

// Of the library's instructions: what the CPU has, or what DEEPREDUCE_CPU leaves of it.
const char* level_in_use() {
  static constexpr const char* levels[] = {"scalar", "scalar", "avx2", "avx512", "neon"};
  const uint64_t level = dr_feature(DR_FEATURE_CPU);
  return levels[level < std::size(levels) ? level : 0];
}

ordered_json text_or_null(const std::string& text) { return text.empty() ? ordered_json(nullptr) : ordered_json(text); }

}  // namespace

ordered_json machine_facts() {
  utsname system{};
  std::string os;
  if (uname(&system) == 0) os = std::string(system.sysname) + ' ' + system.release + ' ' + system.machine;
  return {{"cpu", text_or_null(cpuinfo("model name"))},
          {"cores", std::thread::hardware_concurrency()},
          {"flags", flags_of_note()},
          {"level", level_in_use()},
          {"os", text_or_null(os)}};
}

ordered_json build_facts() {
#if defined(__clang__)
  const std::string compiler = "clang " __clang_version__;
#else
  const std::string compiler = "gcc " __VERSION__;
#endif
  return {{"compiler", compiler}, {"version", dr_version()}, {"buildtype", DR_BUILDTYPE}};
}

std::string commit() { return DR_COMMIT; }

std::string version_text() {
  static constexpr const char* levels[] = {"unknown", "scalar", "AVX2", "AVX-512", "NEON"};
  const uint64_t level = dr_feature(DR_FEATURE_CPU);
  return std::string("deepreduce ") + dr_version() + "\ncommit  " + commit() + "\nbuild   " +
         build_facts()["compiler"].get<std::string>() + ", " + DR_BUILDTYPE +
         (dr_feature(DR_FEATURE_CUDA) ? ", with CUDA" : ", without CUDA") + "\nCPU     " +
         levels[level < std::size(levels) ? level : 0];
}

}  // namespace dr::compare
