// value=uniform_quant on a GPU: decode. A block of lanes reads the head of a payload; then each decodes 4096 values.
#pragma once

#include "codecs/family/levels/table_decode_tile.hpp"
#include "codecs/value/uniform_quant/uniform_quant_tile.hpp"

namespace dr {

// What a payload's head says, in a job's scratch; positions of bodies come behind it.
struct uniform_quant_source {
  uint32_t raw, base, step, reserved;  // raw: the payload has the values; floats' bits
  table_source levels;

  static constexpr uint64_t size_of(uint64_t n) { return sizeof(uniform_quant_source) + table_starts_size(n); }
  DR_HD uint64_t* starts() { return reinterpret_cast<uint64_t*>(this + 1); }
};
static_assert(sizeof(uniform_quant_source) % 8 == 0);

template <class Args>
struct uniform_quant_open {
  static constexpr const char* name = "uniform_quant_open";
  static constexpr unsigned lanes = uniform_quant_lanes, grid_phases = 1;
  using args = Args;
  using shared = table_open_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint8_t* const in = input_of(job);
    // (One lane reads it for all: a kernel beside this one may raise the row's fault.)
    const uint64_t n = b.template once<uint64_t>([&] { return live_count(job) * job.width; }), size = *job.in_size;
    const unsigned unit = value_size(a.common.dtype);
    auto& to = *reinterpret_cast<uniform_quant_source*>(a.common.of(job));
    if (n == 0) {
      b.phase([&](unsigned lane) {
        if (lane == 0 && job.fault->code == DR_OK) *job.out_size = 0;
      });
      return;
    }
    const uint64_t from = b.template once<uint64_t>([&]() -> uint64_t {
      if (size == 0 || in[0] > 1) return 0;
      to.raw = in[0] == 0;
      to.levels.huffman = 0;
      if (to.raw) return size == 1 + n * unit ? 1 : 0;
      const uint64_t behind = uniform_quant_head + ceil_div(n, 8);
      if (size < behind || !padding_is_zero(in + uniform_quant_head, n)) return 0;
      to.base = load_u16(in + 1) | load_u16(in + 3) << 16;
      to.step = load_u16(in + 5) | load_u16(in + 7) << 16;
      return to.base >= f32_type::infinity || to.step >= f32_type::infinity ? 0 : behind;
    });
    bool sound = from != 0;
    if (sound && in[0] != 0) {
      uint64_t* const starts = to.starts();
      sound = open_table(b, s, in, from, size, n, 0, false, to.levels, starts);
    }
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      if (sound)
        *job.out_size = n * unit;
      else
        raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, from, size);
    });
  }
};

template <class Args>
struct uniform_quant_decode {
  static constexpr const char* name = "uniform_quant_decode";
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
    auto& source = *reinterpret_cast<uniform_quant_source*>(a.common.of(job));
    const uint8_t* const in = input_of(job);
    const uint32_t dtype = a.common.dtype;
    const unsigned unit = value_size(dtype);
    if (source.raw) return copy(b, job, in + 1 + begin * unit, dtype, begin, length, nullptr);
    const uint64_t size = *job.in_size, entries = uniform_quant_head + ceil_div(n, 8);
    const level_place place =
        level_place::of(in, size, entries, source.levels, source.starts(), block, level_blocks(n));
    const uint8_t* const signs = in + uniform_quant_head + begin / 8;
    const auto corrupt = [&] {
      b.phase([&](unsigned lane) {
        if (lane == 0) raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, place.at, begin);
      });
    };
    if (!place.sound) return corrupt();
    if (place.code == raw_block) {
      if (place.size != length * unit) return corrupt();
      return copy(b, job, in + place.at, dtype, begin, length, signs);
    }
    if (!decode_levels(b, s, in, place, length)) return corrupt();
    const auto base = std::bit_cast<float>(source.base), step = std::bit_cast<float>(source.step);
    b.phase([&](unsigned lane) {
      with_value_type(dtype, [&](auto type) {
        using T = decltype(type);
        for (uint32_t i = lane; i < length; i += lanes) {
          const auto m = rounded_finite<T>(uniform_quant_value(base, step, s.level[i]));
          static_cast<typename T::bits*>(job.out)[begin + i] =
              static_cast<typename T::bits>(m | (signs[i / 8] >> (i % 8) & 1u ? minus_zero<T> : 0u));
        }
      });
    });
  }

 private:
  // Values as they are or, with signs, magnitudes.
  template <class Block>
  DR_HD static void copy(Block& b, const tile_job& job, const uint8_t* const& from, const uint32_t& dtype,
                         const uint64_t& begin, const uint32_t& length, const uint8_t* const& signs) {
    const unsigned unit = value_size(dtype), top = 8 * unit - 1;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < length; i += lanes) {
        uint32_t bits = 0;
        for (unsigned k = 0; k < unit; ++k) bits |= uint32_t{from[i * unit + k]} << (8 * k);
        const uint32_t infinity = with_value_type(dtype, [](auto type) { return uint32_t{decltype(type)::infinity}; });
        const uint32_t judged = signs ? bits : bits & ~(1u << top);  // (a magnitude has no sign)
        if (judged >= infinity) return raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, begin + i, bits);
        const uint32_t negative = signs ? signs[i / 8] >> (i % 8) & 1u : 0u;
        store_bits(dtype, job.out, begin + i, bits | negative << top);
      }
    });
  }
};

}  // namespace dr
