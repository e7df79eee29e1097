#include "exchange/host_sum.hpp"

#include <algorithm>

#include "pipeline/launch_own.hpp"

namespace dr {
namespace {

// Pieces begin at multiples of so many values, 128 bytes: as memory that CUDA allocates, for loads of whole sectors.
constexpr uint64_t piece_values = 32;

}  // namespace

dr_status host_sum::checked(const char* what, int result) {
  if (result == nccl::success || result == nccl::progress) return DR_OK;
  const char* const why = nccl_->error_string(result);
  const char* const last = nccl_->last_error ? nccl_->last_error(communicator_) : nullptr;
  return fail(c_.error, DR_E_DEVICE, "%s: %.80s%s%.80s", what, why ? why : "?", last && *last ? "; " : "",
              last && *last ? last : "");
}

dr_status host_sum::create(void* communicator, uint32_t ranks, uint32_t rank) {
  if (const dr_status s = load_nccl(nccl_, c_.error)) return s;
  communicator_ = communicator;
  ranks_ = ranks, rank_ = rank;
  int count = 0, number = 0;
  if (const dr_status s = checked("ncclCommCount", nccl_->comm_count(communicator, &count))) return s;
  if (const dr_status s = checked("ncclCommUserRank", nccl_->comm_user_rank(communicator, &number))) return s;
  if (static_cast<uint32_t>(count) != ranks)
    return fail(c_.error, DR_E_ARGUMENT, "options: nccl is a communicator of %d ranks; the plan has inner=%u", count,
                ranks);
  if (static_cast<uint32_t>(number) != rank)
    return fail(c_.error, DR_E_ARGUMENT,
                "options: this rank is rank %d of nccl; it must be %u, its rank in the exchange modulo inner=%u",
                number, rank, ranks);
  return DR_OK;
}

void host_sum::lay_out(const std::vector<range_work>& ranges) {
  ranges_ = &ranges;
  at_.assign(ranges.size(), {});
  share_.assign(ranks_, 0), first_.assign(ranks_, 0);
  const size_t parts = ranges.size() / ranks_;
  for (size_t j = 0; j < ranges.size(); ++j) {
    uint64_t& used = share_[j / parts];
    for (size_t i = 0; i < ranges[j].pieces().size(); ++i) {
      const tensor_view v = ranges[j].view_of(i);
      at_[j].push_back(used);
      used += round_up(v.universe * width_of(v), piece_values);
    }
  }
  uint64_t all = 0, most = 0;
  for (const uint64_t n : share_) all += n, most = std::max(most, n);
  // Shares differ by what cannot be cut: little, unless a plan selects a fixed number of a tensor's elements. One
  // collective is faster than one for each rank, so that is what an eighth more memory buys.
  even_ = most * ranks_ <= all + all / 8 + piece_values * 128 * ranks_;
  elements_ = 0;
  for (uint32_t r = 0; r < ranks_; ++r) {
    first_[r] = elements_;
    if (even_) share_[r] = most;
    elements_ += share_[r];
  }
  for (size_t j = 0; j < ranges.size(); ++j)
    for (uint64_t& at : at_[j]) at += first_[j / parts];
}

dr_status host_sum::check(const exchange_memory& at_memory) {
  for (size_t i = 0; i < at_memory.tensors.size(); ++i) {
    const tensor_view& t = at_memory.tensors[i];
    const tensor_out& o = at_memory.outs[i];
    const auto unaligned = [](const void* values, uint32_t dtype) {
      return reinterpret_cast<uintptr_t>(values) % value_size(dtype) != 0;
    };
    const char* why = nullptr;
    if (!o.values && o.universe) why = "its output's values is NULL";
    if (!is_value_type(o.dtype))
      why = "its output's dtype is not f32, f16 or bf16";
    else if (unaligned(o.values, o.dtype))
      why = "its output's values are not aligned to their dtype";
    if (o.flags) why = "its output has unknown flags";
    if (!t.values && t.universe) why = "values is NULL";
    if (unaligned(t.values, t.dtype)) why = "values are not aligned to their dtype";
    if (!why) continue;
    fail(c_.error, DR_E_ARGUMENT, "tensor %zu: %s", i, why);
    c_.error.tensor = i;
    return DR_E_ARGUMENT;
  }
  next_.tensors.clear(), next_.outs.clear();
  for (uint32_t j = 0; j < ranges_->size(); ++j)
    for (size_t i = 0; i < (*ranges_)[j].pieces().size(); ++i) {
      const piece& p = (*ranges_)[j].pieces()[i];
      const tensor_view& t = at_memory.tensors[p.tensor];
      const tensor_out& o = at_memory.outs[p.tensor];
      const uint64_t width = width_of(t), elements = p.rows * width, first = p.first * width;
      if (!elements) continue;
      next_.tensors.push_back(
          {static_cast<const std::byte*>(t.values) + first * value_size(t.dtype), at(j, i), elements, 0, t.dtype});
      next_.outs.push_back(
          {at(j, i), static_cast<std::byte*>(o.values) + first * value_size(o.dtype), elements, 0, o.dtype});
    }
  return DR_OK;
}

dr_status host_sum::take_tensors() {
  if (const dr_status s = clear()) return s;
  device_queue queue = on_.queue();
  return check_device(
      launch_own<add_values_to>(queue, now_.tensors,
                                [](const add_job& j) { return ceil_div(j.elements, uint64_t{sum_tile}); }),
      *on_.where().where, c_.error);
}

dr_status host_sum::write_outputs() {
  device_queue queue = on_.queue();
  return check_device(launch_own<round_values_of>(
                          queue, now_.outs, [](const sum_job& j) { return ceil_div(j.elements, uint64_t{sum_tile}); },
                          [](auto& args) { args.tidies = args.reserved = 0; }),
                      *on_.where().where, c_.error);
}

// In a group, NCCL makes the communicator's device the current one, and restores the caller's.
template <class F>
dr_status host_sum::issue(const char* what, F&& f) {
  if (const dr_status s = checked("ncclGroupStart", nccl_->group_start())) return s;
  const int result = f();
  const int ended = nccl_->group_end();
  if (const dr_status s = checked(what, result)) return s;
  return checked(what, ended);
}

dr_status host_sum::sum() {
  void* const stream = on_.where().stream;
  if (!elements_) return DR_OK;
  if (even_)
    return issue("ncclReduceScatter", [&] {
      return nccl_->reduce_scatter(memory_, memory_ + first_[rank_], share_[rank_], nccl::f32, nccl::sum, communicator_,
                                   stream);
    });
  return issue("ncclReduce", [&] {
    int result = nccl::success;
    for (uint32_t r = 0; r < ranks_ && (result == nccl::success || result == nccl::progress); ++r)
      if (share_[r])
        result = nccl_->reduce(memory_ + first_[r], memory_ + first_[r], share_[r], nccl::f32, nccl::sum,
                               static_cast<int>(r), communicator_, stream);
    return result;
  });
}

dr_status host_sum::gather() {
  void* const stream = on_.where().stream;
  if (!elements_) return DR_OK;
  if (even_)
    return issue("ncclAllGather", [&] {
      return nccl_->all_gather(memory_ + first_[rank_], memory_, share_[rank_], nccl::f32, communicator_, stream);
    });
  return issue("ncclBroadcast", [&] {
    int result = nccl::success;
    for (uint32_t r = 0; r < ranks_ && (result == nccl::success || result == nccl::progress); ++r)
      if (share_[r])
        result = nccl_->broadcast(memory_ + first_[r], memory_ + first_[r], share_[r], nccl::f32, static_cast<int>(r),
                                  communicator_, stream);
    return result;
  });
}

dr_status host_sum::poll() {
  int state = nccl::success;
  if (const dr_status s = checked("ncclCommGetAsyncError", nccl_->comm_get_async_error(communicator_, &state)))
    return s;
  return state == nccl::progress ? dr_status{DR_PENDING} : checked("NCCL", state);
}

}  // namespace dr
