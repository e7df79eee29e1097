#include "plan/stage_words.hpp"

#include <algorithm>
#include <cstring>

#include "core/codec_notes.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param required(dr_param p) {
  p.required = 1;
  return p;
}

// (The largest number below 1.)
constexpr dr_param value_error[] = {required(param_real("error", "relative L2 error", 0, 1 - 0x1p-53, 0))};
constexpr dr_param parts = param_int("parts", "pieces of a rank's elements that are under way at a time", 1, 64, 1);
constexpr dr_param flat_schedule[] = {parts};
constexpr dr_param hosts[] = {required(param_int("inner", "ranks of a host", 1, 65536, 0)), parts};
constexpr dr_param factors[] = {required(param_int("rank", "of the factors", 1, 4096, 0))};

constexpr dr_param tiles[] = {param_int("size", "elements of a tile's side: a power of two", 2, 64, 64)};

constexpr dr_stage_word word(const char* role, const char* name, const char* summary) {
  return {sizeof(dr_stage_word), role, name, summary, nullptr, 0};
}
template <size_t n>
constexpr dr_stage_word word(const char* role, const char* name, const char* summary, const dr_param (&params)[n]) {
  return {sizeof(dr_stage_word), role, name, summary, params, n};
}

// A summary that names codecs of the build. Its size is fixed, so that the functions of the C ABI cannot fail.
struct sentence {
  char text[200] = {};

  sentence& add(const char* part) {
    std::strncat(text, part, sizeof text - 1 - std::strlen(text));
    return *this;
  }
  // The codecs that auto tries: "a, b and c".
  sentence& add_candidates(dr_role role) {
    const auto notes = builtin_notes();
    const auto is_one = [role](const codec_notes* n) { return is_candidate(*n, role); };
    const auto all = std::ranges::count_if(notes, is_one);
    for (ptrdiff_t i = 0; const codec_notes* n : notes)
      if (is_one(n)) add(i == 0 ? "" : i + 1 < all ? ", " : " and ").add(n->codec->name), ++i;
    return *this;
  }
};

}  // namespace

std::span<const dr_stage_word> stage_words() {
  static const sentence index_auto = sentence{}
                                         .add("for each tensor the codec of fewest bytes among ")
                                         .add_candidates(DR_ROLE_INDEX)
                                         .add("; runs on the CPU");
  static const sentence value_auto = sentence{}
                                         .add("for each tensor the smallest within the error among ")
                                         .add_candidates(DR_ROLE_VALUE)
                                         .add("; runs on the CPU");
  static const sentence vote = sentence{}
                                   .add("a merge is the sign of the sum, +1 where that is 0; requires index=")
                                   .add(index_of_form(DR_FORM_ALL));
  static const dr_stage_word list[] = {
      word("feedback", "none", "the default: what is not sent is lost"),
      word("index", "auto", index_auto.text),
      word("value", "auto", value_auto.text, value_error),
      word("regather", "on",
           "the default: where an index codec replaces the support, the gradient's values at the new support are sent"),
      word("regather", "off", "the selected values are sent all the same"),
      word("bucket", "none", "the default: each tensor of a batch by itself"),
      word("bucket", "flat", "the tensors of a batch become one tensor"),
      word("merge", "mean", "the default: a merge adds up what the ranks send, as a sum or a mean"),
      word("merge", "vote", vote.text),
      word("exchange", "gather", "the default: each rank sends its frames to all others", flat_schedule),
      word("exchange", "owner",
           "each range of elements has an owner, which merges the frames of all and sends the sum's frame",
           flat_schedule),
      word("exchange", "ring", "a range goes from rank to rank; each adds its own and encodes again", flat_schedule),
      word("exchange", "hierarchy",
           "one rank of each host sums the host's dense gradients; these ranks exchange by gather", hosts),
      word("transform", "none", "the default: frames"),
      word("transform", "lowrank",
           "PowerSGD: two factors that ranks all-reduce, in place of frames; beside it only feedback, a residual",
           factors),
      word("transform", "dct",
           "DeMo: frames of the coefficients of a cosine transform, of size x size tiles of matrices and runs of "
           "vectors",
           tiles),
  };
  return list;
}

const dr_stage_word* find_word(std::string_view role, std::string_view name) {
  const auto found =
      std::ranges::find_if(stage_words(), [&](const dr_stage_word& w) { return role == w.role && name == w.name; });
  return found == stage_words().end() ? nullptr : &*found;
}

const dr_stage_word* first_word(std::string_view role) {
  const auto found = std::ranges::find_if(stage_words(), [&](const dr_stage_word& w) { return role == w.role; });
  return found == stage_words().end() ? nullptr : &*found;
}

std::string words_of(std::string_view role) {
  std::string text;
  for (const dr_stage_word& w : stage_words())
    if (role == w.role) (text += text.empty() ? "" : ", ") += w.name;
  return text;
}

}  // namespace dr
