// From decoded rows to gradients on a GPU: supports and permutations judged, values put or added in the order of the frames.
#pragma once

#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t row_tile = 2048;    // elements of a row a block
inline constexpr uint32_t merge_tile = 4096;  // values of an output a block

// A decoded row. Uploaded once a call.
struct merge_row {
  const uint32_t* support;  // NULL in dense mode, as the row says
  const void* values;
  const void* dense;  // values of a row in dense mode
  const device_row* row;
  uint32_t universe, width;
  uint32_t told_max;
  uint32_t first_tile;  // of launches over rows
  float weight;
  uint8_t dtype, reserved[3];
};
static_assert(sizeof(merge_row) == 56);

// Where rows go: an output's part that one row of every frame covers.
struct merge_out {
  void* values;
  uint64_t elements;  // universe · width
  uint32_t first_tile;
  uint8_t dtype, reserved[3];
};

struct gate_state {
  uint32_t failed;  // some row of some frame is not sound
  uint32_t done;
};

DR_HD inline uint64_t rows_told(const merge_row& m) {
  return m.row->mode == 2 ? m.universe : m.row->told < m.told_max ? m.row->told : m.told_max;
}

template <class T>
DR_HD float number_at(const void* values, uint64_t i) {
  return T::to_f32(static_cast<const typename T::bits*>(values)[i]);
}
DR_HD inline float value_at(uint32_t dtype, const void* values, uint64_t i) {
  if (dtype == DR_F32) return number_at<f32_type>(values, i);
  if (dtype == DR_F16) return number_at<f16_type>(values, i);
  return number_at<bf16_type>(values, i);
}
DR_HD inline uint32_t bits_of(uint32_t dtype, float v) {
  if (dtype == DR_F32) return std::bit_cast<uint32_t>(v);
  return dtype == DR_F16 ? f16_type::from_f64(exact_f64(v)) : bf16_type::from_f64(exact_f64(v));
}
DR_HD inline void store_bits(uint32_t dtype, void* to, uint64_t i, uint32_t bits) {
  if (dtype == DR_F32)
    static_cast<uint32_t*>(to)[i] = bits;
  else
    static_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(bits);
}
DR_HD inline uint32_t load_bits(uint32_t dtype, const void* from, uint64_t i) {
  return dtype == DR_F32 ? static_cast<const uint32_t*>(from)[i] : static_cast<const uint16_t*>(from)[i];
}

template <class Block>
DR_HD uint32_t row_of_tile(Block& b, const merge_row* rows, uint32_t n, uint32_t tile) {
  typename Block::template each<uint32_t> before;
  b.phase([&](unsigned lane) {
    before[lane] = 0;
    for (uint32_t i = lane; i < n; i += Block::lanes) before[lane] += rows[i].first_tile <= tile;
  });
  return b.sum(before) - 1;
}

// Supports ascend below their universe, and no row has a fault; otherwise the gate closes, and nothing that follows writes.
struct judge_supports {
  static constexpr const char* name = "judge_supports";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const merge_row* rows;
    device_row* states;
    gate_state* gate;
    uint32_t n;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const uint32_t row = row_of_tile(b, a.rows, a.n, b.index());
    const merge_row& m = a.rows[row];
    device_row& r = a.states[row];
    const uint64_t told = r.mode == 2 ? 0 : rows_told(m), begin = uint64_t{b.index() - m.first_tile} * row_tile;
    b.phase([&](unsigned lane) {
      bool bad = lane == 0 && r.fault.code != DR_OK;
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= told) continue;
        const uint32_t x = m.support[i];
        if (x < m.universe && (i == 0 || m.support[i - 1] < x)) continue;
        raise(&r.fault, DR_E_CORRUPT, DR_STREAM_INDEX, i, x);
        bad = true;
      }
      if (bad) atomic_or(&a.gate->failed, 1u);
    });
  }
};

