#include "sparsify/select_device.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/arena.hpp"
#include "cuda/device.hpp"
#include "primitive/value_type.hpp"
#include "sparsify/select.hpp"
#include "sparsify/select_tile.hpp"

namespace dr {
namespace {

bool is_dense(const device_select_job& j) { return j.kind != device_select_job::adopt; }

select_kind kind_of(const device_select_job& j) {
  return j.kind == device_select_job::largest  ? select_largest_kind
         : j.kind == device_select_job::from   ? select_from_kind
         : j.kind == device_select_job::chance ? select_chance
         : j.kind == device_select_job::chunks ? select_in_chunks
         : j.kind == device_select_job::whole  ? select_whole
                                               : select_nonzero;
}

bool is_sampled(const select_unit& u) { return u.kind == select_largest_kind && !u.solved(); }

// The sample is what one wave of blocks reads, two waves where millions are selected: six standard deviations of the r-th
// rank are then r/8 of 1 % and r/24 of 10 %, and candidates, at 30 µs a million, cost less than a further wave, at 8 µs.
// But at most one value in 32: for the many tensors of a model larger samples would take longer than the read. The
// capacity for candidates covers five standard deviations.
void plan_sample(const device_select_job& j, select_unit& u) {
  constexpr double wave = 128 * sample_tile;
  const double d = static_cast<double>(j.d), target = static_cast<double>(u.target);
  const double sample = std::clamp(d / 32, 8192.0, target > 4e6 ? 2 * wave : wave);
  const double blocks = std::max(1.0, std::floor(std::min(sample, d / 2) / sample_tile));
  u.sample_blocks = static_cast<uint16_t>(blocks);
  const double expected = blocks * sample_tile * target / d, rank = expected + bracket_slack(expected);
  // (With feedback many values are just below the threshold, where the sample's bins are coarse: hence a quarter more.)
  const double candidates = (rank + 5 * std::sqrt(rank)) * d / (blocks * sample_tile) + target / 4 + 64;
  u.capacity = static_cast<uint32_t>(std::min(d, std::ceil(candidates)));
}

// All fields but the addresses.
select_unit unit_of(const device_select_job& j) {
  select_unit u{};
  u.d = static_cast<uint32_t>(j.d);
  u.target = static_cast<uint32_t>(std::min(j.target, j.d));
  u.count_max = static_cast<uint32_t>(j.count_max);
  if (j.flat_tiles) {
    u.flat_tiles = j.flat_tiles;
    u.flags |= select_flat;
  } else {
    u.width = j.width;
  }
  u.capacity = u.d;
  u.kind = kind_of(j);
  if (u.kind == select_from_kind) u.capacity = static_cast<uint32_t>(std::min(j.dense_above, j.d));
  if (u.kind == select_chance) u.capacity = u.target;
  if (u.kind == select_in_chunks) {
    u.capacity = j.chunk_target;
    u.low = j.chunk;
  }
  if (j.solved) u.flags |= select_solved;
  if (is_sampled(u)) plan_sample(j, u);
  if (j.needs_finite) u.flags |= select_needs_finite;
  if (j.plain) u.flags |= select_plain;
  return u;
}

// Positions that are expected to be missing when a round begins, which makes as many draws.
uint64_t missing_in(uint32_t round, uint64_t target, uint64_t d) {
  double missing = static_cast<double>(target), taken = 0;
  for (uint32_t k = 0; k < round && missing >= 1; ++k) {
    const double all = static_cast<double>(d), fresh = (all - taken) * -std::expm1(-missing / all);
    taken += fresh;
    missing -= fresh;
  }
  return static_cast<uint64_t>(missing);
}
// One block makes what is left after the last round.
uint32_t draw_rounds(uint64_t target, uint64_t d) {
  constexpr uint64_t few = 16384;
  uint32_t rounds = 1;
  while (rounds < draw_rounds_max && missing_in(rounds, target, d) > few) ++rounds;
  return rounds;
}

using placed = device_select_scratch::placed;

bool together(const device_select_job& a, const device_select_job& b) {
  return a.dtype == b.dtype && !a.residual == !b.residual && (!a.residual || (a.beta == b.beta && a.gamma == b.gamma));
}

// Up to N dense jobs of one type, all with or all without feedback.
template <class Bits, size_t N>
struct group {
  const dr_exec& exec;
  std::span<const placed> jobs;
  std::byte *zeroed, *plain;
  select_args<N> args{};

