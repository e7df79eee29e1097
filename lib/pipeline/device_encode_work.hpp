// The workspace of an encode on a GPU.
#pragma once

#include <vector>

#include "container/frame_device.hpp"
#include "core/arena.hpp"
#include "pipeline/batch.hpp"
#include "sparsify/select_device.hpp"
#include "split/regather_tile.hpp"

namespace dr {

// Device addresses of the memory of a row.
struct device_encode_row {
  uint32_t *support, *told, *order, *keys;
  std::byte *kept, *sent, *decoded;
  uint8_t* slot[section_count];
};
// Of a call to a codec.
struct codec_scratch {
  std::byte* at;
  uint64_t size;
};

struct device_encode_work {
  std::byte* zero;
  uint64_t zero_size;
  device_row* rows;
  replaced_row* replaced;
  pack_state* state;
  uint64_t* check;
  std::byte *select_zeroed, *select_plain, *blob;

  // Lays a workspace out from `base`; nullptr: as if it were there. Scratch of codecs: for each plan, of the index,
  // value and order codec, to encode and to decode. Returns its bytes.
  uint64_t lay_out(const batch& b, std::byte* base, std::vector<device_encode_row>& rows_of,
                   std::vector<codec_scratch>& scratch_of);
};

stream_shape device_stream_shape(const batch& b, size_t row, section s);
// Whether the payload of a row is decoded again, for feedback.
bool decodes_sent(const batch& b, size_t row);
// All of a row's selection but where its memory is.
device_select_job device_select_job_of(const batch& b, size_t row);

// Where a row lies, for the kernel that packs the frame; its first tile is the caller's.
void describe_row(const batch& b, size_t i, const device_encode_row& o, pack_row& p);

}  // namespace dr
