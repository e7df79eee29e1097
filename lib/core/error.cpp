#include "core/error.hpp"

#include <locale.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "core/versioned.hpp"

namespace dr {
namespace {

// In the locale C: a number of a plan has a point, not a comma.
[[gnu::format(printf, 3, 0)]] void print(char* to, size_t room, const char* format, va_list args) {
  static const locale_t c = newlocale(LC_ALL_MASK, "C", locale_t{});
  const locale_t callers = uselocale(c);
  std::vsnprintf(to, room, format, args);
  uselocale(callers);
}

}  // namespace

dr_status fail(dr_error& error, dr_status code, const char* format, ...) {
  error = no_error();
  error.code = code;
  va_list args;
  va_start(args, format);
  print(error.message, sizeof error.message, format, args);
  va_end(args);
  return code;
}

static bool is_error(dr_status code) { return code >= DR_E_ARGUMENT && code <= DR_E_TIMEOUT; }

dr_status fail(dr_error& error, const dr_fault& given, uint64_t tensor, const char* codec) {
  dr_fault fault = given;
  if (!is_error(fault.code)) {
    fault.code = DR_E_INTERNAL;
    fault.what = given.code;
    fault.message = "the code of the fault is not an error";
  }
  static constexpr const char* streams[] = {"", ", index stream", ", value stream", ", order stream"};
  const char* stream = fault.stream < 4 ? streams[fault.stream] : "";
  fail(error, fault.code, "tensor %llu%s%s%s%s: %s (at %llu, value %llu)", static_cast<unsigned long long>(tensor),
       stream, codec ? " (" : "", codec ? codec : "", codec ? ")" : "",
       fault.message ? fault.message : status_name(fault.code), static_cast<unsigned long long>(fault.where),
       static_cast<unsigned long long>(fault.what));
  error.tensor = tensor;
  error.stream = fault.stream;
  error.where = fault.where;
  error.what = fault.what;
  return fault.code;
}

dr_status check_workspace(const void* workspace, uint64_t size, uint64_t needed, dr_error& error) {
  if (needed == 0 || (workspace && size >= needed)) return DR_OK;
  const auto bytes = static_cast<unsigned long long>(needed);
  if (workspace || size == 0)
    fail(error, DR_E_CAPACITY, "workspace: %llu bytes given, %llu needed", static_cast<unsigned long long>(size),
         bytes);
  else
    fail(error, DR_E_ARGUMENT, "workspace is NULL; %llu bytes are needed", bytes);
  error.needed = needed;
  return error.code;
}

void hide_controls(char* text, size_t n) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (size_t i = 0; i < n; ++i) {
    const bool c1 = i && byte(i - 1) == 0xc2 && byte(i) >= 0x80 && byte(i) < 0xa0;
    if (c1) text[i - 1] = '?';
    if (c1 || (byte(i) && byte(i) < 0x20) || byte(i) == 0x7f) text[i] = '?';
  }
}

const char* after_tensor(const char* sentence) {
  for (const char* const word : {"tensor ", "output "})
    if (const size_t length = std::strlen(word); !std::strncmp(sentence, word, length))
      return sentence + length + std::strspn(sentence + length, "0123456789");
  return nullptr;
}

void hand_over(const dr_error& from, dr_error* to) {
  if (!to) return;
  const size_t size = to->struct_size;
  if (size < struct_size_min || size > struct_size_max) return;
  write_struct(from, to);
  if (size > offsetof(dr_error, message) && size < offsetof(dr_error, reason))
    reinterpret_cast<char*>(to)[size - 1] = 0;
}

dr_status prefix(dr_error& error, const char* format, ...) {
  const dr_error inner = error;
  va_list args;
  va_start(args, format);
  print(error.message, sizeof error.message, format, args);
  va_end(args);
  const size_t end = std::strlen(error.message), room = sizeof error.message - end - 1;
  std::memcpy(error.message + end, inner.message, room);
  error.message[end + room] = 0;
  return error.code;
}

dr_status check_struct(const void* from, size_t least, size_t known, size_t room, const char* what, dr_error& error,
                       const char* type) {
  const size_t size = size_of_struct(from);
  if (size < least || size > room)
    return fail(error, DR_E_ARGUMENT, "%s: struct_size is %zu, not in %zu … %zu (set it to sizeof%s%s%s)", what, size,
                least, room, type ? "(" : "", type ? type : "", type ? ")" : "");
  for (size_t i = known; i < size; ++i)
    if (static_cast<const char*>(from)[i])
      return fail(error, DR_E_UNSUPPORTED, "%s: byte %zu is not zero; this library supports %zu bytes of the struct",
                  what, i, known);
  return DR_OK;
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
    case DR_E_TIMEOUT: return "TIMEOUT";
    case DR_PENDING: return "PENDING";
    default: return "?";
  }
}

}  // namespace dr
