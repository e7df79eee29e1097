#include "api/library.hpp"

#include <dlfcn.h>

#include <cstring>

#include "core/registry.hpp"
#include "primitive/cpu.hpp"

namespace dr {

uint64_t cpu_feature() { return static_cast<uint64_t>(cpu()) + 1; }

dr_status load_plugin(const char* path, dr_error& error) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return fail(error, DR_E_UNSUPPORTED, "plug-in: %s%s", dlerror(),
                std::strchr(path, '/') ? "" : " (a name without a slash is searched in the system's library path)");
  void* const symbol = dlsym(library, DR_PLUGIN_SYMBOL);
  if (!symbol)
    return fail(error, DR_E_UNSUPPORTED, "plug-in %s: does not export %s%s", path, DR_PLUGIN_SYMBOL,
                dlsym(library, "dr_plugin_v1")
                    ? "; it was built for version 1 of codec.h, this library requires version 2"
                    : "");
  static constexpr dr_host host{sizeof(dr_host), DR_CODEC_ABI_VERSION, 0};
  size_t n = 0;
  const dr_codec* const* const codecs = reinterpret_cast<dr_plugin_fn>(symbol)(&host, &n);
  if (!codecs || !n)
    return fail(error, DR_E_UNSUPPORTED, "plug-in %s: has no codec for version %d of codec.h", path,
                DR_CODEC_ABI_VERSION);
  const dr_status status = register_codecs(codecs, n, error);
  return status ? prefix(error, "plug-in %s: ", path) : status;
}

}  // namespace dr