// in_order[order[k]] = values[k]; refuses what is no permutation. job.in: values, job.tell: order, job.out: in_order, job.extra: words of
// the zeroed bitmap in front of this job's, in scratch.
struct apply_order_common {
  uint32_t* seen;
  uint32_t value_size;
};
template <class Args>
struct apply_order {
  static constexpr const char* name = "apply_order";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * row_tile;
    const uint64_t n = b.template once<uint64_t>([&] { return live_count(job); });
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= n) continue;
        const uint32_t to = static_cast<const uint32_t*>(job.tell)[i];
        if (to >= n || atomic_or(a.common.seen + job.extra + to / 32, 1u << (to % 32)) >> (to % 32) & 1) {
          raise(job.fault, DR_E_CORRUPT, DR_STREAM_ORDER, i, to);
          continue;
        }
        if (a.common.value_size == 4)
          static_cast<uint32_t*>(job.out)[to] = static_cast<const uint32_t*>(job.in)[i];
        else
          static_cast<uint16_t*>(job.out)[to] = static_cast<const uint16_t*>(job.in)[i];
      }
    });
  }
};

// Keys that carry the order of the values: pairs to sort, and what they give. job.in: keys, job.tell: values; job.out: support, tell_count:
// the values in order (as a pointer).
struct sort_keys_common {
  uint64_t* keys;
  uint32_t* positions;
  uint32_t value_size;
};
template <class Args>
struct sort_keys {
  static constexpr const char* name = "sort_keys";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * row_tile, n = live_count(job);
    const uint64_t number = static_cast<uint64_t>(&job - a.job), first = job.extra;
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= job.count_max) continue;
        // Padding of a job sorts behind its keys, so a job stays where it is.
        a.common.keys[first + i] = number << 33 | (i < n ? static_cast<const uint32_t*>(job.in)[i] : uint64_t{1} << 32);
        a.common.positions[first + i] = static_cast<uint32_t>(i);
      }
    });
  }
};
template <class Args>
struct take_keys {
  static constexpr const char* name = "take_keys";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * row_tile, n = live_count(job), first = job.extra;
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= n) continue;
        static_cast<uint32_t*>(job.out)[i] = static_cast<uint32_t>(a.common.keys[first + i]);
        const uint32_t from = a.common.positions[first + i];
        if (a.common.value_size == 4)
          reinterpret_cast<uint32_t*>(job.tell_count)[i] = static_cast<const uint32_t*>(job.tell)[from];
        else
          reinterpret_cast<uint16_t*>(job.tell_count)[i] = static_cast<const uint16_t*>(job.tell)[from];
      }
    });
  }
};

// out[support[i]] += weight · value, in f32, rounded to the output's type: the rows of one frame, whose places are its own.
struct add_rows {
  static constexpr const char* name = "add_rows";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const merge_row* rows;
    const merge_out* outs;
    const gate_state* gate;
    uint32_t n;
    uint32_t tile_base;  // first_tile counts from here
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    if (a.gate->failed) return;
    const uint32_t tile = b.index() + a.tile_base, row = row_of_tile(b, a.rows, a.n, tile);
    const merge_row& m = a.rows[row];
    const merge_out& o = a.outs[row];
    const bool dense = m.row->mode == 2;
    const void* const values = dense ? m.dense : m.values;
    const uint64_t told = rows_told(m),
                   tiles = (row + 1 < a.n ? a.rows[row + 1].first_tile : b.blocks() + a.tile_base) - m.first_tile;
    b.phase([&](unsigned lane) {
      // A row in dense mode has more elements than its tiles were made for.
      for (uint64_t i = uint64_t{tile - m.first_tile} * lanes + lane; i < told; i += tiles * lanes)
        for (uint32_t w = 0; w < m.width; ++w) {
          const uint64_t at = (dense ? i : uint64_t{m.support[i]}) * m.width + w;
          if (at >= o.elements) continue;
          const float term = m.weight * value_at(m.dtype, values, i * m.width + w);
          const float sum = computed(value_at(o.dtype, o.values, at) + term);
          store_bits(o.dtype, o.values, at, bits_of(o.dtype, sum));
        }
    });
  }
};

