// The properties of a plan, so that no caller parses its text.
#include <algorithm>

#include "core/codec_notes.hpp"
#include "pipeline/bind.hpp"

namespace dr {
namespace {

// Whether the support that an index codec reports follows from the tensor's shape, its count and the shared key.
bool is_blind(const dr_codec& index) { return (index.forms & 1u << DR_FORM_ALL) || notes_of(index).blind; }

// A list of codecs has a fixed size if its first codec has, and no bytes codec follows.
bool has_fixed_size(const std::vector<bound_stage>& list) {
  return list.empty() || (list.size() == 1 && (list[0].codec->traits & DR_FIXED_SIZE));
}

}  // namespace

plan_traits traits_of(const plan& p) {
  // With auto: a trait of any of its choices; a single choice counts as fixed.
  const auto& values = p.value_choices.empty() ? p.value : p.value_choices;
  const auto& indices = p.index_choices.empty() ? p.index : p.index_choices;
  const bool replaces = p.index[0].codec->traits & DR_REPLACES_SUPPORT, blind = is_blind(*p.index[0].codec);
  plan_traits out{0, 0};
  if (p.transforms()) {
    out.flags = DR_PLAN_TRANSFORMS | DR_PLAN_LOSSY_VALUES | DR_PLAN_SHARED_RANDOM | DR_PLAN_HOST_ONLY |
                (p.keeps_feedback() ? DR_PLAN_FEEDBACK | DR_PLAN_RESIDUAL : 0);
    out.dtypes = DR_DTYPE_BIT(DR_F32);
    return out;
  }
  const auto set = [&](bool yes, uint32_t flag) { out.flags |= yes ? flag : 0; };
  const auto each = [&](const bound_stage& s) {
    const uint32_t traits = s.codec->traits;
    set(traits & DR_SHARED_RANDOM, DR_PLAN_SHARED_RANDOM);
    set(traits & DR_PRIVATE_RANDOM, DR_PLAN_PRIVATE_RANDOM);
    // (A sparsifier or feedback has no operations, but a trait.)
    set((traits & DR_HOST_ONLY) || (s.codec->cpu && !s.codec->cuda), DR_PLAN_HOST_ONLY);
  };
  each(p.sparsify);
  for (const auto* list : {&indices, &values, &p.order}) std::for_each(list->begin(), list->end(), each);
  set(!p.sparsifier().keeps_all(), DR_PLAN_SPARSIFIES);
  set(p.keeps_feedback(), DR_PLAN_FEEDBACK);
  set(p.keeps_residual(), DR_PLAN_RESIDUAL);
  if (p.keeps_feedback()) each(p.feedback);
  // A bytes codec is always exact. Without regather values are decoded at other positions.
  const auto lossy = [](const bound_stage& s) {
    return s.codec->role == DR_ROLE_VALUE && !(s.codec->traits & DR_EXACT);
  };
  set(!p.regather || std::any_of(values.begin(), values.end(), lossy), DR_PLAN_LOSSY_VALUES);
  set(replaces, DR_PLAN_LOSSY_SUPPORT);
  const bool one_choice = p.index_choices.size() <= 1 && p.value_choices.size() <= 1;
  const bool fixed = one_choice && has_fixed_size(indices) && has_fixed_size(values) && has_fixed_size(p.order) &&
                     (!replaces || blind) && p.block == 1;  // (the last block may be short)
  set(fixed, DR_PLAN_FIXED_SIZE);
  // A transform rounds: not even all coefficients decode to the same bits.
  set(p.has_tiles(), DR_PLAN_COEFFICIENTS | DR_PLAN_LOSSY_VALUES);
  // Whether values have the same positions on every rank, so that they can be summed.
  const bool same_support = p.block == 1 && (replaces ? blind : p.sparsifier().how.blind);
  set(one_choice && same_support && !p.votes && has_fixed_size(values) && (values[0].codec->traits & DR_LINEAR),
      DR_PLAN_LINEAR);
  set(p.chooses(), DR_PLAN_CHOOSES);
  set(p.chooses() || p.sparsifier().block() == 0 || (p.block > 1 && replaces), DR_PLAN_HOST_ONLY);
  set(p.flat, DR_PLAN_FLAT);
  set(p.votes, DR_PLAN_VOTE);
  set(p.votes || p.has_tiles(), DR_PLAN_HOST_ONLY);
  for (const bound_stage& v : values)
    if (v.codec->role == DR_ROLE_VALUE) out.dtypes |= v.codec->dtypes;
  if (!p.patches()) out.dtypes &= DR_DTYPE_BIT(DR_F32) | DR_DTYPE_BIT(DR_F16) | DR_DTYPE_BIT(DR_BF16);
  if (p.has_tiles()) out.dtypes &= DR_DTYPE_BIT(DR_F32);
  set(p.patches(), DR_PLAN_PATCH);
  // (On a device a patch lists its changes.)
  set(p.patches() && (p.index[0].codec->forms & 1u << DR_FORM_ALL), DR_PLAN_HOST_ONLY);
  return out;
}

}  // namespace dr
