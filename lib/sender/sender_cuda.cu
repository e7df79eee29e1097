// A sender's own kernels, for a GPU.
#include "cuda/entry.cuh"
#include "sender/slot_tile.hpp"

DR_DEVICE_KERNEL(dr::seal_slots)
DR_DEVICE_KERNEL(dr::settle_slots)
DR_DEVICE_KERNEL(dr::open_returns)
DR_DEVICE_KERNEL(dr::collect_gates)
DR_DEVICE_KERNEL(dr::seal_sums)
DR_DEVICE_KERNEL(dr::return_states<dr::jobs_few>)
DR_DEVICE_KERNEL(dr::return_states<dr::jobs_many>)
DR_DEVICE_KERNEL(dr::set_counts)
DR_DEVICE_KERNEL(dr::finish_outputs<dr::jobs_few>)
DR_DEVICE_KERNEL(dr::finish_outputs<dr::jobs_many>)
