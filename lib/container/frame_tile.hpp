// Frames on a GPU: packing slots into a frame, and what its reader needs, too (FORMAT.md is normative).
#pragma once

#include <cstdint>

#include "container/frame_kernel.hpp"
#include "primitive/ascending.hpp"
#include "primitive/bits.hpp"
#include "primitive/block.hpp"
#include "primitive/check.hpp"
#include "primitive/device_row.hpp"
#include "primitive/flat_table.hpp"
#include "primitive/lookback.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/unlisted.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr unsigned frame_lanes = 256;
inline constexpr uint64_t frame_tile = 4 * check_chunk_words;  // a block makes or reads one chunk of the check

// The part of a header that follows from bounds.
struct header_shape {
  uint64_t header_size;
  uint32_t rows, head_size;  // head: the bytes before the columns; of a short header, all of it
  uint32_t short_at;         // of a short header: the offset of support and sizes
  uint8_t short_width, width[frame_columns];
  uint8_t short_form, has_tag, reserved[2];

  // The offset of column c: the table of checks, if there is one, precedes the first.
  DR_HD uint64_t column(unsigned c) const {
    uint64_t at = head_size + (rows == 1 ? 0 : uint64_t{8} * rows);
    for (unsigned i = 0; i < c; ++i) at += uint64_t{width[i]} * rows;
    return at;
  }
  // Chunks of the check that hold bytes of the header.
  DR_HD uint32_t header_chunks() const { return static_cast<uint32_t>(ceil_div(header_size, frame_tile)); }
};

// Of a row that may be unlisted (device_row): what it was selected from.
struct unlisted_source {
  const void* values;  // of a bucket: its flat_table
  uint32_t low;        // the smallest selected magnitude
  uint32_t sums;       // 1: the sums of feedback, in f32
};
static_assert(sizeof(unlisted_source) == 16);

// A row to be packed into a frame. Slots are 16-byte aligned.
struct pack_row {
  const uint8_t* slot[3];
  const uint32_t* support;   // the sparsifier's selection (NULL: all elements that are not zero, `selected` has all),
  const uint8_t* selected;   // with its values: of dense rows, and of raw keys
  const uint32_t* reported;  // the support that decode will return (NULL: all elements),
  const uint8_t* sent;       // with its values; of a patch the whole tensor, which a dense row is
  uint32_t universe, width;
  uint32_t first_tile;                // of the launch
  uint32_t unlisted;                  // of a row that may be: the offset of its unlisted_source from this struct, / 16
  uint16_t plan : 15, continues : 1;  // continues: the tensor of the row before
  uint8_t dtype, flags;               // row_flag bits, and pack_bucket
  uint32_t tensor;                    // of a bucket: the offset of its flat_table from the first pack_row, / 16
};
static_assert(sizeof(pack_row) == 80);
inline constexpr uint8_t pack_bucket = 1 << 7;

// Σ over blocks, for one frame; zero when a call begins.
struct pack_state {
  uint32_t done, failed, unfinite;  // unfinite: the remainder of a sent value is not finite
};

DR_HD inline bool is_faulty(const device_row& r) { return r.fault.code != DR_OK; }

// A row whose streams exceed the dense row is sent dense, and one that is not listed; so is a segment of a tensor that is
// not listed, even if nothing is selected in it: its mode says so before.
DR_HD inline row_columns place_row(const device_row& r, const pack_row& d) {
  row_columns p{};
  p.universe = d.universe;
  p.count = r.unlisted ? r.unlisted : r.count;
  const bool unlisted = r.unlisted || r.mode == mode_dense;
  if (is_faulty(r) || (p.count == 0 && !unlisted)) return p;
  const uint64_t dense = uint64_t{d.universe} * d.width * value_size(d.dtype);
  p.mode = r.mode;
  p.support = r.support_count;
  for (unsigned s = 0; s < section_count; ++s) p.size[s] = d.flags & row_lists_section << s ? r.size[s] : 0;
  if (p.mode == mode_raw_index) p.size[section_index] = raw_index_size(r.count);
  if (unlisted || p.payload() > dense) p = {mode_dense, d.universe, p.count, d.universe, {dense, 0, 0}};
  return p;
}

