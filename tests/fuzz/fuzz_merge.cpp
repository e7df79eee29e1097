// Hostile frames, several in one merge: dense and sparse outputs, with weights, limits and a choice of tensors. Every call answers; outputs
// are untouched unless all frames are sound; a union holds what the dense sum holds.
//
// Input: options; then frames, each behind its length in two bytes. Each frame has its checks put right.
#include <deepreduce/deepreduce.h>

#include <memory>

#include "fuzz/fix_check.hpp"
#include "fuzz/script.hpp"

namespace {

using fuzz::block;
using fuzz::bytes;
using fuzz::context;
using fuzz::script;
using fuzz::wrong;

constexpr uint64_t elements_most = 1 << 14, filter_most = 1 << 14, tensors_most = 16, frames_most = 4;
constexpr uint8_t before = 0x5e;  // what outputs hold; as f32 a number

size_t value_size(uint32_t dtype) {
  if (dtype == DR_F32 || dtype == DR_U32) return 4;
  return dtype == DR_F64 ? 8 : dtype == DR_U8 ? 1 : 2;  // (of patches, which are refused)
}

struct outputs {
  std::vector<std::unique_ptr<block>> values, indices;
  std::vector<dr_tensor_out> list;

  // rows: that a sparse one has room for.
  void add(const dr_tensor_info& t, uint32_t dtype, bool sparse, uint64_t room) {
    const uint64_t rows = sparse ? room : t.universe;
    values.push_back(std::make_unique<block>(rows * t.width * value_size(dtype), before));
    indices.push_back(std::make_unique<block>(sparse ? 8 * rows : 0, before));
    dr_tensor_out o{};
    o.struct_size = sizeof o;
    o.dtype = dtype;
    o.index_dtype = sparse ? DR_U64 : 0;
    o.universe = t.universe;
    o.width = t.width;
    o.values = values.back()->data();
    o.indices = sparse ? indices.back()->data() : nullptr;
    o.capacity = room;
    list.push_back(o);
  }
  bool untouched() const {
    for (const auto* all : {&values, &indices})
      for (const auto& b : *all)
        for (size_t i = 0; i < b->size(); ++i)
          if (b->data()[i] != before) return false;
    return true;
  }
};

bool small(const std::vector<dr_tensor_info>& infos) {
  uint64_t total = 0;
  if (infos.size() > tensors_most) return false;
  for (const dr_tensor_info& t : infos) {
    if (t.universe > elements_most || t.width > elements_most || t.universe * t.width > elements_most) return false;
    if (std::strstr(t.plan, "bloom") && t.universe > filter_most) return false;
    total += t.universe * t.width;
  }
  return total <= 2 * elements_most;
}

// Whether a frame is sound, and of what.
bool inspect(const bytes& frame, std::vector<dr_tensor_info>& infos, uint64_t& tag) {
  dr_frame_info head{};
  head.struct_size = sizeof head;
  dr_tensor_info empty{};
  empty.struct_size = sizeof empty;
  infos.assign(tensors_most, empty);
  infos.clear();
  if (dr_inspect(frame.data(), frame.size(), &head, nullptr, 0, 0, nullptr) || head.status) return false;
  infos.assign(head.tensors, empty);
  if (dr_inspect(frame.data(), frame.size(), &head, infos.data(), sizeof empty, infos.size(), nullptr))
    wrong("inspect changes its mind");
  tag = head.tag;
  return true;
}

struct call {
  std::vector<dr_bytes> frames;
  std::vector<float> weights;
  dr_decode_options options{};

