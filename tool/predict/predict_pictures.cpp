// Pictures of predictions: plain SVG with two rows of bars and a few lines.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "predict_text.hpp"
#include "timeline.hpp"
#include "what_if.hpp"

namespace dr::predict {
namespace {

using nlohmann::ordered_json;

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<')
      safe += "&lt;";
    else if (c == '&')
      safe += "&amp;";
    else if (c == '"')
      safe += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      safe += c;
  }
  return safe;
}

std::string text_at(double x, double y, const std::string& text, const char* anchor = "start", int size = 12) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y, anchor,
                     size, escaped(text));
}

std::string head(double width, double height, const std::string& title) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" "
             "font-family=\"sans-serif\" fill=\"#222\">\n<title>{2}</title>\n<rect width=\"100%\" height=\"100%\" "
             "fill=\"white\"/>\n",
             width, height, escaped(title)) +
         text_at(20, 24, title, "start", 14);
}

const char* colour_of(const std::string& kind) {
  constexpr std::pair<const char*, const char*> colours[] = {
      {"forward", "#9ecae1"}, {"backward", "#4292c6"},  {"encode", "#f16913"},
      {"merge", "#d94801"},   {"sum", "#d94801"},       {"add", "#fdae6b"},
      {"rest", "#c6dbef"},    {"allreduce", "#41ab5d"}, {"allgather", "#41ab5d"}};
  for (const auto& [name, colour] : colours)
    if (kind.starts_with(name)) return colour;
  return "#bdbdbd";
}

struct line_style {
  const char *colour, *dashes;  // dashes: of SVG, "" for none
};

// Of each series. What is not a plan has a style by its name; plans have 27 that differ from these and from each other.
std::vector<line_style> line_styles(const ordered_json& series) {
  constexpr std::pair<std::string_view, line_style> named[] = {
      {"dense f32", {"#1f77b4", "6 3"}}, {"dense bf16", {"#7f7f7f", "6 3"}}, {"PowerSGD", {"#222222", "2 3"}}};
  constexpr const char* colours[] = {"#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#17becf",
                                     "#8c564b", "#e377c2", "#bcbd22", "#0a3d91"};
  constexpr const char* dashes[] = {"", "10 3 2 3", "1 4"};
  std::vector<line_style> styles;
  size_t plans = 0;
  for (const ordered_json& s : series) {
    const std::string name = s.at("candidate");
    const auto* const known = std::ranges::find_if(named, [&](const auto& n) { return name.starts_with(n.first); });
    if (known != std::end(named)) {
      styles.push_back(known->second);
    } else {
      styles.push_back({colours[plans % std::size(colours)], dashes[plans / std::size(colours) % std::size(dashes)]});
      ++plans;
    }
  }
  return styles;
}

std::string style_text(const line_style& style) {
  return fmt::format("stroke=\"{}\" stroke-width=\"2\"{}", style.colour,
                     *style.dashes ? fmt::format(" stroke-dasharray=\"{}\"", style.dashes) : "");
}

// 250 ms: at most three digits, none of them a zero after the point.
std::string tick_text(double ns) {
  if (ns == 0) return "0";
  const double units[] = {1, 1e3, 1e6, 1e9};
  const char* const names[] = {"ns", "µs", "ms", "s"};
  size_t i = 0;
  while (i < 3 && ns >= 0.9999 * units[i + 1]) ++i;
  return fmt::format("{:.4g} {}", ns / units[i], names[i]);
}

// About `count` multiples of 1, 2 or 5 times a power of ten within the range.
std::vector<double> round_ticks(double low, double high, int count) {
  const double raw = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw)));
  const double lead = raw / power, step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  std::vector<double> ticks;
  if (!(step > 0)) return ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); ++i) ticks.push_back(i * step);
  return ticks;
}

// 1, 2 and 5 times the powers of ten within the range; of a short range the multiples of round_ticks.
std::vector<double> logarithmic_ticks(double low, double high) {
  std::vector<double> ticks;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10)
    for (const double lead : {1, 2, 5})
      if (lead * power >= low && lead * power <= high) ticks.push_back(lead * power);
  return ticks.size() < 3 ? round_ticks(low, high, 5) : ticks;
}

}  // namespace

std::string chrome_trace(const std::vector<interval>& timeline, const std::string& title) {
  auto events = ordered_json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 0}, {"tid", 0}, {"args", {{"name", title}}}});
  for (const auto& [lane, name] : {std::pair{0, "compute"}, std::pair{1, "link"}})
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", lane}, {"args", {{"name", name}}}});
  for (const interval& entry : timeline)
    events.push_back({{"name", entry.name.empty() ? entry.kind : entry.name},
                      {"cat", entry.kind},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", entry.lane == "link" ? 1 : 0},
                      {"ts", entry.begin_ns / 1e3},
                      {"dur", (entry.end_ns - entry.begin_ns) / 1e3}});
  return ordered_json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump(
             -1, ' ', false, ordered_json::error_handler_t::replace) +
         "\n";
}

