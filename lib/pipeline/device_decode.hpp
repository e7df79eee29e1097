// Decode and merge on a GPU: validates headers, verifies checks, decodes streams, delivers values; never waits.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "container/frame.hpp"
#include "container/frame_device.hpp"
#include "container/open_tile.hpp"
#include "container/unpack_tile.hpp"
#include "cuda/device.hpp"
#include "merge/merge_many_tile.hpp"
#include "patch/apply_changes_tile.hpp"
#include "pipeline/batch.hpp"
#include "pipeline/decode.hpp"

namespace dr {

// The shape of frames, known before a GPU reads them: from a prepared batch, or from one frame whose header the host
// has read.
struct decode_shape {
  struct row {
    uint32_t plan, entry;                                // entry: of the plan table
    uint64_t universe, count_max, support_max, payload;  // the middle two of a row that is not dense
    // Elements that its index codec decodes: count_max, or for a frame that was read, 0 with raw keys or if dense.
    uint64_t coded_max;
    // Elements of the decoded row: support_max, or for a frame that was read, all of a dense row.
    uint64_t decoded_max;
    // Whether its support is in memory: not if it is the universe, by the plan.
    bool lists;
    bool takes_dense;  // its bound has room for a dense row, which is read where it is in the frame
    std::array<uint64_t, section_count> size;  // of a frame that was read: other encoders may write longer sections
    uint64_t first = 0;                        // of its tensor
    uint32_t tensor = 0;
    bool continues = false;  // the tensor of the row before
    bool to_pairs = false;   // into a sparse output, which has no tiles
  };
  std::vector<wire_plan> wire;
  std::vector<row> rows;
  uint64_t id = 0;       // of a batch, and no other shape's; 0: of a frame
  bool patches = false;  // its rows are
  uint32_t cuts = 0;     // outputs that are parts of the one row (bucket=flat); 0: each is its rows'
  header_layout layout;  // without a tag
  device_header header;

  bool segmented() const {
    return std::any_of(rows.begin(), rows.end(), [](const row& r) { return r.continues; });
  }
};

// Device addresses of the memory of a frame's row.
struct device_decode_row {
  uint8_t* slot[section_count];  // nullptr: read where it is in the frame
  uint64_t capacity[section_count];
  uint32_t *support, *order, *sorted;  // support: nullptr: there is no list; sorted: of keys that carry the order
  uint32_t* blocks;                    // of an index list that codes blocks; otherwise nullptr
  std::byte *values, *in_order;        // values: nullptr: they are in the frame
  std::byte* based;                    // of a patch whose value codec reads it: the base at the support
  uint32_t* starts;                    // of the output's tiles
};

struct device_decode_scratch;
// The layout of a decode's memory on a GPU: in one workspace, or only measured.
struct device_decode_work {
  std::byte* zero = nullptr;  // the part that a call zeroes first
  uint64_t zero_size = 0, size = 0;
  device_row* rows = nullptr;
  unpack_result* result = nullptr;
  uint64_t* made = nullptr;
  unpack_state* state = nullptr;
  gate_state *gate = nullptr, *back = nullptr;
  uint64_t* patched = nullptr;  // of a patch: the checks of base and result of every row, as found
  std::byte* blob = nullptr;    // descriptors

