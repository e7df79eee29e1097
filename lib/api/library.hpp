// The library in this process: the instructions that it uses, and plug-ins.
#pragma once

#include "core/error.hpp"

namespace dr {

// DR_FEATURE_CPU.
uint64_t cpu_feature();

// Registers the codecs of a shared object, which stays loaded. UNSUPPORTED: it cannot be loaded, or is not a plug-in
// of this version. Errors of register_codecs.
dr_status load_plugin(const char* path, dr_error& error);

}  // namespace dr
