#include "codecs/family/history/grade_map.hpp"

#include <algorithm>
#include <cstring>

#include "codecs/family/classes/classes.hpp"

namespace dr {

uint8_t* grade_map::put(uint8_t* out) const {
  *out++ = static_cast<uint8_t>(groups);
  if (!groups) return out;
  for (uint32_t g = 1; g < groups; ++g) *out++ = begin[g];
  out = put_varint(out, listed);
  bit_writer bits(out);
  for (uint32_t s = 0; s < count(); ++s)
    for (uint32_t g = 0; lists(s) && g < groups; ++g) bits.put(grade[g][s], 3);
  bits.finish();
  return out + ceil_div(3 * uint64_t{groups} * popcount(listed), 8);
}

const uint8_t* grade_map::get(const uint8_t* in, const uint8_t* end) {
  if (in == end || *in > key_groups_max || end - in < (*in ? *in : 1)) return nullptr;
  groups = *in++;
  if (!groups) return in;
  begin[0] = 0;
  for (uint32_t g = 1; g < groups; ++g)
    if ((begin[g] = *in++) <= begin[g - 1]) return nullptr;
  uint64_t states_listed;
  in = get_varint(in, end, states_listed);
  if (!in || !(states_listed & 1) || states_listed >> count()) return nullptr;
  listed = static_cast<uint32_t>(states_listed);
  const uint64_t size = 3 * uint64_t{groups} * popcount(listed);
  if (ceil_div(size, 8) > static_cast<uint64_t>(end - in) || !padding_is_zero(in, size)) return nullptr;
  bit_reader bits(in, size);
  for (uint32_t s = 0; s < count(); ++s)
    for (uint32_t g = 0; g < groups; ++g) grade[g][s] = lists(s) ? static_cast<uint8_t>(bits.get(3)) : grade[g][0];
  return in + ceil_div(size, 8);
}

grade_table::grade_table(const grade_map& m) {
  for (unsigned key = 0, g = 0; key < 256; ++key) {
    while (g + 1 < m.groups && key >= m.begin[g + 1]) ++g;
    row[key] = static_cast<uint16_t>(256 * g);
  }
  for (uint32_t g = 0; g < m.groups; ++g)
    for (unsigned h = 0; h < 256; ++h) {
      const uint32_t s = history_state(m.states, static_cast<uint8_t>(h));
      of[256 * g + h] = m.grade[g][m.lists(s) ? s : 0];
    }
}

void grade_words(const grade_map& m, uint32_t word_size, const void* words, const uint8_t* history, uint64_t n,
                 uint8_t* grades) {
  if (!m.groups) {
    std::fill_n(grades, n, uint8_t{0});
    return;
  }
  const grade_table table(m);
  with_word(word_size, [&](auto word) {
    const auto* const w = static_cast<const decltype(word)*>(words);
    if (!history)
      for (uint64_t i = 0; i < n; ++i) grades[i] = table.at(word_key(w[i]), 0);
    else
      for (uint64_t i = 0; i < n; ++i) grades[i] = table.at(word_key(w[i]), history[i]);
  });
}

// ---- The choice of a map ------------------------------------------------------------------------------------

namespace {

inline constexpr uint32_t parts_max = 8;  // outcomes of a word that the choice distinguishes

// x · log2(x) · 2^16, by the ten bits below the highest one: the same everywhere.
uint64_t times_log(uint64_t x) {
  static constexpr auto fractions = [] {
    std::array<uint32_t, 1024> of{};
    for (uint32_t k = 0; k < 1024; ++k) of[k] = log2_q16(1024 + k) - (10u << 16);
    return of;
  }();
  if (x < 2) return 0;
  const unsigned e = bit_width(x) - 1;
  return x * ((e << 16) + fractions[(e > 10 ? x >> (e - 10) : x << (10 - e)) & 1023]);
}

// What has become of some words.
struct tally {
  std::array<uint32_t, parts_max> part{};

