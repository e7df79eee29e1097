// tree_sum of values by vectors: the same additions, four or eight at a time. Scalar code adds short tiles.
#pragma once

#include "primitive/sum_tree.hpp"
#include "primitive/value_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

// Σ term(v[i]), i < n. term(__m256d) and one(double) are the same function of one value. (A term is a class: of a
// lambda in a template gcc forgets the instruction set.)
template <class T, class Term, class One>
[[gnu::always_inline]] inline double tree_sum_avx2(const typename T::bits* v, uint64_t n, Term term, One one) {
  double total = 0;
  alignas(32) double tile[sum_tile / 2];
  for (; n >= sum_tile; n -= sum_tile, v += sum_tile) {
    size_t h = sum_tile / 2;
    for (size_t i = 0; i < h; i += 8) {
      const __m256 a = load_8<T>(v + i), b = load_8<T>(v + i + h);
      _mm256_store_pd(tile + i, _mm256_add_pd(term(lower_4(a)), term(lower_4(b))));
      _mm256_store_pd(tile + i + 4, _mm256_add_pd(term(upper_4(a)), term(upper_4(b))));
    }
    for (h /= 2; h >= 4; h /= 2)
      for (size_t i = 0; i < h; i += 4)
        _mm256_store_pd(tile + i, _mm256_add_pd(_mm256_load_pd(tile + i), _mm256_load_pd(tile + i + h)));
    total += (tile[0] + tile[2]) + (tile[1] + tile[3]);
  }
  return n ? total + tree_sum(n, [&](uint64_t i) { return one(double{T::to_f32(v[i])}); }) : total;
}

}  // namespace dr
DR_ISA_END

DR_AVX512_BEGIN
namespace dr {

inline __m512d tree_add(__m512d a, __m512d b) { return _mm512_add_pd(a, b); }
inline double tree_lanes_sum(__m512d v) {
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

// The sum of the leaves j, j + s, … j + 7 s, in registers: of the sum of the even and the sum of the odd ones, and so
// on.
template <class Leaf>
[[gnu::always_inline]] inline auto tree_eight(Leaf leaf, size_t j, size_t s) {
  const auto even = tree_add(tree_add(leaf(j), leaf(j + 4 * s)), tree_add(leaf(j + 2 * s), leaf(j + 6 * s)));
  const auto odd = tree_add(tree_add(leaf(j + s), leaf(j + 5 * s)), tree_add(leaf(j + 3 * s), leaf(j + 7 * s)));
  return tree_add(even, odd);
}
template <class V>
struct tree_parts {
  const V* parts;
  V operator()(size_t j) const { return parts[j]; }
};
template <class V>
struct tree_halves {
  const V* parts;
  V operator()(size_t j) const { return tree_add(parts[j], parts[j + 8]); }
};
template <class T, class Term>
struct tree_terms_avx512 {
  const typename T::bits* v;
  Term term;
  auto operator()(size_t j) const { return term(load_8_f64<T>(v + 8 * j)); }
};
// The sum of a tile of 512 or 1024 by lanes. A term is a vector, or whatever tree_add adds.
template <class T, size_t length = sum_tile, class Term>
[[gnu::always_inline]] inline auto tree_tile_avx512(const typename T::bits* v, Term term) {
  constexpr size_t parts_count = length / 64;
  const tree_terms_avx512<T, Term> leaf{v, term};
  decltype(leaf(0)) parts[parts_count];
  for (size_t j = 0; j < parts_count; ++j) parts[j] = tree_eight(leaf, j, parts_count);
  if constexpr (parts_count == 8)
    return tree_eight(tree_parts<decltype(leaf(0))>{parts}, 0, 1);
  else
    return tree_eight(tree_halves<decltype(leaf(0))>{parts}, 0, 1);
}

template <class T, class Term, class One>
[[gnu::always_inline]] inline double tree_sum_avx512(const typename T::bits* v, uint64_t n, Term term, One one) {
  double total = 0;
  for (; n >= sum_tile; n -= sum_tile, v += sum_tile) total += tree_lanes_sum(tree_tile_avx512<T>(v, term));
  return n ? total + tree_sum(n, [&](uint64_t i) { return one(double{T::to_f32(v[i])}); }) : total;
}

}  // namespace dr
DR_ISA_END
#endif
