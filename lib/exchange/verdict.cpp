#include "exchange/verdict.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <tuple>

namespace dr {

uint64_t verdict::computed_check() const {
  // Covers the message, too, so that a flipped bit in any byte is detected.
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

namespace {

// The verdicts of all ranks, and which of them count.
struct verdict_list {
  std::span<const verdict> verdicts;
  std::span<const arrival> arrivals;

  uint32_t ranks() const { return static_cast<uint32_t>(verdicts.size()); }
  bool has(uint32_t i) const { return arrivals[i] == arrival::sound || arrivals[i] == arrival::late; }
  // Its verdict is missing, or reports that the rank itself was late (ranks that have that verdict must conclude like those
  // that lack it).
  bool is_absent(uint32_t i) const {
    if (arrivals[i] == arrival::damaged) return false;
    return !has(i) || (verdicts[i].code == DR_E_TIMEOUT && verdicts[i].culprit == i);
  }
  bool counts(uint32_t i) const { return arrivals[i] == arrival::sound; }

  // What a rank knows, best first: 0: that it failed, or found an error; 1: that the transport lost another rank, which may
  // have closed its connections because it failed; 2: that another was late.
  uint32_t weight_of(uint32_t i) const {
    if (verdicts[i].code == DR_E_TIMEOUT) return 2;
    return verdicts[i].code == DR_E_PEER && verdicts[i].culprit != i ? 1 : 0;
  }
  // The verdict that explains all others: ordered by weight, then by depth.
  const verdict* worst(uint32_t weight_max) const {
    const verdict* found = nullptr;
    const auto order = [&](const verdict& v) {
      return std::tuple(weight_of(static_cast<uint32_t>(&v - verdicts.data())), v.depth, v.culprit);
    };
    for (uint32_t i = 0; i < ranks(); ++i)
      if (has(i) && verdicts[i].code != DR_OK && weight_of(i) <= weight_max &&
          (!found || order(verdicts[i]) < order(*found)))
        found = &verdicts[i];
    return found;
  }

  // The first rank whose commits, fingerprint or step differ from those of the first rank.
  verdict mismatch() const;
  verdict absence_of(uint32_t rank) const;
};

verdict verdict_list::mismatch() const {
  uint32_t first = 0, source = 0;
  while (first < ranks() && !counts(first)) ++first;
  for (uint32_t i = source = first; i < ranks(); ++i)
    if (counts(i) && verdicts[i].commits > verdicts[source].commits) source = i;
  for (uint32_t i = first; i < ranks(); ++i) {
    if (!counts(i) || verdicts[i].commits == verdicts[source].commits) continue;
    verdict late = blame(i, DR_E_ARGUMENT,
                         "it is behind: it completed %" PRIu64 " exchanges, rank %u %" PRIu64
                         "; its outputs differ from that rank's",
                         verdicts[i].commits, source, verdicts[source].commits);
    late.depth = verdict::behind;
    late.what = source;
    return late;
  }
  for (uint32_t i = first; i < ranks(); ++i)
    if (counts(i) && verdicts[i].fingerprint != verdicts[first].fingerprint)
      return blame(i, DR_E_ARGUMENT, "its plan, options, shapes or sparse counts differ from those of rank %u", first);
  for (uint32_t i = first; i < ranks(); ++i)
    if (counts(i) && verdicts[i].step != verdicts[first].step)
      return blame(i, DR_E_ARGUMENT, "its step is %" PRIu64 ", that of rank %u is %" PRIu64, verdicts[i].step, first,
                   verdicts[first].step);
  return verdict{};
}

// Another rank may know more: that the transport lost it.
verdict verdict_list::absence_of(uint32_t rank) const {
  for (uint32_t i = 0; i < ranks(); ++i)
    if (has(i) && verdicts[i].code == DR_E_PEER && verdicts[i].culprit == rank) return verdicts[i];
  if (arrivals[rank] == arrival::lost) return blame(rank, DR_E_PEER, "the transport lost it before it answered");
  if (arrivals[rank] == arrival::no_memory) return blame(rank, DR_E_MEMORY, "its transport is out of memory");
  return has(rank) ? verdicts[rank] : blame(rank, DR_E_TIMEOUT, "it did not answer in time");
}

}  // namespace

// A rank that is late sees the verdicts of all others, which may have given up on it. So an error that any of them found
// goes before a missing rank, which the late one cannot know of.
verdict conclude(std::span<const verdict> verdicts, std::span<arrival> arrivals) {
  const verdict_list c{verdicts, arrivals};
  for (uint32_t i = 0; i < c.ranks(); ++i) {
    const verdict& v = verdicts[i];
    if (c.has(i) && v.code == DR_E_TIMEOUT && v.depth < verdict::hearsay && arrivals[v.culprit] == arrival::sound)
      arrivals[v.culprit] = arrival::late;
  }
  for (uint32_t i = 0; i < c.ranks(); ++i)
    if (arrivals[i] == arrival::damaged)
      return blame(i, DR_E_CORRUPT, "its verdict is damaged, or belongs to another exchange");
  if (const verdict v = c.mismatch(); v.code != DR_OK) return v;
  if (const verdict* const v = c.worst(0)) return *v;
  for (uint32_t i = 0; i < c.ranks(); ++i)
    if (c.is_absent(i)) return c.absence_of(i);
  const verdict* const v = c.worst(2);
  return v ? *v : verdict{};
}

}  // namespace dr
