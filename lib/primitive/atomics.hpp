// Atomic operations of blocks that share global memory: CUDA's on a GPU, std::atomic_ref where the CPU emulates one.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/host_device.hpp"

namespace dr {

#if defined(__CUDA_ARCH__)
#define DR_ATOMIC(cuda, host) \
  jitter();                   \
  return static_cast<T>(cuda)
#else
#define DR_ATOMIC(cuda, host) return host
#endif

// Built with DR_JITTER (-Dgpu_jitter=true) a lane sleeps up to a microsecond before each atomic operation and after each
// wait, so that tests meet orders of blocks that a quiet GPU does not show.
DR_HD inline void jitter() {
#if defined(__CUDA_ARCH__) && defined(DR_JITTER)
  uint32_t x = (static_cast<uint32_t>(clock64()) ^ blockIdx.x << 16 ^ threadIdx.x) * 0x9e3779b9u;
  x = (x ^ x >> 15) * 0x85ebca6bu;
  __nanosleep(x >> 22);
#endif
}

// Each returns the old value. T: uint32_t or uint64_t.
template <class T>
DR_HD inline T atomic_add(T* to, T x) {
  DR_ATOMIC(atomicAdd(reinterpret_cast<device_word<T>*>(to), x), std::atomic_ref(*to).fetch_add(x));
}
template <class T>
DR_HD inline T atomic_or(T* to, T x) {
  DR_ATOMIC(atomicOr(reinterpret_cast<device_word<T>*>(to), x), std::atomic_ref(*to).fetch_or(x));
}
template <class T>
DR_HD inline T atomic_cas(T* to, T expected, T desired) {
#if !defined(__CUDA_ARCH__)
  std::atomic_ref(*to).compare_exchange_strong(expected, desired);
#endif
  DR_ATOMIC(atomicCAS(reinterpret_cast<device_word<T>*>(to), expected, desired), expected);
}
template <class T>
DR_HD inline T atomic_min(T* to, T x) {
#if !defined(__CUDA_ARCH__)
  T was = std::atomic_ref(*to).load();
  while (x < was && !std::atomic_ref(*to).compare_exchange_weak(was, x)) {
  }
#endif
  DR_ATOMIC(atomicMin(reinterpret_cast<device_word<T>*>(to), x), was);
}
template <class T>
DR_HD inline T atomic_max(T* to, T x) {
#if !defined(__CUDA_ARCH__)
  T was = std::atomic_ref(*to).load();
  while (x > was && !std::atomic_ref(*to).compare_exchange_weak(was, x)) {
  }
#endif
  DR_ATOMIC(atomicMax(reinterpret_cast<device_word<T>*>(to), x), was);
}
#undef DR_ATOMIC

// A word that one block publishes and another waits for. Release: all that this lane has seen before is visible to the
// lane that acquires.
DR_HD inline void store_release(uint64_t* to, uint64_t x) {
#if defined(__CUDA_ARCH__)
  jitter();
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
#else
  std::atomic_ref(*to).store(x, std::memory_order_release);
#endif
}
DR_HD inline uint64_t load_acquire(const uint64_t* from) {
#if defined(__CUDA_ARCH__)
  uint64_t x;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
  jitter();
  return x;
#else
  return std::atomic_ref(*const_cast<uint64_t*>(from)).load(std::memory_order_acquire);
#endif
}
DR_HD inline uint32_t load_acquire(const uint32_t* from) {
#if defined(__CUDA_ARCH__)
  uint32_t x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  jitter();
  return x;
#else
  return std::atomic_ref(*const_cast<uint32_t*>(from)).load(std::memory_order_acquire);
#endif
}
// As load_acquire, but what this lane reads after it is ordered only by the next fence_acquire: so several loads can be
// under way at once.
DR_HD inline uint64_t load_relaxed(const uint64_t* from) {
#if defined(__CUDA_ARCH__)
  uint64_t x;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
  return x;
#else
  return load_acquire(from);  // (ThreadSanitizer knows no fences)
#endif
}
DR_HD inline void fence_acquire() {
#if defined(__CUDA_ARCH__)
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  jitter();
#endif
}

// Orders this lane's global writes before its later atomics, as other blocks see them.
DR_HD inline void fence_grid() {
#if defined(__CUDA_ARCH__)
  __threadfence();
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace dr
