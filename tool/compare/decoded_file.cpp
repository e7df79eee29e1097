#include "decoded_file.hpp"

#include <fmt/core.h>

#include <stdexcept>
#include <vector>

#include "deepreduce/deepreduce.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/show/array_writer.hpp"

namespace dr::compare {
namespace {

size_t size_of(dr_dtype type) { return type == DR_F32 ? 4 : 2; }

uint64_t checked_elements(const std::vector<dr_tensor_info>& tensors, uint64_t max_elements) {
  uint64_t all = 0;
  for (const dr_tensor_info& t : tensors) {
    if (t.width != 0 && t.universe > (max_elements - all) / t.width)
      throw usage_error(
          fmt::format("the frame has more than {} dense elements; --max-elements raises the limit", max_elements));
    all += t.universe * t.width;
  }
  return all;
}

}  // namespace

std::string decoded_file(std::span<const std::byte> bytes, const decode_options& o) {
  const bool npy = o.output.ends_with(".npy"), npz = o.output.ends_with(".npz"), f32 = o.output.ends_with(".f32");
  if (!npy && !npz && !f32) throw usage_error("--output " + o.output + ": the name must end in .npy, .npz or .f32");
  const frame f = inspect(bytes);
  if (f.info.flags & DR_FRAME_STATUS)
    throw std::runtime_error(
        fmt::format("{}: a status frame has no tensors; the sender could not encode: {}", o.file, f.info.message));
  if (!npz && f.tensors.size() != 1)
    throw usage_error(fmt::format("--output {}: the frame has {} tensors; use .npz", o.output, f.tensors.size()));
  if (f32 && f.tensors[0].dtype != DR_F32)
    throw usage_error("--output " + o.output + ": the tensor has 16-bit elements; use .npy");
  (void)checked_elements(f.tensors, o.max_elements);

  std::vector<std::vector<std::byte>> data;
  std::vector<dr_tensor_out> outs;
  for (const dr_tensor_info& t : f.tensors) {
    data.emplace_back(t.universe * t.width * size_of(t.dtype));
    outs.push_back(dense_out(t.dtype, data.back().data(), t.universe, t.width));
  }
  context(o.threads).decode(bytes, outs);
  if (f32) return {reinterpret_cast<const char*>(data[0].data()), data[0].size()};
  std::vector<std::pair<std::string, std::string>> members;
  for (size_t i = 0; i < data.size(); ++i) {
    const dr_tensor_info& t = f.tensors[i];
    members.emplace_back(fmt::format("tensor_{}", i), npy_bytes(t.dtype, t.universe, t.width, data[i]));
  }
  return npz ? npz_bytes(members) : members[0].second;
}

}  // namespace dr::compare
