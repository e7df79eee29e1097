// What the ranks of a host do together in an exchange on devices, by NCCL: sum their tensors up, a share of the sum to
// each rank, and gather the shares of the result. Both in f32, in one memory that has all tensors, share by share.
#pragma once

#include <vector>

#include "exchange/device_stream.hpp"
#include "exchange/nccl.hpp"
#include "exchange/range_work.hpp"
#include "exchange/sum_tile.hpp"

namespace dr {

class host_sum {
 public:
  host_sum(context& c, device_stream& on) : c_(c), on_(on) {}
  host_sum(const host_sum&) = delete;
  host_sum& operator=(const host_sum&) = delete;

  // communicator: of the `ranks` ranks of this host, in which this one is `rank`. ARGUMENT, UNSUPPORTED (no NCCL).
  dr_status create(void* communicator, uint32_t ranks, uint32_t rank);
  // Range j belongs to rank j / (ranges / ranks).
  void lay_out(const std::vector<range_work>& ranges);
  uint64_t memory_size() const { return 4 * elements_; }
  void place(std::byte* memory) { memory_ = reinterpret_cast<float*>(memory); }
  float* at(uint32_t range, size_t piece) const { return memory_ ? memory_ + at_[range][piece] : nullptr; }

  // Where tensors and outputs are, for all calls after `bind`, which cannot fail.
  dr_status check(const exchange_memory& at_memory);
  void bind() { std::swap(now_, next_); }

  // Enqueue. None that allocates.
  dr_status clear() { return on_.clear(memory_, memory_size()); }
  dr_status take_tensors();
  dr_status write_outputs();
  // Collectives: of the tensors that were taken, and of the shares. Then nothing is enqueued until `poll` is DR_OK.
  dr_status sum();
  dr_status gather();
  // DR_OK: what was issued is on the stream, and NCCL reports no error. DR_PENDING: not yet there. DEVICE. Never waits.
  dr_status poll();

 private:
  template <class F>
  dr_status issue(const char* what, F&& f);
  dr_status checked(const char* what, int result);

  context& c_;
  device_stream& on_;
  const nccl* nccl_ = nullptr;
  void* communicator_ = nullptr;
  uint32_t ranks_ = 1, rank_ = 0;
  // Shares of one size are scattered and gathered by a collective; others by one for each.
  bool even_ = true;
  std::vector<uint64_t> first_, share_;    // [rank] elements
  std::vector<std::vector<uint64_t>> at_;  // [range][piece] elements
  const std::vector<range_work>* ranges_ = nullptr;
  uint64_t elements_ = 0;
  float* memory_ = nullptr;
  struct bound {
    std::vector<add_job> tensors;
    std::vector<sum_job> outs;
  } now_, next_;
};

}  // namespace dr
