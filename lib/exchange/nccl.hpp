// What an exchange asks of NCCL, which is loaded when one needs it. The functions are those of nccl.h, from 2.4 on; the
// library is never built against it.
#pragma once

#include <cstddef>

#include "core/error.hpp"

namespace dr {

struct nccl {
  using communicator = void*;                      // ncclComm_t
  static constexpr int success = 0, progress = 7;  // ncclResult_t
  static constexpr int f32 = 7, sum = 0;           // ncclDataType_t, ncclRedOp_t

  const char* (*error_string)(int);
  const char* (*last_error)(communicator);  // nullptr before 2.13
  int (*comm_count)(communicator, int*);
  int (*comm_user_rank)(communicator, int*);
  int (*comm_get_async_error)(communicator, int*);
  int (*group_start)();
  int (*group_end)();
  // (sent, received, elements, type, operation, root, communicator, stream), as far as a function has them
  int (*reduce_scatter)(const void*, void*, size_t, int, int, communicator, void*);
  int (*all_gather)(const void*, void*, size_t, int, communicator, void*);
  int (*reduce)(const void*, void*, size_t, int, int, int, communicator, void*);
  int (*broadcast)(const void*, void*, size_t, int, int, communicator, void*);
};

// Loads it once, and for as long as the process lives: from DEEPREDUCE_NCCL if that is set, else libnccl.so.2, which is
// the one that made the caller's communicator if that is loaded already. UNSUPPORTED, with the loader's words.
dr_status load_nccl(const nccl*& out, dr_error& error);

}  // namespace dr
