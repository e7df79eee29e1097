// Options, inputs and report of mpi_bench.
#pragma once

#include <deepreduce/mpi.h>
#include <deepreduce/deepreduce.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace comm {

struct rank_of {
  int rank = 0, count = 1;
};
inline rank_of ranks;

using floats = std::vector<float>;

// ---- Options ----------------------------------------------------------------------------------------------

struct options {
  size_t begin = 1 << 10, end = 64 << 20, factor = 2;  // bytes of the dense gradient
  int rounds = 20, warm_up = 2;
  double timeout = 120, expect_megabits = 0;
  bool finalize = true, hops = false;
  std::string json;
  std::vector<std::string> plans;  // with their exchange
};

inline constexpr const char* usage = R"(usage: mpiexec -n N mpi_bench [OPTION…]
  -b SIZE, -e SIZE, -f FACTOR  bytes of the dense gradient: from, to, times (1K 64M 2)
  --elements N                 this size only: N f32
  -n N, -w N                   measured rounds (20), rounds before (2)
  --plan TEXT                  a plan, or several; with `exchange=…` as it is, otherwise once with each --exchange
  --exchange TEXT              gather, owner(parts=4), …
  --json PATH                  the rows, for scripts
  --expect-megabits RATE       exit 3 unless a message from rank 0 to rank 1 goes at 0.6 to 1.1 times RATE Mbit/s
  --timeout SECONDS            of one exchange (120)
  --hops                       measures messages instead: ns of one to the next rank, and of each further one
  --no-finalize                leave out MPI_Finalize, which hangs now and then with MPICH 4.0 over TCP
)";

inline size_t parse_size(const std::string& text) {
  size_t end = 0;
  const double number = std::stod(text, &end);
  const std::string unit = text.substr(end);
  const double scale = unit.empty() ? 1 : unit == "K" ? 1024 : unit == "M" ? 1 << 20 : unit == "G" ? 1 << 30 : 0;
  if (scale == 0 || number * scale < 4)
    throw std::invalid_argument("a size is '" + text + "', not a number of at least 4 with K, M or G");
  return static_cast<size_t>(number * scale);
}

inline options parse(int argc, char** argv) {
  options o;
  std::vector<std::string> plans, exchanges;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--no-finalize" || name == "--hops") {
      (name == "--hops" ? o.hops : o.finalize) = name == "--hops";
      continue;
    }
    if (i + 1 == argc || name == "--help")
      throw std::invalid_argument(name == "--help" ? usage : name + " wants a value\n" + usage);
    const std::string value = argv[++i];
    if (name == "-b")
      o.begin = parse_size(value);
    else if (name == "-e")
      o.end = parse_size(value);
    else if (name == "-f")
      o.factor = std::max(2ul, std::stoul(value));
    else if (name == "--elements")
      o.begin = o.end = 4 * std::stoul(value);
    else if (name == "-n")
      o.rounds = std::max(1, std::stoi(value));
    else if (name == "-w")
      o.warm_up = std::max(0, std::stoi(value));
    else if (name == "--plan")
      plans.push_back(value);
    else if (name == "--exchange")
      exchanges.push_back(value);
    else if (name == "--json")
      o.json = value;
    else if (name == "--expect-megabits")
      o.expect_megabits = std::stod(value);
    else if (name == "--timeout")
      o.timeout = std::stod(value);
    else
      throw std::invalid_argument("no option " + name + "\n" + usage);
  }
  if (plans.empty())
    for (const char* value : {"raw", "log_quant"})
      plans.push_back(std::string("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=") + value);
  if (exchanges.empty()) exchanges = {"gather", "owner(parts=4)"};
  for (const std::string& plan : plans) {
    if (plan.find("exchange=") != std::string::npos) {
      o.plans.push_back(plan);
    } else {
      for (const std::string& exchange : exchanges) o.plans.push_back(plan + " exchange=" + exchange);
    }
  }
  return o;
}

// ---- Inputs -----------------------------------------------------------------------------------------------

// Heavy-tailed, as gradients are: an element is above x as often as 1 / x, up to a thousand times the median. Independent between
// ranks, which is the worst for sums: two ranks keep the same elements by chance only.
inline floats gradient(size_t elements, int rank, uint64_t step) {
  floats g(elements);
  uint64_t x = 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(rank) * 1000003 + step + 1);
  for (float& v : g) {  // xorshift64*
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    const uint64_t r = x * 0x2545f4914f6cdd1du;
    const float u = static_cast<float>(r >> 40) * 0x1p-23f - 1, w = static_cast<float>(r & 0xffffff) * 0x1p-24f;
    v = 1e-3f * u / (1e-3f + w);
  }
  return g;
}

