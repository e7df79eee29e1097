// Units of frames on a device: nothing waits there, so sizes of frames and faults are in device memory, and the host reads
// them from its own memory a step later.
#pragma once

#include <memory>
#include <vector>

#include "api/context.hpp"
#include "api/placed_batch.hpp"
#include "exchange/partition.hpp"
#include "feedback/state_layout.hpp"
#include "sender/slot_tile.hpp"
#include "sender/units.hpp"

namespace dr {

// What the units of a sender share: a stream, memory, this rank's counts.
class device_side {
 public:
  device_side(context& c, const target& where) : c_(c), where_(where) {}
  ~device_side();
  device_side(const device_side&) = delete;
  device_side& operator=(const device_side&) = delete;

  // `mirrored` bytes of zeros, in host memory, too; and as many as `size` in all. MEMORY.
  dr_status allocate(uint64_t mirrored, uint64_t size);
  // Copies the mirrored bytes to the device, and waits.
  dr_status start(uint64_t cleared);
  std::byte* memory() const { return memory_; }
  std::byte* host() const { return host_; }
  uint64_t size() const { return size_; }
  step_counts* counts() const { return reinterpret_cast<step_counts*>(memory_); }

  const target& where() const { return where_; }
  device_queue queue() const { return {where_.where, nullptr, where_.stream}; }
  // Later calls enqueue there.
  void move(void* stream) { where_.stream = stream; }
  // Around the launches of a call: on whatever stream they are, they follow those before.
  dr_status begin();
  dr_status end();
  // Ends a call that fails between the two: what it has enqueued runs.
  struct turn {
    device_side& side;
    ~turn() {
      if (side.open_) (void)side.end();
    }
  };
  // Waits for an event, and counts that it waits.
  dr_status wait_for(void* event);
  // Between host and device, at once. Waits, and counts it.
  dr_status copy_now(void* to, const void* from, uint64_t size);
  dr_status launched(dr_status s) const { return check_device(s, *where_.where, c_.error); }
  uint64_t waits() const { return waits_; }

  void* make_event();  // of the side: nullptr: there is none

 private:
  context& c_;
  target where_;
  std::byte *memory_ = nullptr, *host_ = nullptr;
  uint64_t size_ = 0, mirrored_ = 0, waits_ = 0;
  void* done_ = nullptr;    // the end of what was enqueued
  void* stream_ = nullptr;  // of the last call
  bool open_ = false;       // a call has begun, and has not ended
  std::vector<void*> events_;
};

// A frame of a slot: of all its tensors, or of their parts in one range. Or a frame of their sums.
struct device_part {
  std::shared_ptr<placed_batch> batch;
  piece_list pieces;
  std::vector<plan_ptr> plans;              // of its pieces
  uint64_t room_at = 0, room = 0;           // of the workspace of a merge
  std::vector<tensor_view> views;           // of its pieces; `state`: the sender's or the caller's
  std::vector<tensor_out> outs, residuals;  // residuals: of plans that keep one
  // Of the sums that this rank makes: f32 sums, and the states from before the last encode.
  std::vector<float*> sums;
  std::vector<std::byte*> copies;

  // Of a piece; 0: it has none.
  uint64_t state_bytes(size_t piece) const {
    const plan& p = *plans[piece];
    return p.keeps_feedback() ? state_size_of(p.feedback_rule().kind, pieces[piece].rows) : 0;
  }
  bool empty() const { return pieces.empty(); }
};
using device_parts = std::vector<std::unique_ptr<device_part>>;

struct device_unit {
  static constexpr uint64_t none = ~uint64_t{0};

  device_parts parts, sums;          // [frames][ranges]; sums: of owners
  size_t ranges = 1;                 // and slots
  std::vector<uint64_t> at, sum_at;  // of the frames in a slot
  // In the mirrored bytes, one behind the other, up to `end`. results: of encodes, slot by slot; of those of sums. reports:
  // of a merge, and of the slots that an owner adds up; each with the results of its checks and all prefixes behind it.
  // bounds: of frames, u64, which do not change.
  uint64_t bounds_at = 0, sum_bounds_at = 0;
  uint64_t results_at = 0, sum_results_at = 0, report_at = 0, sum_report_at = 0, end = 0;
  void* event = nullptr;            // after it the host has these bytes
  uint64_t pending = none;          // the step whose report was not read
  uint64_t summed = none;           // the step whose sums were encoded, and not taken back
  const std::byte* sent = nullptr;  // this rank's slots in this step
  bool is_back = false;             // what it sent in this step, at the host's request

  device_part& part(size_t frame, size_t range) const { return *parts[frame * ranges + range]; }
  device_part& sum(size_t frame, size_t range) const { return *sums[frame * ranges + range]; }
  // Results of the checks of a merge, behind its report.
  size_t checks() const { return sums.empty() ? at.size() : sums.size(); }
};

}  // namespace dr
