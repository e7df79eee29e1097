// Headers of frames of a known batch on a GPU: read once and checked (FORMAT.md is normative).
#pragma once

#include <cstdint>

#include "container/frame_tile.hpp"
#include "primitive/decoded_tile.hpp"
#include "primitive/support_starts.hpp"

namespace dr {

// The part of a plan by which a GPU validates a row: rules for sizes that are not stored.
struct plan_rule {
  dr_size_rule size[3];
  uint64_t value_bytes;  // of a row: width · size of the type
  uint32_t flags;        // row_flag bits, rule_sends_all, and those from rule_block on
  uint32_t entry_at;     // the offset of its entry in the header's head
};
// The support of a row by the plan is its universe.
inline constexpr uint32_t rule_sends_all = 1 << 16;
// From this bit on: log2 of the elements of a block, if the index codec codes blocks; otherwise 0.
inline constexpr uint32_t rule_block = 24;

// A row to be unpacked from a frame. Slots are 16-byte aligned and have room for 32 bytes after their capacity: zeros follow
// a section up to a multiple of 16, and for 16 bytes more.
struct unpack_row {
  uint8_t* slot[3];  // NULL: the section is read where it is in the frame
  uint8_t* support;  // of raw keys; NULL: a row cannot have them
  uint64_t capacity[3];
  uint32_t universe, count_max, support_max;  // the last two of a row that is not dense
  uint32_t first_tile;                        // of the launch
  uint16_t plan, entry;                       // entry: of the plan table; below 2^13, as row infos have it
  uint32_t frame : 29;
  uint32_t takes_dense : 1;  // the bound has room for a dense row, which is read where it is in the frame
  uint32_t continues : 1;    // the tensor of the row before
  uint32_t lists : 1;        // its index codec checks the support that it decodes
};
static_assert(sizeof(unpack_row) == 80);

struct unpack_frame {
  const uint8_t* data;  // 16-byte aligned
  uint64_t size;        // readable; the frame may be shorter
};
// What decode needs besides device_row, for a row of a frame.
struct unpack_result {
  uint64_t coded;     // the count that the index codec decodes: 0 if the row has raw keys or is dense
  uint64_t expected;  // the support that it must return
  uint64_t check;     // as stored
  uint64_t seen;      // as found
  frame_section section[section_count];
};

// Bytes of a row's sections.
DR_HD inline uint64_t payload_of(const device_row& r) { return r.size[0] + r.size[1] + r.size[2]; }

struct unpack_args {
  device_row* rows;  // frames · rows of a frame, as for the next field
  const unpack_row* place;
  unpack_result* result;
  const unpack_frame* frames;
  unpack_state* state;
  const plan_rule* plans;
  const uint8_t* head;           // as pack_frame's, without a tag
  const support_starts* starts;  // of the rows that list them; NULL: nobody reads any
  header_shape shape;            // likewise
  uint32_t frame_count, tiles;
  uint32_t prefix;  // bytes of a payload before its sections: of patches their checks
};

DR_HD inline void fail_frame(unpack_state& f, dr_status code, uint64_t where, uint64_t what) {
  raise(&f.fault, code, DR_STREAM_NONE, where, what);
}

// Validates the header of every frame, one block per frame: a byte is read once. A part of the first launch of a call
// (open_tile.hpp).
struct judge_frames {
  static constexpr unsigned lanes = frame_lanes;
  using args = unpack_args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const unpack_frame& f = a.frames[b.index()];
    unpack_state& state = a.state[b.index()];
    const uint64_t first = uint64_t{b.index()} * a.shape.rows;
    b.phase([&](unsigned lane) {
      if (lane == 0) state = {};
      for (uint32_t i = lane; i < a.shape.rows; i += lanes) {
        a.rows[first + i] = {};
        a.result[first + i] = {};
        for (frame_section& s : a.result[first + i].section)
          s.at = f.data;  // (kernels add to it before they look at faults)
      }
    });
    header_shape h = a.shape;
    const uint32_t flags = b.template once<uint32_t>([&] { return judge_head(f, state, a); });
    if (flags == refused) return fail_rows(b, a, first, state);
    const bool tagged = flags & DR_FRAME_TAG;
    if (!h.short_form && tagged) {
      h.head_size += frame_tag_size;
      h.header_size += frame_tag_size;
    }
    if (f.size < h.header_size || !same_head(b, f, a, tagged)) {
      (void)b.template once<uint32_t>([&] {
        fail_frame(state, is_of_later(f, a, tagged) ? DR_E_UNSUPPORTED : DR_E_CORRUPT, 0, f.size);
        return refused;
      });
      return fail_rows(b, a, first, state);
    }
    b.phase([&](unsigned lane) {
      if (lane == 0) {
        state.header_size = h.header_size;
        state.check = get_bytes(f.data + frame_at::check, frame_check_size);
      }
      for (uint32_t i = lane; i < h.rows; i += lanes) {
        const uint64_t at = judge_row(f, h, a, first, i);
        if (at) fail_frame(state, at & of_later ? DR_E_UNSUPPORTED : DR_E_CORRUPT, at & ~of_later, i);
      }
      for (uint64_t i = h.column(frame_columns) + lane; !h.short_form && i < h.header_size; i += lanes)
        if (f.data[i]) fail_frame(state, DR_E_CORRUPT, i, f.data[i]);
    });
    place_rows(b, f, h, a, first, state);
    if (h.rows != 1) check_header(b, f, h, state);
    if (b.template once<uint32_t>([&] { return state.fault.code != DR_OK; })) fail_rows(b, a, first, state);
  }

