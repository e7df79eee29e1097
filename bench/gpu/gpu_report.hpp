// Rows as JSON, and as a table on the terminal.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "bench/gpu/gpu_measure.hpp"

namespace gpu_bench {

struct machine {
  std::string device, compiler, commit, date;
  double copy_bytes_per_second = 0, read_bytes_per_second = 0, write_bytes_per_second = 0;  // the fastest way of each
  // Milliseconds of the host: the driver's start, dr_batch_create, and the first and the second encode, with a wait.
  double start_ms = 0, create_ms = 0, first_ms = 0, second_ms = 0;
  bool quick = false, rehearsal = false;
};

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += ' ';
    else
      out += c;
  }
  return out + "\"";
}

inline std::string number(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", x);
  return text;
}

inline double floor_us(const row& r, const machine& m) {
  return m.copy_bytes_per_second > 0 ? 1e6 * static_cast<double>(r.bytes) / m.copy_bytes_per_second : 0;
}

inline std::string json_of(const row& r, const machine& m) {
  std::string out = "    {";
  const auto put = [&](const char* name, const std::string& value) {
    out += (out.back() == '{' ? "" : ", ") + quoted(name) + ": " + value;
  };
  const auto met = [&](const char* name, const std::optional<double>& limit, double value) {
    if (!limit) return;
    put((std::string(name) + "_us").c_str(), number(*limit));
    if (r.graph.n && !m.rehearsal) put((std::string(name) + "_met").c_str(), value <= *limit ? "true" : "false");
  };
  const auto times = [&](const char* name, const spread& s) {
    if (s.n)
      put(name, "{\"median\": " + number(s.median) + ", \"p10\": " + number(s.p10) + ", \"p90\": " + number(s.p90) +
                    ", \"n\": " + std::to_string(s.n) + "}");
  };
  put("group", quoted(r.group));
  put("name", quoted(r.name));
  put("plan", quoted(r.plan));
  put("elements", std::to_string(r.elements));
  put("kept", std::to_string(r.kept));
  put("tensors", std::to_string(r.tensors));
  put("frame_bytes", std::to_string(r.frame_bytes));
  put("verified", quoted(r.verified));
  if (!r.failed.empty()) put("failed", quoted(r.failed));
  if (!r.missing.empty()) put("missing", quoted(r.missing));
  times("graph_us", r.graph);
  times("stream_us", r.stream);
  if (r.graph.n) {
    if (r.back_to_back > 0) put("back_to_back_us", number(r.back_to_back));
    put("cold", r.cold ? "true" : "false");
    put("launches", std::to_string(r.launches));
    if (r.launches_most) put("launches_most", std::to_string(r.launches_most));
    put("bytes", std::to_string(r.bytes));
    if (r.bytes && m.copy_bytes_per_second > 0) {
      put("floor_us", number(floor_us(r, m)));
      put("share_of_copy", number(floor_us(r, m) / r.graph.median));
    }
  }
  met("gate", r.gate, r.graph.median);
  met("aim", r.aim, r.graph.median);
  met("stream_gate", r.stream_gate, r.stream.median);
  if (!r.gate_rule.empty()) put("gate_rule", quoted(r.gate_rule));
  return out + "}";
}

inline std::string json_of(const std::vector<row>& rows, const machine& m) {
  std::string out = "{\n  \"benchmark\": \"gpu_bench\",\n  \"device\": " + quoted(m.device) +
                    ",\n  \"compiler\": " + quoted(m.compiler) + ",\n  \"commit\": " + quoted(m.commit) +
                    ",\n  \"date\": " + quoted(m.date) + ",\n  \"quick\": " + (m.quick ? "true" : "false") +
                    ",\n  \"rehearsal\": " + (m.rehearsal ? "true" : "false") +
                    ",\n  \"copy_bytes_per_second\": " + number(m.copy_bytes_per_second) +
                    ",\n  \"read_bytes_per_second\": " + number(m.read_bytes_per_second) +
                    ",\n  \"write_bytes_per_second\": " + number(m.write_bytes_per_second) +
                    ",\n  \"first_call_ms\": {\"start\": " + number(m.start_ms) +
                    ", \"create\": " + number(m.create_ms) + ", \"first\": " + number(m.first_ms) +
                    ", \"second\": " + number(m.second_ms) + "}" + ",\n  \"rows\": [\n";
  for (size_t i = 0; i < rows.size(); ++i) out += json_of(rows[i], m) + (i + 1 < rows.size() ? ",\n" : "\n");
  return out + "  ]\n}\n";
}

// A rehearsal only judges the number of launches.
inline bool missed(const row& r, const machine& m) {
  const bool late = (r.gate && r.graph.n && r.graph.median > *r.gate) ||
                    (r.stream_gate && r.stream.n && r.stream.median > *r.stream_gate);
  return (late && !m.rehearsal) || (r.launches_most && r.launches > r.launches_most);
}

inline void print_head() {
  std::printf("%-44s %9s %9s %9s %9s %8s %6s %4s  %s\n", "microseconds", "graph", "p10", "p90", "stream", "floor",
              "share", "runs", "gate / aim");
}

inline void print(const row& r, const machine& m) {
  if (!r.failed.empty() || !r.missing.empty()) {
    std::printf("%-44s %s%s\n", r.name.c_str(),
                r.failed.empty() ? "not here: " : "FAILED: ", (r.failed + r.missing).c_str());
    return;
  }
  char limits[96] = "";
  if (r.gate && !m.rehearsal)
    std::snprintf(limits, sizeof limits, "%.1f %s%s", *r.gate, r.graph.median <= *r.gate ? "met" : "MISSED",
                  r.aim ? (r.graph.median <= *r.aim ? ", aim met" : ", aim missed") : "");
  std::printf(
      "%-44s %9.2f %9.2f %9.2f %9.2f %8.2f %5.0f%% %4llu  %s%s%s\n", r.name.c_str(), r.graph.median, r.graph.p10,
      r.graph.p90, r.stream.median, floor_us(r, m), r.graph.median > 0 ? 100 * floor_us(r, m) / r.graph.median : 0.0,
      static_cast<unsigned long long>(r.launches), limits,
      r.stream_gate && !m.rehearsal ? (r.stream.median <= *r.stream_gate ? ", stream met" : ", stream MISSED") : "",
      r.launches_most && r.launches > r.launches_most ? ", too many launches" : "");
}

}  // namespace gpu_bench
