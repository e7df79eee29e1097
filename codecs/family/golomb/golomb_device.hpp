// The CUDA operations of an index codec over golomb_tile.hpp, for any rule of the divisor.
#pragma once

#include "codecs/family/golomb/golomb_decode_tile.hpp"
#include "codecs/family/golomb/golomb_encode_tile.hpp"
#include "codecs/family/golomb/golomb_index.hpp"

namespace dr {

template <const divisor_rule& rule>
struct golomb_device {
  using cpu = golomb_index<rule>;

  static uint32_t tiles(const dr_job& job, unsigned block_log2) { return golomb_tiles(job.count_max, block_log2); }
  static uint64_t groups(const dr_job& job, unsigned block_log2) {
    const uint32_t t = tiles(job, block_log2);
    return t <= golomb_group ? 0 : ceil_div(t, golomb_group);
  }

  static uint64_t encode_scratch(const dr_job& job, unsigned block_log2) {
    const uint64_t t = tiles(job, block_log2);
    return t == 1 ? 0 : 8 * (t + 1);
  }
  static uint64_t decode_scratch(const dr_job& job, unsigned block_log2) { return 4 * groups(job, block_log2); }

  static bool need(const dr_params& p, const dr_job& job, dr_need& need) {
    if (!cpu::need(p, job, need)) return false;
    need.encode_scratch = encode_scratch(job, cpu::block_log2(p));
    need.decode_scratch = decode_scratch(job, cpu::block_log2(p));
    return true;
  }

  // Launches K over jobs; tiles_of(job, t) sets the fields of t that it needs beside its scratch, and returns the tiles
  // of the job.
  template <template <class> class K, class Tiles>
  static dr_status launch(const dr_exec& exec, const dr_params& p, const dr_job* jobs, size_t n,
                          uint64_t (*scratch)(const dr_job&, unsigned), Tiles&& tiles_of) {
    const unsigned block_log2 = cpu::block_log2(p);
    uint64_t at = 0;  // 64 bytes each
    const auto fill = [&](size_t i, tile_job& t) -> uint64_t {
      t.universe = static_cast<uint32_t>(dr_job_at(jobs, i)->universe);
      t.extra = static_cast<uint32_t>(at);
      at += ceil_div(scratch(*dr_job_at(jobs, i), block_log2), 64);
      return tiles_of(*dr_job_at(jobs, i), t);
    };
    auto* const from = static_cast<std::byte*>(exec.scratch);
    if (block_log2 <= golomb_block_log2)
      return launch_jobs<K>(exec, jobs, n, golomb_common<rule, golomb_block_log2>{from, block_log2}, fill);
    return launch_jobs<K>(exec, jobs, n, golomb_common<rule, golomb_block_log2_max>{from, block_log2}, fill);
  }

  static dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
    return launch<golomb_encode_tile>(*exec, *p, jobs, n, encode_scratch, [&](const dr_job& job, tile_job& t) {
      t.key = job.out_capacity;
      return tiles(job, cpu::block_log2(*p));
    });
  }

  static dr_status decode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
    const unsigned block_log2 = cpu::block_log2(*p);
    const auto bounds = [](const dr_job& job, tile_job& t) {
      t.in_size = job.in_size;
      if (t.count_max > job.out_capacity / 4) t.count_max = static_cast<uint32_t>(job.out_capacity / 4);
    };
    bool long_table = false;
    for (size_t i = 0; i < n; ++i) {
      if (!dr_job_at(jobs, i)->in_size) return DR_E_UNSUPPORTED;  // a size depends on data, so it is in device memory
      long_table |= groups(*dr_job_at(jobs, i), block_log2) > 0;
    }
    if (long_table) {
      const dr_status s =
          launch<golomb_sum_groups>(*exec, *p, jobs, n, decode_scratch, [&](const dr_job& job, tile_job& t) {
            bounds(job, t);
            return groups(job, block_log2);
          });
      if (s) return s;
    }
    return launch<golomb_decode_tile>(*exec, *p, jobs, n, decode_scratch, [&](const dr_job& job, tile_job& t) {
      bounds(job, t);
      return tiles(job, block_log2);
    });
  }

  // Adaptive blocks have no kernels.
  static dr_status needs(const dr_params* p, const dr_job* jobs, size_t n, dr_need* out) {
    return cpu::may_adapt && p->fields[cpu::may_adapt] ? DR_E_UNSUPPORTED : each_need<need>(p, jobs, n, out);
  }
  static constexpr dr_ops cuda = {sizeof(dr_ops), nullptr, needs, nullptr, encode, decode, {1, 2}};
};

}  // namespace dr
