#include "core/pool.hpp"

#include <pthread.h>

#include <cfenv>
#include <new>

namespace dr {

std::atomic<uint32_t> pool::forks_{0};

pool::pool(uint32_t workers) {
  if (workers > 1) {
    static const int watched = pthread_atfork(nullptr, nullptr, [] { forks_.fetch_add(1, std::memory_order_relaxed); });
    if (watched) throw std::bad_alloc();  // (ENOMEM is its only error)
    born_ = forks_.load(std::memory_order_relaxed);
  }
  try {
    threads_.reserve(workers);
    for (uint32_t w = 1; w < workers; ++w) threads_.emplace_back([this, w] { serve(w); });
  } catch (...) {
    stop();  // those that started; an unjoined thread would end the process
    throw;
  }
}

pool::~pool() { stop(); }

void pool::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void pool::run(size_t n, task f, void* arg) {
  if (threads_.empty() || n < 2) {
    for (size_t i = 0; i < n; ++i) f(arg, i, 0);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    f_ = f, arg_ = arg, n_ = n;
    next_.store(0, std::memory_order_relaxed);
    busy_ = threads_.size();
    ++round_;
  }
  start_.notify_all();
  run_items(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

// (The inputs of an item were written before its worker locked the mutex.)
void pool::run_items(size_t worker) {
  for (size_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < n_;) f_(arg_, item, worker);
}

void pool::serve(size_t worker) {
  std::fesetenv(FE_DFL_ENV);
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
    }
    run_items(worker);
    std::lock_guard lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace dr
