// Every form of operator new and delete of a program, over its own take(size, alignment), which may give NULL, give(memory) and `head`, the
// alignment where none is asked for. They come first; included once in a program.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DR_TSAN
#endif
#endif

#if defined(DR_TSAN)
namespace {

[[maybe_unused]] const bool ended = [] {
  std::puts("skipped: TSan's runtime has operators new and delete of its own");
  std::fflush(stdout);
  std::_Exit(77);
  return take(1, head) != nullptr && (give(nullptr), true);
}();

}  // namespace
#else
namespace {

void* take_or_throw(size_t size, size_t alignment) {
  void* const memory = take(size, alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return take_or_throw(size, head); }
void* operator new[](size_t size) { return take_or_throw(size, head); }
void* operator new(size_t size, std::align_val_t a) { return take_or_throw(size, static_cast<size_t>(a)); }
void* operator new[](size_t size, std::align_val_t a) { return take_or_throw(size, static_cast<size_t>(a)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return take(size, head); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return take(size, head); }
void operator delete(void* memory) noexcept { give(memory); }
void operator delete[](void* memory) noexcept { give(memory); }
void operator delete(void* memory, size_t) noexcept { give(memory); }
void operator delete[](void* memory, size_t) noexcept { give(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { give(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { give(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { give(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { give(memory); }
#endif
