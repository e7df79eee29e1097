// Payloads of a codec whose levels are a table, on a GPU: a block of lanes reads the head, then each decodes 4096 values.
#pragma once

#include <cstdint>

#include "codecs/family/levels/table_decode_tile.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// What a payload's head says, in a job's scratch; positions of bodies come behind it.
struct table_values_source {
  uint32_t raw, count;                 // raw: the payload has the values; count: of levels
  uint64_t signs;                      // where they are
  uint32_t numbers[table_levels_max];  // values' bits without sign
  table_source levels;

  static constexpr uint64_t size_of(uint64_t n) { return sizeof(table_values_source) + table_starts_size(n); }
  DR_HD uint64_t* starts() { return reinterpret_cast<uint64_t*>(this + 1); }
  // A level's number, rounded to the type.
  DR_HD void put(uint32_t dtype, unsigned level, float number) {
    numbers[level] =
        with_value_type(dtype, [&](auto type) { return uint32_t{rounded_finite<decltype(type)>(number)}; });
  }
};
static_assert(sizeof(table_values_source) % 8 == 0);

// Of a head: where coded levels begin, 0 if it is corrupt.
struct table_head {
  uint64_t from;
  uint32_t count, huffman;
};

// head(in, size, n, source), which one lane calls for a payload that is not raw: sets numbers and the place of signs.
template <class Block, class Args, class Head>
DR_HD void open_table_values(Block& b, table_open_shared& s, const Args& a, Head&& head) {
  const tile_job& job = job_of_tile(a, b.index());
  const uint8_t* const in = input_of(job);
  // (One lane reads it for all: a kernel beside this one may raise the row's fault.)
  const uint64_t n = b.template once<uint64_t>([&] { return live_count(job) * job.width; }), size = *job.in_size;
  const unsigned unit = value_size(a.common.dtype);
  auto& to = *reinterpret_cast<table_values_source*>(a.common.of(job));
  if (n == 0) {
    b.phase([&](unsigned lane) {
      if (lane == 0 && job.fault->code == DR_OK) *job.out_size = 0;
    });
    return;
  }
  const table_head known = b.template once<table_head>([&]() -> table_head {
    if (size == 0) return {0, 0, 0};
    to.raw = in[0] == 0;
    if (to.raw) return {size == 1 + n * unit, 0, 0};
    const table_head h = head(in, size, n, to);
    if (h.from == 0 || !padding_is_zero(in + to.signs, n)) return {0, 0, 0};
    to.count = h.count;
    to.levels.huffman = h.huffman;
    return h;
  });
  bool sound = known.from != 0;
  if (sound && in[0] != 0) {
    uint64_t* const starts = to.starts();
    const bool huffman = known.huffman;
    sound = open_table(b, s, in, known.from, size, n, known.count, huffman, to.levels, starts);
  }
  b.phase([&](unsigned lane) {
    if (lane != 0) return;
    if (sound)
      *job.out_size = n * unit;
    else
      raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, known.from, size);
  });
}

// Values from byte 1 of a raw payload on.
template <class Block>
DR_HD void copy_table_values(Block& b, const tile_job& job, const uint8_t* const& in, const uint32_t& dtype,
                             const uint64_t& begin, const uint32_t& length) {
  const unsigned unit = value_size(dtype);
  b.phase([&](unsigned lane) {
    for (uint32_t i = lane; i < length; i += Block::lanes) {
      const uint64_t at = 1 + (begin + i) * unit;
      uint32_t bits = 0;
      for (unsigned k = 0; k < unit; ++k) bits |= uint32_t{in[at + k]} << (8 * k);
      const bool finite = with_value_type(dtype, [&](auto type) {
        return is_finite<decltype(type)>(static_cast<typename decltype(type)::bits>(bits));
      });
      if (!finite) return raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, at, bits);
      store_bits(dtype, job.out, begin + i, bits);
    }
  });
}

// A block of the payload that open_table_values has read.
template <class Block, class Args>
DR_HD void decode_table_values(Block& b, level_decode_shared& s, const Args& a) {
  const tile_job& job = job_of_tile(a, b.index());
  const uint32_t block = b.index() - job.first_tile;
  // Another block of this job may raise a fault meanwhile: all lanes use one lane's view.
  const uint64_t n = b.template once<uint64_t>([&] { return live_count(job) * job.width; });
  const uint64_t begin = uint64_t{block} * level_block, rest = n > begin ? n - begin : 0;
  if (rest == 0) return;
  const auto length = static_cast<uint32_t>(rest < level_block ? rest : level_block);
  auto& source = *reinterpret_cast<table_values_source*>(a.common.of(job));
  const uint8_t* const in = input_of(job);
  const uint32_t dtype = a.common.dtype;
  if (source.raw) return copy_table_values(b, job, in, dtype, begin, length);
  const uint64_t size = *job.in_size, from = source.signs + ceil_div(n, 8), blocks = level_blocks(n);
  const uint32_t count = source.count;
  const uint64_t entries = from + (source.levels.huffman ? (count + 1) / 2 : 0);
  const level_place place = level_place::of(in, size, entries, source.levels, source.starts(), block, blocks);
  if (!decode_table_block(b, s, in, place, source.levels, length, count)) {
    b.phase([&](unsigned lane) {
      if (lane == 0) raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, from, begin);
    });
    return;
  }
  const uint32_t sign_bit = dtype == DR_F32 ? 31 : 15;
  b.phase([&](unsigned lane) {
    for (uint32_t i = lane; i < length; i += Block::lanes) {
      const uint32_t negative = in[source.signs + (begin + i) / 8] >> (i % 8) & 1u;
      store_bits(dtype, job.out, begin + i, source.numbers[s.level[i] % table_levels_max] | negative << sign_bit);
    }
  });
}

}  // namespace dr