// Sum of many frames, or one frame into a fresh output: a tile of the output is held in shared memory, the frames' parts of it are added in
// the order of the frames.
struct merge_tiles {
  static constexpr const char* name = "merge_tiles";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const merge_row* rows;  // [frames][outs]
    const merge_out* outs;
    const gate_state* gate;
    uint32_t n, frames;
    uint32_t adds;    // to what the outputs hold; otherwise from +0
    uint32_t copies;  // one frame, no arithmetic: bit for bit if the types are the same
  };
  struct shared {
    uint32_t bits[merge_tile];
    uint32_t begin[lanes], end[lanes];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    if (a.gate->failed) return;
    typename Block::template each<uint32_t> before;
    b.phase([&](unsigned lane) {
      before[lane] = 0;
      for (uint32_t i = lane; i < a.n; i += lanes) before[lane] += a.outs[i].first_tile <= b.index();
    });
    const uint32_t out = b.sum(before) - 1;
    const merge_out& o = a.outs[out];
    const uint64_t first = uint64_t{b.index() - o.first_tile} * merge_tile;
    const uint32_t length = o.elements - first < merge_tile ? static_cast<uint32_t>(o.elements - first) : merge_tile;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < length; i += lanes) s.bits[i] = a.adds ? load_bits(o.dtype, o.values, first + i) : 0;
    });
    for (uint32_t group = 0; group < a.frames; group += lanes) {
      const uint32_t frames = a.frames - group < lanes ? a.frames - group : lanes;
      // Where each frame's part of the tile begins and ends.
      b.phase([&](unsigned lane) {
        if (lane >= frames) return;
        const merge_row& m = a.rows[uint64_t{group + lane} * a.n + out];
        s.begin[lane] = lower_row(m, first / m.width);
        s.end[lane] = lower_row(m, (first + length - 1) / m.width + 1);
      });
      for (uint32_t f = 0; f < frames; ++f) {
        const merge_row& m = a.rows[uint64_t{group + f} * a.n + out];
        b.phase([&](unsigned lane) { add_part(s, a, m, o, first, length, s.begin[f], s.end[f], lane); });
      }
    }
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < length; i += lanes) store_bits(o.dtype, o.values, first + i, s.bits[i]);
    });
  }

  // Rows of m below element `wanted`.
  DR_HD static uint32_t lower_row(const merge_row& m, uint64_t wanted) {
    const uint64_t n = rows_told(m);
    if (m.row->mode == 2) return static_cast<uint32_t>(wanted < n ? wanted : n);
    uint64_t low = 0, high = n;
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      if (m.support[middle] < wanted)
        low = middle + 1;
      else
        high = middle;
    }
    return static_cast<uint32_t>(low);
  }

  DR_HD static void add_part(shared& s, const args& a, const merge_row& m, const merge_out& o, uint64_t first,
                             uint32_t length, uint32_t begin, uint32_t end, unsigned lane) {
    const bool dense = m.row->mode == 2;
    const void* const values = dense ? m.dense : m.values;
    for (uint32_t i = begin + lane; i < end; i += lanes)
      for (uint32_t w = 0; w < m.width; ++w) {
        const uint64_t at = (dense ? i : uint64_t{m.support[i]}) * m.width + w, from = uint64_t{i} * m.width + w;
        if (at < first || at >= first + length) continue;
        uint32_t& bits = s.bits[at - first];
        if (a.copies) {
          bits =
              m.dtype == o.dtype ? load_bits(m.dtype, values, from) : bits_of(o.dtype, value_at(m.dtype, values, from));
        } else {
          const float term = m.weight * value_at(m.dtype, values, from);
          bits = bits_of(o.dtype, computed(value_of(o.dtype, bits) + term));
        }
      }
  }

  DR_HD static float value_of(uint32_t dtype, uint32_t bits) {
    if (dtype == DR_F32) return f32_type::to_f32(bits);
    if (dtype == DR_F16) return f16_type::to_f32(static_cast<uint16_t>(bits));
    return bf16_type::to_f32(static_cast<uint16_t>(bits));
  }
};

