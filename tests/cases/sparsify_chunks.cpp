#include "cases/sparsifier_case.hpp"

namespace dr::cases {
namespace {

// Of every chunk of the tensor, whatever its segments: of a sparse one, of its indices.
positions keeps(const kept_input& in, uint64_t size, uint64_t whole_target) {
  positions out;
  uint64_t i = 0;
  for (uint64_t begin = 0; begin < in.universe; begin += size) {
    const uint64_t end = std::min(begin + size, in.universe);
    kept_input chunk{in.dtype, {}, end - begin, {}, 0};
    const uint64_t first = i;
    for (; i < in.bits.size() && (in.indices.empty() ? i : in.indices[i]) < end; ++i) chunk.bits.push_back(in.bits[i]);
    for (const uint64_t at : largest(chunk, std::max<uint64_t>(1, whole_target * (end - begin) / size)))
      out.push_back(first + at);
  }
  return out;
}

}  // namespace

sparsifier_case sparsify_chunks() {
  return {"chunks",
          {{"chunks(count=64)", [](const kept_input& in) { return keeps(in, 4096, 64); }},
           {"chunks(count=3,size=100)", [](const kept_input& in) { return keeps(in, 100, 3); }},
           {"chunks(ratio=0.3,size=64)", [](const kept_input& in) { return keeps(in, 64, 19); }},
           {"chunks(ratio=0.01,size=32768)", [](const kept_input& in) { return keeps(in, 32768, 327); }},
           {"chunks(count=1,size=2)", [](const kept_input& in) { return keeps(in, 2, 1); }},
           {"chunks(ratio=1)", [](const kept_input& in) { return keeps(in, 4096, 4096); }}}};
}

}  // namespace dr::cases
