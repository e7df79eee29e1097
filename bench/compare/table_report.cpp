#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "plan_text.hpp"
#include "report.hpp"
#include "text_table.hpp"

namespace dr::compare {
namespace {

constexpr size_t widest_line = 140;

std::string number(double value, fmt::format_string<double&> form) {
  return std::isfinite(value) ? fmt::format(form, value) : std::string();
}
std::string bits(double value) { return number(value, "{:.2f}"); }

std::string microseconds(double ns) {
  const double us = ns / 1000;
  return us < 9.95 ? fmt::format("{:.2f}", us) : us < 99.5 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us);
}

std::string speed(double bits_per_second) {
  if (bits_per_second <= 0) return "never";
  const bool giga = bits_per_second >= 1e9;
  return fmt::format("{:.3g} {}b/s", bits_per_second / (giga ? 1e9 : 1e6), giga ? 'G' : 'M');
}

// Rows of one tensor whose plans sparsify alike; memcpy comes before the first of them.
struct block {
  std::string sparsify;
  std::vector<const row*> rows;
  std::vector<std::string> plans;  // without what they share
};

std::vector<block> blocks_of(std::span<const row> rows) {
  std::vector<block> blocks;
  const row* copy = nullptr;
  size_t first = 0;  // block of this tensor
  for (const row& r : rows) {
    if (r.is_memcpy()) {
      copy = &r;
      first = blocks.size();
      continue;
    }
    const plan_reading reading = read_plan(r.plan);
    size_t b = first;
    while (b < blocks.size() && blocks[b].sparsify != reading.sparsify) ++b;
    if (b == blocks.size()) {
      blocks.push_back({reading.sparsify, {}, {}});
      if (copy != nullptr) blocks[b].rows.push_back(copy), blocks[b].plans.push_back("memcpy (dense)");
    }
    blocks[b].rows.push_back(&r);
    blocks[b].plans.push_back(reading.without_sparsify);
  }
  return blocks;
}

template <class F>
std::vector<std::string> cells(const block& b, F&& f) {
  std::vector<std::string> list;
  for (const row* r : b.rows) list.push_back(f(*r));
  return list;
}

// stepped: whether there are further steps than the first.
std::string block_text(const block& b, uint32_t ranks, bool stepped) {
  const row& r = *b.rows.back();
  const double share = 100 * static_cast<double>(r.r.value_or(0)) / static_cast<double>(r.d);
  std::string text = fmt::format("{}{}{}  {}, d = {}{}\n", r.input, r.tensor.empty() ? "" : "  ", r.tensor, r.dtype,
                                 grouped(r.d), stepped ? fmt::format(", step {}", r.step) : "");
  text += fmt::format("  {}: r = {} ({:.3g} %), index bound {:.2f} bits\n", b.sparsify, grouped(r.r.value_or(0)), share,
                      r.index_bound_bits_per_nonzero);
  using enum text_table::align;
  text_table t;
  t.column("plan", left, b.plans);
  t.column("fallback", left, cells(b, [](const row& x) { return x.fallback == "none" ? "" : x.fallback; }));
  t.column("bytes", right, cells(b, [](const row& x) { return grouped(x.bytes); }));
  t.column("volume", right, cells(b, [](const row& x) { return number(100 * x.relative_volume, "{:.2f}%"); }));
  t.column("index", right, cells(b, [](const row& x) { return bits(x.index_bits_per_nonzero); }));
  t.column("value", right, cells(b, [](const row& x) { return bits(x.value_bits_per_nonzero); }));
  t.column("order", right, cells(b, [](const row& x) {
             return x.order_bytes.value_or(0) == 0
                        ? std::string()
                        : bits(8 * static_cast<double>(*x.order_bytes) / static_cast<double>(x.r.value_or(0)));
           }));
  t.column("error", right, cells(b, [](const row& x) { return number(x.relative_l2_error, "{:.3g}"); }));
  t.column("recall", right, cells(b, [](const row& x) { return number(x.index_recall, "{:.3g}"); }));
  t.column("sparsify", right, cells(b, [](const row& x) { return x.is_memcpy() ? "" : microseconds(x.sparsify_ns); }));
  t.column("encode", right, cells(b, [](const row& x) { return microseconds(x.encode_ns); }));
  t.column("decode", right, cells(b, [](const row& x) { return microseconds(x.decode_ns); }));
  t.column("pays below", right,
           cells(b, [&](const row& x) { return x.is_memcpy() ? "" : speed(break_even_speed(x, ranks)); }));
  return text + t.text("  ", widest_line) + '\n';
}

}  // namespace

std::string table_report(std::span<const row> rows, uint32_t ranks) {
  std::string text;
  const bool stepped = std::ranges::any_of(rows, [](const row& r) { return r.step > 1; });
  for (const block& b : blocks_of(rows)) text += block_text(b, ranks, stepped);
  return text +
         fmt::format(
             "volume: of dense f32. index, value, order: bits a nonzero (r). error: relative L2, against what was "
             "kept.\n"
             "recall: share of the kept that arrives. Times: medians in µs. pays below: the speed of each rank's link, "
             "in bits\n"
             "a second, under which an all-gather among n = {} ranks beats a ring all-reduce of dense f32: sparsify + "
             "encode + n decode +\n"
             "8 (n - 1) bytes / speed < 64 d (n - 1) / n / speed. Modelled from these times; nothing overlapped.\n",
             ranks);
}

}  // namespace dr::compare
