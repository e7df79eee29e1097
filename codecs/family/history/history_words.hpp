// Which words of a base change, and what becomes of them, coded by their grades. Layout: README.md.
#pragma once

#include "codecs/family/classes/changed_words.hpp"
#include "codecs/family/classes/word_changes.hpp"
#include "codecs/family/history/grade_map.hpp"

namespace dr {

inline constexpr uint64_t history_head_max = 4 + grade_map::size_max;

enum class history_fault { none, corrupt, other_history };
inline const char* sentence_of(history_fault fault) {
  return fault == history_fault::corrupt ? "invalid grades, classes or coded symbols, or the base is another one"
                                         : "the history of these weights is another than their sender's";
}

inline uint8_t* put_history_head(const uint8_t* history, uint64_t n, const grade_map& m, uint8_t* out) {
  store(out, history_check(history, n));
  return m.put(out + 4);
}
inline history_fault get_history_head(const uint8_t* history, uint64_t n, const uint8_t*& in, const uint8_t* end,
                                      grade_map& m) {
  if (end - in < 4) return history_fault::corrupt;
  if (load<uint32_t>(in) != history_check(history, n)) return history_fault::other_history;
  in = m.get(in + 4, end);
  return in ? history_fault::none : history_fault::corrupt;
}

// A class per grade, if the grade is the key or twice the key.
inline class_list classes_of(const grade_map& m, uint32_t twice) {
  class_list classes;
  classes.count = m.grades;
  for (uint32_t k = 1; k < m.grades; ++k) classes.threshold[k - 1] = static_cast<uint8_t>(k * twice);
  return classes;
}

// ---- Which words change: as by classes, of the grades as words of 8 bits ------------------------------------------

inline uint64_t history_changed_bound(uint64_t universe, uint64_t count) {
  return history_head_max + changed_bound(universe, count);
}

struct history_scratch {
  uint8_t* grades;  // [universe]
  changed_scratch changed;

  static uint64_t size(uint64_t universe, uint64_t count) {
    return change_scratch::aligned(universe) + changed_scratch::size(universe, count);
  }
  static history_scratch at(std::byte* scratch, uint64_t universe, uint64_t count) {
    return {reinterpret_cast<uint8_t*>(scratch),
            changed_scratch::at(scratch + change_scratch::aligned(universe), universe, count)};
  }
};

// Into history_changed_bound bytes.
inline uint64_t history_changed_encode(const base_words& base, const uint8_t* history, const uint32_t* changed,
                                       uint64_t count, const history_scratch& room, uint8_t* out) {
  const grade_map m = choose_changed_grades(base.word_size, base.words, history, base.n, changed, count);
  uint8_t* const at = put_history_head(history, base.n, m, out);
  grade_words(m, base.word_size, base.words, history, base.n, room.grades);
  const base_words grades{1, room.grades, base.n};
  const uint64_t bound = changed_bound(base.n, count);
  uint64_t size = m.grades > 1 ? changed_put(grades, changed, count, classes_of(m, 2), room.changed, at, bound) : 0;
  if (!size) size = changed_put(grades, changed, count, {}, room.changed, at, bound);
  return static_cast<uint64_t>(at - out) + size;
}

inline history_fault history_changed_decode(const base_words& base, const uint8_t* history, const uint8_t* in,
                                            uint64_t size, uint64_t count, const history_scratch& room, uint32_t* out) {
  const uint8_t* const end = in + size;
  grade_map m(history_states::since_and_stood);
  if (const history_fault fault = get_history_head(history, base.n, in, end, m); fault != history_fault::none)
    return fault;
  grade_words(m, base.word_size, base.words, history, base.n, room.grades);
  const bool sound =
      changed_decode({1, room.grades, base.n}, in, static_cast<uint64_t>(end - in), count, room.changed, out);
  return sound ? history_fault::none : history_fault::corrupt;
}

// ---- What becomes of them: numbers, by classes of words whose keys are the grades ---------------------------------

// The number of a change, as it was computed before, beside a word that is but its key.
template <class Bits>
struct number_change {
  using bits = Bits;
  static uint64_t of(Bits, Bits number) { return number; }
  static Bits apply(Bits, uint64_t number) { return static_cast<Bits>(number); }
};

template <class Bits>
constexpr Bits word_of_grade(uint8_t grade) {
  if constexpr (sizeof(Bits) == 8) return uint64_t{grade ? grade + 896u : 0u} << 52;
  if constexpr (sizeof(Bits) == 4) return uint32_t{grade} << 23;
  if constexpr (sizeof(Bits) == 2) return static_cast<uint16_t>(grade << 7);
  return grade;
}

// By how many units in the last place; forwards is where the weight went last.
template <class Word>
struct forward_change {
  using bits = typename Word::bits;
  // The zigzag of −d, of that of d. (0 and the least number stay.)
  static uint64_t turned(uint64_t z) {
    if (z == 0 || z == static_cast<bits>(~bits{0})) return z;
    return z & 1 ? z + 1 : z - 1;
  }
  static uint64_t of(bits old, bits now, uint8_t h) {
    const uint64_t z = ulp_change<Word>::of(old, now);
    return h & history_down ? turned(z) : z;
  }
  static bits apply(bits old, uint64_t z, uint8_t h) {
    return ulp_change<Word>::apply(old, h & history_down ? turned(z) : z);
  }
};

template <class Bits>
constexpr uint64_t history_changes_bound(uint64_t n) {
  return history_head_max + changes_bound<Bits>(n);
}

template <class Bits>
struct history_change_scratch {
  Bits *keys, *numbers;       // [n]
  uint8_t *grades, *symbols;  // [n]
  change_scratch changes;

