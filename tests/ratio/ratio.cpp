// ratio [--update]: recomputes every row of expected.csv through the library and compares exactly, so that a change of any codec's
// bytes or error shows, and `git log` of the table is its history. --update writes the table again and prints the
// changes.
//
// Rows are data x plan. Plans are those of plans.txt, and of every codec in the library's list one with its defaults and one for each
// of its choices: a codec that is registered without a row fails. Those of patches have rows of a step of training. Every round trip is
// verified as the tool does it.
#define FMT_HEADER_ONLY  // its print, too
#include <fmt/core.h>
#include <zlib.h>
#if defined(DR_RATIO_ZSTD)
#include <zstd.h>
#endif

#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "tool/compare/metrics.hpp"
#include "tool/compare/selected.hpp"
#include "tool/compare/verify.hpp"
#include "tool/read/plan_text.hpp"
#include "tool/read/subjects.hpp"

namespace {

using namespace dr;
using namespace dr::compare;

// ---- Data -------------------------------------------------------------------------------------------------------

struct datum {
  std::string name, input, glob;  // glob: one tensor of the input; "": all of them joined
  std::string sparsify;
};

std::vector<datum> all_data(const std::string& datasets) {
  const auto capture = [&](const std::string& name) { return datasets + "/gradients/" + name + ".npz"; };
  const auto accumulator = [&](const std::string& name) { return datasets + "/accumulators/" + name + ".npz"; };
  const std::string topr = "sparsify=topr(ratio=0.01) ", tenth = "sparsify=topr(ratio=0.1) ", none = "sparsify=none ";
  std::vector<datum> data{{"fig8", "synth:d=36864,values=laplace,density=1,seed=1", "", topr}};
  for (const char* step : {"resnet20_digits_step0010", "resnet20_digits_step0150", "resnet20_digits_step0300"})
    data.push_back({step, capture(step), "", topr});
  data.push_back({"resnet20_digits_step0150 layer3.2.conv1.weight", capture("resnet20_digits_step0150"),
                  "layer3.2.conv1.weight", topr});
  for (const char* step : {"neumf_names_step0020", "neumf_names_step0600"}) {
    data.push_back({step, capture(step), "", topr});
    data.push_back({step, capture(step), "", none});  // sparse by itself
  }
  for (const char* step : {"lstm_docs_step0020", "lstm_docs_step1500"}) data.push_back({step, capture(step), "", topr});
  // What training sends: what a sparsifier sees with feedback.
  for (const char* step : {"resnet20_digits_residual_top1_step0450", "neumf_names_residual_top1_step1000",
                           "lstm_docs_residual_top1_step0500", "transformer_docs_residual_top1_step0400",
                           "lstm_docs_momentum_top1_step0250"})
    data.push_back({step, accumulator(step), "", topr});
  data.push_back(
      {"resnet20_digits_residual_top10_step0225", accumulator("resnet20_digits_residual_top10_step0225"), "", tenth});
  // As the paper has it in federated learning.
  for (const char* step : {"resnet20_digits_step0150", "lstm_docs_step1500"})
    data.push_back({step, capture(step), "", tenth});
  for (const char* law :
       {"support=uniform,values=laplace", "support=clustered,values=gauss", "support=powerlaw,values=student3"})
    for (const char* density : {"0.001", "0.01", "0.1"}) {
      const std::string text = fmt::format("synth:d=400000,{},density={},seed=1", law, density);
      data.push_back({text, text, "", none});
    }
  return data;
}

// ---- Plans ------------------------------------------------------------------------------------------------------

std::string in_a_plan(const dr_codec& codec, const std::string& arguments) {
  const std::string text = codec.name + (arguments.empty() ? "" : "(" + arguments + ")");
  switch (codec.role) {
    case DR_ROLE_INDEX: return "index=" + text + " value=raw";
    case DR_ROLE_VALUE: return "index=golomb value=" + text;
    case DR_ROLE_ORDER: return "index=golomb value=fit_poly order=" + text;
    case DR_ROLE_BYTES: return "index=golomb value=raw+" + text;
    default: return "";  // pair and tensor have none: plans.txt has to name them
  }
}

std::vector<std::string> choices_of(const dr_codec& codec) {
  std::vector<std::string> all{""};
  for (size_t i = 0; i < codec.param_count; ++i) {
    const dr_param& p = codec.params[i];
    if (p.type != DR_PARAM_CHOICE) continue;
    const std::string_view names = p.choices;
    for (size_t begin = 0; begin <= names.size();) {
      const size_t end = std::min(names.find('|', begin), names.size());
      all.push_back(fmt::format("{}={}", p.name, names.substr(begin, end - begin)));
      begin = end + 1;
    }
  }
  return all;
}

// (What stands before an index codec is no plan's to name; codecs of patches have rows of their own.)
bool travels(const dr_codec& codec) {
  return codec.role != DR_ROLE_SPARSIFY && codec.role != DR_ROLE_FEEDBACK &&
         !(codec.traits & (DR_PREFIX | DR_NEEDS_BASE));
}

// Whether a plan as it is written has the codec.
bool names(const std::string& text, const dr_codec& codec) {
  const std::string lead = codec.role == DR_ROLE_BYTES ? "+" : std::string(role_name(codec.role)) + "=";
  const std::string wanted = lead + codec.name;
  for (size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) {
    const size_t end = at + wanted.size();
    if (end == text.size() || std::strchr(" (+", text[end])) return true;
  }
  return false;
}

struct plan_list {
  std::vector<std::string> texts;                   // canonical, without sparsify
  std::map<std::string, std::set<std::string>> of;  // "role=name": those of its texts
};

plan_list all_plans(const std::string& path) {
  plan_list list;
  std::set<std::string> seen;
  const auto add = [&](const std::string& text, bool must) {
    std::string canonical;
    try {
      canonical = read_plan(plan(text).text()).without_sparsify;
    } catch (const dr::error& e) {
      if (must) throw std::runtime_error(path + ": " + text + ": " + e.what());
      return;  // it wants an argument: a line of plans.txt gives it, or the codec has no row, which fails
    }
    if (seen.insert(canonical).second) list.texts.push_back(canonical);
    for (const dr_codec* codec : codecs())
      if (names(text, *codec) || names(canonical, *codec))
        list.of[fmt::format("{}={}", role_name(codec->role), codec->name)].insert(canonical);
  };
  for (const dr_codec* codec : codecs()) {
    if (!travels(*codec)) continue;
    for (const std::string& arguments : choices_of(*codec))
      if (const std::string text = in_a_plan(*codec, arguments); !text.empty()) add(text, false);
  }
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') add(line, true);
  return list;
}

// ---- Rows -------------------------------------------------------------------------------------------------------

struct row {
  std::string data, plan;
  std::string bytes, index_bytes, value_bytes, relative_l2_error;  // bytes: "refused" where the library says no
  std::string library;  // "zlib 1.2.13": sizes are that version's; "" where they are ours alone

