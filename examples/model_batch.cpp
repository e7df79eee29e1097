// A model's gradients in one frame, in C++20: encode, inspect, decode, and a damaged frame.
//
//   c++ -std=c++20 model_batch.cpp $(pkg-config --cflags --libs deepreduce) -o model_batch && ./model_batch
#include <cmath>
#include <cstdio>
#include <deepreduce/deepreduce.hpp>
#include <vector>

int main() {
  const std::vector<size_t> shapes{9408, 64, 36864, 512000};
  std::vector<std::vector<float>> gradients, received;
  for (size_t elements : shapes) {
    auto& gradient = gradients.emplace_back(elements);
    for (size_t i = 0; i < elements; ++i) gradient[i] = std::sin(0.37f * static_cast<float>(i * i % 1009));
    received.emplace_back(elements);
  }
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs;
  for (size_t i = 0; i < shapes.size(); ++i) {
    tensors.push_back(dr::dense(gradients[i]));
    outs.push_back(dr::dense_out(received[i]));
  }

  const dr::plan plan("sparsify=topr(ratio=0.01) index=golomb value=raw");
  dr::context context;
  std::vector<std::byte> frame = context.encode(plan, tensors);
  for (const dr_tensor_info& t : dr::inspect(frame).tensors)
    std::printf("%8llu elements: %5llu kept, %6llu bytes of indices, %6llu of values\n",
                static_cast<unsigned long long>(t.universe), static_cast<unsigned long long>(t.count),
                static_cast<unsigned long long>(t.index_size), static_cast<unsigned long long>(t.value_size));

  context.decode(frame, outs);
  for (size_t i = 0; i < shapes.size(); ++i)
    for (size_t at = 0; at < shapes[i]; ++at)
      if (received[i][at] != 0 && received[i][at] != gradients[i][at]) return 1;  // value=raw: bit for bit

  frame[frame.size() / 2] ^= std::byte{1};
  try {
    context.decode(frame, outs);
  } catch (const dr::error& e) {
    std::printf("%s\n", e.what());
    return e.code() == DR_E_CORRUPT ? 0 : 1;
  }
  return 1;
}