  static constexpr uint32_t refused = 256;
  static constexpr uint64_t of_later = uint64_t{1} << 63;  // flag of a position: a reserved value

  // The prologue; returns the flags.
  DR_HD static uint32_t judge_head(const unpack_frame& f, unpack_state& state, const args& a) {
    const uint8_t* const x = f.data;
    const auto refuse = [&](dr_status code, uint64_t where, uint64_t what) {
      fail_frame(state, code, where, what);
      return refused;
    };
    if (f.size < 12) return refuse(DR_E_CORRUPT, f.size, 12);
    if (!has_magic(x)) return refuse(DR_E_CORRUPT, 0, x[0]);
    if (x[frame_at::version] != DR_FORMAT_VERSION)
      return refuse(DR_E_UNSUPPORTED, frame_at::version, x[frame_at::version]);
    const uint32_t flags = x[frame_at::flags];
    if (flags & DR_FRAME_STATUS)
      return refuse(is_status_frame(f) ? DR_E_PEER : DR_E_CORRUPT, frame_at::status,
                    f.size > frame_at::status ? x[frame_at::status] : 0);
    // The sender chooses tag and list, and in the short form the mode.
    const uint32_t free = DR_FRAME_LIST | (a.shape.short_form ? short_mode_flags(3) : uint32_t{DR_FRAME_TAG});
    if ((flags & ~free) != (a.head[frame_at::flags] & ~free)) return refuse(DR_E_CORRUPT, frame_at::flags, flags);
    if (a.shape.short_form && short_mode(flags) > mode_dense)
      return refuse(DR_E_UNSUPPORTED, frame_at::flags, short_mode(flags));
    return flags;
  }

  // Whether it is a sound status frame. One lane reads it: it has at most 288 bytes.
  DR_HD static bool is_status_frame(const unpack_frame& f) {
    const uint8_t* const x = f.data;
    const uint32_t flags = x[frame_at::flags];
    const uint64_t head = frame_head_size(flags & DR_FRAME_TAG);
    if (flags & ~uint32_t{DR_FRAME_TAG | DR_FRAME_LIST | DR_FRAME_STATUS} || f.size < head ||
        !is_status(x[frame_at::status]) || x[frame_at::reserved])
      return false;
    const uint64_t length = get_bytes(x + frame_at::table, 2), size = padded(head + length);
    const auto number = [&](uint32_t at) { return static_cast<uint32_t>(get_bytes(x + at, 4)); };
    if (!is_status_head(number(frame_at::rows), number(frame_at::widths), static_cast<uint32_t>(length)) ||
        f.size < size)
      return false;
    for (uint64_t i = head + length; i < size; ++i)
      if (x[i]) return false;
    return short_check(size, [&](uint64_t i) { return frame_word(f, 4 * i); }) ==
           get_bytes(x + frame_at::check, frame_check_size);
  }

