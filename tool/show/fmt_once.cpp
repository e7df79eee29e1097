// The body of fmt::format, once for all files of the tool: fmt's header-only form takes three seconds of each file that formats, and
// a shared libfmt would be a dependency of the installed program.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

namespace {

// A use of the inline function, so that the compiler emits it.
[[gnu::used]] std::string (*const vformat)(fmt::string_view, fmt::format_args) = &fmt::vformat;

}  // namespace