  static uint64_t size(uint64_t n) {
    return 2 * change_scratch::aligned(n * sizeof(Bits)) + 2 * change_scratch::aligned(n) + change_scratch::size(n);
  }
  static history_change_scratch at(std::byte* scratch, uint64_t n) {
    const uint64_t words = change_scratch::aligned(n * sizeof(Bits)), bytes = change_scratch::aligned(n);
    auto* const small = reinterpret_cast<uint8_t*>(scratch + 2 * words);
    return {reinterpret_cast<Bits*>(scratch), reinterpret_cast<Bits*>(scratch + words), small, small + bytes,
            change_scratch::at(scratch + 2 * words + 2 * bytes, n)};
  }
  void set_keys(const grade_map& m, const Bits* old, const uint8_t* history, uint64_t n) const {
    grade_words(m, sizeof(Bits), old, history, n, grades);
    for (uint64_t i = 0; i < n; ++i) keys[i] = word_of_grade<Bits>(grades[i]);
  }
};

// n >= 1 words, into history_changes_bound bytes. history: of these words.
template <class Word, class Bits = typename Word::bits>
uint64_t history_changes_encode(const Bits* old, const Bits* now, const uint8_t* history, uint64_t n,
                                const history_change_scratch<Bits>& room, uint8_t* out) {
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t z = forward_change<Word>::of(old[i], now[i], history ? history[i] : uint8_t{0});
    room.numbers[i] = static_cast<Bits>(z);
    room.symbols[i] = change_symbols<8 * sizeof(Bits)>::of(z);
  }
  const grade_map m = choose_symbol_grades(sizeof(Bits), old, history, n, room.symbols);
  uint8_t* const at = put_history_head(history, n, m, out);
  room.set_keys(m, old, history, n);
  const class_list classes = classes_of(m, sizeof(Bits) == 1 ? 2 : 1);
  return static_cast<uint64_t>(at - out) +
         changes_encode<number_change<Bits>>(room.keys, room.numbers, n, room.changes, at, &classes);
}

template <class Word, class Bits = typename Word::bits>
history_fault history_changes_decode(const Bits* old, const uint8_t* history, const uint8_t* in, uint64_t size,
                                     uint64_t n, const history_change_scratch<Bits>& room, Bits* now) {
  const uint8_t* const end = in + size;
  grade_map m(history_states::since);
  if (const history_fault fault = get_history_head(history, n, in, end, m); fault != history_fault::none) return fault;
  room.set_keys(m, old, history, n);
  if (!changes_decode<number_change<Bits>>(room.keys, in, static_cast<uint64_t>(end - in), n, room.changes,
                                           room.numbers))
    return history_fault::corrupt;
  for (uint64_t i = 0; i < n; ++i)
    now[i] = forward_change<Word>::apply(old[i], room.numbers[i], history ? history[i] : uint8_t{0});
  return history_fault::none;
}

}  // namespace dr
