// Frames of a known batch on a GPU: their headers judged, their checks verified, their sections brought into aligned slots, so that no
// codec sees a byte that was not judged (FORMAT.md is normative).
#pragma once

#include <cstdint>

#include "container/frame_tile.hpp"

namespace dr {

// Of a plan, what a GPU must know to judge a row: sizes that are not stored.
struct plan_rule {
  dr_size_rule size[3];
  uint64_t value_bytes;  // of a row: width · size of the type
  uint32_t flags;        // frame_row_flags
  uint32_t entry_at;     // of the header's head: where its entry begins
};

// A row of one frame on its way out. Slots are 16-byte aligned and have 32 zeroed bytes behind their capacity.
struct unpack_row {
  uint8_t* slot[3];
  uint8_t* support;  // of raw keys
  uint64_t capacity[3];
  uint32_t universe, count_max, support_max;
  uint32_t first_tile;   // of the launch
  uint16_t plan, entry;  // entry: of the plan table; below 2^13, as row infos have it
  uint32_t frame;
};
static_assert(sizeof(unpack_row) == 80);

// A frame on its way out; zero when a call begins but for what is uploaded.
struct unpack_frame {
  const uint8_t* data;  // 16-byte aligned
  uint64_t size;        // readable; the frame may be shorter
};
struct unpack_state {
  dr_fault fault;
  uint64_t header_size, check;  // check: of the header, as it stands there
  uint32_t done, failed;
};

// What decode needs beside device_row, a row of a frame.
struct unpack_result {
  uint64_t coded;     // count that the index codec is asked for: 0 if the row has raw keys or is dense
  uint64_t expected;  // support that it must give
  uint64_t check;     // as stored
  uint64_t seen;      // as found; zero when the call begins
};

struct unpack_args {
  device_row* rows;  // frames · rows of a frame, as the following
  const unpack_row* place;
  unpack_result* result;
  const unpack_frame* frames;
  unpack_state* state;
  const plan_rule* plans;
  const uint8_t* head;  // as pack_frame's, without a tag
  header_shape shape;   // likewise
  uint32_t frame_count, tiles;
};

DR_HD inline void fail_frame(unpack_state& f, dr_status code, uint64_t where, uint64_t what) {
  raise(&f.fault, code, DR_STREAM_NONE, where, what);
}

// Header of each frame, one block a frame: what it says is read once.
struct judge_frames {
  static constexpr const char* name = "judge_frames";
  static constexpr unsigned lanes = frame_lanes, grid_phases = 1;
  using args = unpack_args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const unpack_frame& f = a.frames[b.index()];
    unpack_state& state = a.state[b.index()];
    const uint64_t first = uint64_t{b.index()} * a.shape.rows;
    header_shape h = a.shape;
    const uint32_t flags = b.template once<uint32_t>([&] { return judge_head(f, state, a); });
    if (flags == refused) return fail_rows(b, a, first, state);
    if (!h.short_form && flags & 2) {
      h.head_size += 8;
      h.header_size += 8;
    }
    if (f.size < h.header_size || !same_head(b, f, a, flags & 2)) {
      b.phase([&](unsigned lane) {
        if (lane == 0) fail_frame(state, is_of_later(f, a, flags & 2) ? DR_E_UNSUPPORTED : DR_E_CORRUPT, 0, f.size);
      });
      return fail_rows(b, a, first, state);
    }
    b.phase([&](unsigned lane) {
      if (lane == 0) {
        state.header_size = h.header_size;
        state.check = get_bytes(f.data + frame_check_at, 8);
      }
      for (uint32_t i = lane; i < h.rows; i += lanes) {
        const uint64_t at = judge_row(f, h, a.plans, a.place[first + i], i, a.rows[first + i], a.result[first + i]);
        if (at) fail_frame(state, at & of_later ? DR_E_UNSUPPORTED : DR_E_CORRUPT, at & ~of_later, i);
      }
      for (uint64_t i = h.column(frame_columns_max) + lane; !h.short_form && i < h.header_size; i += lanes)
        if (f.data[i]) fail_frame(state, DR_E_CORRUPT, i, f.data[i]);
    });
    place_rows(b, f, h, a, first, state);
    if (h.rows != 1) check_header(b, f, h, state);
    if (b.template once<uint32_t>([&] { return state.fault.code != DR_OK; })) fail_rows(b, a, first, state);
  }