  // base nullptr: only measures. Fills the rows, scratch, bitmaps and sorts of `host`.
  static device_decode_work lay_out(const decode_shape& shape, size_t frames, std::byte* base,
                                    device_decode_scratch& host);
};

// Host memory for the descriptors of a call. A context reuses it, so that steady state allocates nothing.
struct device_decode_scratch {
  struct room {
    std::byte* at;
    uint64_t size;
  };
  // The last layout, of a shape of a batch: calls with the same memory, one after the other, lay out nothing.
  uint64_t laid_out = 0;  // its id; 0: none
  size_t frames_laid_out = 0;
  std::byte* base = nullptr;
  device_decode_work work;
  std::vector<device_decode_row> rows;
  std::vector<room> scratch;  // of a section of a plan
  std::vector<uint32_t*> seen;
  std::vector<dr_sort> sort;
  std::vector<dr_job> jobs;
  std::vector<unpack_row> unpack;
  std::vector<unpack_frame> frames;
  std::vector<plan_rule> rules;
  std::vector<merge_row> merge;
  std::vector<support_starts> starts;
  std::vector<merge_out> outs, residuals;
  std::vector<based_row> based;
  std::vector<uint32_t> tensors;
  std::vector<uint8_t> blob;
};

// UNSUPPORTED: codecs without CUDA operations, segments of a bucket. tagged: of frames with a tag, whose header may have another form.
dr_status shape_of_batch(const batch& b, bool tagged, decode_shape& out, dr_error& error);
// outs: the number of outputs.
dr_status shape_of_frame(const frame_view& f, size_t outs, decode_shape& out, bool& host_would_do, dr_error& error);

struct decode_request {
  std::span<const dr_bytes> frames;  // in device memory, 16-byte aligned
  const float* weights = nullptr;    // in host memory; nullptr: all 1
  bool adds = false;                 // to the outputs' contents
  bool copies = false;               // one frame, bit for bit
  bool votes = false;                // outputs are the signs of the sums (on the CPU)
  bool delivers = true;              // otherwise frames are only validated
  bool verified = false;             // the checks of the frames have been verified; in host memory
  // On a device: f32 arrays to which the values of frame `own` are added where they are not delivered; values nullptr: none.
  std::span<const tensor_out> residuals = {};
  size_t own = 0;
};

// A decode between its checks and its delivery, in device memory.
struct judged_frames {
  enum class way { none, pairs, touched, tiles };
  gate_state* gate = nullptr;  // closed unless all frames are sound, or checked_rows is set; others may close it, too
  gate_state* back = nullptr;  // of the residuals: open, unless a launch closes it
  const device_row* rows = nullptr;  // [frames][rows]
  const merge_row* merged = nullptr;
  const merge_out *outs = nullptr, *residuals = nullptr;
  const based_row* based = nullptr;  // of a patch
  uint64_t assign_blocks = 0;
  uint64_t out_tiles = 0;
  way how = way::none;
  // Rows, if their supports are checked already: the delivery looks at their faults itself, and reports the result.
  uint32_t checked_rows = 0;
  tell_decoded::args tells = {};

  delivery_gate outputs() const { return {gate, rows, checked_rows}; }
};

// Joins shapes to one, with the maximum of every bound, if all frames have the same headers except for the numbers that
// depend on data.
void join_shapes(std::vector<decode_shape>& shapes);

uint64_t device_decode_workspace(const decode_shape& shape, size_t frames);
// Loads the kernels of prepared calls, for any number of frames.
void load_decode_kernels(const decode_shape& shape, device& where);

// The same in two calls: all checks, of which the gate has the result; then what depends on it.
dr_status judge_on_device(const decode_shape& shape, const decode_request& request, std::span<const tensor_out> outs,
                          device_queue& queue, void* workspace, uint64_t workspace_size, dr_result* result,
                          device_decode_scratch& host, judged_frames& judged, dr_error& error);
dr_status deliver_on_device(const decode_shape& shape, const decode_request& request, std::span<const tensor_out> outs,
                            const judged_frames& judged, device_queue& queue, dr_error& error);

// Enqueues. Tensor i of a frame is merged into outs[i]; nothing is written unless all frames are sound. `result` is device
// memory, or nullptr.
dr_status decode_on_device(const decode_shape& shape, const decode_request& request, std::span<const tensor_out> outs,
                           device_queue& queue, void* workspace, uint64_t workspace_size, dr_result* result,
                           device_decode_scratch& host, dr_error& error);

}  // namespace dr
