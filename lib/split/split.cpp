#include "split/split.hpp"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>
#include <type_traits>

#include "split/order_kernel.hpp"

namespace dr {
namespace {

dr_status found_at(uint64_t where, uint64_t what, dr_error& error) {
  error.stream = DR_STREAM_INDEX;
  error.where = where;
  error.what = what;
  return error.code;
}

template <class I>
dr_status sort_as(const I* indices, uint64_t n, uint64_t universe, bool sum_duplicates, sparse_entry* entries,
                  dr_error& error) {
  bool ascending = true;
  for (uint64_t i = 0; i < n; ++i) {
    const I index = indices[i];
    if (index < I{0} || static_cast<uint64_t>(index) >= universe) {
      if constexpr (static_cast<I>(-1) < I{0})
        if (index < 0) {
          fail(error, DR_E_ARGUMENT, "index %" PRIu64 ": %" PRId64 " is negative", i, static_cast<int64_t>(index));
          return found_at(i, static_cast<uint64_t>(static_cast<int64_t>(index)), error);
        }
      fail(error, DR_E_ARGUMENT, "index %" PRIu64 ": %" PRIu64 " is not below the universe of %" PRIu64, i,
           static_cast<uint64_t>(index), universe);
      return found_at(i, static_cast<uint64_t>(index), error);
    }
    entries[i] = {static_cast<uint64_t>(index), i};
    ascending = ascending && (i == 0 || entries[i - 1].index < entries[i].index);
  }
  if (ascending) return DR_OK;
  std::sort(entries, entries + n, [](const sparse_entry& a, const sparse_entry& b) {
    return a.index != b.index ? a.index < b.index : a.position < b.position;
  });
  if (sum_duplicates) return DR_OK;
  for (uint64_t i = 1; i < n; ++i)
    if (entries[i - 1].index == entries[i].index) {
      fail(error, DR_E_ARGUMENT,
           "index %" PRIu64 " occurs twice, at %" PRIu64 " and at %" PRIu64
           " (DR_TENSOR_SUM_DUPLICATES adds their values)",
           entries[i].index, entries[i - 1].position, entries[i].position);
      return found_at(entries[i].position, entries[i].index, error);
    }
  return DR_OK;
}

// Copies n rows; for a single value the compiler knows the width.
template <class Move>
void for_each_row(uint64_t row_bytes, uint64_t n, Move&& move) {
  if (row_bytes == 8)
    for (uint64_t i = 0; i < n; ++i) move(i, 8);
  else if (row_bytes == 4)
    for (uint64_t i = 0; i < n; ++i) move(i, 4);
  else if (row_bytes == 2)
    for (uint64_t i = 0; i < n; ++i) move(i, 2);
  else if (row_bytes == 1)
    for (uint64_t i = 0; i < n; ++i) move(i, 1);
  else
    for (uint64_t i = 0; i < n; ++i) move(i, row_bytes);
}

}  // namespace

dr_status sort_indices(uint32_t index_dtype, const void* indices, uint64_t n, uint64_t universe, bool sum_duplicates,
                       sparse_entry* entries, dr_error& error) {
  switch (index_dtype) {
    case DR_U32: return sort_as(static_cast<const uint32_t*>(indices), n, universe, sum_duplicates, entries, error);
    case DR_I32: return sort_as(static_cast<const int32_t*>(indices), n, universe, sum_duplicates, entries, error);
    case DR_U64: return sort_as(static_cast<const uint64_t*>(indices), n, universe, sum_duplicates, entries, error);
    default: return sort_as(static_cast<const int64_t*>(indices), n, universe, sum_duplicates, entries, error);
  }
}

namespace {

template <typename From, typename To>
uint64_t gather_entries_as(uint32_t width, const void* values, const sparse_entry* entries, uint64_t n,
                           uint64_t* indices, void* out) {
  const auto* from = static_cast<const typename From::bits*>(values);
  auto* to = static_cast<typename To::bits*>(out);
  uint64_t rows = 0;
  for (uint64_t i = 0; i < n;) {
    uint64_t end = i + 1;
    while (end < n && entries[end].index == entries[i].index) ++end;
    for (uint32_t w = 0; w < width; ++w) {
      const typename From::bits value = from[entries[i].position * width + w];
      typename To::bits& result = to[rows * width + w];
      float sum = From::to_f32(value);
      for (uint64_t j = i + 1; j < end; ++j) sum += From::to_f32(from[entries[j].position * width + w]);
      if (end > i + 1)
        result = To::from_f64(double{computed(sum)});
      else if constexpr (std::is_same_v<From, To>)
        result = value;  // (A NaN's bits, too.)
      else
        result = std::bit_cast<uint32_t>(sum);
    }
    indices[rows++] = entries[i].index;
    i = end;
  }
  return rows;
}

}  // namespace

uint64_t gather_entries(uint32_t dtype, uint32_t out_dtype, uint32_t width, const void* values,
                        const sparse_entry* entries, uint64_t n, uint64_t* indices, void* out) {
  return with_value_type(dtype, [&]<typename T>(T) {
    return out_dtype == dtype ? gather_entries_as<T, T>(width, values, entries, n, indices, out)
                              : gather_entries_as<T, f32_type>(width, values, entries, n, indices, out);
  });
}

// Rows at positions that are too far apart for the CPU's prefetchers.
constexpr uint64_t rows_ahead = 32;

void gather(uint64_t row_bytes, const void* values, const uint32_t* positions, uint64_t n, void* out) {
  const auto* from = static_cast<const char*>(values);
  auto* to = static_cast<char*>(out);
  for_each_row(row_bytes, n, [&](uint64_t i, uint64_t bytes) {
    if (i + rows_ahead < n) __builtin_prefetch(from + positions[i + rows_ahead] * bytes);
    std::memcpy(to + i * bytes, from + positions[i] * bytes, bytes);
  });
}

void scatter(uint64_t row_bytes, const void* values, const uint32_t* positions, uint64_t n, void* out) {
  const auto* from = static_cast<const char*>(values);
  auto* to = static_cast<char*>(out);
  for_each_row(row_bytes, n, [&](uint64_t i, uint64_t bytes) {
    if (i + rows_ahead < n) __builtin_prefetch(to + positions[i + rows_ahead] * bytes, 1);
    std::memcpy(to + positions[i] * bytes, from + i * bytes, bytes);
  });
}

uint64_t first_misplaced(const uint32_t* order, uint64_t n, uint32_t* seen) {
  std::memset(seen, 0, 4 * (n / 32 + 1));
  const auto set = [](uint32_t* word, uint32_t bit) {
    const uint32_t was = *word;
    *word |= bit;
    return was;
  };
  uint64_t i = 0;
  while (i < n && mark_place(seen, n, order[i], set)) ++i;
  return i;
}

uint64_t sort_by_keys(uint32_t* keys, uint64_t n, uint64_t row_bytes, const void* values, uint64_t* sorted, void* out) {
  for (uint64_t i = 0; i < n; ++i) sorted[i] = uint64_t{keys[i]} << 32 | i;
  std::sort(sorted, sorted + n);
  for (uint64_t i = 0; i < n; ++i) {
    keys[i] = static_cast<uint32_t>(sorted[i] >> 32);
    if (i && keys[i] == keys[i - 1]) return i;
    std::memcpy(static_cast<char*>(out) + i * row_bytes,
                static_cast<const char*>(values) + static_cast<uint32_t>(sorted[i]) * row_bytes, row_bytes);
  }
  return n;
}

void gather_known(uint64_t row_bytes, const uint64_t* indices, const void* values, uint64_t n, uint64_t first,
                  const uint32_t* positions, uint64_t position_count, void* out) {
  const auto* from = static_cast<const char*>(values);
  auto* to = static_cast<char*>(out);
  uint64_t at = 0;
  for_each_row(row_bytes, position_count, [&](uint64_t i, uint64_t bytes) {
    const uint64_t index = first + (positions ? positions[i] : i);
    while (at < n && indices[at] < index) ++at;
    if (at < n && indices[at] == index)
      std::memcpy(to + i * bytes, from + at * bytes, bytes);
    else
      std::memset(to + i * bytes, 0, bytes);
  });
}

}  // namespace dr