  static constexpr uint32_t refused = 256;
  static constexpr uint64_t of_later = uint64_t{1} << 63;  // of a place: a value that a later version may have

  // The prologue; returns the flags.
  DR_HD static uint32_t judge_head(const unpack_frame& f, unpack_state& state, const args& a) {
    const uint8_t* const x = f.data;
    const auto refuse = [&](dr_status code, uint64_t where, uint64_t what) {
      fail_frame(state, code, where, what);
      return refused;
    };
    if (f.size < 12) return refuse(DR_E_CORRUPT, f.size, 12);
    if (x[0] != 'D' || x[1] != 'R') return refuse(DR_E_CORRUPT, 0, x[0]);
    if (x[2] != DR_FORMAT_VERSION) return refuse(DR_E_UNSUPPORTED, 2, x[2]);
    const uint32_t flags = x[3];
    if (flags & 8) return refuse(is_status_frame(f) ? DR_E_PEER : DR_E_CORRUPT, 16, f.size > 16 ? x[16] : 0);
    // Tag and list are the sender's; so is, in the short form, the mode.
    const uint32_t free = a.shape.short_form ? 4 | 0x30 : 2 | 4;
    if ((flags & ~free) != (a.head[3] & ~free)) return refuse(DR_E_CORRUPT, 3, flags);
    return flags;
  }