  dr_status run() {
    const device_select_job& first = *jobs[0].job;
    const uint32_t infinity = with_value_type(first.dtype, [](auto type) -> uint32_t { return type.infinity; });
    args.common = {zeroed, plain, first.beta, first.gamma, first.dtype, infinity};
    args.jobs = static_cast<uint32_t>(jobs.size());
    bool samples = false, solves = false, reads = false, in_chunks = false, whole = false;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const select_unit& u = args.job[i] = describe(jobs[i]);
      samples |= is_sampled(u);
      solves |= u.solved();
      in_chunks |= u.kind == select_in_chunks;
      whole |= u.kind == select_whole;
      reads |= is_filtered(u);
    }
    dr_status s = DR_OK;
    if (samples)
      s = launch_tiles<select_bracket<Bits, N>>(
          [](const select_unit& u, const select_layout&) -> uint32_t { return is_sampled(u) ? u.sample_blocks : 0; });
    if (!s && in_chunks)
      s = launch_tiles<select_chunks<Bits, N>>(
          [](const select_unit& u, const select_layout& at) { return u.kind == select_in_chunks ? at.tiles : 0; });
    if (!s && whole) {
      const auto tiles = [](const select_unit& u, const select_layout& at) {
        return u.kind == select_whole ? at.tiles : 0;
      };
      s = first.residual ? launch_tiles<select_survey<Bits, true, N>>(tiles)
                         : launch_tiles<select_survey<Bits, false, N>>(tiles);
    }
    device_queue& queue = *static_cast<device_queue*>(exec.device);
    const uint32_t before = queue.launches;
    if (!s && reads) {
      const auto tiles = [](const select_unit& u, const select_layout& at) { return is_filtered(u) ? at.tiles : 0; };
      s = first.residual ? launch_tiles<select_filter<Bits, true, N>>(tiles)
                         : launch_tiles<select_filter<Bits, false, N>>(tiles);
    }
    if (!s && solves) {
      queue.beside = queue.launches > before;  // the read is of other tensors (and of empty ones is no launch)
      s = launch_tiles<select_solve<Bits, N>>(
          [](const select_unit& u, const select_layout&) -> uint32_t { return u.solved(); });
      queue.beside = false;
    }
    if (s || !reads) return s;
    s = launch_tiles<select_refine<Bits, N>>(
        [](const select_unit&, const select_layout& at) { return at.refine_blocks; });
    const uint32_t refined = queue.launches;
    if (!s)
      s = launch_tiles<select_compact<Bits, N>>([](const select_unit&, const select_layout& at) { return at.slices; });
    // Of a tensor one of the two does nothing.
    return s || !samples ? s : fall_back(queue.launches > refined);
  }

  static bool is_filtered(const select_unit& u) {
    return !u.solved() && u.kind != select_in_chunks && u.kind != select_whole;
  }

  select_unit describe(const placed& p) const {
    const device_select_job& j = *p.job;
    select_unit u = unit_of(j);
    u.values = j.flat_tiles ? static_cast<const void*>(j.flat) : j.values;
    u.residual = j.residual;
    u.support = j.support;
    u.selected = j.selected;
    u.row = j.row;
    if (j.kind != device_select_job::chunks)
      u.low = j.kind == device_select_job::from ? magnitude_from(j.dtype, j.threshold) : 1;
    u.zeroed = static_cast<uint32_t>(p.zeroed / 64);
    u.plain = static_cast<uint32_t>(p.plain / 64);
    return u;
  }

  template <class K, class Tiles>
  dr_status launch_tiles(Tiles&& tiles_of) {
    uint64_t tiles = 0;
    for (size_t i = 0; i < jobs.size(); ++i) {
      args.job[i].first_tile = static_cast<uint32_t>(tiles);
      tiles += tiles_of(args.job[i], select_layout::of(args.job[i], sizeof(Bits)));
      if (tiles > 0x7fffffff) return DR_E_UNSUPPORTED;
    }
    args.tiles = static_cast<uint32_t>(tiles);
    return launch<K>(exec, tiles, args);
  }

