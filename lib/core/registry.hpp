// All codecs of the process: built-ins, then whatever is registered. Only grows, so a pointer found stays good.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "core/error.hpp"

namespace dr {

size_t codec_count();
const dr_codec* codec_at(size_t position);  // nullptr past the end
const dr_codec* find_codec(dr_role role, std::string_view name);
const dr_codec* find_codec(dr_role role, uint32_t id);

// ARGUMENT: malformed, or its name or id is taken by another. All of them or none.
dr_status register_codecs(const dr_codec* const* codecs, size_t n, dr_error& error);

// The list of built-in codecs: codecs/builtin.cpp.
std::span<const dr_codec* const> builtin_codecs();

const char* role_name(dr_role role);

}  // namespace dr
