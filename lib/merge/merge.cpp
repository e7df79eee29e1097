#include "merge/merge.hpp"

#include <algorithm>
#include <cstring>

#include "merge/merge_values.hpp"
#include "primitive/cpu.hpp"

namespace dr {
namespace {

// NaN are rare, and a comparison per sum would cost a quarter of a merge's time. A sum of a few numbers is NaN if one
// of them is, so NaN are detected by blocks. Blocks are small, because in the last one of a tile the values past the
// end of the tile are fetched in vain, which matters where many frames have few pairs in a tile.
constexpr uint64_t pairs_block = 64;

// out[support[i] - first] += weight · values[i] in f32, for an ascending support, up to `end`. Returns the number of
// pairs below `end`.
uint64_t add_f32_pairs(const uint32_t* support, const uint32_t* values, uint64_t n, float weight, uint64_t first,
                       uint64_t end, uint32_t* out) {
  float terms[pairs_block];
  for (uint64_t begin = 0; begin < n; begin += pairs_block) {
    const uint32_t *const v = values + begin, *const at = support + begin;
    uint64_t count = std::min(n - begin, pairs_block);
    if (at[count - 1] >= end) {
      uint64_t below = 0;  // counted, not searched: the prefetchers expect ascending reads
      for (uint64_t i = 0; i < count; ++i) below += at[i] < end;
      n = begin + (count = below);
    }
    for (uint64_t i = 0; i < count; ++i) terms[i] = weight * std::bit_cast<float>(v[i]);
    float seen[4] = {};
    const auto add = [&](uint64_t i, float& sums) {
      uint32_t& to = out[at[i] - first];
      const float sum = std::bit_cast<float>(to) + terms[i];
      to = std::bit_cast<uint32_t>(sum);
      sums += sum;
    };
    uint64_t i = 0;
    for (; i + 4 <= count; i += 4)
      for (unsigned k = 0; k < 4; ++k) add(i + k, seen[k]);
    for (; i < count; ++i) add(i, seen[0]);
    const float all = seen[0] + seen[1] + seen[2] + seen[3];
    if (all != all) [[unlikely]]
      for (i = 0; i < count; ++i) {
        uint32_t& to = out[at[i] - first];
        to = std::bit_cast<uint32_t>(computed(std::bit_cast<float>(to)));
      }
  }
  return n;
}

template <class From, class To>
uint64_t add_pairs(const uint32_t* support, const typename From::bits* values, uint64_t n, float weight, uint64_t first,
                   uint64_t end, typename To::bits* out) {
  if constexpr (std::is_same_v<From, f32_type> && std::is_same_v<To, f32_type>)
    return add_f32_pairs(support, values, n, weight, first, end, out);
  else
    return add_pairs_at<From, To>.best()(support, values, n, weight, first, end, out);
}

template <class F>
void with_two_types(uint32_t from_type, uint32_t to_type, F&& f) {
  with_value_type(from_type, [&](auto from) { with_value_type(to_type, [&](auto to) { f(from, to); }); });
}

// Calls each(dense position, stream position) for every value of a support.
template <class F>
void each_value(const uint32_t* support, uint64_t count, uint32_t width, F&& each) {
  if (width == 1) {
    for (uint64_t i = 0; i < count; ++i) each(uint64_t{support[i]}, i);
  } else {
    for (uint64_t i = 0; i < count; ++i)
      for (uint32_t w = 0; w < width; ++w) each(uint64_t{support[i]} * width + w, i * width + w);
  }
}

}  // namespace

void convert(uint32_t from_type, const void* from, uint64_t n, uint32_t to_type, void* to) {
  scatter(from_type, nullptr, from, n, 1, to_type, to);
}

void scatter(uint32_t from_type, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
             uint32_t to_type, void* out) {
  if (!support && from_type == to_type) {
    if (count) std::memcpy(out, values, count * width * value_size(to_type));
    return;
  }
  with_two_types(from_type, to_type, [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    const auto* v = static_cast<const typename From::bits*>(values);
    auto* o = static_cast<typename To::bits*>(out);
    if (!support) return convert_values_at<From, To>.best()(v, count * width, o);
    each_value(support, count, width, [&](uint64_t at, uint64_t i) { o[at] = converted<From, To>(v[i]); });
  });
}

void scatter_add(uint32_t from_type, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
                 float weight, uint32_t to_type, void* out) {
  with_two_types(from_type, to_type, [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    const auto* v = static_cast<const typename From::bits*>(values);
    auto* o = static_cast<typename To::bits*>(out);
    if (!support) return add_values_at<From, To>.best()(v, count * width, weight, o);
    if (width == 1)
      add_pairs<From, To>(support, v, count, weight, 0, UINT64_MAX, o);
    else
      each_value(support, count, width, [&](uint64_t at, uint64_t i) { o[at] = added<From, To>(o[at], weight, v[i]); });
  });
}

uint64_t put_pairs(const pair_sink& sink, const uint32_t* support, const void* values, uint64_t count, uint64_t first,
                   uint64_t end, void* out) {
  uint64_t n = 0;
  with_two_types(sink.from_type, sink.to_type, [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    const auto* v = static_cast<const typename From::bits*>(values);
    auto* o = static_cast<typename To::bits*>(out);
    const float weight = sink.weight;
    const uint32_t width = sink.width;
    if (sink.adds && width == 1) {
      n = add_pairs<From, To>(support, v, count, weight, first, end, o);
      return;
    }
    const auto each = [&](auto&& put) {
      uint64_t i = 0;
      if (width == 1)
        for (; i < count && support[i] < end; ++i) put(support[i] - first, i);
      else
        for (; i < count && support[i] < end; ++i)
          for (uint32_t w = 0; w < width; ++w) put((support[i] - first) * width + w, i * width + w);
      n = i;
    };
    if (sink.adds)
      each([&](uint64_t at, uint64_t i) { o[at] = added<From, To>(o[at], weight, v[i]); });
    else
      each([&](uint64_t at, uint64_t i) { o[at] = converted<From, To>(v[i]); });
  });
  return n;
}

void put_rows(const pair_sink& sink, const void* values, uint64_t count, void* out) {
  if (sink.adds)
    scatter_add(sink.from_type, nullptr, values, count, sink.width, sink.weight, sink.to_type, out);
  else
    scatter(sink.from_type, nullptr, values, count, sink.width, sink.to_type, out);
}

void replace_by_signs(uint32_t dtype, void* values, uint64_t n) {
  with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    using bits = typename T::bits;
    const auto sign = static_cast<bits>(~T::magnitude_mask);
    const bits one = T::from_f64(1);
    auto* const v = static_cast<bits*>(values);
    for (uint64_t i = 0; i < n; ++i) {
      const bits size = v[i] & T::magnitude_mask, below = size ? v[i] & sign : 0;
      v[i] = size > T::infinity ? v[i] : static_cast<bits>(one | below);
    }
  });
}

void stream_out(const void* from, uint64_t size, void* to) {
#if DR_X86
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  const uint64_t head = std::min<uint64_t>(size, -reinterpret_cast<uintptr_t>(to) % 64);
  std::memcpy(out, in, head);
  uint64_t i = head;
  for (; i + 64 <= size; i += 64)
    for (unsigned k = 0; k < 64; k += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i + k),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i + k)));
  std::memcpy(out + i, in + i, size - i);
  _mm_sfence();
#else
  std::memcpy(to, from, size);
#endif
}

void write_indices(const uint32_t* support, uint64_t count, uint64_t first, uint32_t index_type, void* out) {
  const auto write = [&](auto* to) {
    for (uint64_t i = 0; i < count; ++i)
      to[i] = static_cast<std::remove_reference_t<decltype(*to)>>(first + (support ? support[i] : i));
  };
  if (index_type_size(index_type) == 4)
    write(static_cast<uint32_t*>(out));
  else
    write(static_cast<uint64_t*>(out));
}

}  // namespace dr
