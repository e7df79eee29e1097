// The frame: the bytes of a batch, and their parsed form (FORMAT.md is normative).
#pragma once

#include <array>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "container/frame_kernel.hpp"
#include "core/error.hpp"
#include "core/stage_list.hpp"
#include "primitive/tile_form.hpp"

namespace dr {

// An entry of the plan table.
struct wire_plan {
  uint32_t dtype = DR_F32, width = 1;
  bool carries_order = false;  // the keys carry it
  bool patch = false;          // of a base that the receiver has
  tile_form tiles;             // its values are coefficients of these tiles
  std::array<stage_list, section_count> lists{};

  const stage_list& value() const { return lists[section_value]; }
  const stage_list& order() const { return lists[section_order]; }
  const stage_list& index() const { return lists[section_index]; }
  bool replaces_support() const { return index().has(DR_REPLACES_SUPPORT); }
};

struct wire_row {
  uint32_t plan = 0, mode = mode_plan;
  uint32_t entry = 0;      // in the plan table of the frame; wire plans exist only for entries that rows name
  bool continues = false;  // the previous row's tensor
  uint32_t tensor = 0;     // of the frame, from 0 (set by the reader)
  uint64_t universe = 0, count = 0, support = 0;
  std::array<uint64_t, section_count> size{};
  uint64_t prefix = 0;  // bytes before the sections: of a patch its checks
  uint64_t offset = 0;  // of the payload in the frame (set by the reader and by the writer)

  uint64_t sections() const { return size[0] + size[1] + size[2]; }
  uint64_t payload() const { return prefix + sections(); }
};

inline uint64_t prefix_size(const wire_plan& plan) { return plan.patch ? patch_checks_size : 0; }

// ---- Writing ----------------------------------------------------------------------------------------------

struct row_bound {
  uint32_t plan;
  uint64_t universe, count, support, value, order, index, payload;
};

// The part of a header that does not depend on data: a GPU call knows its offsets in advance.
struct header_layout {
  bool short_form = false, has_tag = false;
  uint8_t short_width = 3;  // bytes of count, support and sizes in the short form: 2 or 3
  uint64_t rows = 0;
  std::pmr::vector<uint8_t> table;  // serialised plan entries
  std::array<uint8_t, frame_columns> width{};
  uint64_t header_size = 0, frame_bound = 0;
};

// `out` is newly constructed; its table may use another memory resource. UNSUPPORTED: more plans, or larger ones, than
// a header can store.
dr_status lay_out_header(std::span<const wire_plan> plans, std::span<const row_bound> rows, bool has_tag,
                         header_layout& out, dr_error& error);

// row_flag bits of a plan's rows.
uint32_t row_flags(const wire_plan& plan);

// Bytes of a plan's entry in the table.
size_t entry_size(const wire_plan& plan);

// Sets the rows' offsets; returns the frame's size.
uint64_t place_rows(const header_layout& layout, std::span<wire_row> rows);

// Writes the header and the checks, after padding and payloads.
void write_header(const header_layout& layout, std::span<const wire_plan> plans, std::span<const wire_row> rows,
                  uint64_t tag, bool list, uint8_t* frame);

inline constexpr size_t status_frame_max = 24 + 8 + 256;
// Returns bytes written, at most status_frame_max.
size_t write_status_frame(dr_status status, const char* message, bool has_tag, uint64_t tag, uint8_t* frame);

// ---- Reading ----------------------------------------------------------------------------------------------

struct frame_view {
  const uint8_t* data = nullptr;
  uint32_t version = 0, flags = 0;
  dr_status status = DR_OK;
  uint64_t tag = 0, header_size = 0, frame_size = 0;
  uint32_t tensors = 0, entries = 0;  // entries: of the plan table
  std::vector<wire_plan> plans;       // those that a row names
  std::vector<wire_row> rows;
  header_layout layout;  // the writer's, without its tag
  char message[256] = {};
  std::vector<uint64_t> checks;  // of rows, if the frame has several

  // Resets all; the vectors keep their capacity.
  void clear();
  // Bytes of memory to read a header: at most a wire_plan for every 14 bytes of it, and less than 10 for every byte
  // besides.
  static uint64_t memory_of(uint64_t plans, uint64_t rows, uint64_t table) {
    return plans * sizeof(wire_plan) + rows * (sizeof(wire_row) + sizeof(uint64_t)) + table;
  }
  uint64_t memory() const { return memory_of(plans.size(), rows.size(), layout.table.size()); }
  // Removes all but n tensors from `first` on, which exist. `tensors` becomes n; the tensor numbers of rows do not
  // change.
  void keep(uint32_t first, uint32_t n);
};

// Calls f(first row, row past its last, universe) for each tensor of a frame.
template <class F>
void each_tensor(const frame_view& frame, F&& f) {
  for (size_t i = 0; i < frame.rows.size();) {
    size_t end = i;
    uint64_t universe = 0;
    do universe += frame.rows[end++].universe;
    while (end < frame.rows.size() && frame.rows[end].continues);
    f(i, end, universe);
    i = end;
  }
}

// Validates a header of which `available` bytes are present, of a frame of at most `size`; reads no payload and no
// check. CORRUPT, UNSUPPORTED; CAPACITY: it needs more than memory_max bytes.
dr_status read_header(const uint8_t* data, size_t available, uint64_t size, frame_view& out, dr_error& error,
                      uint64_t memory_max = UINT64_MAX);

// Validates a complete header once, and all checks. `size` may exceed the frame. CORRUPT, UNSUPPORTED, CAPACITY.
dr_status read_frame(const uint8_t* data, size_t size, frame_view& out, dr_error& error,
                     uint64_t memory_max = UINT64_MAX);

}  // namespace dr
