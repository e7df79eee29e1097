// Which r of a filter's positives p1 and p2 keep: those of the highest scores, and where these are equal of the largest
// murmur3_32(element, salt), which is a bijection of the element. To p1 all scores are 0.
#pragma once

#include <algorithm>
#include <cstdint>

#include "codecs/index/bloom/bloom_query_kernel.hpp"

namespace dr {

// Counters of p2 per bit of the filter, 0 on entry.
struct bloom_sets {
  uint16_t* size;
  uint32_t* highest;
};

// p2. A bit's conflict set is the positives that hash to it. One alone in a set put it there, and is sure; sets with a
// sure member are explained by it. Any other has a claim, the sum of 65536 / size over its unexplained sets,
// and its score is the same sum over those of them where no other member has a higher claim: a set needs one member,
// and the others lose their claim to it. scores: [n], 2^31 if sure, else at most 64 · 65536 / 2. work: 3 n words.
template <class Shape>
void bloom_scores(const Shape& shape, cpu_level level, const uint32_t* positives, uint64_t n, const bloom_sets& sets,
                  uint32_t* scores, uint32_t* work) {
  constexpr uint16_t size_max = 65535;
  constexpr uint32_t sure = uint32_t{1} << 31;
  uint16_t* const size = sets.size;
  std::fill(scores, scores + n, 0);
  bloom_each_bits(shape, level, positives, n, [&](const uint32_t* bits, uint64_t, uint32_t many) {
    for (uint32_t i = 0; i < many; ++i)
      size[bits[i]] = static_cast<uint16_t>(size[bits[i]] + (size[bits[i]] < size_max));
  });
  bloom_each_bits(shape, level, positives, n, [&](const uint32_t* bits, uint64_t first, uint32_t many) {
    for (uint32_t i = 0; i < many; ++i) scores[first + i] |= size[bits[i]] == 1 ? sure : 0;
  });
  uint64_t surely = 0;
  for (uint64_t i = 0; i < n; ++i) {
    work[surely] = positives[i];
    surely += scores[i] == sure;
  }
  // An explained set has size 0 from here on.
  bloom_each_bits(shape, level, work, surely, [&](const uint32_t* bits, uint64_t, uint32_t many) {
    for (uint32_t i = 0; i < many; ++i) size[bits[i]] = 0;
  });
  const uint64_t unsure = n - surely;
  uint32_t *const elements = work, *const claims = elements + unsure, *const won = claims + unsure;
  for (uint64_t i = 0, k = 0; i < n; ++i)
    if (!scores[i]) elements[k++] = positives[i];
  std::fill(claims, won + unsure, 0);
  const auto each_claim = [&](auto&& f) {
    bloom_each_bits(shape, level, elements, unsure, [&](const uint32_t* bits, uint64_t first, uint32_t many) {
      for (uint32_t i = 0; i < many; ++i)
        if (size[bits[i]]) f(bits[i], 65536u / size[bits[i]], first + i);
    });
  };
  each_claim([&](uint32_t, uint32_t part, uint64_t i) { claims[i] += part; });
  each_claim([&](uint32_t bit, uint32_t, uint64_t i) { sets.highest[bit] = std::max(sets.highest[bit], claims[i]); });
  each_claim([&](uint32_t bit, uint32_t part, uint64_t i) { won[i] += sets.highest[bit] == claims[i] ? part : 0; });
  for (uint64_t i = 0, k = 0; i < n; ++i)
    if (!scores[i]) scores[i] = won[k++];
}

// Selects all above `score`, and among those equal to it the `taken` >= 1 with the largest hashes.
struct bloom_cut {
  uint32_t score;
  uint64_t taken;
};

// 0 < r <= n. work: n words.
inline bloom_cut bloom_cut_of(const uint32_t* scores, uint64_t n, uint64_t r, uint32_t* work) {
  std::copy(scores, scores + n, work);
  std::nth_element(work, work + (n - r), work + n);
  const uint32_t score = work[n - r];
  return {score,
          r - static_cast<uint64_t>(std::count_if(work + (n - r), work + n, [&](uint32_t s) { return s > score; }))};
}

// The smallest selected hash at the cut, among `count` elements. work: count words.
inline uint32_t bloom_least_hash(const uint32_t* elements, uint64_t count, uint64_t taken, uint32_t salt,
                                 uint32_t* work) {
  for (uint64_t i = 0; i < count; ++i) work[i] = murmur3_32(elements[i], salt);
  std::nth_element(work, work + (count - taken), work + count);
  return work[count - taken];
}

// Moves the r selected positives to `selected`, in order. work: 2 n words.
inline void bloom_keep(const uint32_t* positives, const uint32_t* scores, uint64_t n, const bloom_cut& cut,
                       uint32_t salt, uint32_t* work, uint32_t* selected) {
  uint64_t at_cut = 0;
  for (uint64_t i = 0; i < n; ++i) {
    work[at_cut] = positives[i];
    at_cut += scores[i] == cut.score;
  }
  const uint32_t least = bloom_least_hash(work, at_cut, cut.taken, salt, work + n);
  for (uint64_t i = 0; i < n; ++i)
    if (scores[i] > cut.score || (scores[i] == cut.score && murmur3_32(positives[i], salt) >= least))
      *selected++ = positives[i];
}

// Elements that the search for a salt may hash: 0.1 ms. At d = 36,864, r = 368 and fpr 0.001 the cut goes through some
// 37 elements, one of which is true, and some 40 salts find it; of thousands no salt finds more than a few by chance.
inline constexpr uint64_t bloom_salt_work = 1 << 14;

// The first of up to 256 salts that selects the most of `support`: r ascending indices, all positives. work: 2 n
// words.
inline uint32_t bloom_best_salt(const uint32_t* positives, const uint32_t* scores, uint64_t n, const bloom_cut& cut,
                                const uint32_t* support, uint64_t r, uint32_t* work) {
  uint64_t right = 0, wrong = 0;  // at the cut: from the front, from the back
  for (uint64_t i = 0, k = 0; i < n; ++i) {
    const bool is_true = k < r && support[k] == positives[i];
    k += is_true;
    if (scores[i] != cut.score) continue;
    if (is_true)
      work[right++] = positives[i];
    else
      work[n - ++wrong] = positives[i];
  }
  std::copy(work + (n - wrong), work + n, work + right);
  const uint64_t at_cut = right + wrong, hits_max = std::min(right, cut.taken);
  const auto salts = static_cast<uint32_t>(std::clamp<uint64_t>(bloom_salt_work / at_cut, 1, 256));
  uint32_t best = 0;
  uint64_t best_hits = 0;
  for (uint32_t salt = 0; salt < salts && best_hits < hits_max; ++salt) {
    const uint32_t least = bloom_least_hash(work, at_cut, cut.taken, salt, work + n);
    const auto hits = static_cast<uint64_t>(
        std::count_if(work, work + right, [&](uint32_t element) { return murmur3_32(element, salt) >= least; }));
    if (hits <= best_hits) continue;
    best = salt;
    best_hits = hits;
  }
  return best;
}

}  // namespace dr