std::string timeline_svg(const std::vector<interval>& timeline, const std::string& title, double step_ns) {
  constexpr double width = 1000, left = 80, right = 20, top = 50, row = 44, bar = 32;
  const double scale = (width - left - right) / std::max(step_ns, 1.0);
  std::string svg = head(width, top + 2 * row + 70, title);
  std::vector<std::string> kinds;
  for (const interval& entry : timeline) {
    const double y = top + (entry.lane == "link" ? row : 0), w = std::max(0.3, (entry.end_ns - entry.begin_ns) * scale);
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"><title>{}: {} to "
        "{}</title></rect>\n",
        left + entry.begin_ns * scale, y, w, bar, colour_of(entry.kind), escaped(entry.kind + " " + entry.name),
        time_text(entry.begin_ns), time_text(entry.end_ns));
    if (std::ranges::find(kinds, entry.kind) == kinds.end()) kinds.push_back(entry.kind);
  }
  for (const auto& [lane, name] : {std::pair{0.0, "compute"}, std::pair{row, "link"}})
    svg += text_at(left - 8, top + lane + 21, name, "end");
  const double axis = top + 2 * row;
  for (const double tick : round_ticks(0, std::max(step_ns, 1.0), 6))
    svg += text_at(left + tick * scale, axis + 14, tick_text(tick), "middle", 11);
  double x = left;
  for (const std::string& kind : kinds) {
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", x, axis + 32,
                       colour_of(kind)) +
           text_at(x + 17, axis + 42, kind);
    x += 34 + 7.5 * static_cast<double>(kind.size());
  }
  return svg + "</svg>\n";
}

std::string curves_svg(const ordered_json& what, const std::string& title) {
  constexpr double width = 1000, left = 90, right = 20, top = 44, plot_height = 380;
  const std::vector<double> x = what.at("x");
  const ordered_json& series = what.at("series");
  double low = INFINITY, high = 0;
  for (const ordered_json& s : series)
    for (const ordered_json& y : s.at("step_ns"))
      if (y.is_number()) low = std::min(low, y.get<double>()), high = std::max(high, y.get<double>());
  const size_t lines = series.size();
  std::string svg = head(width, top + plot_height + 60 + 18 * static_cast<double>(lines),
                         fmt::format("{}: step by {}", title, what.at("axis").get<std::string>()));
  if (!(high > 0)) return svg + text_at(left, top + 40, "nothing could be modelled") + "</svg>\n";
  low = std::max(low, 1.0) / 1.1, high *= 1.1;
  const auto at_x = [&](double v) {
    return left + (width - left - right) * std::log(v / x.front()) / std::log(x.back() / x.front());
  };
  const auto at_y = [&](double v) {
    return top + plot_height * (1 - std::log(std::max(v, low) / low) / std::log(high / low));
  };
  for (const double v : x) {
    svg += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#eee\"/>\n", at_x(v),
                       top, top + plot_height);
    svg +=
        text_at(at_x(v), top + plot_height + 16,
                what.at("kind") == "bandwidth" ? fmt::format("{:g} G", v / 1e9) : fmt::format("{:g}", v), "middle", 10);
  }
  for (const double v : logarithmic_ticks(low, high)) {
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", left,
                       at_y(v), width - right, at_y(v));
    svg += text_at(left - 6, at_y(v) + 4, tick_text(v), "end", 11);
  }
  const std::vector<line_style> styles = line_styles(series);
  for (size_t k = 0; k < lines; ++k) {
    const std::string style = style_text(styles[k]);
    std::string path;
    bool open = false;
    for (size_t i = 0; i < x.size(); ++i) {
      const ordered_json& y = series[k].at("step_ns")[i];
      if (y.is_number()) path += fmt::format("{}{:.1f} {:.1f} ", open ? 'L' : 'M', at_x(x[i]), at_y(y.get<double>()));
      open = y.is_number();
    }
    svg += fmt::format("<path d=\"{}\" fill=\"none\" {}/>\n", path, style);
    const double y = top + plot_height + 44 + 18 * static_cast<double>(k);
    svg += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" {}/>\n", left, y, left + 28, y, style);
    svg += text_at(left + 32, y + 4, series[k].at("candidate"));
  }
  return svg + "</svg>\n";
}

}  // namespace dr::predict
