#include "cases/sparsifier_case.hpp"

namespace dr::cases {

positions drawn_positions(uint64_t key, uint64_t universe, uint64_t count) {
  const bool others = count > universe / 2;
  std::set<uint64_t> some;
  for (uint64_t i = 0; some.size() < (others ? universe - count : count); ++i)
    some.insert(static_cast<uint64_t>(static_cast<unsigned __int128>(drawn(key, i)) * universe >> 64));
  positions out;
  for (uint64_t i = 0; i < universe; ++i)
    if (some.contains(i) != others) out.push_back(i);
  return out;
}

namespace {

positions kept(const kept_input& in, uint64_t count) {
  const positions all = drawn_positions(combined(in.shared, 3), in.universe, std::min(count, in.universe));
  if (in.indices.empty()) return all;
  positions out;
  for (uint64_t i = 0; i < in.indices.size(); ++i)
    if (std::binary_search(all.begin(), all.end(), in.indices[i])) out.push_back(i);
  return out;
}

}  // namespace

sparsifier_case sparsify_random() {
  return {"random",
          {{"random(ratio=0.01)", [](const kept_input& in) { return kept(in, share_of(0.01, in.universe)); }},
           {"random(ratio=0.7)", [](const kept_input& in) { return kept(in, share_of(0.7, in.universe)); }},
           {"random(count=5)", [](const kept_input& in) { return kept(in, 5); }}}};
}

}  // namespace dr::cases
