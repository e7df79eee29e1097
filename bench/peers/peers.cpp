// peers [--json FILE] [--rounds N] [--quick] [FILTER]: codes index sets and values with every codec in the library's
// list, with other libraries and with plain reference code, all in turn in one run, after all round trips are checked.
// FILTER: a part of a set's name. --quick: small sets, few rounds, as a smoke test.
//
// One thread, and its CPU time. DEEPREDUCE_CPU=avx2 limits the instruction set of our codecs, not of the peers.
#define FMT_HEADER_ONLY  // its print, too
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/measure.hpp"
#include "deepreduce/deepreduce.hpp"
#include "peer.hpp"
#include "peer_sets.hpp"
#include "tool/compare/metrics.hpp"
#include "tool/show/machine.hpp"

namespace {

using namespace dr;
using namespace dr::bench;
using json = nlohmann::ordered_json;

// Settings besides the defaults. What a build lacks or refuses is reported as missing.
const std::vector<std::string> index_settings{
    "golomb(block=9)", "golomb(block=10)",     "golomb(adaptive=1)",         "golomb(block=9,adaptive=1)",
    "rice(block=9)",   "bloom(fpr=0.001)",     "bloom(policy=p0,fpr=0.001)", "golomb+deflate",
    "golomb+huffman",  "delta_varint+huffman", "delta_varint+zstd"};
const std::vector<std::string> value_settings{"raw+zstd",
                                              "raw+huffman",
                                              "qsgd(levels=7)",
                                              "qsgd+huffman",
                                              "uniform_quant(error=0.02)",
                                              "uniform_quant(bits=4)",
                                              "uniform_quant(bits=5)",
                                              "uniform_quant(bits=8)",
                                              "log_quant(bits=3)",
                                              "log_quant(bits=5)",
                                              "log_quant(bits=6)",
                                              "lloyd(levels=2)",
                                              "lloyd(levels=8)"};
// Whole frames: sparse tensor to bytes and back to a sparse tensor, checks and all.
const std::vector<std::string> frame_plans{"index=raw value=raw", "index=golomb value=raw", "index=golomb value=qsgd",
                                           "index=golomb value=half", "index=golomb value=uniform_quant(bits=5)"};

struct settings {
  std::string json_path, filter;
  int rounds = 15;
  bool quick = false;
};

double rounded(double x) { return std::stod(fmt::format("{:.5g}", x)); }

class report {
 public:
  explicit report(const settings& s) : settings_(s) {
    const char* level = std::getenv("DEEPREDUCE_CPU");
    out_ = {{"machine", compare::machine_facts()},
            {"build", compare::build_facts()},
            {"commit", compare::commit()},
            {"cpu_level", level ? level : "best"},
            {"clock", clock_name},
            {"rounds", s.rounds},
            {"rows", json::array()}};
  }
  bool wants(const std::string& set) const { return set.find(settings_.filter) != std::string::npos; }
  int failures() const { return failures_; }
  void fail(const std::string& what) { fmt::print(stderr, "peers: {}\n", what), ++failures_; }

  // Times all sound candidates; `facts` has the results of their checks.
  template <class T, class Facts>
  void measure(json common, std::vector<candidate<T>> all, size_t elements, Facts facts) {
    fmt::print("\n{}: {}\n{:<34} {:>8} {:>9} {:>9} {:>9}  {}\n", common["group"].get<std::string>(),
               common["set"].get<std::string>(), "codec", "bits", "", "encode G/s", "decode G/s", "");
    std::vector<std::function<void()>> runs;
    std::vector<json> rows;
    for (candidate<T>& c : all) {
      json row = common;
      row["codec"] = c.name;
      row["of"] = c.of;
      if (c.missing.empty()) {
        try {
          const uint64_t bytes = c.encode();
          std::memset(c.out->data(), 0xa5, c.out->size() * sizeof(T));
          c.decode();
          row["bytes"] = bytes;
          row["bits"] = rounded(8 * static_cast<double>(bytes) / static_cast<double>(elements));
          facts(c, row);
          runs.push_back([&c] { c.encode(); });
          runs.push_back(c.decode);
        } catch (const std::runtime_error& e) {
          row["failed"] = e.what();
          fail(c.name + ": " + e.what());
        }
      } else {
        row["missing"] = c.missing;
      }
      rows.push_back(std::move(row));
    }
    const auto times = alternate(runs, settings_.rounds, settings_.quick ? 2e-4 : 2e-3);
    auto time = times.begin();
    const double giga = static_cast<double>(elements) / 1e9;
    for (json& row : rows) {
      if (row.contains("bits")) {
        for (const char* way : {"encode", "decode"}) {
          row[way] = {{"median", rounded(giga / time->median)},
                      {"low", rounded(giga / time->high)},
                      {"high", rounded(giga / time->low)}};  // quartiles of speed
          ++time;
        }
        const std::string over = row.contains("bits_over") ? fmt::format("{:+.3f}", row["bits_over"].get<double>())
                                 : row.contains("relative_l2_error")
                                     ? fmt::format("{:.2e}", row["relative_l2_error"].get<double>())
                                     : "";
        fmt::print("{:<34} {:8.3f} {:>9} {:9.3f} {:9.3f}  {}\n", row["codec"].get<std::string>(),
                   row["bits"].get<double>(), over, row["encode"]["median"].get<double>(),
                   row["decode"]["median"].get<double>(), row["of"].get<std::string>());
      } else {
        fmt::print("{:<34} {}\n", row["codec"].get<std::string>(), row.value("missing", row.value("failed", "")));
      }
      out_["rows"].push_back(std::move(row));
    }
    std::fflush(stdout);
  }

