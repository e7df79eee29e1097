// Grades of weights by their magnitude and their history, which the sender and the receiver of a patch both know. Layout:
// README.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "primitive/change_history.hpp"

namespace dr {

inline constexpr uint32_t key_groups_max = 16, grades_max = 8, states_max = 25;

// What of a history grades go by: when a weight changed, 0 of one that has not; or also how long it had stood.
enum class history_states : uint32_t { since = 7, since_and_stood = 25 };

constexpr uint8_t history_since(uint8_t h) {
  const unsigned age = h & history_age;
  return static_cast<uint8_t>(age <= 2 ? age : age <= 4 ? 3 : age <= 8 ? 4 : age <= 16 ? 5 : 6);
}
constexpr uint8_t history_state(history_states states, uint8_t h) {
  const unsigned since = history_since(h), stood = h >> 5 & 3;
  return static_cast<uint8_t>(states == history_states::since || since == 0 ? since : 4 * since - 3 + stood);
}

// A grade per group of keys and state; unlisted states have the grades of state 0.
struct grade_map {
  history_states states;
  uint32_t groups = 0;                          // 0: all words have grade 0
  std::array<uint8_t, key_groups_max> begin{};  // the first key of a group; [0] is 0
  uint32_t listed = 1;                          // a bit per state; that of state 0 is set
  std::array<std::array<uint8_t, states_max>, key_groups_max> grade{};
  uint32_t grades = 1;  // of a choice: all grades are below

  static constexpr uint64_t size_max = key_groups_max + 5 + 3 * key_groups_max * states_max / 8;

  explicit grade_map(history_states of) : states(of) {}
  uint32_t count() const { return static_cast<uint32_t>(states); }
  bool lists(uint32_t state) const { return listed >> state & 1; }
  uint8_t* put(uint8_t* out) const;
  // Returns the end, or nullptr for an invalid map.
  const uint8_t* get(const uint8_t* in, const uint8_t* end);
};

// The same, to look up by key and by byte of history.
struct grade_table {
  std::array<uint16_t, 256> row{};  // of a key: where its group begins in `of`
  std::array<uint8_t, key_groups_max * 256> of{};

  explicit grade_table(const grade_map& m);
  uint32_t group(uint8_t key) const { return row[key] / 256; }
  uint8_t at(uint8_t key, uint8_t h) const { return of[row[key] + h]; }
};

// Grades of n words. history: nullptr is 0 of all.
void grade_words(const grade_map& m, uint32_t word_size, const void* words, const uint8_t* history, uint64_t n,
                 uint8_t* grades);

// The map that best predicts which of n words change: those at `changed`, ascending.
grade_map choose_changed_grades(uint32_t word_size, const void* words, const uint8_t* history, uint64_t n,
                                const uint32_t* changed, uint64_t count);
// The map that best predicts the symbols [n] of words.
grade_map choose_symbol_grades(uint32_t word_size, const void* words, const uint8_t* history, uint64_t n,
                               const uint8_t* symbols);

}  // namespace dr
