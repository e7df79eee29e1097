// value=log_quant on a GPU: decode. A block of lanes reads the head of a payload; then each decodes 4096 values.
#pragma once

#include "codecs/family/levels/table_decode_tile.hpp"
#include "codecs/value/log_quant/log_quant_tile.hpp"

namespace dr {

// What a payload's head says, in a job's scratch; positions of bodies come behind it.
struct log_quant_source {
  uint32_t raw, count;                 // raw: the payload has the values; count: of levels
  uint64_t signs;                      // where they are
  uint32_t numbers[table_levels_max];  // values' bits without sign
  table_source levels;

  static constexpr uint64_t size_of(uint64_t n) { return sizeof(log_quant_source) + table_starts_size(n); }
  DR_HD uint64_t* starts() { return reinterpret_cast<uint64_t*>(this + 1); }
};
static_assert(sizeof(log_quant_source) % 8 == 0);

template <class Args>
struct log_quant_open {
  static constexpr const char* name = "log_quant_open";
  static constexpr unsigned lanes = log_quant_lanes, grid_phases = 1;
  using args = Args;
  using shared = table_open_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const auto* const in = static_cast<const uint8_t*>(job.in);
    const uint64_t n = live_count(job) * job.width, size = *job.in_size;
    const unsigned unit = value_size(a.common.dtype);
    auto& to = *reinterpret_cast<log_quant_source*>(a.common.of(job));
    if (n == 0) {
      b.phase([&](unsigned lane) {
        if (lane == 0 && job.fault->code == DR_OK) *job.out_size = 0;
      });
      return;
    }
    const uint64_t from = head(b, a.common.dtype, in, size, n, to);
    bool sound = from != 0;
    if (sound && in[0] != 0) {
      const uint32_t count = 1u << (in[0] >> log_bits_shift);
      const bool huffman = in[0] & log_huffman_bit;
      uint64_t* const starts = to.starts();
      sound = open_table(b, s, in, from, size, n, count, huffman, to.levels, starts);
    }
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      if (sound)
        *job.out_size = n * unit;
      else
        raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, from, size);
    });
  }

 private:
  // Where coded levels begin, or 1 of raw values; 0 if the head is corrupt.
  template <class Block>
  DR_HD static uint64_t head(Block& b, const uint32_t& dtype, const uint8_t* const& in, const uint64_t& size,
                             const uint64_t& n, log_quant_source& to) {
    return b.template once<uint64_t>([&]() -> uint64_t {
      if (size == 0) return 0;
      const unsigned kind = in[0], bits = kind >> log_bits_shift;
      to.raw = kind == 0;
      if (kind == 0) return size == 1 + n * value_size(dtype) ? 1 : 0;
      const bool apart = kind & log_lowest_bit;
      const uint64_t signs = log_head + 4 * apart, from = signs + ceil_div(n, 8);
      if (!(kind & 1) || bits < 1 || bits > log_bits_max || size < from) return 0;
      const auto word = [&](unsigned at) {
        return uint32_t{in[at]} | uint32_t{in[at + 1]} << 8 | uint32_t{in[at + 2]} << 16 | uint32_t{in[at + 3]} << 24;
      };
      const uint32_t low = word(1), high = word(5), lowest = apart ? word(9) : 0;
      if (high >= f32_type::infinity || low > high || (low == 0 && high != 0) || lowest >= f32_type::infinity) return 0;
      if (!padding_is_zero(in + signs, n)) return 0;
      to.signs = signs;
      to.count = 1u << bits;
      const auto put = [&](unsigned i, float number) {
        to.numbers[i] =
            with_value_type(dtype, [&](auto type) { return uint32_t{rounded_finite<decltype(type)>(number)}; });
      };
      each_log_level(std::bit_cast<float>(low), std::bit_cast<float>(high), bits,
                     [&](unsigned i, float number, float) { put(i, number); });
      if (apart) put(0, std::bit_cast<float>(lowest));
      to.levels.huffman = (kind & log_huffman_bit) != 0;
      return from;
    });
  }
};

template <class Args>
struct log_quant_decode {
  static constexpr const char* name = "log_quant_decode";
  static constexpr unsigned lanes = level_decode_lanes, grid_phases = 1;
  using args = Args;
  using shared = level_decode_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint32_t block = b.index() - job.first_tile;
    // Another block of this job may raise a fault meanwhile: all lanes use one lane's view.
    const uint64_t n = b.template once<uint64_t>([&] { return live_count(job) * job.width; });
    const uint64_t begin = uint64_t{block} * level_block, rest = n > begin ? n - begin : 0;
    if (rest == 0) return;
    const auto length = static_cast<uint32_t>(rest < level_block ? rest : level_block);
    auto& source = *reinterpret_cast<log_quant_source*>(a.common.of(job));
    const auto* const in = static_cast<const uint8_t*>(job.in);
    const uint32_t dtype = a.common.dtype;
    if (source.raw) {
      copy(b, job, in, dtype, begin, length);
      return;
    }
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
      for (uint32_t i = lane; i < length; i += lanes) {
        const uint32_t negative = in[source.signs + (begin + i) / 8] >> (i % 8) & 1u;
        store_bits(dtype, job.out, begin + i, source.numbers[s.level[i] % table_levels_max] | negative << sign_bit);
      }
    });
  }

 private:
  // Values from byte 1 of the payload on.
  template <class Block>
  DR_HD static void copy(Block& b, const tile_job& job, const uint8_t* const& in, const uint32_t& dtype,
                         const uint64_t& begin, const uint32_t& length) {
    const unsigned unit = value_size(dtype);
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < length; i += lanes) {
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
};

}  // namespace dr
