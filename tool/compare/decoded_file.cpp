#include "decoded_file.hpp"

#include <fmt/core.h>

#include <set>
#include <stdexcept>
#include <vector>

#include "deepreduce/deepreduce.hpp"
#include "tool/read/inputs.hpp"
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

// The tensors of a frame with the names and shapes of --like. A frame of bucket=flat is one tensor: all of them, joined.
std::vector<std::pair<std::string, std::string>> members_like(const decode_options& o,
                                                              const std::vector<dr_tensor_info>& tensors,
                                                              const std::vector<std::vector<std::byte>>& data) {
  const std::vector<tensor> like = read_input(o.like);
  uint64_t all = 0;
  for (const tensor& t : like) all += t.elements;
  const bool joined = tensors.size() == 1 && like.size() > 1 && all == tensors[0].universe * tensors[0].width;
  if (!joined && like.size() != tensors.size())
    throw usage_error(fmt::format("--like {}: it has {} tensors, the frame {}", o.like, like.size(), tensors.size()));
  std::vector<std::pair<std::string, std::string>> members;
  std::set<std::string> names;
  size_t at = 0;  // within a joined tensor
  for (size_t i = 0; i < like.size(); ++i) {
    const dr_tensor_info& t = tensors[joined ? 0 : i];
    const std::string name = like[i].raw_name.empty() ? fmt::format("tensor_{}", i) : like[i].raw_name;
    if (!names.insert(name).second)
      throw usage_error(
          fmt::format("--like {}: two tensors are called '{}', which no .npz can hold", o.like, printable(name)));
    if (!joined && like[i].elements != t.universe * t.width)
      throw usage_error(fmt::format("--like {}: '{}' has {} elements, tensor {} of the frame {}", o.like, like[i].name,
                                    like[i].elements, i, t.universe * t.width));
    const size_t size = like[i].elements * size_of(t.dtype);
    members.emplace_back(name, npy_bytes(t.dtype, like[i].shape, std::span(data[joined ? 0 : i]).subspan(at, size)));
    if (joined) at += size;
  }
  return members;
}

}  // namespace

std::string decoded_file(std::span<const std::byte> bytes, const decode_options& o) {
  const bool npy = o.output.ends_with(".npy"), npz = o.output.ends_with(".npz"), f32 = o.output.ends_with(".f32");
  if (!npy && !npz && !f32) throw usage_error("--output " + o.output + ": the name must end in .npy, .npz or .f32");
  if (f32 && !o.like.empty()) throw usage_error("--output " + o.output + ": a .f32 has no shape; use .npz with --like");
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
  if (!o.like.empty())
    members = members_like(o, f.tensors, data);
  else
    for (size_t i = 0; i < data.size(); ++i) {
      const dr_tensor_info& t = f.tensors[i];
      members.emplace_back(fmt::format("tensor_{}", i), npy_bytes(t.dtype, t.universe, t.width, data[i]));
    }
  if (!npz && members.size() != 1)
    throw usage_error(fmt::format("--output {}: --like has {} tensors; use .npz", o.output, members.size()));
  return npz ? npz_bytes(members) : members[0].second;
}

}  // namespace dr::compare
