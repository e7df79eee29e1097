// The workspace of an encode on a GPU.
#pragma once

#include <vector>

#include "container/frame_device.hpp"
#include "core/arena.hpp"
#include "pipeline/batch.hpp"
#include "primitive/flat_table.hpp"
#include "primitive/row_keys.hpp"
#include "sparsify/select_device.hpp"
#include "split/regather_tile.hpp"

namespace dr {

// Device addresses of the memory of a row. support, reported: nullptr: all elements (pack_row); of a unit that is sent
// whole, selected and sent are one place: of all values.
struct device_encode_row {
  uint32_t *support, *reported, *order, *keys;
  std::byte *selected, *sent, *decoded;
  bool plain;        // of a unit that is sent whole: the value slot is `sent`
  std::byte* based;  // of a patch whose value codec reads it: the base at the support
  uint64_t* ticket;  // of a patch: the look-back of its comparison
  uint8_t* slot[section_count];
  const flat_table* flat;  // of a bucket of several tensors; otherwise NULL
  uint64_t flat_at;        // its offset in the blob
  uint64_t unlisted_at;    // the offset of its unlisted_source there, of a row that may be unlisted; otherwise 0
  // Of a row that is selected by blocks: their energies; the selected ones, and their energies.
  float* energies;
  uint32_t* blocks;
  std::byte* kept_energies;
};
// The selection of a tensor in several segments, before it is cut (split/cut_tile.hpp). Of one that is sent whole only `row`,
// for its state.
struct device_encode_unit {
  uint32_t* support;
  std::byte* selected;  // nullptr: the values of a sparse tensor, where they are
  device_row* row;
};
// The scratch of a codec's call.
struct codec_scratch {
  std::byte* at;
  uint64_t size;
};

struct device_encode_work {
  std::byte* zero;
  uint64_t zero_size;
  device_row* rows;
  replaced_row* replaced;
  device_row* block_rows;  // of selections of blocks; nullptr: there is none
  pack_state* state;
  uint64_t* check;
  uint64_t* patched;  // of patches: the checks of base and result of every row; otherwise nullptr
  std::byte *select_zeroed, *select_plain, *blob;
  row_keys* keys;  // of rows: the last part of the blob, sent if something draws on the device
  uint64_t keys_at;
};

// The layout of an encode's workspace. A batch has it once, with pointers from a fixed address, where no memory is; a call
// moves them to its own workspace.
struct device_encode_layout {
  device_encode_work work{};
  std::vector<device_encode_row> rows;
  std::vector<codec_scratch> scratch;  // for every plan, of the index, value and order codec, to encode and to decode
  std::vector<device_encode_unit> units;  // one a unit; all of it nullptr if it is one row
  uint64_t size = 0;                      // bytes

  static device_encode_layout of(const batch& b);
  void place(std::byte* workspace, device_encode_work& work_at, std::vector<device_encode_row>& rows_at,
             std::vector<codec_scratch>& scratch_at, std::vector<device_encode_unit>& units_at) const;
};

stream_shape device_stream_shape(const batch& b, size_t row, section s);
// Of a unit that is sent whole: whether its values are copied, because they are not contiguous in the type in which they
// are sent. Otherwise they are read where they are.
bool moves_values(const unit& u);
// Whether a unit is selected before it is cut into segments, or has a state for all of them.
bool is_cut_up(const unit& u);
// Whether a selected value that is not finite is a fault of its row.
bool needs_finite(const batch& b, size_t row);
// Whether the payload of a row is decoded again, for feedback.
bool decodes_sent(const batch& b, size_t row);
// Whether a row has a selection: of a tensor in segments that is selected as a whole only the first has.
bool has_selection(const batch& b, size_t row);
// Of a row of a batch of gradients that has one: its selection without the addresses of its memory; of blocks, that of their
// energies.
device_select_job device_select_job_of(const batch& b, size_t row);
// The elements of the blocks by which a row is selected; 0: it is not.
uint32_t block_of(const batch& b, size_t row);

// Describes a row for the kernel that packs the frame; the caller sets its first tile.
void describe_row(const batch& b, size_t i, const device_encode_row& o, pack_row& p);

}  // namespace dr