  std::string key() const { return data + " | " + plan; }
  bool refused() const { return bytes == "refused"; }
};

constexpr const char* header = "data,plan,bytes,index_bytes,value_bytes,relative_l2_error,library";

// The libraries whose versions decide the sizes of a plan.
std::string libraries_of(const std::string& text) {
  std::string all;
  const auto add = [&](const char* codec, const std::string& library) {
    if (text.find(codec) != std::string::npos) all += (all.empty() ? "" : " + ") + library;
  };
  add("+deflate", std::string("zlib ") + zlibVersion());
#if defined(DR_RATIO_ZSTD)
  add("+zstd", std::string("zstd ") + ZSTD_versionString());
#else
  add("+zstd", "zstd of an unknown version");
#endif
  return all;
}

row measure(context& c, const datum& from, const tensor& g, std::span<const uint64_t> kept, const std::string& text) {
  const plan method(from.sparsify + text);
  row r{from.name, std::string(method.text()), "refused", "", "", "", libraries_of(text)};
  const dr_tensor input = dense(abi_dtype(g.type), g.data.data(), g.elements);
  std::vector<std::byte> frame;
  try {
    frame = c.encode(method, input);
  } catch (const dr::error& e) {
    if (e.code() != DR_E_ARGUMENT && e.code() != DR_E_UNSUPPORTED) throw;
    return r;
  }
  const dr_tensor_info info = inspect(frame).tensors.at(0);
  const decoded_tensor decoded = verify(c, g, read_plan(method.text()), kept, frame, info);
  r.bytes = std::to_string(frame.size());
  r.index_bytes = std::to_string(info.index_size);
  r.value_bytes = std::to_string(info.value_size);
  r.relative_l2_error =
      fmt::format("{:.9g}", measure_distortion(g, kept, decoded.dense, decoded.support).relative_l2_error);
  return r;
}

// ---- Patches ----------------------------------------------------------------------------------------------------

// bf16 weights, and what a step of about `rate` makes of them, whatever their size: as Adam's does.
struct trained {
  std::vector<uint16_t> base, now;
  trained(size_t n, float rate) : base(n), now(n) {
    uint64_t state = 1;
    const auto draw = [&state] {  // splitmix64; in [0, 1)
      uint64_t x = state += 0x9e3779b97f4a7c15;
      x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
      x = (x ^ x >> 27) * 0x94d049bb133111eb;
      return static_cast<float>((x ^ x >> 31) >> 40) * 0x1p-24f;
    };
    const auto rounded = [](float x) {
      const auto bits = std::bit_cast<uint32_t>(x);
      return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    };
    for (size_t i = 0; i < n; ++i) {
      const float x = 0.035f * (draw() + draw() + draw() + draw() - 2), by = rate * draw();
      base[i] = rounded(x);
      now[i] = rounded(std::bit_cast<float>(uint32_t{base[i]} << 16) + (draw() < 0.5f ? by : -by));
    }
  }
};

row measure_patch(context& c, const std::string& name, const trained& w, const std::string& text) {
  const plan method("sparsify=changed " + text);
  row r{name, std::string(method.text()), "refused", "", "", "", libraries_of(text)};
  dr_tensor input = dense(DR_BF16, w.now.data(), w.now.size());
  input.base = w.base.data();
  const std::vector<std::byte> frame = c.encode(method, input);
  std::vector<uint16_t> got = w.base;
  dr_tensor_out out = dense_out(DR_BF16, got.data(), got.size());
  auto options = sized<dr_decode_options>();
  options.flags = DR_DECODE_APPLY;
  c.decode(frame, out, &options);
  if (got != w.now) throw std::runtime_error("the patch makes something else");
  const dr_tensor_info info = inspect(frame).tensors.at(0);
  r.bytes = std::to_string(frame.size());
  r.index_bytes = std::to_string(info.index_size);
  r.value_bytes = std::to_string(info.value_size);
  r.relative_l2_error = "0";
  return r;
}

int patch_rows(context& c, std::vector<row>& rows) {
  int failures = 0;
  for (const auto& [rate, name] : {std::pair{4e-7f, "4e-7"}, {1e-5f, "1e-5"}, {2e-4f, "2e-4"}}) {
    const trained w(400000, rate);
    for (const char* text : {"index=auto value=ulp", "index=magnitude value=ulp", "index=magnitude value=xor",
                             "index=golomb value=ulp", "index=golomb value=raw", "index=all value=ulp"}) {
      try {
        rows.push_back(measure_patch(c, fmt::format("400000 bf16 weights after a step of {}", name), w, text));
      } catch (const std::runtime_error& e) {
        fmt::print("patch at {} | {}: {}\n", name, text, e.what());
        ++failures;
      }
    }
  }
  return failures;
}

std::string to_line(const row& r) {
  return fmt::format("\"{}\",\"{}\",{},{},{},{},{}", r.data, r.plan, r.bytes, r.index_bytes, r.value_bytes,
                     r.relative_l2_error, r.library);
}

std::vector<row> read_rows(const std::string& path) {
  std::vector<row> rows;
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return rows;
  if (line != header) throw std::runtime_error(path + ": the first line is not " + header);
  while (std::getline(file, line)) {
    row r;
    size_t at = 0;
    for (std::string* cell :
         {&r.data, &r.plan, &r.bytes, &r.index_bytes, &r.value_bytes, &r.relative_l2_error, &r.library}) {
      const bool quoted = at < line.size() && line[at] == '"';
      const size_t begin = at + quoted, end = std::min(line.find(quoted ? '"' : ',', begin), line.size());
      *cell = line.substr(begin, end - begin);
      at = end + quoted + 1;
    }
    rows.push_back(r);
  }
  return rows;
}

bool say(const row& now, const char* column, const std::string& before, const std::string& after) {
  if (before == after) return false;
  std::string change;
  if (const double old = std::strtod(before.c_str(), nullptr), made = std::strtod(after.c_str(), nullptr);
      old > 0 && made > 0)
    change = fmt::format(" ({:+.2f} %)", 100 * (made / old - 1));
  fmt::print("{}: {} {} -> {}{}\n", now.key(), column, before, after, change);
  return true;
}

// Prints what differs and returns how many rows do. With another version of a library only the error is compared.
int compare_rows(const std::vector<row>& before, const std::vector<row>& after) {
  std::map<std::string, row> old;
  for (const row& r : before) old[r.key()] = r;
  int differ = 0, other_version = 0;
  for (const row& now : after) {
    const auto at = old.find(now.key());
    if (at == old.end()) {
      fmt::print("{}: not in the table; bytes {}, error {}\n", now.key(), now.bytes, now.relative_l2_error);
      ++differ;
      continue;
    }
    const row was = at->second;
    old.erase(at);
    bool differs = say(now, "relative_l2_error", was.relative_l2_error, now.relative_l2_error);
    if (was.library == now.library) {
      differs |= say(now, "bytes", was.bytes, now.bytes);
      differs |= say(now, "index_bytes", was.index_bytes, now.index_bytes);
      differs |= say(now, "value_bytes", was.value_bytes, now.value_bytes);
    } else {
      differs |= was.refused() != now.refused();
      ++other_version;
    }
    differ += differs;
  }
  for (const auto& [key, r] : old) fmt::print("{}: in the table, but no longer computed\n", key);
  if (other_version)
    fmt::print("{} rows: another version of their library, so sizes were not compared\n", other_version);
  return differ + static_cast<int>(old.size());
}

int run(bool update, const std::string& folder, const std::string& datasets) {
  const plan_list plans = all_plans(folder + "/plans.txt");
  const std::string path = folder + "/expected.csv";
  console quiet;
  context c;
  std::vector<row> rows;
  std::set<std::string> coded;  // plans with a row that has bytes
  int failures = 0;
  for (const datum& from : all_data(datasets)) {
    const auto globs = from.glob.empty() ? std::vector<std::string>{} : std::vector{from.glob};
    const tensor g = read_subjects({.inputs = {from.input}, .globs = globs}, quiet).at(0);
    const auto kept = selected_by(c, from.sparsify, g);
    for (const std::string& text : plans.texts) {
      try {
        rows.push_back(measure(c, from, g, kept, text));
        if (!rows.back().refused()) coded.insert(text);
      } catch (const std::runtime_error& e) {
        fmt::print("{} | {}: {}\n", from.name, text, e.what());
        ++failures;
      }
    }
  }
  failures += patch_rows(c, rows);
  for (const dr_codec* codec : codecs()) {
    if (!travels(*codec)) continue;
    const std::string name = fmt::format("{}={}", role_name(codec->role), codec->name);
    const auto at = plans.of.find(name);
    const bool has = at != plans.of.end() &&
                     std::any_of(at->second.begin(), at->second.end(), [&](const auto& t) { return coded.count(t); });
    if (has) continue;
    fmt::print("{}: no row; give it a plan in {}/plans.txt\n", name, folder);
    ++failures;
  }
  const int differ = compare_rows(read_rows(path), rows);
  fmt::print("{} rows, {} differ, {} failed\n", rows.size(), differ, failures);
  if (update) {
    std::ofstream file(path);
    file << header << '\n';
    for (const row& r : rows) file << to_line(r) << '\n';
    if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
    return failures != 0;
  }
  if (differ) fmt::print("if that is meant: ./dev ratio --update, and the lines that changed belong in the commit\n");
  return differ != 0 || failures != 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool update = argc == 2 && std::string_view(argv[1]) == "--update";
  if (argc > 1 && !update) return fmt::print(stderr, "usage: ratio [--update]\n"), 2;
  try {
    return run(update, DR_RATIO, DR_DATASETS);
  } catch (const std::exception& e) {
    return fmt::print(stderr, "ratio: {}\n", e.what()), 1;
  }
}
