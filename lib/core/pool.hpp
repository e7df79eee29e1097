// Fork and join over a fixed set of threads. Serial (no thread at all) unless asked for more.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace dr {

class pool {
 public:
  using task = void (*)(void* arg, size_t item, size_t worker);

  explicit pool(uint32_t workers);
  ~pool();
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;

  // Whether its threads are in the process that this one was forked from. Such a pool must not be destroyed, because
  // its condition variables would wait for these threads: it exists until the process ends.
  bool lost() const { return born_ != forks_.load(std::memory_order_relaxed) && !threads_.empty(); }

  uint32_t workers() const { return static_cast<uint32_t>(threads_.size()) + 1; }
  // Calls f(arg, item, worker) for every item below n. Items begin in order, so an item may wait for earlier ones.
  void run(size_t n, task f, void* arg);

 private:
  void serve(size_t worker);
  void run_items(size_t worker);
  void stop();

  // The number of forks of this process and its ancestors since the first pool with threads.
  static std::atomic<uint32_t> forks_;
  uint32_t born_ = 0;

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  task f_ = nullptr;
  void* arg_ = nullptr;
  size_t n_ = 0, busy_ = 0;
  std::atomic<size_t> next_ = 0;
  uint64_t round_ = 0;
  bool stop_ = false;
};

}  // namespace dr