DR_HD inline uint32_t first_bytes(uint32_t word, uint64_t n) { return n >= 4 ? word : word & ((1u << (8 * n)) - 1); }
// Four bytes at any position of 16-byte aligned memory. Bytes after the next `left` are not read, because they may be
// uninitialised, and are zero in the result.
DR_HD inline uint32_t word_at(const uint8_t* from, uint64_t at, uint64_t left) {
  const unsigned shift = 8 * (at % 4);
  if (left < (shift ? 8 : 4)) {
    uint32_t word = 0;
    for (uint64_t i = 0; i < 4 && i < left; ++i) word |= uint32_t{from[at + i]} << (8 * i);
    return word;
  }
  const auto* words = reinterpret_cast<const uint32_t*>(from) + at / 4;
  return shift ? words[0] >> shift | words[1] << (32 - shift) : words[0];
}

// Whether row i of one that is sent whole was not selected.
DR_HD inline bool is_zero_row(const pack_row& d, uint64_t i) {
  const uint32_t sign = d.dtype == DR_F32 ? 31 : 15;
  for (uint32_t w = 0; w < d.width; ++w)
    if (load_bits(d.dtype, d.selected, i * d.width + w) & ~(1u << sign)) return false;
  return true;
}

// Element i of an unlisted row: +0 where nothing was selected. (Inlined, it takes registers of pack_frame's fast path, which
// then spills.)
[[gnu::noinline]] DR_HD inline uint32_t unlisted_bits(const pack_row& d, uint32_t i) {
  const auto& from =
      *reinterpret_cast<const unlisted_source*>(reinterpret_cast<const uint8_t*>(&d) + uint64_t{16} * d.unlisted);
  const void* values = from.values;
  if (d.flags & pack_bucket) {
    const flat_piece& p = static_cast<const flat_table*>(values)->at(i);
    values = from.sums ? p.residual : p.values;
    i -= p.first;
  }
  const uint32_t bits =
      from.sums ? bits_of_sum(d.dtype, static_cast<const float*>(values)[i]) : load_bits(d.dtype, values, i);
  return bits_from(d.dtype, bits, from.low);
}

// Four bytes of a dense row: +0 where nothing was selected; of a patch the tensor's. It searches, because dense rows are
// rare.
DR_HD inline uint32_t dense_word(const device_row& r, const pack_row& d, uint64_t at, bool patch) {
  const uint32_t size = value_size(d.dtype);
  uint32_t word = 0;
  for (uint32_t part = 0; part < 4; part += size) {
    const uint64_t i = (at + part) / size;
    if (i >= uint64_t{d.universe} * d.width) break;
    if (patch) {
      word |= load_bits(d.dtype, d.sent, i) << (8 * part);
      continue;
    }
    if (r.unlisted) {  // of width 1
      word |= unlisted_bits(d, static_cast<uint32_t>(i)) << (8 * part);
      continue;
    }
    uint64_t k = i / d.width;
    if (!d.support) {
      if (is_zero_row(d, k)) continue;
    } else {
      k = lower_bound(d.support, r.count, i / d.width);
      if (k == r.count || d.support[k] != i / d.width) continue;
    }
    word |= load_bits(d.dtype, d.selected, k * d.width + i % d.width) << (8 * part);
  }
  return word;
}

// Four bytes of a row's sections: value, order, index and zeros, without gaps.
DR_HD inline uint32_t payload_word(const device_row& r, const pack_row& d, const row_columns& p, uint64_t at,
                                   bool patch) {
  if (p.mode == mode_dense) return dense_word(r, d, at, patch);
  uint32_t word = 0;
  uint64_t begin = 0;
  for (unsigned s = 0; s < 3; ++s) {
    const uint64_t end = begin + p.size[s];
    if (p.size[s] && at < end && at + 4 > begin) {
      const bool raw = is_raw_index(p.mode, s);
      const uint8_t* const from = raw ? reinterpret_cast<const uint8_t*>(d.support) : d.slot[s];
      if (at >= begin)
        word |= word_at(from, at - begin, end - at);
      else
        word |= word_at(from, 0, p.size[s]) << (8 * (begin - at));
    }
    begin = end;
  }
  return word;
}

