#include "exchange/trace_json.hpp"

#include <cinttypes>
#include <cstdio>

namespace dr {

const char* step_name(uint32_t step) {
  static constexpr const char* names[] = {"?",          "encode", "send",  "recv",  "wait",   "sum",    "add",
                                          "encode_sum", "agree",  "merge", "drain", "decode", "reduce", "gather"};
  return step < std::size(names) ? names[step] : names[0];
}

// Times are in microseconds there; one thread a rank, as the program has.
std::string trace_json(const exchange& x) {
  std::string out = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  const program& p = x.steps();
  char line[256];
  std::snprintf(line, sizeof line,
                R"({"name":"process_name","ph":"M","pid":%u,"tid":0,"args":{"name":"rank %u of %u"}})", p.rank, p.rank,
                p.ranks);
  out += line;
  for (size_t i = 0; i < p.steps.size(); ++i) {
    const step& s = p.steps[i];
    const step_time& t = x.times()[i];
    std::snprintf(line, sizeof line,
                  R"(,{"name":"%s","cat":"exchange","ph":"X","ts":%)" PRIu64 ".%03u,\"dur\":%" PRIu64
                  R"(.%03u,"pid":%u,"tid":0,"args":{"range":%u,"peer":%u,"bytes":%)" PRIu64 "}}",
                  step_name(s.what), t.begin_ns / 1000, static_cast<unsigned>(t.begin_ns % 1000),
                  (t.end_ns - t.begin_ns) / 1000, static_cast<unsigned>((t.end_ns - t.begin_ns) % 1000), p.rank,
                  s.range, s.peer, t.bytes);
    out += line;
  }
  return out + "]}";
}

}  // namespace dr
