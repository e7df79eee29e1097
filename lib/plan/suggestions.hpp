// Hints in errors of plans: what a wrong word probably means.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dr {

// The roles of stages, in the order of a plan's text.
inline constexpr std::string_view stage_roles[] = {"sparsify", "feedback", "index", "value",    "order",
                                                   "regather", "bucket",   "merge", "exchange", "transform"};

// Letters to insert, delete, replace or swap with their neighbour (Damerau 1964), ignoring case.
size_t letters_apart(std::string_view a, std::string_view b);
// Whether a word that many letters away may be a slip: one letter in three.
inline bool is_near(std::string_view word, size_t apart) { return apart <= (word.size() < 6 ? 1 : word.size() / 3); }

// The nearest of `names`; "" if none is near.
std::string nearest(std::string_view word, std::span<const std::string_view> names);

// The nearest codec, or word that is not a codec, of a role ("bytes": of the codecs after '+'); "" if none is near.
std::string nearest_codec(std::string_view role, std::string_view word);

// The stage whose codec or word has that name or a near one, "index=golomb"; "" if there is none. `apart`: of the name.
std::string stage_with(std::string_view word, size_t* apart = nullptr);

// "topr(ratio=0.01)": a call with the name of the first parameter that accepts the value; "" if there is none.
std::string named_argument(std::string_view role, std::string_view name, const std::string& value);

}  // namespace dr
