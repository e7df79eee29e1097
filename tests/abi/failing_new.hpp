// Allocations of a program that are counted, and fail on request. It replaces operator new, for the library too, so it
// is included
// in one file of a program. `counted` is an allocator for contexts that goes the same way.
#pragma once

#include <deepreduce/deepreduce.h>

#include <atomic>
#include <cstdlib>

namespace {

std::atomic<bool> counting{false};
std::atomic<long> until_failure{-1};  // < 0: never
std::atomic<long> live{0};            // blocks that were made while counting

// Blocks made while counting carry a mark, so that those of doctest and of the test itself do not matter.
constexpr size_t head = 64;

void* take(size_t size, size_t alignment) {
  const bool ours = counting;
  if (ours && until_failure >= 0 && until_failure-- == 0) return nullptr;
  const size_t offset = alignment > head ? alignment : head;
  char* const block = static_cast<char*>(std::aligned_alloc(offset, (size + offset + offset - 1) / offset * offset));
  if (!block) return nullptr;
  block[offset - 1] = ours;
  *reinterpret_cast<size_t*>(block + offset - 16) = offset;
  live += ours;
  return block + offset;
}

void give(void* memory) {
  if (!memory) return;
  char* const at = static_cast<char*>(memory);
  live -= at[-1] != 0;
  std::free(at - *reinterpret_cast<size_t*>(at - 16));
}

}  // namespace

// A sanitizer answers absurd sizes as a system does: with NULL.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

#include "replaced_new.hpp"

namespace {

// Runs f with the allocation number `fail_at` of the library failing; -1: none. `met`: whether there was such an allocation.
template <class F>
auto run(long fail_at, F&& f, bool* met = nullptr) {
  until_failure = fail_at;
  counting = true;
  const auto result = f();
  counting = false;
  if (met) *met = fail_at >= 0 && until_failure < 0;
  until_failure = -1;
  return result;
}

// The k that are tried: all of the first 200, then every 13th.
constexpr long next_failure(long k) { return k < 200 ? k + 1 : k + 13; }
constexpr long allocations_most = 20000;

// Contexts whose allocator is the same as all else's.
inline dr_context_options counted(uint32_t threads) {
  dr_context_options options{};
  options.struct_size = sizeof options;
  options.allocate = [](void*, size_t size, size_t alignment) { return take(size, alignment); };
  options.release = [](void*, void* memory, size_t) { give(memory); };
  options.threads = threads;
  return options;
}

}  // namespace
