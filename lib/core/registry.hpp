// All codecs of the process: built-ins, then whatever is registered. Only grows, so a pointer found stays good.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace dr {

size_t codec_count();
const dr_codec* codec_at(size_t position);  // nullptr past the end
// As plans name it: "fp8" is the built-in codec of that name, or else the registered one; "plugin.fp8" is the registered
// one whatever is built in.
const dr_codec* find_codec(dr_role role, std::string_view name);
const dr_codec* find_codec(dr_role role, uint32_t id);
// The name by which plans find this codec: its own, or with "plugin." before it where a built-in has that.
std::string plan_name(const dr_codec& codec);

// ARGUMENT: a codec is malformed, or its id or name is that of another registered one. Registers all or none. With OK the
// message of `error` lists the names that a built-in has, too; without such names nothing is written there.
dr_status register_codecs(const dr_codec* const* codecs, size_t n, dr_error& error);

// The list of built-in codecs: codecs/builtin.cpp.
std::span<const dr_codec* const> builtin_codecs();

// A plan that names no codec of a stream has the one with this id.
inline constexpr uint32_t default_codec = 1;

const char* role_name(dr_role role);

}  // namespace dr