  // Whether the frame soundly says why there is none. One lane looks: it has at most 288 bytes.
  DR_HD static bool is_status_frame(const unpack_frame& f) {
    const uint8_t* const x = f.data;
    const uint64_t head = x[3] & 2 ? 32 : 24;
    if (x[3] & ~uint32_t{2 | 4 | 8} || f.size < head || x[16] < DR_E_ARGUMENT || x[16] > DR_E_INTERNAL) return false;
    const uint64_t length = get_bytes(x + 18, 2), size = (head + length + 3) & ~uint64_t{3};
    // No reserved bit, no row, no column.
    if (x[17] || get_bytes(x + 12, 4) || get_bytes(x + 20, 4) || length > 255 || f.size < size) return false;
    for (uint64_t i = head + length; i < size; ++i)
      if (x[i]) return false;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < size / 4; ++i)
      sum += (uint64_t{frame_word(f, 4 * i)} + 1) * check_factor(static_cast<uint32_t>(i));
    return mix64(sum) == get_bytes(x + frame_check_at, 8);
  }

  // Whether all that the batch decides stands there.
  template <class Block>
  DR_HD static bool same_head(Block& b, const unpack_frame& f, const args& a, uint32_t tag) {
    typename Block::template each<uint32_t> differs;
    const header_shape& h = a.shape;
    b.phase([&](unsigned lane) {
      differs[lane] = 0;
      for (uint64_t i = lane; i < h.head_size; i += lanes) {
        if (i == 3 || (i >= frame_check_at && i < frame_check_at + 8)) continue;
        // Count, support and sizes of a short header; all of it lies before header_size.
        if (h.short_form && ((i >= 15 && i < 15u + h.short_width) || i >= h.short_at)) continue;
        differs[lane] |= f.data[i + (tag && i >= 24 ? 8 : 0)] != a.head[i];
      }
    });
    return b.sum(differs) == 0;
  }

  // Whether the first byte that differs from the batch's head is in a plan's entry, which has a type or a number of codecs that there is
  // room for. One lane looks, when the frame is refused.
  DR_HD static bool is_of_later(const unpack_frame& f, const args& a, uint32_t tag) {
    const header_shape& h = a.shape;
    const uint64_t end = h.short_form ? h.short_at : h.head_size, skipped = tag ? 8 : 0;
    const auto byte = [&](uint64_t i) { return f.data[i + (i >= 24 ? skipped : 0)]; };
    if (f.size < end + skipped) return false;
    uint64_t at = 12;
    while (at < end && ((h.short_form && at >= 15 && at < 15u + h.short_width) || byte(at) == a.head[at])) ++at;
    if (at == end) return false;
    for (uint32_t i = 0; i < h.rows; ++i) {
      const uint64_t entry = a.plans[a.place[i].plan].entry_at;
      if (at != entry && at != entry + 1) continue;
      const uint32_t counts = byte(entry), type = byte(entry + 1), values = counts & 7, indices = counts >> 3 & 7;
      return (type & 15) > DR_BF16 || type >> 6 || values == 0 || values > 5 || indices == 0 || indices > 5;
    }
    return false;
  }

  // Reads and judges row i; returns 0, or where it is wrong.
  DR_HD static uint64_t judge_row(const unpack_frame& f, const header_shape& h, const plan_rule* plans,
                                  const unpack_row& d, uint32_t i, device_row& r, unpack_result& out) {
    const plan_rule& plan = plans[d.plan];
    uint64_t column[frame_columns_max] = {}, at = 0;
    if (h.short_form) {
      column[0] = (f.data[3] >> 4 & 3) | uint64_t{d.entry} << 3;
      column[1] = d.universe;
      column[2] = get_bytes(f.data + 15, h.short_width);
      at = h.short_at;
      for (unsigned c = 3; c < frame_columns_max; ++c) {
        if (!(c == 3 ? plan.flags & row_replaces_support : plan.flags & row_stores_size << (c - 4))) continue;
        column[c] = get_bytes(f.data + at, h.short_width);
        at += h.short_width;
      }
      for (uint64_t k = at; k < h.header_size; ++k)
        if (f.data[k]) return k;
    } else {
      for (unsigned c = 0; c < frame_columns_max; ++c) {
        at = h.column(c) + uint64_t{h.width[c]} * i;
        column[c] = get_bytes(f.data + at, h.width[c]);
      }
      if (h.rows != 1) out.check = get_bytes(f.data + h.head_size + uint64_t{8} * i, 8);
    }
    const uint64_t mode = column[0] & 3, count = column[2];
    at = h.short_form ? 15 : h.column(0);
    if (mode > mode_dense) return at | of_later;
    if (column[0] >> 2 != uint64_t{d.entry} << 1 || column[1] != d.universe) return at;
    const bool replaces = plan.flags & row_replaces_support;
    const bool states_support = h.short_form ? replaces : h.width[3] != 0;
    const uint64_t support = states_support || mode == mode_dense ? column[3] : count;
    if (count > d.count_max) return at;
    r.mode = static_cast<uint32_t>(mode);
    r.count = count;
    r.told = support;
    if (mode == mode_dense) {
      const uint64_t dense = uint64_t{d.universe} * plan.value_bytes;
      if (column[3] || column[4] || column[5] || column[6] || dense > d.capacity[section_value]) return at;
      r.told = 0;  // no codec is asked
      r.size[section_value] = dense;
      return 0;
    }
    if (support > d.support_max || (count == 0) != (support == 0)) return at;
    if (!(replaces && mode == mode_plan) && support != count) return at;
    for (unsigned s = 0; s < 3; ++s) {
      const bool raw = s == section_index && mode == mode_raw_index;
      uint64_t size = column[4 + s];
      const bool stored = plan.flags & row_stores_size << s && !raw && count;
      if (!stored && size) return at;
      if (!stored && plan.flags & row_lists_section << s && count)
        size = raw ? 4 * count : dr_rule_size(&plan.size[s], s == section_index ? count : support);
      if (size > (raw ? uint64_t{4} * d.count_max : d.capacity[s])) return at;
      r.size[s] = size;
    }
    out.coded = mode == mode_plan ? count : 0;
    out.expected = mode == mode_plan ? support : 0;
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
        at[lane] = (r.size[0] + r.size[1] + r.size[2] + 3) & ~uint64_t{3};
      });
      const uint64_t all = b.exclusive_sum(at);
      b.phase([&](unsigned lane) {
        const uint32_t i = begin + lane;
        if (i >= h.rows) return;
        device_row& r = a.rows[first + i];
        r.offset = offset + at[lane];
        const uint64_t payload = (r.size[0] + r.size[1] + r.size[2] + 3) & ~uint64_t{3};
        if (r.offset > f.size || payload > f.size - r.offset) fail_frame(state, DR_E_CORRUPT, r.offset, f.size);
        // Blocks were counted by a bound: nobody would check or copy what is longer.
        const uint64_t counted = (h.rows == 1 ? h.header_size : 0) + payload;
        if (counted > frame_tile * chunks(a, first + i)) fail_frame(state, DR_E_CORRUPT, r.offset, payload);
      });
      offset += all;
    }
  }

  // Blocks for the row at `at`.
  DR_HD static uint64_t chunks(const args& a, uint64_t at) {
    const uint64_t end = at + 1 < uint64_t{a.frame_count} * a.shape.rows ? a.place[at + 1].first_tile : a.tiles;
    return end - a.place[at].first_tile;
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
      if (lane == 0 && check != state.check) fail_frame(state, DR_E_CORRUPT, frame_check_at, check);
    });
  }

  // Four bytes of a frame, those of its check read as 0.
  DR_HD static uint32_t frame_word(const unpack_frame& f, uint64_t at) {
    return at == 4 || at == 8 ? 0 : *reinterpret_cast<const uint32_t*>(f.data + at);
  }

  template <class Block>
  DR_HD static void fail_rows(Block& b, const args& a, uint64_t first, const unpack_state& state) {
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < a.shape.rows; i += lanes)
        raise(&a.rows[first + i].fault, state.fault.code, DR_STREAM_NONE, state.fault.where, state.fault.what);
    });
  }
};

