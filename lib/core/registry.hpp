// All codecs of the process: built-ins, then registered ones. The registry only grows, so a found pointer stays valid.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace dr {

size_t codec_count();
const dr_codec* codec_at(size_t position);  // nullptr past the end
// Finds a codec by its name in a plan: "fp8" is the built-in codec of that name, or else the registered one;
// "plugin.fp8" is always the registered one.
const dr_codec* find_codec(dr_role role, std::string_view name);
const dr_codec* find_codec(dr_role role, uint32_t id);
// A codec's name in a plan: its own, with the prefix "plugin." if a built-in has the same name.
std::string plan_name(const dr_codec& codec);

// Registers all or none. ARGUMENT: a codec is malformed, or another registered codec has its id or name. With OK the
// message of `error` lists the names that are also names of built-ins; without such names `error` does not change.
dr_status register_codecs(const dr_codec* const* codecs, size_t n, dr_error& error);

// The list of built-in codecs: codecs/builtin.cpp.
std::span<const dr_codec* const> builtin_codecs();

// The id of the codec of a stream that a plan does not name.
inline constexpr uint32_t default_codec = 1;

const char* role_name(dr_role role);

}  // namespace dr