  uint64_t all() const {
    uint64_t sum = 0;
    for (const uint32_t x : part) sum += x;
    return sum;
  }
  void add(const tally& other) {
    for (uint32_t p = 0; p < parts_max; ++p) part[p] += other.part[p];
  }
  uint64_t entropy() const {
    uint64_t parts = 0;
    for (const uint32_t x : part) parts += times_log(x);
    const uint64_t whole = times_log(all());
    return whole > parts ? whole - parts : 0;
  }
};

// Per group and state.
using grade_cells = std::array<std::array<tally, states_max>, key_groups_max>;

// Number of groups of keys that are worth their grades, for a number of coded changes.
uint32_t groups_for(uint64_t changes) { return changes < 1024 ? 1 : changes < 4096 ? 4 : changes < 8192 ? 8 : 16; }

// Groups with about equal shares of `weight`.
void set_groups(grade_map& m, const uint32_t* weight, uint64_t changes) {
  const key_groups groups(weight, groups_for(changes));
  m.groups = groups.count;
  std::copy_n(groups.begin.data(), groups.count, m.begin.data());
}

// Lists the states that have a 256th of all words, or of those of part 1; others join state 0.
void set_listed(grade_map& m, grade_cells& cells) {
  uint64_t all = 0, ones = 0, all_of[states_max] = {}, ones_of[states_max] = {};
  for (uint32_t g = 0; g < m.groups; ++g)
    for (uint32_t s = 0; s < m.count(); ++s) {
      all_of[s] += cells[g][s].all();
      ones_of[s] += cells[g][s].part[1];
    }
  for (uint32_t s = 0; s < m.count(); ++s) {
    all += all_of[s];
    ones += ones_of[s];
  }
  for (uint32_t s = 1; s < m.count(); ++s) {
    if (all_of[s] * 256 >= all || ones_of[s] * 256 >= ones) {
      m.listed |= 1u << s;
      continue;
    }
    for (uint32_t g = 0; g < m.groups; ++g) {
      cells[g][0].add(cells[g][s]);
      cells[g][s] = {};
    }
  }
}

struct grade_cell {
  uint32_t group, state;
  uint64_t all;
  tally what;
};
// Those that have words.
uint32_t list_cells(const grade_map& m, const grade_cells& cells, grade_cell* list) {
  uint32_t n = 0;
  for (uint32_t g = 0; g < m.groups; ++g)
    for (uint32_t s = 0; s < m.count(); ++s)
      if (const uint64_t all = cells[g][s].all()) list[n++] = {g, s, all, cells[g][s]};
  return n;
}

// Grades of words that change or do not (parts 1 and 0): cells in the order of their rates, cut where it costs least.
void set_rate_grades(grade_map& m, const grade_cells& cells) {
  std::array<grade_cell, key_groups_max * states_max> list;
  const uint32_t n = list_cells(m, cells, list.data());
  std::sort(list.begin(), list.begin() + n, [](const grade_cell& a, const grade_cell& b) {
    const uint64_t x = a.what.part[1] * b.all, y = b.what.part[1] * a.all;  // (of numbers below 2^32)
    return x != y ? x < y : a.group != b.group ? a.group < b.group : a.state < b.state;
  });
  uint64_t all = 0, ones = 0;
  for (uint32_t k = 0; k < n; ++k) {
    all += list[k].all;
    ones += list[k].what.part[1];
  }
  // Runs of cells that have as much as others of words and of changes together.
  constexpr uint32_t runs_max = 48;
  std::array<tally, runs_max + 1> before{};
  std::array<uint8_t, runs_max> begin;
  std::array<uint8_t, key_groups_max * states_max> run_of;
  uint32_t runs = 0;
  uint64_t here = 0, left = uint64_t{2} << 24;
  for (uint32_t k = 0; k < n; ++k) {
    run_of[k] = static_cast<uint8_t>(runs);
    before[runs + 1].add(list[k].what);
    here += (list[k].all << 24) / all + (uint64_t{list[k].what.part[1]} << 24) / std::max<uint64_t>(ones, 1);
    if (k + 1 < n && (runs + 1 == runs_max || here * (runs_max - runs) < left)) continue;
    left -= std::min(left, here);
    here = 0;
    begin[runs] = static_cast<uint8_t>(runs);
    ++runs;
  }
  for (uint32_t r = 0; r < runs; ++r) before[r + 1].add(before[r]);
  const class_list chosen = choose_classes(runs, begin.data(), uint64_t{8 * 12} << 16, [&](uint32_t i, uint32_t j) {
    tally between;
    for (uint32_t p = 0; p < parts_max; ++p) between.part[p] = before[j].part[p] - before[i].part[p];
    return between.entropy();
  });
  m.grades = chosen.count;
  for (uint32_t k = 0; k < n; ++k) m.grade[list[k].group][list[k].state] = static_cast<uint8_t>(chosen.of(run_of[k]));
}

// Grades of words of many symbols: merges the two cells that lose least together, until there are few enough and
// another would lose more than a table is long.
void set_symbol_grades(grade_map& m, const grade_cells& cells) {
  constexpr uint64_t table = uint64_t{8 * 16} << 16;
  constexpr uint32_t max_cells = key_groups_max * static_cast<uint32_t>(history_states::since);
  std::array<grade_cell, max_cells> list;
  std::array<uint64_t, max_cells> entropy;
  std::array<std::array<uint64_t, max_cells>, max_cells> loss;  // [i][j] of j < i together
  std::array<uint8_t, max_cells> joined;                        // the cell that represents this one
  const uint32_t n = list_cells(m, cells, list.data());
  const auto measure = [&](uint32_t i, uint32_t j) {
    tally both = list[i].what;
    both.add(list[j].what);
    const uint64_t together = both.entropy(), apart = entropy[i] + entropy[j];
    loss[std::max(i, j)][std::min(i, j)] = together > apart ? together - apart : 0;
  };
  for (uint32_t i = 0; i < n; ++i) {
    joined[i] = static_cast<uint8_t>(i);
    entropy[i] = list[i].what.entropy();
    for (uint32_t j = 0; j < i; ++j) measure(i, j);
  }
  for (uint32_t left = n; left > 1; --left) {
    uint32_t x = 0, y = 0;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 1; i < n; ++i)
      for (uint32_t j = 0; joined[i] == i && j < i; ++j)
        if (joined[j] == j && loss[i][j] < least) least = loss[x = i][y = j];
    if (left <= grades_max && least > table) break;
    for (uint32_t i = 0; i < n; ++i)
      if (joined[i] == x) joined[i] = static_cast<uint8_t>(y);
    list[y].what.add(list[x].what);
    entropy[y] = list[y].what.entropy();
    for (uint32_t i = 0; i < n; ++i)
      if (i != y && joined[i] == i) measure(i, y);
  }
  std::array<uint8_t, max_cells> grade{};
  m.grades = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (joined[i] == i) grade[i] = static_cast<uint8_t>(m.grades++);
    m.grade[list[i].group][list[i].state] = grade[joined[i]];
  }
}