// A row as a sparse output: indices of a framework's type and values. One row.
struct hand_over_row {
  static constexpr const char* name = "hand_over_row";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const merge_row* row;
    const gate_state* gate;
    void* indices;
    void* values;
    uint64_t capacity, first;
    uint32_t index_dtype, dtype;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    if (a.gate->failed) return;
    const merge_row& m = *a.row;
    const bool dense = m.row->mode == 2;
    const void* const values = dense ? m.dense : m.values;
    const uint64_t told = rows_told(m) < a.capacity ? rows_told(m) : a.capacity;
    b.phase([&](unsigned lane) {
      for (uint64_t i = uint64_t{b.index()} * lanes + lane; i < told; i += uint64_t{b.blocks()} * lanes) {
        const uint64_t index = a.first + (dense ? i : m.support[i]);
        if (a.index_dtype == DR_U32 || a.index_dtype == DR_I32)
          static_cast<uint32_t*>(a.indices)[i] = static_cast<uint32_t>(index);
        else
          static_cast<uint64_t*>(a.indices)[i] = index;
        for (uint32_t w = 0; w < m.width; ++w) {
          const uint64_t at = i * m.width + w;
          store_bits(
              a.dtype, a.values, at,
              m.dtype == a.dtype ? load_bits(m.dtype, values, at) : bits_of(a.dtype, value_at(m.dtype, values, at)));
        }
      }
    });
  }
};

// Feedback: acc[support[i]] -= sent value i; 0 where the rest is not finite. If the frame was not made nothing was sent, and all that was
// accumulated stays but for what is not finite, which would stay for ever.
struct subtract_job {
  float* acc;
  const uint32_t* told;  // the support, in the order of the values that the receiver will see
  const void* values;
  const uint32_t* support;  // of a row that went dense: what was kept
  const void* kept;
  const device_row* row;
  uint32_t universe, told_max, first_tile, reserved;
};
static_assert(sizeof(subtract_job) == 64);

template <size_t N>
struct subtract_rows {
  static constexpr const char* name = "subtract_rows";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const uint32_t* failed;
    uint32_t jobs, tiles, dtype, reserved;
    subtract_job job[N];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const subtract_job& j = job_of_tile(a, b.index());
    if (*a.failed) return tidy(b, j);
    const bool dense = j.row->mode == 2;
    const uint64_t wanted = dense ? j.row->count : j.row->told, n = wanted < j.told_max ? wanted : j.told_max;
    const uint64_t begin = uint64_t{b.index() - j.first_tile} * row_tile;
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= n) continue;
        const uint32_t at = (dense ? j.support : j.told)[i];
        if (at >= j.universe) continue;
        const float rest = j.acc[at] - value_at(a.dtype, dense ? j.kept : j.values, i);
        j.acc[at] = finite(rest) ? rest : 0;
      }
    });
  }

  template <class Block>
  DR_HD static void tidy(Block& b, const subtract_job& j) {
    const uint64_t tiles = ceil_div(j.told_max ? j.told_max : 1, row_tile);
    b.phase([&](unsigned lane) {
      if (!j.row->accumulates) return;
      for (uint64_t i = uint64_t{b.index() - j.first_tile} * lanes + lane; i < j.universe; i += tiles * lanes)
        if (!finite(j.acc[i])) j.acc[i] = 0;
    });
  }

  DR_HD static bool finite(float x) { return is_finite<f32_type>(std::bit_cast<uint32_t>(x)); }
};

}  // namespace dr
