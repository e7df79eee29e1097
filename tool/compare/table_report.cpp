#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "report.hpp"
#include "spread_notes.hpp"
#include "tool/read/plan_text.hpp"
#include "tool/show/text_table.hpp"

namespace dr::compare {
namespace {

constexpr size_t widest_line = 140;

std::string number(double value, fmt::format_string<double&> form) {
  return std::isfinite(value) ? fmt::format(form, value) : std::string();
}

// Three digits.
std::string time_text(double time) {
  return time < 9.95   ? fmt::format("{:.2f}", time)
         : time < 99.5 ? fmt::format("{:.1f}", time)
                       : fmt::format("{:.0f}", time);
}

std::string speed(double bits_per_second) {
  if (!std::isfinite(bits_per_second)) return "?";
  if (bits_per_second <= 0) return "never";
  const bool giga = bits_per_second >= 1e9;
  return fmt::format("{:.3g} {}b/s", bits_per_second / (giga ? 1e9 : 1e6), giga ? 'G' : 'M');
}

// 8.13+32.00, and the bits of an order.
std::string bits_cell(const row& r) {
  if (!std::isfinite(r.sizes.index_bits) || !std::isfinite(r.sizes.value_bits)) return {};
  std::string text = fmt::format("{:.2f}+{:.2f}", r.sizes.index_bits, r.sizes.value_bits);
  if (r.sizes.order.value_or(0) && r.r.value_or(0))
    text += fmt::format("+{:.2f}", 8 * static_cast<double>(*r.sizes.order) / static_cast<double>(*r.r));
  return text;
}

// CPU time / wall time of an encode and a decode.
double cpu_share(const row& r) {
  const row_times& t = r.times;
  return (t.encode_cpu + t.decode_cpu) / (t.sparsify.median + t.encode.median + t.decode.median);
}

bool differs(const row& r) { return std::isfinite(cpu_share(r)) && std::abs(cpu_share(r) - 1) > 0.1; }

// Rows of one subject whose plans have one sparsifier; memcpy is the first.
struct block {
  std::string input, tensor, sparsify;
  uint64_t step = 1;
  std::vector<const row*> rows;
  std::vector<std::string> names;  // of plans: a preset's name, or the text without the sparsifier
  std::vector<const failure*> failures;