DR_HD inline void put_bytes(uint8_t* to, uint64_t x, unsigned bytes) {
  for (unsigned i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(x >> (8 * i));
}
DR_HD inline uint64_t get_bytes(const uint8_t* from, unsigned bytes) {
  uint64_t x = 0;
  for (unsigned i = 0; i < bytes; ++i) x |= uint64_t{from[i]} << (8 * i);
  return x;
}

// Sums a chunk of the check, whose words are word(i), over all lanes; returns its term. A lane issues all its loads at
// once; then(lane) is called after them.
template <class Block, class F, class Then>
DR_HD uint64_t chunk_term(Block& b, uint64_t words, uint64_t chunk, F&& word, Then&& then) {
  typename Block::template each<uint64_t> sum;
  constexpr unsigned per_lane = check_chunk_words / frame_lanes;
  b.phase([&](unsigned lane) {
    uint32_t x[per_lane];
#pragma unroll
    for (unsigned k = 0; k < per_lane; ++k) {
      const uint64_t i = k * frame_lanes + lane;
      x[k] = i < words ? word(i) : 0;
    }
    sum[lane] = 0;
#pragma unroll
    for (unsigned k = 0; k < per_lane; ++k) {
      const uint32_t i = k * frame_lanes + lane;
      if (i < words) sum[lane] += (uint64_t{x[k]} + 1) * check_factor(i);
    }
    then(lane);
  });
  return mix64(b.sum(sum) + chunk * golden);
}
template <class Block, class F>
DR_HD uint64_t chunk_term(Block& b, uint64_t words, uint64_t chunk, F&& word) {
  return chunk_term(b, words, chunk, word, [](unsigned) {});
}

// The sums over all rows that a block of pack_frame needs.
struct pack_totals {
  uint64_t rows, bytes;  // before the block's row
  uint64_t all, faulty;  // bytes of all; rows
  DR_HD friend pack_totals operator+(const pack_totals& a, const pack_totals& b) {
    return {a.rows + b.rows, a.bytes + b.bytes, a.all + b.all, a.faulty + b.faulty};
  }
};

// ---- Pack -------------------------------------------------------------------------------------------------

// Copies the payloads of all rows into the frame, one chunk per block; the last block writes the header, the checks and
// the result.
struct pack_frame {
  static constexpr const char* name = "pack_frame";
  static constexpr unsigned lanes = frame_lanes, grid_phases = 1;
  struct args {
    device_row* rows;
    const pack_row* place;  // one more than rows: its first_tile is the end of the last
    const uint8_t* head;    // with zeros in fields that depend on data
    pack_state* state;
    uint64_t* check;          // a row; zero when the call begins
    const uint64_t* patched;  // of patches: the checks of base and result of every row; otherwise NULL
    uint8_t* frame;           // 16-byte aligned
    uint64_t capacity;
    dr_result* result;  // or NULL
    uint64_t tag;
    const uint64_t* step;  // or NULL; is added to the tag
    header_shape shape;
    uint32_t status_frame;  // whether to write one if a row failed,
    char message[24];       // with this message

    DR_HD uint64_t prefix() const { return patched ? patch_checks_size : 0; }
    // Bytes of a row's payload in the frame.
    DR_HD uint64_t bytes_of(uint32_t row) const {
      return padded(prefix() + place_row(rows[row], place[row]).payload());
    }
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const pack_totals totals = add_up(b, a);
    // Without a frame its memory does not change.
    if (totals.faulty == 0 && a.shape.header_size + totals.all <= a.capacity) {
#pragma unroll 1
      for (uint32_t round = 0; place_payload(b, a, totals, round);) ++round;
    }
    if (last_of(b, &a.state->done, b.blocks())) seal(b, a, totals);
  }

  template <class Block>
  DR_HD static pack_totals add_up(Block& b, const args& a) {
    const uint32_t tile = b.index(), n = a.shape.rows;
    if (n == 1) return {0, 0, a.bytes_of(0), is_faulty(a.rows[0])};
    typename Block::template each<pack_totals> own;
    b.phase([&](unsigned lane) {
      pack_totals t{0, 0, 0, 0};
      for (uint32_t i = lane; i < n; i += lanes) {
        const uint64_t bytes = a.bytes_of(i);
        t.all += bytes;
        t.faulty += is_faulty(a.rows[i]);
        if (i + 1 == n || a.place[i + 1].first_tile > tile) continue;
        ++t.rows;
        t.bytes += bytes;
      }
      own[lane] = t;
    });
    return b.sum(own);
  }

  // Returns whether a further round may have something: a dense row may have more chunks than the launch has blocks for it.
  // (What a round needs is read again by the next: rows that are not dense have one, and want its registers.)
  template <class Block>
  DR_HD static bool place_payload(Block& b, const args& a, const pack_totals& totals, uint32_t round) {
    const uint32_t tile = b.index(), n = a.shape.rows;
    if (n == 0 || tile >= a.place[n].first_tile) return false;
    const device_row& r = a.rows[totals.rows];
    const pack_row& d = a.place[totals.rows];
    const row_columns p = place_row(r, d);
    // The chunks of a single row count from the frame's first byte, those of several rows from their own first byte.
    const uint64_t chunk = tile - d.first_tile + uint64_t{round} * (a.place[totals.rows + 1].first_tile - d.first_tile),
                   skipped = (n == 1 ? a.shape.header_size : 0) + a.prefix();
    const uint64_t end = skipped + padded(p.payload()), begin = chunk * frame_tile;
    if (begin >= end) return false;
    uint8_t* const to = a.frame + (n == 1 ? 0 : a.shape.header_size + totals.bytes);
    const bool has_header = n == 1 && chunk < a.shape.header_chunks();
    const uint64_t words = (end - begin < frame_tile ? end - begin : frame_tile) / 4;
    typename Block::template each<uint64_t> sum;
    b.phase([&](unsigned lane) {
      sum[lane] = put_words(r, d, p, to + begin, begin, skipped, words, a.patched != nullptr, lane);
    });
    if (a.patched)
      b.phase([&](unsigned lane) {
        sum[lane] += put_checks(a.patched + 2 * totals.rows, to, begin, skipped - patch_checks_size, lane);
      });
    const uint64_t term = mix64(b.sum(sum) + chunk * golden);
    const bool dense = p.mode == mode_dense;
    if (has_header) return dense;  // the last block sums this chunk, after it has written the header
    b.phase([&](unsigned lane) {
      if (lane == 0) atomic_add(a.check + totals.rows, term);
    });
    return dense;
  }

  // Writes a lane's word of the checks with which the payload of a patch begins, at `at` of the checked bytes; returns its
  // part of the check of the chunk from `begin` on.
  DR_HD static uint64_t put_checks(const uint64_t* checks, uint8_t* to, uint64_t begin, uint64_t at, unsigned lane) {
    at += 4 * lane;
    if (4 * lane >= patch_checks_size || at < begin || at - begin >= frame_tile) return 0;
    const auto word = static_cast<uint32_t>(checks[lane / 2] >> 32 * (lane % 2));
    *reinterpret_cast<uint32_t*>(to + at) = word;
    return uint64_t{word} * check_factor(static_cast<uint32_t>(at - begin) / 4);  // (put_words has counted zeros)
  }

  // Writes a lane's words of a chunk that begins at `begin` of the checked bytes, of which `skipped` precede the
  // sections; returns their part of the check. All loads are issued at once; words at the end of a section follow.
  DR_HD static uint64_t put_words(const device_row& r, const pack_row& d, const row_columns& p, uint8_t* to,
                                  uint64_t begin, uint64_t skipped, uint64_t words, bool patch, unsigned lane) {
    constexpr unsigned per_lane = check_chunk_words / lanes;
    uint32_t low[per_lane], high[per_lane], shift[per_lane], rest = 0;
    const uint64_t first = p.size[0], second = first + p.size[1], third = second + p.size[2];
#pragma unroll
    for (unsigned k = 0; k < per_lane; ++k) {
      const uint64_t at = begin + 4 * (k * lanes + lane), in = at - skipped;
      low[k] = high[k] = shift[k] = 0;
      if (k * lanes + lane >= words || at < skipped) continue;
      const unsigned s = in < first ? 0 : in < second ? 1 : 2;
      const uint64_t from = in - (s == 0   ? 0
                                  : s == 1 ? first
                                           : second),
                     left = (s == 0   ? first
                             : s == 1 ? second
                                      : third) -
                            in;
      const bool plain = p.mode != mode_dense && in < third && left >= 8;
      if (!plain) {
        rest |= 1u << k;
        continue;
      }
      const uint8_t* const section = is_raw_index(p.mode, s) ? reinterpret_cast<const uint8_t*>(d.support)
                                     : s == 0                ? d.slot[0]
                                     : s == 1                ? d.slot[1]
                                                             : d.slot[2];
      shift[k] = 8 * (from % 4);
      low[k] = reinterpret_cast<const uint32_t*>(section)[from / 4];
      high[k] = reinterpret_cast<const uint32_t*>(section)[from / 4 + (from % 4 != 0)];
    }
    uint64_t sum = 0;
    const auto put = [&](uint32_t i, uint32_t word) {
      if (begin + 4 * i >= skipped) reinterpret_cast<uint32_t*>(to)[i] = word;
      sum += (uint64_t{word} + 1) * check_factor(i);
    };
#pragma unroll
    for (unsigned k = 0; k < per_lane; ++k)
      if (k * lanes + lane < words && !(rest >> k & 1)) put(k * lanes + lane, funnel(low[k], high[k], shift[k]));
#pragma unroll 1
    for (; rest; rest &= rest - 1) {
      const uint32_t i = countr_zero(rest) * lanes + lane;
      put(i, payload_word(r, d, p, begin + 4 * i - skipped, patch));
    }
    return sum;
  }

  template <class Block>
  DR_HD static void seal(Block& b, const args& a, const pack_totals& totals) {
    const uint32_t n = a.shape.rows;
    if (totals.faulty) {
      typename Block::template each<uint32_t> bad;
      b.phase([&](unsigned lane) {
        bad[lane] = n;
        for (uint32_t i = lane; i < n; i += lanes)
          if (is_faulty(a.rows[i]) && i < bad[lane]) bad[lane] = i;
      });
      const uint32_t first = b.min(bad);
      uint64_t tensor = 0;
      const dr_fault fault = refined(a, first, tensor);
      return failed(b, a, fault, tensor);
    }
    const uint64_t total = a.shape.header_size + totals.all;
    if (total > a.capacity)
      return failed(b, a, {sizeof(dr_fault), DR_E_CAPACITY, DR_STREAM_NONE, total, a.capacity, nullptr}, no_tensor);
    write_header(b, a, total);
    b.phase([&](unsigned lane) {
      if (lane == 0) tell(a, dr_fault{}, no_tensor, total);
      // Feedback reads the mode of each row.
      for (uint32_t i = lane; i < n; i += lanes) a.rows[i].mode = place_row(a.rows[i], a.place[i]).mode;
    });
  }

  // Of the values that are not finite the first is reported, independent of timing; of a bucket, as one of its tensors.
  DR_HD static dr_fault refined(const args& a, uint32_t row, uint64_t& tensor) {
    const device_row& r = a.rows[row];
    const pack_row& d = a.place[row];
    const auto* const bucket =
        d.flags & pack_bucket
            ? reinterpret_cast<const flat_table*>(reinterpret_cast<const uint8_t*>(a.place) + uint64_t{16} * d.tensor)
            : nullptr;
    tensor = bucket ? bucket->first_tensor : d.tensor;
    dr_fault f = r.fault;
    f.message = nullptr;
    if (f.code != DR_E_ARGUMENT || r.not_finite == 0) return f;
    const uint64_t at = ~r.not_finite;
    if (f.stream == DR_STREAM_NONE && bucket && bucket->pieces) {
      tensor = bucket->at(static_cast<uint32_t>(at)).tensor;
      f.what = 0;
    }
    if (f.stream != DR_STREAM_VALUE || at / d.width >= r.support_count) return f;
    f.where = d.reported ? d.reported[at / d.width] : at / d.width;
    f.what = d.dtype == DR_F32 ? reinterpret_cast<const uint32_t*>(d.sent)[at]
                               : reinterpret_cast<const uint16_t*>(d.sent)[at];
    for (; a.place[row].continues; --row) f.where += a.place[row - 1].universe;
    if (!bucket) return f;
    const flat_piece& p = bucket->at(static_cast<uint32_t>(f.where));
    tensor = p.tensor;
    f.where -= p.first;
    return f;
  }

  DR_HD static uint64_t tag_of(const args& a) { return a.tag + (a.step ? *a.step : 0); }

  DR_HD static void tell(const args& a, const dr_fault& fault, uint64_t tensor, uint64_t size) {
    if (a.result) set_result(a.result, fault, size, tensor, no_frame);
  }

  template <class Block>
  DR_HD static void write_header(Block& b, const args& a, uint64_t total) {
    const header_shape& h = a.shape;
    b.phase([&](unsigned lane) {
      for (uint64_t i = lane; i < h.header_size; i += lanes) a.frame[i] = i < h.head_size ? a.head[i] : 0;
    });
    b.phase([&](unsigned lane) {
      if (a.step && h.has_tag && lane == 0) put_bytes(a.frame + frame_at::tag, tag_of(a), 8);
      for (uint32_t i = lane; i < h.rows; i += lanes) {
        const device_row& r = a.rows[i];
        const pack_row& d = a.place[i];
        const row_columns p = place_row(r, d);
        if (h.short_form) {
          a.frame[frame_at::flags] = static_cast<uint8_t>(a.head[frame_at::flags] | short_mode_flags(p.mode));
          put_bytes(a.frame + frame_at::count, p.count, h.short_width);
          uint8_t* at = a.frame + h.short_at;
          for (unsigned c = col_support; c < frame_columns; ++c) {
            if (!short_stores(d.flags, c)) continue;
            put_bytes(at, stored_column(p, d.flags, c), h.short_width);
            at += h.short_width;
          }
          continue;
        }
        if (h.rows != 1) put_bytes(a.frame + h.head_size + uint64_t{8} * i, a.check[i], 8);
        for (unsigned c = 0; c < frame_columns; ++c)
          put_bytes(a.frame + h.column(c) + uint64_t{h.width[c]} * i,
                    c == col_info ? row_info(p.mode, d.continues, d.plan) : stored_column(p, d.flags, c), h.width[c]);
      }
    });
    uint64_t check = h.rows == 1 ? a.check[0] : 0;
    const uint64_t end = h.rows == 1 ? total : h.header_size;
    for (uint32_t c = 0; c < h.header_chunks(); ++c) {
      const uint64_t begin = c * frame_tile, words = (end - begin < frame_tile ? end - begin : frame_tile) / 4;
      check +=
          chunk_term(b, words, c, [&](uint64_t i) { return reinterpret_cast<const uint32_t*>(a.frame + begin)[i]; });
    }
    b.phase([&](unsigned lane) {
      if (lane == 0) put_bytes(a.frame + frame_at::check, check, 8);
    });
  }

  // There is no frame; if requested, a status frame, which every decoder reports as DR_E_PEER.
  template <class Block>
  DR_HD static void failed(Block& b, const args& a, const dr_fault& fault, uint64_t tensor) {
    constexpr uint64_t length = sizeof a.message;
    const uint64_t size = padded(frame_head_size(a.shape.has_tag) + length);
    const bool writes = a.status_frame && a.capacity >= size;
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      a.state->failed = 1;
      if (writes)
        put_status_frame(static_cast<uint32_t>(fault.code), a.message, length, a.shape.has_tag, tag_of(a), a.frame);
      tell(a, fault, tensor, writes ? size : 0);
    });
  }
};

}  // namespace dr
