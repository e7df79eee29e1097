// A stream's codecs: the first of the stream's role, those after it of role bytes.
#pragma once

#include <array>
#include <cstdint>

#include "deepreduce/codec.h"

namespace dr {

inline constexpr uint32_t stages_max = 5;
// The longest order list: a frame stores its count in two bits (FORMAT.md).
inline constexpr uint32_t order_stages_max = 3;

// Whether a plug-in has the codec, which no test here holds to its contract.
inline bool is_private(const dr_codec& codec) { return codec.id >= 0x8000; }

struct stage {
  const dr_codec* codec = nullptr;
  const dr_value* values = nullptr;  // encode only; owned by the plan
  std::array<uint64_t, DR_FIELDS_MAX> fields{};

  dr_params params() const { return {sizeof(dr_params), values, fields.data(), 0, 0}; }
};

// Whether a stage has a CUDA path with its fields: if not, `need` of 0 jobs returns UNSUPPORTED.
inline bool runs_on_cuda(const stage& s) {
  const dr_params params = s.params();
  return s.codec->cuda && s.codec->cuda->need(&params, nullptr, 0, nullptr) != DR_E_UNSUPPORTED;
}

struct stage_list {
  std::array<stage, stages_max> stages{};
  uint32_t count = 0;
  // Of an index list: elements of a block, a power of two. Above 1 the codecs code blocks, and a frame lists `block`
  // before them.
  uint32_t block = 1;

  const stage* begin() const { return stages.data(); }
  const stage* end() const { return stages.data() + count; }
  const stage& front() const { return stages[0]; }
  // The number of keys that the codecs code for a number of elements.
  uint64_t keys(uint64_t elements) const { return elements / block + (elements % block != 0); }
  bool has(uint32_t trait) const { return count && (stages[0].codec->traits & trait); }
  // Whether the size follows from header and count, so that frames do not store it.
  bool fixed_size() const { return count == 1 && has(DR_FIXED_SIZE); }
  bool total() const { return count == 1 && has(DR_TOTAL); }
  // Whether an index stream without bytes represents the whole universe: no list of indices is made for it.
  bool whole() const { return count == 1 && (stages[0].codec->forms & 1u << DR_FORM_ALL); }
  bool exact() const { return count && has(DR_EXACT); }  // bytes stages always are
};

// The number of codecs that a frame lists.
inline uint32_t listed(const stage_list& list) { return list.count + (list.block > 1); }

// Whether n elements of a universe can be whole blocks, of which the last one of the universe may be short.
inline bool are_whole_blocks(uint64_t n, uint64_t universe, uint32_t block) {
  return n % block == 0 || n % block == universe % block;
}

// The inputs of a stream's bounds.
struct stream_shape {
  uint64_t universe = 0, count_max = 0;
  uint32_t dtype = 0, width = 1;
};

// The fault of a job that has not begun.
inline dr_fault no_fault(uint32_t stream = DR_STREAM_NONE) { return {sizeof(dr_fault), DR_OK, stream, 0, 0, nullptr}; }

inline dr_job shape_job(const stream_shape& s) {
  dr_job job{};
  job.struct_size = sizeof job;
  job.universe = s.universe;
  job.count_max = s.count_max;
  job.dtype = s.dtype;
  job.width = s.width;
  return job;
}

// Bounds of the stages of a list.
struct list_need {
  std::array<uint64_t, stages_max> payload{};
  uint64_t tell = 0, encode_scratch = 0, decode_scratch = 0;
  bool tell_suffices = false;
  uint64_t last(const stage_list& list) const { return payload[list.count - 1]; }
  uint64_t largest() const {
    uint64_t bytes = 0;
    for (const uint64_t p : payload) bytes = p > bytes ? p : bytes;
    return bytes;
  }
};

// The shape and the reported support count elements. CORRUPT: wire fields do not fit the shape.
inline dr_status list_needs(const stage_list& list, const stream_shape& shape, list_need& out) {
  out = {};
  dr_job job = shape_job({list.keys(shape.universe), list.keys(shape.count_max), shape.dtype, shape.width});
  for (uint32_t s = 0; s < list.count; ++s) {
    dr_need need{};
    need.struct_size = sizeof need;
    const dr_params params = list.stages[s].params();
    if (const dr_status status = list.stages[s].codec->cpu->need(&params, &job, 1, &need)) return status;
    out.payload[s] = need.payload;
    if (s == 0) {
      out.tell = list.block == 1 || need.tell < job.universe ? need.tell * list.block : shape.universe;
      out.tell_suffices = need.tell_suffices;
    }
    if (need.encode_scratch > out.encode_scratch) out.encode_scratch = need.encode_scratch;
    if (need.decode_scratch > out.decode_scratch) out.decode_scratch = need.decode_scratch;
    job.in_max = need.payload;
  }
  return DR_OK;
}

}  // namespace dr