  void write() const {
    if (!settings_.json_path.empty()) write_to(settings_.json_path);
  }

 private:
  // One line per row, so that diffs are readable.
  void write_to(const std::string& path) const {
    json head = out_;
    head.erase("rows");
    std::string text = head.dump(1);
    text.resize(text.size() - 2);  // "\n}"
    text += ",\n \"rows\": [";
    for (size_t i = 0; i < out_["rows"].size(); ++i) text += (i ? ",\n  " : "\n  ") + out_["rows"][i].dump();
    std::ofstream(path) << text << "\n ]\n}\n";
  }

  settings settings_;
  json out_;
  int failures_ = 0;
};

template <class T>
std::vector<T> joined(std::vector<T> a, std::vector<T> b) {
  std::move(b.begin(), b.end(), std::back_inserter(a));
  return a;
}

void measure_indices(report& to, const index_set& set) {
  if (!to.wants(set.name)) return;
  const uint64_t r = set.indices.size();
  const double bound = compare::index_bound_bits(set.d, r);
  json common{{"group", "indices"}, {"set", set.name}, {"d", set.d}, {"r", r}, {"bound", rounded(bound)}};
  if (set.local_entropy > 0) common["local_entropy"] = rounded(set.local_entropy);
  to.measure(common, joined(registered_index_codecs(set, index_settings), index_peers(set)), r,
             [&](const index_candidate& c, json& row) {
               if (*c.out != (c.expected ? *c.expected : set.indices))
                 throw std::runtime_error("the round trip gives another set");
               row["bits_over"] = rounded(row["bits"].get<double>() - bound);
               if (set.local_entropy > 0)
                 row["bits_over_local"] = rounded(row["bits"].get<double>() - set.local_entropy);
               if (c.expected) row["support"] = c.expected->size();
             });
}

void measure_values(report& to, const value_set& set) {
  if (!to.wants(set.name)) return;
  const size_t n = set.values.size();
  to.measure(json{{"group", "values"}, {"set", set.name}, {"d", set.d}, {"r", n}},
             joined(registered_value_codecs(set, value_settings), value_peers(set)), n,
             [&](const value_candidate& c, json& row) {
               double sum = 0, error = 0;
               bool same = true;
               for (size_t j = 0; j < n; ++j) {
                 const float x = set.values[c.order ? (*c.order)[j] : j], y = (*c.out)[j];
                 same &= std::memcmp(&x, &y, sizeof x) == 0;
                 const double e = static_cast<double>(x) - static_cast<double>(y);
                 sum += static_cast<double>(x) * static_cast<double>(x), error += e * e;
               }
               if (c.exact && !same) throw std::runtime_error("the round trip gives other values");
               if (!std::isfinite(error)) throw std::runtime_error("the round trip gives values that are not finite");
               row["relative_l2_error"] = rounded(std::sqrt(error / sum));
               if (c.order) row["order_bits"] = std::ceil(std::log2(static_cast<double>(n)));  // beside: order=bitpack
             });
}

struct pair {
  uint32_t index;
  float value;
};

void measure_frames(report& to, const index_set& set, const value_set& values) {
  const size_t r = set.indices.size();
  if (!to.wants("frames")) return;
  std::vector<candidate<pair>> all;
  for (const std::string& text : frame_plans) {
    candidate<pair> c{text, "deepreduce", "", {}, {}, std::make_shared<std::vector<pair>>(r)};
    try {
      struct frame_state {
        plan method;
        context on{};
        std::vector<std::byte> room{};
        size_t size = 0;
        std::vector<uint32_t> indices{};
        std::vector<float> values{};
      };
      auto s = std::make_shared<frame_state>(frame_state{plan(text)});
      const dr_tensor t = sparse(DR_F32, values.values.data(), DR_U32, set.indices.data(), r, set.d);
      s->room.resize(s->on.bound(s->method, {&t, 1}));
      s->indices.resize(r), s->values.resize(r);
      c.encode = [s, t] { return s->size = s->on.encode_into(s->room, s->method, {&t, 1}); };
      c.decode = [s, d = set.d] {
        auto out = sparse_out(DR_F32, s->values.data(), DR_U32, s->indices.data(), s->indices.size(), d);
        s->on.decode(std::span(s->room).first(s->size), out);
      };
      // Read by the check below.
      c.expected = std::make_shared<std::vector<pair>>();
      c.encode();
      c.decode();
      if (s->indices != set.indices) throw std::runtime_error("the round trip gives another support");
    } catch (const std::runtime_error& e) {
      c.missing = e.what();
    }
    all.push_back(std::move(c));
  }
  candidate<pair> copy{"memcpy", reference, "", {}, {}, std::make_shared<std::vector<pair>>(r)};
  auto from = std::make_shared<std::vector<pair>>(r), between = std::make_shared<std::vector<pair>>(r);
  copy.encode = [from, between, r] {
    return std::memcpy(between->data(), from->data(), r * sizeof(pair)), r * sizeof(pair);
  };
  copy.decode = [between, out = copy.out, r] { std::memcpy(out->data(), between->data(), r * sizeof(pair)); };
  all.push_back(std::move(copy));
  to.measure(json{{"group", "frames"}, {"set", set.name + "; " + values.name}, {"d", set.d}, {"r", r}}, std::move(all),
             r, [](const candidate<pair>&, json&) {});
}

int run(const settings& s) {
  report to(s);
  const double scale = s.quick ? 0.01 : 1;
  const auto d = [&](double full) { return static_cast<uint64_t>(full * scale); };
  // Made one at a time: the largest need 100 MB.
  for (const double density : {0.001, 0.01, 0.1})
    measure_indices(to, uniform_set(d(25e6), static_cast<uint64_t>(density * static_cast<double>(d(25e6)) + 0.5), 1));
  for (const double sigma : {1.0, 2.0}) measure_indices(to, clustered_set(d(25e6), 0.01, sigma, 1));
  measure_indices(to, uniform_set(d(2.5e9), d(250e3), 2));
  for (const double density : {0.3, 0.6, 0.9})
    measure_indices(to, uniform_set(d(1e6), static_cast<uint64_t>(density * static_cast<double>(d(1e6)) + 0.5), 3));
  // The set of the paper's Fig. 8.
  measure_indices(to, uniform_set(36864, 368, 4));
  std::vector<captured_set> captures;
  captures.push_back(captured(DR_DATASETS, "resnet20_digits_step0150", 0.01));
  captures.push_back(captured(DR_DATASETS, "resnet20_digits_step0150", 0.1));
  captures.push_back(captured(DR_DATASETS, "lstm_docs_step1500", 0.01));
  captures.push_back(captured(DR_DATASETS, "lstm_docs_step1500", 0.1));
  captures.push_back(captured(DR_DATASETS, "neumf_names_step0600", 0.01));
  captures.push_back(captured(DR_DATASETS, "neumf_names_step0600", 0));
  for (const captured_set& c : captures) measure_indices(to, c.set);
  const value_set laplace = synth_values("laplace", d(25e6), 0.01, 1);
  measure_values(to, laplace);
  measure_values(to, synth_values("student3", d(25e6), 0.01, 1));
  measure_values(to, synth_values("gauss", s.quick ? 2500 : 250000, 1, 1));
  for (const captured_set& c : captures) measure_values(to, c.values);
  measure_frames(to, uniform_set(d(25e6), laplace.values.size(), 1), laplace);
  to.write();
  return to.failures() != 0;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--json") && i + 1 < argc)
      s.json_path = argv[++i];
    else if (!std::strcmp(argv[i], "--rounds") && i + 1 < argc)
      s.rounds = std::max(1, std::atoi(argv[++i]));
    else if (!std::strcmp(argv[i], "--quick"))
      s.quick = true, s.rounds = 3;
    else if (argv[i][0] == '-')
      return std::fprintf(stderr, "usage: peers [--json FILE] [--rounds N] [--quick] [FILTER]\n"), 2;
    else
      s.filter = argv[i];
  }
  try {
    return run(s);
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "peers: %s\n", e.what()), 1;
  }
}