  // Whether all fields that follow from the batch are equal.
  template <class Block>
  DR_HD static bool same_head(Block& b, const unpack_frame& f, const args& a, bool tagged) {
    typename Block::template each<uint32_t> differs;
    const header_shape& h = a.shape;
    b.phase([&](unsigned lane) {
      differs[lane] = 0;
      for (uint64_t i = lane; i < h.head_size; i += lanes) {
        if (i == frame_at::flags || (i >= frame_at::check && i < frame_at::check + frame_check_size)) continue;
        // Count, support and sizes of a short header; all of it lies before header_size.
        if (h.short_form && (is_short_count(h, i) || i >= h.short_at)) continue;
        differs[lane] |= f.data[i + (tagged && i >= frame_at::tag ? frame_tag_size : 0)] != a.head[i];
      }
    });
    return b.sum(differs) == 0;
  }

  DR_HD static bool is_short_count(const header_shape& h, uint64_t i) {
    return i >= frame_at::count && i < uint64_t{frame_at::count} + h.short_width;
  }

  // Whether the first byte that differs from the batch's head is in a plan's entry, with a type or a number of codecs
  // that is reserved. One lane reads it, after the frame is refused.
  DR_HD static bool is_of_later(const unpack_frame& f, const args& a, bool tagged) {
    const header_shape& h = a.shape;
    const uint64_t end = h.short_form ? h.short_at : h.head_size, skipped = tagged ? frame_tag_size : 0;
    const auto byte = [&](uint64_t i) { return f.data[i + (i >= frame_at::tag ? skipped : 0)]; };
    if (f.size < end + skipped) return false;
    uint64_t at = frame_at::rows;
    while (at < end && ((h.short_form && is_short_count(h, at)) || byte(at) == a.head[at])) ++at;
    if (at == end) return false;
    for (uint32_t i = 0; i < h.rows; ++i) {
      const uint64_t entry = a.plans[a.place[i].plan].entry_at;
      if (at != entry && at != entry + 1) continue;
      const entry_head e{byte(entry), byte(entry + 1)};
      return (a.prefix ? e.has_unknown_type() : e.has_reserved_type()) || e.has_reserved_count(section_value) ||
             e.has_reserved_count(section_index);
    }
    return false;
  }

  // Reads and checks row i of a frame whose first row is `first`; returns 0, or the position of the fault.
  DR_HD static uint64_t judge_row(const unpack_frame& f, const header_shape& h, const args& a, uint64_t first,
                                  uint32_t i) {
    const unpack_row& d = a.place[first + i];
    device_row& r = a.rows[first + i];
    unpack_result& out = a.result[first + i];
    const plan_rule& plan = a.plans[d.plan];
    uint64_t column[frame_columns] = {}, at = 0;
    if (h.short_form) {
      column[col_info] = row_info(short_mode(f.data[frame_at::flags]), d.continues, d.entry);
      column[col_universe] = d.universe;
      column[col_count] = get_bytes(f.data + frame_at::count, h.short_width);
      at = h.short_at;
      for (unsigned c = col_support; c < frame_columns; ++c) {
        if (!short_stores(plan.flags, c)) continue;
        column[c] = get_bytes(f.data + at, h.short_width);
        at += h.short_width;
      }
      for (uint64_t k = at; k < h.header_size; ++k)
        if (f.data[k]) return k;
    } else {
      for (unsigned c = 0; c < frame_columns; ++c) {
        at = h.column(c) + uint64_t{h.width[c]} * i;
        column[c] = get_bytes(f.data + at, h.width[c]);
      }
      if (h.rows != 1) out.check = get_bytes(f.data + h.head_size + uint64_t{8} * i, 8);
    }
    at = h.short_form ? frame_at::count : h.column(0);
    const bool states_support = h.short_form ? plan.flags & row_replaces_support : h.width[col_support] != 0;
    row_columns row{mode_of(column[col_info]),
                    column[col_universe],
                    column[col_count],
                    column[col_support],
                    {column[col_size], column[col_size + 1], column[col_size + 2]}};
    if (!states_support) row.support = implied_support(row.mode, row.count);
    const row_fault counts = check_counts(row, plan.flags);
    if (counts.broken == row_rule::mode) return at | of_later;
    if (counts || column[col_info] != row_info(row.mode, d.continues, d.entry) || row.universe != d.universe ||
        (row.mode != mode_dense && row.count > d.count_max) ||
        (row.mode == mode_raw_index && (a.prefix || (row.count && !d.support))))
      return at;
    const uint32_t shift = plan.flags >> rule_block, rest = (1u << shift) - 1;
    const auto keys_of = [&](uint64_t elements) { return (elements + rest) >> shift; };
    const auto are_whole = [&](uint64_t n) { return (n & rest) == 0 || (n & rest) == (row.universe & rest); };
    const auto size_of = [&](uint32_t s, uint64_t elements, uint64_t& size) {
      if (s == section_index) {
        if (!are_whole(elements) || !are_whole(row.support)) return row_rule::whole_blocks;
        elements = keys_of(elements);
      }
      if (!(plan.flags & row_stores_size << s)) size = dr_rule_size(&plan.size[s], elements);
      return row_rule::none;
    };
    if (check_sizes(row, plan.flags, plan.value_bytes, size_of)) return at;
    const bool dense = row.mode == mode_dense;
    if (dense ? !d.takes_dense : row.support > d.support_max) return at;
    if (plan.flags & rule_sends_all && row.mode == mode_plan && row.count && row.support != row.universe) return at;
#pragma unroll
    for (unsigned s = 0; s < section_count; ++s)
      if (!dense && row.size[s] > (is_raw_index(row.mode, s) ? raw_index_size(d.count_max) : d.capacity[s])) return at;
    r.mode = row.mode;
    r.count = row.count;
    r.support_count = dense ? 0 : row.support;  // no codec runs for a dense row
#pragma unroll
    for (unsigned s = 0; s < section_count; ++s) r.size[s] = row.size[s];
      // (Behind other sections unpack_frames writes the zeros.)
#pragma unroll
    for (unsigned s = 0; s < section_count; ++s)
      if (!row.size[s] && d.slot[s]) *reinterpret_cast<four_words*>(d.slot[s]) = {};
    out.coded = row.mode == mode_plan ? keys_of(row.count) : 0;
    out.expected = row.mode == mode_plan ? keys_of(row.support) : 0;
    return 0;
  }

