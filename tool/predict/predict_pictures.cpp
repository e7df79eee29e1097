// Pictures of predictions: plain SVG with two rows of bars and a few lines.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

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

constexpr const char* line_colours[] = {"#1f77b4", "#aec7e8", "#7f7f7f", "#d62728", "#ff7f0e", "#2ca02c",
                                        "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22"};

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
  for (int i = 0; i <= 5; ++i)
    svg += text_at(left + (width - left - right) * i / 5, axis + 14, time_text(step_ns * i / 5), "middle", 11);
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
  for (int i = 0; i <= 5; ++i) {
    const double v = low * std::pow(high / low, i / 5.0);
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", left,
                       at_y(v), width - right, at_y(v));
    svg += text_at(left - 6, at_y(v) + 4, time_text(v), "end", 11);
  }
  for (size_t k = 0; k < lines; ++k) {
    const char* const colour = line_colours[k % std::size(line_colours)];
    std::string path;
    bool open = false;
    for (size_t i = 0; i < x.size(); ++i) {
      const ordered_json& y = series[k].at("step_ns")[i];
      if (y.is_number()) path += fmt::format("{}{:.1f} {:.1f} ", open ? 'L' : 'M', at_x(x[i]), at_y(y.get<double>()));
      open = y.is_number();
    }
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", path, colour,
                       k < 2 ? " stroke-dasharray=\"6 3\"" : "");
    const double y = top + plot_height + 44 + 18 * static_cast<double>(k);
    svg += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"3\"/>\n",
                       left, y, left + 24, y, colour);
    svg += text_at(left + 32, y + 4, series[k].at("candidate"));
  }
  return svg + "</svg>\n";
}

}  // namespace dr::predict
