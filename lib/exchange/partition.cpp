#include "exchange/partition.hpp"

namespace dr {
namespace {

// The least number of elements of a piece: a row of a frame costs about 24 bytes, as much as 4 elements of the 1 % of
// them that are selected.
constexpr uint64_t piece_elements_min = 1024;
// Cuts are at multiples of so many rows.
constexpr uint64_t rows_a_cut = 64;

// Whether the sparsifier selects of 2^30 elements about 2^10 times as many as of 2^20.
bool keeps_a_share(const plan& p) {
  const bound_sparsifier s = p.sparsifier();
  return !s.how.target || s.target(uint64_t{1} << 30) / 512 >= s.target(uint64_t{1} << 20);
}

}  // namespace

std::vector<piece_list> cut(std::span<const tensor_view> tensors, std::span<const plan* const> methods,
                            uint32_t ranges) {
  std::vector<piece_list> out(ranges);
  uint64_t total = 0;
  for (const tensor_view& t : tensors) total += t.universe * width_of(t);
  // (128 bits: elements may be 2^56, ranges 2^22.)
  const auto range_of = [&](uint64_t element) {
    return total ? static_cast<size_t>(static_cast<unsigned __int128>(element) * ranges / total) : 0;
  };
  const auto begin_of = [&](size_t range) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(total) * range + ranges - 1) / ranges);
  };
  uint64_t element = 0;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const tensor_view& t = tensors[i];
    const uint64_t width = width_of(t), elements = t.universe * width, end = element + elements;
    const bool share = keeps_a_share(*methods[i]);
    uint64_t first = 0;
    // A piece belongs where its middle is; an unflattened tensor that stays whole, too.
    const auto close = [&](uint64_t past) {
      const uint64_t middle = element + (first + past) / 2 * width;
      const bool together = methods[i]->flat && !share;  // one bucket, of which a fixed number of elements is selected
      out[together ? 0 : std::min<size_t>(range_of(middle), ranges - 1)].push_back({i, first, past - first});
      first = past;
    };
    if (share && !t.index_dtype && elements)
      for (size_t j = range_of(element) + 1; j < ranges && begin_of(j) < end; ++j) {
        const uint64_t row = (begin_of(j) - element) / width / rows_a_cut * rows_a_cut;
        if (row > first && (row - first) * width >= piece_elements_min &&
            (t.universe - row) * width >= piece_elements_min)
          close(row);
      }
    close(t.universe);
    element = end;
  }
  return out;
}

}  // namespace dr