inline uint64_t hash(std::span<const float> values) {
  uint64_t h = values.size();
  for (const float v : values) {
    h = (h ^ std::bit_cast<uint32_t>(v)) * 0x9fb21c651e98df25u;
    h ^= h >> 29;
  }
  return h;
}

inline bool same_everywhere(uint64_t word) {
  std::vector<uint64_t> words(static_cast<size_t>(ranks.count));
  MPI_Allgather(&word, 1, MPI_UINT64_T, words.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD);
  return std::all_of(words.begin(), words.end(), [word](uint64_t each) { return each == word; });
}

// As dr_mpi_wait waits, so that the dense rows have the same chance.
inline void wait_for(MPI_Request& request) {
  static const bool crowded = ranks.count > sysconf(_SC_NPROCESSORS_ONLN);
  dr_mpi_pause_ pause{};
  for (int done = 0;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) return;
    dr_mpi_rest_(crowded, 0, &pause);
  }
}

// ---- Rows -------------------------------------------------------------------------------------------------

class candidate {
 public:
  virtual ~candidate() = default;
  virtual std::string plan() const = 0;
  virtual void prepare(uint64_t) {}
  virtual void run(uint64_t step) = 0;
  virtual void verify() = 0;  // throws
  virtual double sent() const = 0;
  virtual std::span<const float> result() const = 0;
  virtual double error() const { return 0; }
  virtual std::string times() const { return ""; }
};

struct row {
  std::string plan;
  size_t elements;
  double time, p10, p90, sent, error;  // seconds; bytes of the rank that sends most
  std::string times;                   // of rank 0, the last round
};

class report {
 public:
  report(const options& asked, double megabits) : path_(asked.json) {
    if (ranks.rank) return;
    char told[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(told, &length);
    std::string version = told;
    version = version.substr(0, version.find_first_of("\n\r"));
    std::replace(version.begin(), version.end(), '\t', ' ');
    version.erase(std::unique(version.begin(), version.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
                  version.end());
    std::printf("# deepreduce %s, %s, %d ranks, rank 0 to 1: %.0f Mbit/s; %d rounds\n", dr_version(), version.c_str(),
                ranks.count, megabits, asked.rounds);
    std::printf(
        "# algbw = bytes / time, busbw = algbw * 2(n-1)/n, as nccl-tests; time: median of the slowest rank, p10, "
        "p90\n");
    std::printf("%10s %10s %9s %9s %9s %8s %8s %11s %7s %6s %s\n", "bytes", "elements", "time ms", "p10", "p90",
                "algbw GB/s", "busbw", "sent bytes", "x dense", "error", "plan");
    json_ = "{\"deepreduce\": \"" + std::string(dr_version()) + "\", \"mpi\": \"" + version +
            "\", \"ranks\": " + std::to_string(ranks.count) + ", \"megabits\": " + std::to_string(megabits) +
            ", \"rounds\": " + std::to_string(asked.rounds) + ", \"rows\": [";
  }

  void add(const std::vector<row>& rows) {
    for (const row& r : rows) {
      if (ranks.rank) continue;
      const double bytes = 4.0 * static_cast<double>(r.elements), algbw = 1e-9 * bytes / r.time;
      const double busbw = algbw * 2 * (ranks.count - 1) / ranks.count, ratio = r.time / rows[0].time;
      std::printf("%10.0f %10zu %9.3f %9.3f %9.3f %8.3f %8.3f %11.0f %7.4f %6.4f %s\n", bytes, r.elements, 1e3 * r.time,
                  1e3 * r.p10, 1e3 * r.p90, algbw, busbw, r.sent, ratio, r.error, r.plan.c_str());
      if (!r.times.empty()) std::printf("%80s# %s\n", "", r.times.c_str());
      char text[512];
      std::snprintf(text, sizeof text,
                    "%s\n  {\"elements\": %zu, \"time_s\": %.9g, \"p10_s\": %.9g, \"p90_s\": %.9g, \"algbw\": %.6g, "
                    "\"busbw\": %.6g, "
                    "\"sent\": %.0f, \"times_dense\": %.6g, \"error\": %.6g, \"plan\": \"",
                    first_ ? "" : ",", r.elements, r.time, r.p10, r.p90, algbw, busbw, r.sent, ratio, r.error);
      json_ += text + r.plan + "\"}";
      first_ = false;
    }
    std::fflush(stdout);
  }

  void end() {
    if (ranks.rank || path_.empty()) return;
    json_ += "\n]}\n";
    std::FILE* file = std::fopen(path_.c_str(), "w");
    if (!file || std::fwrite(json_.data(), 1, json_.size(), file) != json_.size() || std::fclose(file))
      throw std::runtime_error("cannot write " + path_);
  }

 private:
  std::string path_, json_;
  bool first_ = true;
};

}  // namespace comm
