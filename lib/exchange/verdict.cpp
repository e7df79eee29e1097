#include "exchange/verdict.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace dr {

uint64_t verdict::computed_check() const {
  // The message counts, too, so that a flipped bit in any byte is seen.
  verdict copy = *this;
  copy.check = 0;
  uint64_t words[sizeof(verdict) / 8], sum = 0x9e3779b97f4a7c15;
  std::memcpy(words, &copy, sizeof copy);
  for (const uint64_t w : words) sum = combine(sum, w);
  return sum;
}

bool verdict::sound(uint32_t ranks) const {
  if (magic != magic_value || check != computed_check() || message[sizeof message - 1] || culprit >= ranks)
    return false;
  switch (code) {
    case DR_OK: return true;
    case DR_E_ARGUMENT:
    case DR_E_UNSUPPORTED:
    case DR_E_CORRUPT:
    case DR_E_CAPACITY:
    case DR_E_MEMORY:
    case DR_E_PEER:
    case DR_E_TIMEOUT: return message[0];
    default: return false;  // no exchange ends so
  }
}

namespace {

// A rank that timed out is a witness only; one that found an error, or failed itself, knows more.
int rank_of(const verdict& v) { return v.code == DR_E_TIMEOUT ? 1 : 0; }

}  // namespace

verdict blame_with(uint32_t culprit, dr_status code, const char* format, va_list arguments) {
  verdict v;
  v.code = code;
  v.culprit = culprit;
  v.tensor = DR_NO_TENSOR;
  std::vsnprintf(v.message, sizeof v.message, format, arguments);
  return v;
}

verdict blame(uint32_t culprit, dr_status code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const verdict v = blame_with(culprit, code, format, arguments);
  va_end(arguments);
  return v;
}

verdict conclude(std::span<const verdict> verdicts, std::span<const uint8_t> came) {
  for (uint32_t i = 0; i < came.size(); ++i)
    if (came[i] == 0) return blame(i, DR_E_TIMEOUT, "it did not answer in time");
  for (uint32_t i = 0; i < came.size(); ++i)
    if (came[i] == 2) return blame(i, DR_E_CORRUPT, "its verdict is damaged, or belongs to another exchange");
  const auto first = std::ranges::max_element(verdicts, {}, &verdict::commits);
  for (uint32_t i = 0; i < verdicts.size(); ++i)
    if (verdicts[i].commits < first->commits) {
      const auto source = static_cast<uint32_t>(first - verdicts.begin());
      verdict late = blame(i, DR_E_ARGUMENT,
                           "it is behind: it completed %" PRIu64 " exchanges, rank %u %" PRIu64
                           "; its outputs differ from that rank's",
                           verdicts[i].commits, source, first->commits);
      late.depth = verdict::behind;
      late.what = source;
      return late;
    }
  for (uint32_t i = 1; i < verdicts.size(); ++i)
    if (verdicts[i].fingerprint != verdicts[0].fingerprint)
      return blame(i, DR_E_ARGUMENT, "its plan, options, shapes or sparse counts differ from those of rank 0");
  for (uint32_t i = 1; i < verdicts.size(); ++i)
    if (verdicts[i].step != verdicts[0].step)
      return blame(i, DR_E_ARGUMENT, "its step is %" PRIu64 ", that of rank 0 is %" PRIu64, verdicts[i].step,
                   verdicts[0].step);
  const verdict* worst = nullptr;
  const auto before = [](const verdict& a, const verdict& b) {
    if (rank_of(a) != rank_of(b)) return rank_of(a) < rank_of(b);
    if (a.depth != b.depth) return a.depth < b.depth;
    return a.culprit < b.culprit;
  };
  for (const verdict& v : verdicts)
    if (v.code != DR_OK && (!worst || before(v, *worst))) worst = &v;
  return worst ? *worst : verdict{};
}

}  // namespace dr
