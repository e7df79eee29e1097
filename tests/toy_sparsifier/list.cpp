// In the place of codecs/builtin.cpp and tests/cases/sparsifier_cases.cpp: as they would be with one line more.
#include "cases/sparsifier_case.hpp"
#include "codecs/builtin.hpp"
#include "codecs/sparsifiers.hpp"
#include "core/registry.hpp"
#include "feedback/feedback_kinds.hpp"

namespace dr {

extern const sparsifier every_sparsifier;

std::span<const dr_codec* const> builtin_codecs() {
  static constexpr const dr_codec* list[] = {&none_sparsifier.entry, &every_sparsifier.entry, &residual_feedback.entry,
                                             &index_raw_codec, &value_raw_codec};
  return list;
}
std::span<const codec_notes* const> builtin_notes() { return {}; }

namespace cases {

sparsifier_case sparsify_none();

sparsifier_case sparsify_every() {
  static constexpr auto kept = [](const kept_input& in, uint64_t stride) {
    positions out;
    for (uint64_t i = 0; i < in.bits.size(); ++i)
      if ((in.indices.empty() ? i : in.indices[i]) % stride == combined(in.shared, 31) % stride) out.push_back(i);
    return out;
  };
  return {"every",
          {{"every", [](const kept_input& in) { return kept(in, 10); }},
           {"every(stride=1)", [](const kept_input& in) { return kept(in, 1); }},
           {"every(stride=97)", [](const kept_input& in) { return kept(in, 97); }}}};
}

std::span<const sparsifier_case> sparsifiers() {
  static const sparsifier_case list[] = {sparsify_none(), sparsify_every()};
  return list;
}

}  // namespace cases
}  // namespace dr