// Payloads: one chunk of the check a block, summed and copied in the same read.
struct unpack_frames {
  static constexpr const char* name = "unpack_frames";
  static constexpr unsigned lanes = frame_lanes, grid_phases = 1;
  using args = unpack_args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const uint32_t n = a.shape.rows * a.frame_count;
    typename Block::template each<uint32_t> before;
    b.phase([&](unsigned lane) {
      before[lane] = 0;
      for (uint32_t i = lane; i < n; i += lanes) before[lane] += a.place[i].first_tile <= b.index();
    });
    const uint32_t row = b.sum(before) - 1;
    const unpack_row& d = a.place[row];
    unpack_state& state = a.state[d.frame];
    if (b.template once<uint32_t>([&] { return state.fault.code == DR_OK; })) copy_chunk(b, a, row, d, state);
    const uint32_t frame_first = d.frame * a.shape.rows, frame_end = frame_first + a.shape.rows;
    const uint32_t end = frame_end < n ? a.place[frame_end].first_tile : a.tiles;
    if (last_of(b, &state.done, end - a.place[frame_first].first_tile)) compare(b, a, frame_first, state);
  }

  template <class Block>
  DR_HD static void copy_chunk(Block& b, const args& a, uint32_t row, const unpack_row& d, unpack_state& state) {
    const device_row& r = a.rows[row];
    const unpack_frame& f = a.frames[d.frame];
    const bool lone = a.shape.rows == 1;
    const uint64_t skipped = lone ? state.header_size : 0;
    const uint64_t payload = r.size[0] + r.size[1] + r.size[2];
    const uint64_t chunk = b.index() - d.first_tile, begin = chunk * frame_tile,
                   end = skipped + ((payload + 3) & ~uint64_t{3});
    if (begin >= end) return;
    const uint64_t base = r.offset - skipped;  // in the frame, of position 0
    const uint64_t words = (end - begin < frame_tile ? end - begin : frame_tile) / 4;
    const uint64_t term =
        chunk_term(b, words, chunk, [&](uint64_t i) { return judge_frames::frame_word(f, base + begin + 4 * i); });
    b.phase([&](unsigned lane) {
      if (lane == 0) {
        atomic_add(&a.result[row].seen, term);
        // Padding is zero: at most three bytes, in the last word.
        if (end - begin <= frame_tile)
          for (uint64_t at = skipped + payload; at < end; ++at)
            if (f.data[base + at]) fail_frame(state, DR_E_CORRUPT, base + at, f.data[base + at]);
      }
      uint64_t section = skipped;
      for (unsigned s = 0; s < 3; ++s) {
        copy_section(a, r, d, f.data + r.offset, section - skipped, s, begin > section ? begin - section : 0,
                     begin + frame_tile > section ? begin + frame_tile - section : 0, lane);
        section += r.size[s];
      }
    });
  }

  // Words of section s, which begins at `at` of the payload, whose first byte is in [from, to) of the section.
  DR_HD static void copy_section(const args&, const device_row& r, const unpack_row& d, const uint8_t* payload,
                                 uint64_t at, unsigned s, uint64_t from, uint64_t to, unsigned lane) {
    const bool raw = s == section_index && r.mode == mode_raw_index;
    const uint64_t capacity = raw ? uint64_t{4} * d.support_max : d.capacity[s];
    uint64_t end = r.size[s] < to ? r.size[s] : to;
    if (end > capacity) end = capacity;
    auto* const out = reinterpret_cast<uint32_t*>(raw ? d.support : d.slot[s]);
    for (uint64_t k = ceil_div(from, 4) + lane; 4 * k < end; k += lanes) {
      // Never a word that holds no byte of the section: it may lie behind the frame.
      const uint64_t left = r.size[s] - 4 * k, byte = at + 4 * k;
      const auto* const words = reinterpret_cast<const uint32_t*>(payload) + byte / 4;
      const unsigned shift = 8 * (byte % 4);
      uint32_t word = words[0] >> shift;
      if (shift && left > 4 - byte % 4) word |= words[1] << (32 - shift);
      out[k] = first_bytes(word, left);
    }
    // Codecs read by vectors, and look at a word behind.
    if (r.size[s] == 0 || r.size[s] > to || r.size[s] < from || r.size[s] > capacity) return;
    for (uint64_t k = ceil_div(r.size[s], 4) + lane; k < ceil_div(r.size[s], 16) * 4 + 4; k += lanes) out[k] = 0;
  }

  // All chunks of a frame are summed: do they give what it says?
  template <class Block>
  DR_HD static void compare(Block& b, const args& a, uint32_t first, unpack_state& state) {
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < a.shape.rows; i += lanes) {
        const unpack_result& x = a.result[first + i];
        const uint64_t stored = a.shape.rows == 1 ? state.check : x.check;
        if (x.seen != stored) fail_frame(state, DR_E_CORRUPT, a.rows[first + i].offset, x.seen);
      }
    });
    if (b.template once<uint32_t>([&] { return state.fault.code != DR_OK; }))
      judge_frames::fail_rows(b, a, first, state);
  }
};

