// Hostile frames: inspect, decode sparse and dense, to one output and to parts, merge. Whatever the bytes are, every call answers, stays in its
// memory, and its answers agree. Each input is taken as it is, then with its checks put right. A patch is applied to a base whose check it is
// given, and then to what it makes of it.
#include <deepreduce/deepreduce.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/fix_check.hpp"

namespace {

constexpr uint64_t dense_max = 1 << 16;      // values of an output
constexpr uint64_t tensors_max = 64;         // of a frame that is decoded
constexpr uint64_t workspace_max = 1 << 26;  // bytes
// A filter is asked for every element of its universe, so time follows that and not the frame; what a receiver limits, we limit.
constexpr uint64_t filter_max = 1 << 18;

[[noreturn]] void wrong(const char* what, const char* sentence = "") {
  std::fprintf(stderr, "wrong: %s %s\n", what, sentence);
  std::abort();
}

dr_context* context(uint32_t threads) {
  dr_context_options options{};
  options.struct_size = sizeof options;
  options.threads = threads;
  dr_context* c = nullptr;
  if (dr_context_create(&options, &c, nullptr) != DR_OK) wrong("no context");
  return c;
}

size_t value_size(uint32_t dtype) {
  if (dtype == DR_F32 || dtype == DR_U32) return 4;
  return dtype == DR_F64 ? 8 : dtype == DR_U8 ? 1 : 2;
}

struct output {
  std::vector<uint8_t> values;
  std::vector<uint64_t> indices;
};

dr_tensor_out out_for(const dr_tensor_info& t, bool sparse, dr_dtype dtype, output& room) {
  const uint64_t rows = sparse ? t.support : t.universe;
  room.values.assign(rows * t.width * value_size(dtype), 0xcd);
  room.indices.assign(sparse ? rows : 0, 0xcdcdcdcdcdcdcdcd);
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = dtype;
  o.index_dtype = sparse ? DR_U64 : 0;
  o.universe = t.universe;
  o.width = t.width;
  o.values = room.values.data();
  o.indices = room.indices.data();
  o.capacity = t.support;
  return o;
}

// What a sound header may still come to. Anything else is a mistake of ours.
bool judge(dr_context* c, dr_status s) {
  if (s == DR_OK) return true;
  if (s != DR_E_CORRUPT && s != DR_E_CAPACITY && s != DR_E_MEMORY) wrong(dr_status_name(s), dr_last_error(c)->message);
  if (!dr_last_error(c)->message[0]) wrong("an error without a sentence");
  return false;
}

bool small(const std::vector<dr_tensor_info>& infos, bool sparse) {
  uint64_t total = 0;
  for (const dr_tensor_info& t : infos) {
    const uint64_t rows = sparse ? t.support : t.universe;
    if (rows > dense_max || t.width > dense_max || rows * t.width > dense_max) return false;
    if (std::strstr(t.plan, "bloom") && t.universe > filter_max) return false;
    total += rows * t.width;
  }
  return total <= 4 * dense_max;
}

void decode(dr_context* c, const uint8_t* data, size_t size, const std::vector<dr_tensor_info>& infos) {
  const size_t n = infos.size();
  dr_decode_options limits{};
  limits.struct_size = sizeof limits;
  limits.max_workspace = workspace_max;
  // Of coefficients only these can be sparse, and only whole tensors have an inverse.
  const bool coefficients = std::any_of(infos.begin(), infos.end(),
                                        [](const dr_tensor_info& t) { return std::strstr(t.plan, "transform="); });
  dr_decode_options as_sent = limits;
  if (coefficients) as_sent.flags = DR_DECODE_COEFFICIENTS;
  std::vector<output> sparse(n), dense(n), merged(n);
  std::vector<dr_tensor_out> outs(n);
  bool have_sparse = false;
  if (small(infos, true)) {
    for (size_t i = 0; i < n; ++i) outs[i] = out_for(infos[i], true, infos[i].dtype, sparse[i]);
    have_sparse = judge(c, dr_decode(c, nullptr, data, size, &as_sent, outs.data(), sizeof(dr_tensor_out), n));
    for (size_t i = 0; i < n && have_sparse; ++i) {
      if (outs[i].count != infos[i].support) wrong("count is not the support");
      for (size_t k = 0; k < sparse[i].indices.size(); ++k)
        if (sparse[i].indices[k] >= infos[i].universe || (k && sparse[i].indices[k] <= sparse[i].indices[k - 1]))
          wrong("indices do not ascend below the universe");
    }
  }
  if (!small(infos, false)) return;
  for (size_t i = 0; i < n; ++i) outs[i] = out_for(infos[i], false, infos[i].dtype, dense[i]);
  const bool have_dense = judge(c, dr_decode(c, nullptr, data, size, &as_sent, outs.data(), sizeof(dr_tensor_out), n));
  for (size_t i = 0; i < n && have_sparse && have_dense; ++i) {
    std::vector<uint8_t> scattered(dense[i].values.size());
    const size_t row = infos[i].width * value_size(infos[i].dtype);
    for (size_t k = 0; k < sparse[i].indices.size(); ++k)
      std::memcpy(scattered.data() + sparse[i].indices[k] * row, sparse[i].values.data() + k * row, row);
    if (scattered != dense[i].values) wrong("sparse and dense outputs differ");
  }
  for (size_t i = 0; i < n; ++i) {
    outs[i] = out_for(infos[i], false, DR_F32, merged[i]);
    std::fill(merged[i].values.begin(), merged[i].values.end(), 0);
  }
  if (coefficients &&
      judge(c, dr_decode(c, nullptr, data, size, &limits, outs.data(), sizeof(dr_tensor_out), n)) != have_dense)
    wrong("coefficients and their inverse differ in what they refuse");
  const dr_bytes frames[] = {{data, size}, {data, size}};
  const float weights[] = {1, -0.5f};
  dr_decode_options add = limits;
  add.flags = DR_DECODE_ADD;
  if (judge(c, dr_merge(c, nullptr, frames, weights, 2, &add, outs.data(), sizeof(dr_tensor_out), n)) && !have_dense &&
      !have_sparse)
    wrong("merge takes what decode does not");
  if (n != 1 || infos[0].universe < 2 || coefficients) return;
  // The one tensor cut over three outputs, as bucket=flat has it.
  output parts[3];
  dr_tensor_info part = infos[0];
  dr_tensor_out cut[3];
  const uint64_t first = infos[0].universe / 3, sizes[] = {first, 0, infos[0].universe - first};
  for (size_t i = 0; i < 3; ++i) {
    part.universe = sizes[i];
    cut[i] = out_for(part, false, part.dtype, parts[i]);
  }
  if (!judge(c, dr_decode(c, nullptr, data, size, &limits, cut, sizeof *cut, 3)) || !have_dense) return;
  std::vector<uint8_t> joined;
  for (const output& p : parts) joined.insert(joined.end(), p.values.begin(), p.values.end());
  if (joined != dense[0].values) wrong("parts and whole differ");
}

// ---- Patches --------------------------------------------------------------------------------------------------

using buffers = std::vector<std::vector<uint8_t>>;

// What a receiver has, of words of a few magnitudes.
buffers bases_of(const std::vector<dr_tensor_info>& infos) {
  buffers all;
  for (const dr_tensor_info& t : infos) {
    const size_t size = value_size(t.dtype);
    std::vector<uint8_t> base(t.universe * t.width * size);
    for (size_t i = 0; i < base.size(); ++i)
      base[i] = static_cast<uint8_t>(i % size + 1 == size ? 0x38 + frame_check::mix64(i) % 8 : frame_check::mix64(i));
    all.push_back(std::move(base));
  }
  return all;
}
uint64_t check_of(const uint8_t* data, uint64_t size) {
  std::vector<uint8_t> padded(data, data + size);
  padded.resize((size + 3) / 4 * 4);
  return frame_check::check(padded.data(), padded.size());
}

// Of each tensor in turn the checks that a frame says of its segments: written, or compared.
struct segment_checks {
  const buffers& words;
  unsigned which;  // 0: of the base, 1: of the result
  bool writes;
  size_t tensor = 0;
  uint64_t at = 0;
  bool right = true;