  // At most as many blocks as there are tiles; any number does the work.
  dr_status fall_back(bool beside) {
    device_queue& queue = *static_cast<device_queue*>(exec.device);
    const device* const where = queue.where;
    uint64_t most = 1;
    for (const placed& p : jobs) most = std::max(most, ceil_div(p.job->d, fallback_tile));
    const uint64_t wanted = where ? where->processors() * select_fallback<Bits, N>::blocks_a_processor : 1;
    queue.beside = beside;
    return launch<select_fallback<Bits, N>>(exec, std::min(wanted, most), args);
  }
};

template <class Bits>
dr_status run_dense(const dr_exec& exec, std::span<const placed> jobs, std::byte* zeroed, std::byte* plain) {
  for (size_t begin = 0; begin < jobs.size(); begin += jobs_many) {
    const auto part = jobs.subspan(begin, std::min(jobs_many, jobs.size() - begin));
    const dr_status s = part.size() <= jobs_few ? group<Bits, jobs_few>{exec, part, zeroed, plain}.run()
                                                : group<Bits, jobs_many>{exec, part, zeroed, plain}.run();
    if (s) return s;
  }
  return DR_OK;
}

// Draws for the units that are selected by chance.
dr_status draw_positions(const dr_exec& exec, std::span<const placed> jobs, std::byte* zeroed,
                         std::vector<dr_job>& all) {
  all.clear();
  uint32_t rounds = 1;
  for (const placed& p : jobs) {
    const device_select_job& j = *p.job;
    if (j.kind != device_select_job::chance) continue;
    const select_layout at = select_layout::of(unit_of(j), value_size(j.dtype));
    dr_job d{sizeof(dr_job)};
    d.in = j.key;
    d.private_key = j.key_part;
    d.out = zeroed + p.zeroed + at.drawn;
    d.tell = zeroed + p.zeroed + at.draws;
    d.fault = &j.row->fault;
    d.universe = j.d;
    d.count_max = std::min(j.target, j.d - j.target);
    all.push_back(d);
    rounds = std::max(rounds, draw_rounds(d.count_max, j.d));
  }
  for (uint32_t round = 0; round < rounds && !all.empty(); ++round) {
    const dr_status s =
        launch_jobs<select_draw>(exec, all.data(), all.size(), draw_common{round, rounds}, [&](size_t i, tile_job& t) {
          t.key = all[i].private_key;
          t.universe = static_cast<uint32_t>(all[i].universe);
          t.extra = t.count_max;
          return std::max<uint64_t>(1, ceil_div(missing_in(round, all[i].count_max, all[i].universe), draw_tile));
        });
    if (s) return s;
  }
  return DR_OK;
}

// Sparse tensors of one index type and value type.
dr_status run_sparse(const dr_exec& exec, std::span<const placed> jobs, std::vector<dr_job>& all) {
  const device_select_job& first = *jobs[0].job;
  all.clear();
  for (const placed& p : jobs) {
    dr_job j{sizeof(dr_job)};
    j.in = p.job->indices;
    j.out = p.job->support;
    j.tell = const_cast<void*>(p.job->values);
    j.tell_count = reinterpret_cast<uint64_t*>(p.job->row);
    j.fault = &p.job->row->fault;
    all.push_back(j);
  }
  const adopt_common common{first.index_dtype, first.dtype, first.needs_finite};
  return launch_jobs<select_adopt>(exec, all.data(), all.size(), common, [&](size_t i, tile_job& t) {
    const device_select_job& j = *jobs[i].job;
    t.key = j.width;
    t.universe = static_cast<uint32_t>(j.d);
    t.extra = static_cast<uint32_t>(j.entries);
    return std::max<uint64_t>(1, ceil_div(j.count_max, adopt_tile));
  });
}

}  // namespace

uint32_t flat_tiles_of(uint64_t elements, uint32_t dtype) {
  return elements ? select_layout::tiles_of(static_cast<uint32_t>(elements), 1, value_size(dtype)) : 0;
}

uint64_t select_lists(const device_select_job& job) {
  if (job.kind == device_select_job::whole) return 0;
  return is_dense(job) ? std::max<uint64_t>(job.count_max, unit_of(job).capacity) : job.count_max;
}

device_select_need select_need(const device_select_job& job) {
  if (!is_dense(job)) return {0, 0};
  const select_layout l = select_layout::of(unit_of(job), value_size(job.dtype));
  return {l.zeroed, l.plain};
}

dr_status select_on_device(const dr_exec& exec, std::span<const device_select_job> jobs, std::byte* zeroed,
                           std::byte* plain, device_select_scratch& host) {
  auto& [left, now, later, sparse] = host;
  for (auto* const list : {&left, &now, &later}) list->reserve(jobs.size());  // (they are swapped: none stays small)
  left.clear();
  uint64_t zeroed_at = 0, plain_at = 0;
  for (const device_select_job& j : jobs) {
    if (j.d > 0xffffffff || select_lists(j) >= select_lists_limit) return DR_E_UNSUPPORTED;
    left.push_back({&j, zeroed_at, plain_at});
    const device_select_need need = select_need(j);
    zeroed_at += round_up(need.zeroed, 64);
    plain_at += round_up(need.plain, 64);
  }
  // Offsets of scratch have 32 bits, in units of 64 bytes.
  if (plain_at / 64 > 0xffffffff) return DR_E_UNSUPPORTED;
  while (!left.empty()) {
    const device_select_job& first = *left[0].job;
    now.clear();
    later.clear();
    for (const placed& p : left) {
      const bool same =
          is_dense(first) == is_dense(*p.job) && together(first, *p.job) &&
          (is_dense(first) || (first.index_dtype == p.job->index_dtype && first.needs_finite == p.job->needs_finite));
      (same ? now : later).push_back(p);
    }
    if (const dr_status s = draw_positions(exec, now, zeroed, sparse)) return s;
    const dr_status s = !is_dense(first)        ? run_sparse(exec, now, sparse)
                        : first.dtype == DR_F32 ? run_dense<uint32_t>(exec, now, zeroed, plain)
                                                : run_dense<uint16_t>(exec, now, zeroed, plain);
    if (s) return s;
    left.swap(later);
  }
  return DR_OK;
}

}  // namespace dr