// What came of a decode: of the first frame that is not sound, the fault of the frame, or of its first row that is not.
struct tell_decoded {
  static constexpr const char* name = "tell_decoded";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const device_row* rows;
    const unpack_state* frames;
    dr_result* result;
    uint32_t frame_count, rows_a_frame;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    typename Block::template each<uint64_t> bad;  // a place for each frame, in front of those of its rows
    const uint64_t places = uint64_t{1} + a.rows_a_frame, n = places * a.frame_count;
    b.phase([&](unsigned lane) {
      bad[lane] = n;
      for (uint64_t i = lane; i < n; i += lanes)
        if (i < bad[lane] && fault_at(a, i).code != DR_OK) bad[lane] = i;
    });
    const uint64_t first = b.min(bad);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      const bool failed = first < n;
      set_result(a.result, failed ? fault_at(a, first) : dr_fault{}, 0,
                 failed && first % places ? first % places - 1 : no_tensor, failed ? first / places : no_frame);
    });
  }

  DR_HD static const dr_fault& fault_at(const args& a, uint64_t i) {
    const uint64_t frame = i / (uint64_t{1} + a.rows_a_frame), row = i % (uint64_t{1} + a.rows_a_frame);
    return row == 0 ? a.frames[frame].fault : a.rows[frame * a.rows_a_frame + row - 1].fault;
  }
};

}  // namespace dr