  void operator()(const frame_check::entry& e, const frame_check::row& r, uint8_t* payload) {
    if (at && !(r.info & 4)) ++tensor, at = 0;
    if (!e.patch || tensor >= words.size()) return;
    const uint64_t size = r.universe * e.width * e.value_size();
    if (size > words[tensor].size() - at) return;
    const uint64_t check = check_of(words[tensor].data() + at, size);
    if (writes)
      frame_check::put(payload + 8 * which, check);
    else
      right = right && frame_check::number(payload + 8 * which, 8) == check;
    at += size;
    if (at == words[tensor].size()) ++tensor, at = 0;
  }
};

void apply(dr_context* c, const uint8_t* data, size_t size, const std::vector<dr_tensor_info>& infos) {
  const size_t n = infos.size();
  if (!small(infos, false)) return;
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.max_workspace = workspace_max;
  const buffers bases = bases_of(infos);
  buffers got = bases;
  std::vector<dr_tensor_out> outs(n);
  std::vector<output> rooms(n);
  for (size_t i = 0; i < n; ++i) {
    outs[i] = out_for(infos[i], false, infos[i].dtype, rooms[i]);
    outs[i].values = got[i].data();
  }
  const auto decode = [&](const std::vector<uint8_t>& frame) {
    return dr_decode(c, nullptr, frame.data(), frame.size(), &options, outs.data(), sizeof(dr_tensor_out), n);
  };
  std::vector<uint8_t> frame(data, data + size);
  if (decode(frame) != DR_E_ARGUMENT) wrong("a patch is decoded, and not applied");
  options.flags = DR_DECODE_APPLY;
  frame_check::fix(frame.data(), size, segment_checks{bases, 0, true});
  for (int tries = 0; tries < 2; ++tries) {
    const dr_status s = decode(frame);
    if (s == DR_OK) {
      segment_checks seen{got, 1, false};
      std::vector<uint8_t> copy(frame);
      frame_check::fix(copy.data(), size, [&](auto& e, auto& r, uint8_t* payload) { seen(e, r, payload); });
      if (!seen.right) wrong("a base became something else than the patch says");
      break;
    }
    if (got != bases) wrong("a patch that is refused was applied", dr_last_error(c)->message);
    if (s == DR_E_ARGUMENT) {  // a check that could not be put right
      if (!std::strstr(dr_last_error(c)->message, "the patch is for a base"))
        wrong("argument", dr_last_error(c)->message);
      return;
    }
    if (judge(c, s) || tries || !std::strstr(dr_last_error(c)->message, "other values")) return;
    // All is sound but what it becomes: that, too, then. (Of one segment: else it is not known which one is meant.)
    const uint64_t becomes = dr_last_error(c)->what;
    frame_check::fix(frame.data(), size, [&](const frame_check::entry&, const frame_check::row&, uint8_t* payload) {
      if (n == 1 && infos[0].segments == 1) frame_check::put(payload + 8, becomes);
    });
  }
  if (got == bases && decode(frame) == DR_OK && got != bases) wrong("a patch of nothing changes something");
  // Pairs are the same.
  buffers assigned = bases;
  if (!small(infos, true)) return;
  for (size_t i = 0; i < n; ++i) {
    outs[i] = out_for(infos[i], true, infos[i].dtype, rooms[i]);
    outs[i].base = bases[i].data();
  }
  if (decode(frame) != DR_OK) wrong("a patch gives no pairs", dr_last_error(c)->message);
  for (size_t i = 0; i < n; ++i) {
    const size_t row = infos[i].width * value_size(infos[i].dtype);
    for (uint64_t k = 0; k < outs[i].count; ++k)
      std::memcpy(assigned[i].data() + rooms[i].indices[k] * row, rooms[i].values.data() + k * row, row);
  }
  if (assigned != got) wrong("pairs of a patch are others");
}

void take(const uint8_t* data, size_t size) {
  static dr_context* const contexts[] = {context(1), context(2)};
  dr_error error{sizeof(dr_error)};
  error.struct_size = sizeof error;
  dr_frame_info info{};
  info.struct_size = sizeof info;
  if (const dr_status s = dr_inspect(data, size, &info, nullptr, 0, 0, &error); s != DR_OK) {
    if (s != DR_E_CORRUPT && s != DR_E_UNSUPPORTED && s != DR_E_MEMORY) wrong(dr_status_name(s), error.message);
    if (!error.message[0]) wrong("an error without a sentence");
    return;
  }
  if (info.frame_size > size || info.header_size > info.frame_size) wrong("a frame longer than its bytes");
  if (info.status) {
    if (dr_decode(contexts[0], nullptr, data, size, nullptr, nullptr, 0, 0) != DR_E_PEER)
      wrong("a status frame that is no error");
    return;
  }
  if (info.tensors > tensors_max) return;
  dr_tensor_info empty{};
  empty.struct_size = sizeof empty;
  std::vector<dr_tensor_info> infos(info.tensors, empty);
  if (dr_inspect(data, size, &info, infos.data(), sizeof empty, infos.size(), &error) != DR_OK)
    wrong("inspect changes its mind");
  // The header alone tells the same, without what follows it.
  std::vector<dr_tensor_info> told(info.tensors, empty);
  const std::vector<uint8_t> head(data, data + info.header_size);
  dr_frame_info of_header{};
  of_header.struct_size = sizeof of_header;
  if (dr_frame_header(head.data(), head.size(), size, &of_header, told.data(), sizeof empty, told.size(), &error) !=
          DR_OK ||
      std::memcmp(&of_header, &info, sizeof info) != 0 ||
      (info.tensors && std::memcmp(told.data(), infos.data(), told.size() * sizeof empty) != 0))
    wrong("the header tells something else than the frame");
  for (dr_context* c : contexts) (info.flags & DR_FRAME_PATCH ? apply : decode)(c, data, size, infos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> as_it_is(data, data + size);  // of its own length, so that a read behind it is seen
  if (size == 0) return 0;
  take(as_it_is.data(), size);
  std::vector<uint8_t> fixed(as_it_is);
  frame_check::fix(fixed.data(), size);
  if (fixed != as_it_is) take(fixed.data(), size);
  return 0;
}
