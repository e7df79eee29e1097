// Shapes of models.
#pragma once

#include <cstdint>
#include <vector>

namespace gpu_bench {

// The parameters of ResNet-50 (He et al. 2016), as torchvision lists them: 161 tensors, 25,557,032 elements.
inline std::vector<uint64_t> resnet50_sizes() {
  std::vector<uint64_t> sizes;
  const auto convolution = [&](uint64_t out, uint64_t in, uint64_t kernel) {
    for (const uint64_t size : {out * in * kernel * kernel, out, out})
      sizes.push_back(size);  // with its batch normalisation
  };
  convolution(64, 3, 7);
  uint64_t in = 64, width = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      convolution(width, in, 1);
      convolution(width, width, 3);
      convolution(4 * width, width, 1);
      if (block == 0) convolution(4 * width, in, 1);
      in = 4 * width;
    }
    width *= 2;
  }
  for (const uint64_t size : {1000 * in, uint64_t{1000}}) sizes.push_back(size);
  return sizes;
}

// A language model's 1,006,632,960 weights: 60 matrices of 4096 × 4096.
inline constexpr size_t weight_tensors = 60;
inline constexpr uint64_t weight_size = uint64_t{1} << 24;

}  // namespace gpu_bench