uint8_t byte_of(const uint8_t* history, uint64_t i) { return history ? history[i] : uint8_t{0}; }

}  // namespace

grade_map choose_changed_grades(uint32_t word_size, const void* words, const uint8_t* history, uint64_t n,
                                const uint32_t* changed, uint64_t count) {
  grade_map m(history_states::since_and_stood);
  if (count < 128) return m;
  const auto state = [&](uint64_t i) { return history_state(m.states, byte_of(history, i)); };
  // By state and key, of which groups come later.
  using counts = std::array<std::array<uint32_t, 256>, states_max>;
  counts all{}, ones{};
  with_word(word_size, [&](auto word) {
    const auto* const w = static_cast<const decltype(word)*>(words);
    for (uint64_t k = 0; k < count; ++k) ++ones[state(changed[k])][word_key(w[changed[k]])];
    // The choice uses a sample: 64 words in every `step`.
    const uint64_t step = std::max<uint64_t>(64, n / 4096 / 64 * 64);
    for (uint64_t at = 0; at < n; at += step)
      for (uint64_t i = at; i < std::min(n, at + 64); ++i) ++all[state(i)][word_key(w[i])];
  });
  uint64_t seen = 0;
  for (const auto& of : all)
    for (const uint32_t k : of) seen += k;
  uint32_t weight[256] = {};
  for (uint32_t s = 0; s < states_max; ++s)
    for (unsigned key = 0; key < 256; ++key) {
      all[s][key] = static_cast<uint32_t>(std::max<uint64_t>(ones[s][key], all[s][key] * n / seen));
      weight[key] += static_cast<uint32_t>(ones[s][key] + all[s][key] * count / n);
    }
  set_groups(m, weight, count);
  grade_cells cells{};
  for (uint32_t s = 0; s < states_max; ++s)
    for (unsigned key = 0, g = 0; key < 256; ++key) {
      while (g + 1 < m.groups && key >= m.begin[g + 1]) ++g;
      cells[g][s].part[0] += all[s][key] - ones[s][key];
      cells[g][s].part[1] += ones[s][key];
    }
  set_listed(m, cells);
  set_rate_grades(m, cells);
  return m;
}

grade_map choose_symbol_grades(uint32_t word_size, const void* words, const uint8_t* history, uint64_t n,
                               const uint8_t* symbols) {
  grade_map m(history_states::since);
  if (n < 512) return m;
  grade_cells cells{};
  with_word(word_size, [&](auto word) {
    const auto* const w = static_cast<const decltype(word)*>(words);
    uint32_t weight[256] = {};
    for (uint64_t i = 0; i < n; ++i) ++weight[word_key(w[i])];
    set_groups(m, weight, n);
    const grade_table rows(m);
    for (uint64_t i = 0; i < n; ++i) {
      const uint32_t g = rows.group(word_key(w[i]));
      ++cells[g][history_since(byte_of(history, i))].part[std::min<uint32_t>(symbols[i], parts_max - 1)];
    }
  });
  set_listed(m, cells);
  set_symbol_grades(m, cells);
  return m;
}

}  // namespace dr
