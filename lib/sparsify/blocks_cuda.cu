// Selection by blocks, for a GPU.
#include "cuda/entry.cuh"
#include "sparsify/energy_tile.hpp"

DR_DEVICE_KERNEL(dr::find_energies<dr::jobs_few>)
DR_DEVICE_KERNEL(dr::find_energies<dr::jobs_many>)
DR_DEVICE_KERNEL(dr::take_blocks<dr::jobs_few>)
DR_DEVICE_KERNEL(dr::take_blocks<dr::jobs_many>)
