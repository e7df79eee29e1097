#include "exchange/nccl.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

namespace dr {
namespace {

template <class F>
bool find(void* library, const char* name, F*& to) {
  to = reinterpret_cast<F*>(dlsym(library, name));
  return to != nullptr;
}

dr_status open_nccl(nccl& to, dr_error& error) {
  const char* const named = std::getenv("DEEPREDUCE_NCCL");
  const char* const path = named && *named ? named : "libnccl.so.2";
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const why = dlerror();
    return fail(
        error, DR_E_UNSUPPORTED,
        "nccl: cannot load %.120s: %.200s (DEEPREDUCE_NCCL names another file, the one that made the communicator)",
        path, why ? why : "?");
  }
  const char* missing = nullptr;
  const auto take = [&](const char* name, auto*& function) {
    if (!find(library, name, function) && !missing) missing = name;
  };
  take("ncclGetErrorString", to.error_string);
  take("ncclCommCount", to.comm_count);
  take("ncclCommUserRank", to.comm_user_rank);
  take("ncclCommGetAsyncError", to.comm_get_async_error);
  take("ncclGroupStart", to.group_start);
  take("ncclGroupEnd", to.group_end);
  take("ncclReduceScatter", to.reduce_scatter);
  take("ncclAllGather", to.all_gather);
  take("ncclReduce", to.reduce);
  take("ncclBroadcast", to.broadcast);
  (void)find(library, "ncclGetLastError", to.last_error);
  if (!missing) return DR_OK;  // (and it is never unloaded)
  fail(error, DR_E_UNSUPPORTED, "nccl: %.160s has no %s; 2.4 or newer is needed", path, missing);
  dlclose(library);
  return DR_E_UNSUPPORTED;
}

}  // namespace

dr_status load_nccl(const nccl*& out, dr_error& error) {
  static std::mutex turn;
  static nccl loaded;
  static bool is_loaded = false;
  const std::lock_guard<std::mutex> mine(turn);
  if (!is_loaded)
    if (const dr_status s = open_nccl(loaded, error)) return s;
  is_loaded = true;
  out = &loaded;
  return DR_OK;
}

}  // namespace dr