  dr_status merge(outputs& to) const {
    const dr_status s = dr_merge(context(), nullptr, frames.data(), weights.empty() ? nullptr : weights.data(),
                                 frames.size(), &options, to.list.data(), sizeof(dr_tensor_out), to.list.size());
    if (s == DR_OK) return s;
    if (s == DR_E_INTERNAL || s == DR_PENDING || s == DR_E_DEVICE)
      wrong(dr_status_name(s), dr_last_error(context())->message);
    if (!dr_last_error(context())->message[0]) wrong("an error without a sentence");
    if (!to.untouched()) wrong("a merge that fails writes its outputs", dr_last_error(context())->message);
    return s;
  }
};

// The union is the dense sum's rows.
void compare(const outputs& dense, const outputs& sparse) {
  for (size_t i = 0; i < dense.list.size(); ++i) {
    const dr_tensor_out& o = sparse.list[i];
    const size_t row = o.width * value_size(o.dtype);
    const auto* const keys = sparse.indices[i]->as<uint64_t>();
    bytes scattered(dense.values[i]->size());
    for (uint64_t k = 0; k < o.count; ++k) {
      if (keys[k] >= o.universe || (k && keys[k] <= keys[k - 1])) wrong("a union does not ascend below the universe");
      std::memcpy(scattered.data() + keys[k] * row, sparse.values[i]->data() + k * row, row);
    }
    // (Of f32: the others are rounded once here, and after each frame there.)
    if (o.dtype == DR_F32 && scattered != dense.values[i]->copy(scattered.size())) wrong("union and dense sum differ");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  script from(data, size);
  call c;
  c.options.struct_size = sizeof c.options;
  const uint8_t what = from.byte(), more = from.byte();
  std::vector<bytes> frames;
  while (!from.empty() && frames.size() < frames_most) {
    bytes frame = from.take(from.number(2));
    if (!(what & 1)) frame_check::fix(frame.data(), frame.size());
    frames.push_back(std::move(frame));
  }
  if (frames.empty()) return 0;
  if (what & 2 && frames.size() == 1) frames.push_back(frames[0]);
  std::vector<std::unique_ptr<block>> held;
  std::vector<std::vector<dr_tensor_info>> infos(frames.size());
  uint64_t tag = 0;
  bool all_sound = true;
  for (size_t i = 0; i < frames.size(); ++i) {
    held.push_back(std::make_unique<block>(frames[i], i));
    c.frames.push_back({held[i]->data(), held[i]->size()});
    all_sound = inspect(frames[i], infos[i], tag) && all_sound;
    if (!small(infos[i])) return 0;
  }
  // Outputs are shaped by the first frame that says something; the rest may not go with it.
  size_t shaped = 0;
  while (shaped < infos.size() && infos[shaped].empty()) ++shaped;
  if (shaped == infos.size()) {
    outputs none;
    (void)c.merge(none);
    return 0;
  }
  std::vector<dr_tensor_info> shapes = infos[shaped];
  if (more & 1) {
    c.options.first_tensor = more % shapes.size();
    c.options.tensors = 1;
    shapes = {shapes[c.options.first_tensor]};
  }
  if (what & 4)
    for (size_t i = 0; i < frames.size(); ++i) {
      const uint32_t bits =
          what & 8 ? 0x3f800000u + (uint32_t{more} << 16) * static_cast<uint32_t>(i + 1) : 0xbf000000u;
      c.weights.emplace_back();
      std::memcpy(&c.weights.back(), &bits, 4);
    }
  c.options.max_workspace = what & 16 ? uint64_t{1} << more % 20 : uint64_t{1} << 26;
  if (what & 32) c.options.max_elements = uint64_t{1} << more % 16;
  if (more & 2) {
    c.options.flags |= DR_DECODE_TAG;
    c.options.tag = more & 4 ? tag : 1;
  }
  const uint32_t dtype = more & 8 ? shapes[0].dtype : DR_F32;
  outputs dense, sparse;
  for (const dr_tensor_info& t : shapes) {
    dense.add(t, dtype, false, 0);
    sparse.add(t, dtype, true, what & 128 ? t.support : t.universe);
  }
  const dr_status to_dense = c.merge(dense), to_sparse = c.merge(sparse);
  if (!to_dense && !all_sound && !c.options.tensors) wrong("a merge takes what inspect does not");
  if (!to_dense && !to_sparse) compare(dense, sparse);
  if (what & 64) {
    outputs added;
    for (const dr_tensor_info& t : shapes) added.add(t, dtype, false, 0);
    c.options.flags |= DR_DECODE_ADD;
    if ((c.merge(added) == DR_OK) != (to_dense == DR_OK)) wrong("adding takes other frames");
  }
  return 0;
}