  bool is_of(const std::string& i, const std::string& t, uint64_t s) const {
    return input == i && tensor == t && step == s;
  }
};

std::vector<block> blocks_of(std::span<const row> rows, std::span<const failure> failures) {
  std::vector<block> blocks;
  const auto block_of = [&](const auto& r, const std::string& sparsify) -> block& {
    const auto at = std::ranges::find_if(
        blocks, [&](const block& b) { return b.is_of(r.input, r.tensor, r.step) && b.sparsify == sparsify; });
    if (at != blocks.end()) return *at;
    block& made = blocks.emplace_back();
    made.input = r.input, made.tensor = r.tensor, made.step = r.step, made.sparsify = sparsify;
    return made;
  };
  const row* copy = nullptr;
  for (const row& r : rows) {
    if (r.is_memcpy()) {
      copy = &r;
      continue;
    }
    const plan_reading reading = read_plan(r.plan);
    block& b = block_of(r, reading.sparsify);
    if (b.rows.empty() && copy != nullptr) b.rows.push_back(copy), b.names.push_back("memcpy (dense)");
    b.rows.push_back(&r);
    b.names.push_back(r.preset.empty() ? reading.without_sparsify : r.preset);
  }
  for (const failure& f : failures) block_of(f, f.sparsify).failures.push_back(&f);
  return blocks;
}

template <class F>
std::vector<std::string> cells(const block& b, F&& f) {
  std::vector<std::string> list;
  for (const row* r : b.rows) list.push_back(f(*r));
  return list;
}

std::string lines_of(const std::string& indent, const std::string& text) {
  std::string all;
  for (const std::string& line : wrapped(text, widest_line - indent.size())) all += indent + line + '\n';
  return all;
}

constexpr double many_ns = 1e8;  // a table with larger times is in ms

// left_out: number of omitted columns: volume (bytes imply it), then cpu.
text_table table_of(const block& b, int left_out) {
  using enum text_table::align;
  std::vector<std::string> plans = b.names;
  for (size_t i = 0; i < plans.size(); ++i) {
    const row& r = *b.rows[i];
    if (!r.choice.empty()) plans[i] += " → " + r.choice;
    if (!r.fallback.empty() && r.fallback != "none") plans[i] += fmt::format(" (fell back: {})", r.fallback);
  }
  text_table t;
  t.column("plan", left, std::move(plans));
  t.column("bytes", right, cells(b, [](const row& x) { return grouped(x.sizes.total); }));
  if (left_out < 1)
    t.column("volume", right, cells(b, [](const row& x) { return number(100 * x.sizes.relative_volume, "{:.3g}%"); }));
  t.column("bits", right, cells(b, bits_cell));
  t.column("error", right, cells(b, [](const row& x) { return number(x.total_error, "{:.3g}"); }));
  t.column("coding", right,
           cells(b, [](const row& x) { return number(x.error ? x.error->relative_l2_error : undefined, "{:.3g}"); }));
  t.column("energy", right, cells(b, [](const row& x) {
             return number(x.error ? 100 * x.error->energy_recall : undefined, "{:.1f}%");
           }));
  const bool slow = std::ranges::any_of(b.rows, [](const row* r) {
    const row_times& t = r->times;
    return std::max({t.sparsify.median, t.encode.median, t.decode.median, t.merge.median}) > many_ns;
  });
  const double unit = slow ? 1e6 : 1e3;
  const auto times = [&](const char* heading, timing row_times::*time, bool spread) {
    // 12.3±4%; a single round has no spread.
    t.column(heading + std::string(slow ? " ms" : ""), right, cells(b, [&](const row& x) {
               const timing& t = x.times.*time;
               if (!std::isfinite(t.median) || (x.is_memcpy() && time == &row_times::sparsify)) return std::string();
               const bool known = x.times.rounds > 1 && spread && std::isfinite(t.spread);
               return time_text(t.median / unit) + (known ? fmt::format("±{:.0f}%", 100 * t.spread) : "");
             }));
  };
  times("sparsify", &row_times::sparsify, false);
  times("encode", &row_times::encode, true);
  times("decode", &row_times::decode, true);
  times("merge", &row_times::merge, true);
  if (left_out < 2)
    t.column("cpu", right,
             cells(b, [](const row& x) { return differs(x) ? fmt::format("{:.1f}x", cpu_share(x)) : std::string(); }));
  if (b.rows.back()->model.verdict.empty()) {
    t.column("pays below", right,
             cells(b, [](const row& x) { return x.is_memcpy() ? "" : speed(x.model.pays_below); }));
  } else {
    t.column("step", right, cells(b, [](const row& x) { return x.is_memcpy() ? "" : duration(x.model.step_ns); }));
    t.column("verdict", left, cells(b, [](const row& x) { return x.model.verdict; }));
  }
  return t;
}

std::string table_text(const block& b) {
  constexpr size_t plan_room = 12;  // beyond the narrowest
  for (const int left_out : {0, 1})
    if (const text_table t = table_of(b, left_out); t.narrowest("  ") + plan_room <= widest_line)
      return t.text("  ", widest_line);
  return table_of(b, 2).text("  ", widest_line);
}

// stepped: whether rows of later steps exist.
std::string block_text(const block& b, bool stepped) {
  std::string text = b.input + (b.tensor.empty() ? "" : "  ") + b.tensor;
  if (!b.rows.empty()) {
    const row& r = *b.rows.back();
    text += fmt::format("  {}, d = {}{}\n", r.dtype, grouped(r.d), stepped ? fmt::format(", step {}", r.step) : "");
    const double share = 100 * static_cast<double>(r.r.value_or(0)) / static_cast<double>(r.d);
    text += fmt::format("  {}: r = {} ({:.3g} %), index bound {:.2f} bits\n", b.sparsify, grouped(r.r.value_or(0)),
                        share, r.sizes.index_bound_bits);
    if (!r.model.verdict.empty())
      text += fmt::format(
          "  model of a step: ring all-reduce of dense {} {}{}\n", r.dtype, duration(r.model.dense_step_ns),
          r.model.bf16_step_ns < r.model.dense_step_ns ? ", in 16 bits " + duration(r.model.bf16_step_ns) : "");
    text += table_text(b);
    std::vector<named_times> named;
    for (size_t i = 0; i < b.rows.size(); ++i)
      if (!b.rows[i]->is_memcpy()) named.push_back(times_of(b.names[i], *b.rows[i]));
    for (const std::string& note : spread_notes(named)) text += lines_of("  ", note);
  } else {
    text += fmt::format("\n  {}\n", b.sparsify);
  }
  for (const failure* f : b.failures)
    text += lines_of("  ", read_plan(f->plan).without_sparsify + " failed: " + f->error);
  return text + '\n';
}

std::string preset_legend(std::span<const row> rows) {
  std::vector<std::pair<std::string, std::string>> known;
  for (const row& r : rows)
    if (!r.preset.empty() &&
        std::ranges::find(known, r.preset, &std::pair<std::string, std::string>::first) == known.end())
      known.emplace_back(r.preset, read_plan(r.plan).without_sparsify);
  std::string text;
  for (const auto& [name, plan] : known) text += lines_of("", name + ": " + plan);
  return text.empty() ? text : text + '\n';
}

}  // namespace

std::string table_report(std::span<const row> rows, const run_facts& run) {
  std::string text;
  const bool stepped = std::ranges::any_of(rows, [](const row& r) { return r.step > 1; });
  for (const block& b : blocks_of(rows, run.failures)) text += block_text(b, stepped);
  text += preset_legend(rows);
  text += fmt::format(
      "volume: of dense f32. bits: index + value (+ order) per nonzero (r). error: relative L2 of the decoded "
      "tensor\nagainst the dense tensor{}; coding: against the selected values. energy: the share of |g|^2 on the "
      "decoded\n"
      "support. Times: medians in µs (ms if a heading has it) ± (75th - 25th percentile) / median; merge: "
      "one frame of each of n = {} ranks.\n",
      stepped ? ", sums over the steps" : "", run.ranks);
  if (std::ranges::any_of(rows, differs))
    text += "cpu: CPU time / wall time of an encode and a decode, where they differ.\n";
  const bool short_floats = std::ranges::any_of(rows, [](const row& r) { return r.dtype != "f32"; });
  const std::string dense = short_floats ? "the dense tensor in its own type" : "dense f32";
  if (run.link_text.empty())
    return text +
           fmt::format(
               "pays below: the speed of a rank's link, in bits per second, below which the plan's exchange (default: "
               "an all-gather)\namong n = {0} ranks beats a ring all-reduce of {1}: sparsify + "
               "encode + merge + 8 (n - 1) (bytes + 256) / speed\n< 16 dense bytes (n - 1) / n / speed of an "
               "all-gather. "
               "Modelled from these times; no latency; --link models a step.\n",
               run.ranks, dense);
  return text + fmt::format(
                    "step: of n = {} ranks over links of {}, a model from these times: the exchange run dry (--help). "
                    "verdict:\nagainst the faster ring all-reduce, of {} or in 16 bits, whose computing is "
                    "not counted; even: within the spread.\n",
                    run.ranks, run.link_text, dense);
}

}  // namespace dr::compare
