#include "selected.hpp"

#include "tool/read/number.hpp"
#include "verify.hpp"

namespace dr::compare {
namespace {

// Replaces +0 by -0: a sparsifier compares magnitudes, and a decoded +0 then means "not selected", also if the frame
// fell back to a dense segment, which has no support. Copies only if there is a +0.
tensor_bytes with_signed_zeros(const tensor& g) {
  tensor_bytes data = g.data;
  std::span<std::byte> own;
  for (uint64_t i = 0; i < g.elements; ++i) {
    if (bits_at(g.type, g.data, i) != 0) continue;
    if (own.empty()) own = data.writable();
    own[(i + 1) * size_of(g.type) - 1] = std::byte{0x80};
  }
  return data;
}

}  // namespace

std::vector<uint64_t> selected_by(context& c, const std::string& sparsify, const tensor& g, const dr_call* call,
                                  uint64_t position) {
  const tensor_bytes data = with_signed_zeros(g);
  dr_tensor source = dense(abi_dtype(g.type), data.data(), g.elements);
  source.key = position;
  const std::vector<std::byte> frame = c.encode(plan(sparsify + " index=raw value=raw"), source, call);
  std::vector<std::byte> arrived(g.data.size());
  c.decode(frame, dense_out(abi_dtype(g.type), arrived.data(), g.elements));
  uint64_t count = 0;  // (a growing vector would need twice the memory)
  for (uint64_t i = 0; i < g.elements; ++i) count += bits_at(g.type, arrived, i) != 0;
  std::vector<uint64_t> positions;
  positions.reserve(count);
  for (uint64_t i = 0; i < g.elements; ++i)
    if (bits_at(g.type, arrived, i) != 0) positions.push_back(i);
  return positions;
}

}  // namespace dr::compare
