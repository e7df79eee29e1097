// Controllers of ranks, one of them hostile: whatever options, times and words they are given, a rung is one of the ladder, a refusal
// changes nothing, ranks with the same words decide the same, and the log is a line of JSON.
//
// Input: options (a text that ends with a zero), the ladder; then for each step what was measured, and what the hostile rank tells.
#include <deepreduce/control.h>

#include <cmath>
#include <string>

#include "fuzz/script.hpp"

namespace {

using fuzz::bytes;
using fuzz::script;
using fuzz::wrong;

constexpr size_t ranks = 3, steps_most = 64;

// A number of any magnitude: as many bits as the first byte says.
uint64_t number(script& from) {
  const unsigned bits = from.byte() % 65;
  return bits ? from.number(8) >> (64 - bits) : 0;
}

dr_control_info described(const dr_control* c) {
  dr_control_info info{};
  info.struct_size = sizeof info;
  if (dr_control_describe(c, &info, nullptr)) wrong("a controller that cannot be described");
  return info;
}

bytes logged(const dr_control* c) {
  size_t size = 0;
  if (dr_control_log(c, nullptr, 0, &size) != DR_E_CAPACITY) wrong("a log of nothing");
  const fuzz::block line(size);
  if (dr_control_log(c, reinterpret_cast<char*>(line.data()), size, &size)) wrong("a log that does not fit its size");
  return line.copy(size);
}

void judge(const dr_control* c, uint32_t rungs) {
  const dr_control_info i = described(c);
  if (i.rungs != rungs || i.rung >= rungs || i.from >= rungs) wrong("a rung that the ladder does not have");
  for (const double x : {i.budget, i.base_ns, i.per_byte_ns})
    if (!std::isfinite(x) || x < 0) wrong("a budget or a line that is no number");
  if (*dr_control_reason(i.reason) == '?') wrong("a decision without a reason");
  const bytes line = logged(c);
  const std::string text(line.begin(), line.end());
  if (text.front() != '{' || text.back() != '}' || text.find("inf") != std::string::npos ||
      text.find("nan") != std::string::npos)
    wrong("a log that is no JSON", text.c_str());
}

struct pair {
  dr_control *first = nullptr, *second = nullptr;  // two honest ranks
  ~pair() {
    dr_control_destroy(first);
    dr_control_destroy(second);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  script from(data, size);
  std::string options;
  for (uint8_t c = from.byte(); c; c = from.byte()) options += static_cast<char>(c);
  const auto rungs = static_cast<uint32_t>(from.up_to(65));
  std::vector<uint64_t> ladder;
  const bool known = from.byte() & 1;
  for (uint32_t i = 0; i < rungs && known; ++i) ladder.push_back(number(from));
  pair honest;
  dr_error error{};
  error.struct_size = sizeof error;
  if (const dr_status s =
          dr_control_create(options.c_str(), known ? ladder.data() : nullptr, rungs, &honest.first, &error)) {
    if (s != DR_E_ARGUMENT || !error.message[0]) wrong("a controller is refused without a reason", error.message);
    return 0;
  }
  if (dr_control_create(options.c_str(), known ? ladder.data() : nullptr, rungs, &honest.second, nullptr))
    wrong("the second is refused");
  judge(honest.first, rungs);
  for (size_t turn = 0; turn < steps_most && !from.empty(); ++turn) {
    uint64_t words[ranks * DR_CONTROL_WORDS];
    for (uint8_t n = from.byte() % 4; n > 0; --n) {
      const uint64_t sent = number(from), ns = number(from);
      if (dr_control_observe(honest.first, sent, ns) || dr_control_observe(honest.second, sent, ns / 2))
        wrong("nothing can be observed");
    }
    if (dr_control_report(honest.first, words) || dr_control_report(honest.second, words + DR_CONTROL_WORDS))
      wrong("no report");
    uint64_t* const hostile = words + 2 * DR_CONTROL_WORDS;
    for (size_t i = 0; i < 3; ++i) hostile[i] = number(from);
    const uint8_t lie = from.byte();
    hostile[3] =
        lie % 16 ? words[3] : words[3] ^ number(from);  // (mostly it claims to be in step, so that it is heard)
    const dr_control_info before = described(honest.first);
    const uint64_t step = lie & 128 ? number(from) : before.next_step;
    const dr_status s = dr_control_decide(honest.first, step, words, ranks, &error);
    if (dr_control_decide(honest.second, step, words, ranks, nullptr) != s)
      wrong("one rank decides, the other does not");
    const dr_control_info after = described(honest.first), other = described(honest.second);
    if (std::memcmp(&after, &other, sizeof after) != 0) wrong("ranks decide otherwise");
    if (s && (s != DR_E_ARGUMENT || !error.message[0])) wrong("a refusal without a reason");
    if (s && (after.decisions != before.decisions || after.rung != before.rung || after.next_step != before.next_step))
      wrong("a refusal that changes the controller");
    judge(honest.first, rungs);
  }
  return 0;
}
