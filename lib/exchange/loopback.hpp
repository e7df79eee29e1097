// All ranks in one thread: messages are copies, and time is a number.
#pragma once

#include <span>
#include <vector>

#include "core/error.hpp"
#include "deepreduce/exchange.h"
#include "exchange/program.hpp"

namespace dr {

class exchange;

// The fate of a message, for tests of faults.
struct message_fate {
  bool dropped = false, doubled = false;
  uint64_t delay_ns = 0;
  uint64_t flipped_bit = UINT64_MAX;  // of its bytes
  uint64_t cut_to = UINT64_MAX;       // bytes
};
struct message_faults {
  virtual ~message_faults() = default;
  virtual message_fate fate_of(uint32_t from, uint32_t to, uint32_t tag, size_t size) = 0;
  // Before a rank's turn: whether it still lives.
  virtual bool lives(uint32_t rank, uint64_t now) = 0;
};

class loopback {
 public:
  dr_status create(const dr_loopback_options& options, dr_error& error);
  dr_transport transport(uint32_t rank);
  uint64_t now(uint32_t rank) const { return ranks_[rank].clock; }
  uint32_t ranks() const { return static_cast<uint32_t>(ranks_.size()); }  // that are there: of ALIKE one
  bool alike() const { return options_.flags & DR_LOOPBACK_ALIKE; }
  message_faults* faults = nullptr;

  // Runs the exchanges that were started until all have ended. That of a rank that died stays PENDING.
  void run(std::span<exchange* const> exchanges, std::span<dr_status> statuses);
  void pass(uint32_t rank, uint64_t ns) { ranks_[rank].clock += ns; }

 private:
  static constexpr uint32_t nobody = UINT32_MAX;
  struct port {
    loopback* of = nullptr;
    uint32_t number = 0;
    uint64_t clock = 0, out_free = 0, in_free = 0;
    uint64_t next = UINT64_MAX;     // when the earliest tested request that was pending ends
    uint64_t wake_at = UINT64_MAX;  // its next turn; others in the heap are old
    dr_status ended = DR_OK;        // the outcome of its exchange, until the end of the run
  };
  struct request {
    uint32_t rank = 0, tag = 0;
    std::byte* bytes = nullptr;
    size_t size = 0;                    // of a receive: its capacity
    uint64_t over = UINT64_MAX;         // when it ends; UINT64_MAX: not known
    uint64_t posted = 0, duration = 0;  // of a message: ns on a port
    uint32_t from = 0, to = 0, partner = nobody;
    dr_status status = DR_OK;
    bool sends = false, landed = false, gone = false;  // gone: of a message without a receiver, when it lands
    message_fate fate{};
    std::vector<std::byte> copy;  // of a message that was doubled
  };
  struct turn {
    uint64_t time, order;
    uint32_t rank, message;  // the turn of a rank, or the arrival of a message
    bool operator>(const turn& o) const { return time != o.time ? time > o.time : order > o.order; }
  };

  dr_status send(uint32_t from, uint32_t to, uint32_t tag, const void* bytes, size_t size, uint64_t& number);
  dr_status recv(uint32_t to, uint32_t from, uint32_t tag, void* bytes, size_t room, uint64_t& number);
  dr_status test(uint32_t rank, uint64_t number, size_t& size);
  dr_status cancel(uint64_t number);
  void match(uint32_t from, uint32_t to);
  void arrive(uint32_t message, uint64_t time);
  void deliver(uint32_t message);
  uint32_t new_request();
  void free(uint32_t number);
  void wake(uint32_t rank, uint64_t time);
  void push(const turn& t);
  uint32_t turned(uint32_t tag, uint32_t places) const;
  bool reaches(uint32_t peer, uint32_t own) const;
  std::vector<uint32_t>& waiting(uint32_t from, uint32_t to) { return waiting_[size_t{to} * options_.ranks + from]; }

  dr_loopback_options options_{};
  const program* model_ = nullptr;  // ALIKE: of the exchange that runs
  std::vector<port> ranks_;
  std::vector<request> requests_;
  std::vector<uint32_t> free_;
  std::vector<std::vector<uint32_t>> waiting_;  // [pair of ranks]: sends and receives without a partner, in order
  std::vector<turn> turns_;                     // turns of ranks, and arrivals; a heap, the earliest on top
  uint64_t turn_count_ = 0;
};

}  // namespace dr
