// Writes what was decoded as files that NumPy reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "deepreduce/deepreduce.h"

namespace dr::compare {

// The .npy of a dense tensor, version 1.0. bfloat16 is '<V2', as ml_dtypes has it.
std::string npy_bytes(dr_dtype dtype, std::span<const uint64_t> shape, std::span<const std::byte> data);

// Of rows × width; of one dimension if width = 1.
std::string npy_bytes(dr_dtype dtype, uint64_t rows, uint32_t width, std::span<const std::byte> data);

// An uncompressed .npz of named .npy members. Throws std::length_error above 4 GiB, which requires zip64.
std::string npz_bytes(std::span<const std::pair<std::string, std::string>> members);

}  // namespace dr::compare
