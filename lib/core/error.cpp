#include "core/error.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace dr {

dr_status fail(dr_error& error, dr_status code, const char* format, ...) {
  error = dr_error{sizeof(dr_error), code, DR_STREAM_NONE, DR_NO_TENSOR, 0, {}};
  va_list args;
  va_start(args, format);
  std::vsnprintf(error.message, sizeof error.message, format, args);
  va_end(args);
  return code;
}

dr_status fail(dr_error& error, const dr_fault& fault, uint64_t tensor, const char* codec) {
  static constexpr const char* streams[] = {"", ", index stream", ", value stream", ", order stream"};
  const char* stream = fault.stream < 4 ? streams[fault.stream] : "";
  fail(error, fault.code, "tensor %llu%s%s%s%s: %s (at %llu, value %llu)", static_cast<unsigned long long>(tensor),
       stream, codec ? " (" : "", codec ? codec : "", codec ? ")" : "",
       fault.message ? fault.message : status_name(fault.code), static_cast<unsigned long long>(fault.where),
       static_cast<unsigned long long>(fault.what));
  error.tensor = tensor;
  error.stream = fault.stream;
  error.where = fault.where;
  return fault.code;
}

void hand_over(const dr_error& from, dr_error* to) {
  if (!to) return;
  const size_t size = to->struct_size && to->struct_size < sizeof from ? to->struct_size : sizeof from;
  if (size <= sizeof to->struct_size) return;
  std::memcpy(reinterpret_cast<char*>(to) + sizeof to->struct_size,
              reinterpret_cast<const char*>(&from) + sizeof to->struct_size, size - sizeof to->struct_size);
  to->struct_size = size;
  if (size > offsetof(dr_error, message)) reinterpret_cast<char*>(to)[size - 1] = 0;
}

const char* status_name(dr_status code) {
  switch (code) {
    case DR_OK: return "OK";
    case DR_E_ARGUMENT: return "ARGUMENT";
    case DR_E_CAPACITY: return "CAPACITY";
    case DR_E_CORRUPT: return "CORRUPT";
    case DR_E_UNSUPPORTED: return "UNSUPPORTED";
    case DR_E_MEMORY: return "MEMORY";
    case DR_E_DEVICE: return "DEVICE";
    case DR_E_INTERNAL: return "INTERNAL";
    case DR_E_PEER: return "PEER";
    default: return "?";
  }
}

}  // namespace dr