  template <class Block>
  DR_HD static void place_rows(Block& b, const unpack_frame& f, const header_shape& h, const args& a, uint64_t first,
                               unpack_state& state) {
    typename Block::template each<uint64_t> at;
    uint64_t offset = h.header_size;
    for (uint32_t begin = 0; begin < h.rows; begin += lanes) {
      b.phase([&](unsigned lane) {
        const uint32_t i = begin + lane;
        at[lane] = 0;
        if (i >= h.rows) return;
        const device_row& r = a.rows[first + i];
        at[lane] = a.prefix + padded(payload_of(r));
      });
      const uint64_t all = b.exclusive_sum(at);
      b.phase([&](unsigned lane) {
        const uint32_t i = begin + lane;
        if (i >= h.rows) return;
        device_row& r = a.rows[first + i];
        r.offset = offset + at[lane] + a.prefix;
        const uint8_t* in = f.data + r.offset;
#pragma unroll
        for (unsigned s = 0; s < section_count; in += r.size[s++])
          a.result[first + i].section[s] = {r.size[s], a.place[first + i].slot[s] ? a.place[first + i].slot[s] : in};
        const uint64_t payload = padded(payload_of(r));
        if (r.offset > f.size || payload > f.size - r.offset) fail_frame(state, DR_E_CORRUPT, r.offset, f.size);
      });
      offset += all;
    }
  }

  template <class Block>
  DR_HD static void check_header(Block& b, const unpack_frame& f, const header_shape& h, unpack_state& state) {
    uint64_t check = 0;
    for (uint32_t c = 0; c < h.header_chunks(); ++c) {
      const uint64_t begin = c * frame_tile,
                     words = (h.header_size - begin < frame_tile ? h.header_size - begin : frame_tile) / 4;
      check += chunk_term(b, words, c, [&](uint64_t i) { return frame_word(f, begin + 4 * i); });
    }
    b.phase([&](unsigned lane) {
      if (lane == 0 && check != state.check) fail_frame(state, DR_E_CORRUPT, frame_at::check, check);
    });
  }

  // Four bytes of a frame; those of its check count as 0.
  DR_HD static uint32_t frame_word(const unpack_frame& f, uint64_t at) {
    return at - frame_at::check < frame_check_size ? 0 : *reinterpret_cast<const uint32_t*>(f.data + at);
  }

  template <class Block>
  DR_HD static void fail_rows(Block& b, const args& a, uint64_t first, const unpack_state& state) {
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < a.shape.rows; i += lanes)
        raise(&a.rows[first + i].fault, state.fault.code, DR_STREAM_NONE, state.fault.where, state.fault.what);
    });
  }
};

}  // namespace dr
