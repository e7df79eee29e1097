// Encode on a GPU: the steps of encode.cpp in a constant number of launches, without allocating or waiting.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "cuda/device.hpp"
#include "feedback/feedback_tile.hpp"
#include "patch/find_changes_tile.hpp"
#include "pipeline/device_encode_work.hpp"
#include "pipeline/encode.hpp"
#include "sparsify/energy_tile.hpp"
#include "split/cut_tile.hpp"

namespace dr {

// Host memory for the descriptors of a call. A context reuses it, so that steady state allocates nothing.
struct device_encode_scratch {
  std::vector<device_encode_row> rows;
  std::vector<device_encode_unit> units;
  std::vector<codec_scratch> scratch;
  std::vector<dr_job> jobs;
  std::vector<device_select_job> select;
  device_select_scratch selecting;
  std::vector<energies_job> energies;
  std::vector<take_job> taken;
  std::vector<changes_job> changes;
  std::vector<cut_job> cuts;
  std::vector<regather_job> regather;
  std::vector<subtract_job> subtract;
  std::vector<uint8_t> blob;
  std::vector<state_range> states;
  // Maximum of rows, plans, header bytes, tensors, rows by blocks and rows of patches for which it has memory.
  std::array<size_t, 6> seen{};
};

// What calls of a batch need beside it.
struct device_prepared {
  std::array<device_header, 2> headers;  // without and with a tag
  device_encode_layout memory;

  static device_prepared of(const batch& b);
};

// UNSUPPORTED, with the reason, if a batch cannot run on a GPU. `host_would_do`: only because CUDA operations are
// missing.
dr_status check_device_batch(const batch& b, bool& host_would_do, dr_error& error);

// Counts the launches of an encode without enqueuing. Allocates in `host`, and loads the kernels on `loads`, unless it
// is NULL.
dr_status count_device_launches(const batch& b, const device_prepared& prepared, device* loads,
                                device_encode_scratch& host, uint32_t& launches, dr_error& error);

// Enqueues. Tensors, states, workspace, frame and result are device memory; the result reports capacity and faults of
// the data.
dr_status encode_on_device(const batch& b, const device_prepared& prepared, const encode_call& call,
                           std::span<const tensor_view> tensors, device_queue& queue, void* workspace,
                           uint64_t workspace_size, uint8_t* frame, uint64_t capacity, dr_result* result,
                           device_encode_scratch& host, dr_error& error);

// The error of a fault that a call on a device reported, in the words of the CPU. r.tensor: of the batch.
dr_status fail_as_device(const batch& b, const dr_result& r, dr_error& error);

// Zeroes [zero, zero + zero_size) and copies `blob` to `to`, both multiples of 16 bytes.
dr_status begin_on_device(const dr_exec& exec, std::byte* zero, uint64_t zero_size, std::byte* to,
                          std::span<const uint8_t> blob);

}  // namespace dr
