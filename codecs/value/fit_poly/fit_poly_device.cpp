// value=fit_poly: the host's side of its CUDA operations.
#include <algorithm>
#include <span>

#include "codecs/builtin.hpp"
#include "codecs/value/fit_poly/fit_poly_decode_tile.hpp"
#include "codecs/value/fit_poly/fit_poly_encode_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

unsigned degree(const dr_params& p) { return static_cast<unsigned>(p.fields[0]); }
fit_poly_knots knots(const dr_params& p) { return static_cast<fit_poly_knots>(p.fields[1]); }

bool sorted_together(const dr_job& job) { return job.count_max > fit_poly_small; }

// Of a job that is sorted together with others: two pairs of buffers, its sums, its state, its share of the sort's own.
uint64_t encode_scratch(const dr_job& job, unsigned degree, fit_poly_knots knots) {
  if (!sorted_together(job)) return 0;
  const uint64_t n = job.count_max;
  const uint64_t tiles = fit_poly_tiles_max(n, knots == fit_poly_jump);
  return (8 + 8 + 4 + 4) * n + 8 * tiles * (degree + 1) + 8 + dr_sort_temp(n);
}

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (job.width != 1) return false;
  need.payload = fit_poly_size_max(job.count_max, {degree(p), knots(p), false});
  need.encode_scratch = encode_scratch(job, degree(p), knots(p));
  return true;
}

// knots=chord needs about ten dependent passes, and a curve of magnitudes needs other keys: both run only on the CPU.
dr_status need_of_known(const dr_params* p, const dr_job* jobs, size_t n, dr_need* needs) {
  if (knots(*p) == fit_poly_chord || p->fields[2] != 0) return DR_E_UNSUPPORTED;
  return each_need<need>(p, jobs, n, needs);
}

// The same for all jobs: sums over jobs are contiguous, so the sum of their needs suffices.
dr_status encode_sorted(const dr_exec& exec, const dr_job* jobs, size_t n, fit_poly_common common, std::byte* scratch) {
  const auto tiles_of_all = [&](uint64_t n) { return fit_poly_tiles_max(n, common.knots == fit_poly_jump); };
  uint64_t pairs = 0, tiles = 0, count = 0;
  for (size_t i = 0; i < n; ++i) {
    const dr_job& job = *dr_job_at(jobs, i);
    if (!sorted_together(job)) continue;
    pairs += job.count_max;
    tiles += tiles_of_all(job.count_max);
    ++count;
  }
  if (count == 0) return DR_OK;
  if (pairs > 0x7fffffff) return DR_E_UNSUPPORTED;  // as the sort does
  const auto take = [&]<class T>(T*& to, uint64_t n) {
    to = reinterpret_cast<T*>(scratch);
    if (scratch) scratch += n * sizeof(T);  // (launches are counted without)
  };
  dr_sort sort{.struct_size = sizeof(dr_sort), .n = pairs};
  sort.bits = 8 * value_size(common.dtype) + ceil_log2(count);
  take(sort.keys, pairs);
  take(sort.other_keys, pairs);
  take(common.sums, tiles * (common.degree + 1));
  take(common.state, 2 * count);
  take(sort.values, pairs);
  take(sort.other_values, pairs);
  sort.temp = scratch;
  sort.temp_size = dr_sort_temp(pairs);
  common.keys = sort.keys;
  common.positions = sort.values;

  const auto fill = [&](auto tiles_of) {
    return [jobs, tiles_of, first = uint32_t{0}, number = uint64_t{0}](size_t i, tile_job& t) mutable -> uint64_t {
      if (!sorted_together(*dr_job_at(jobs, i))) return 0;
      t.extra = first;
      t.key = number++;
      first += t.count_max;
      return tiles_of(dr_job_at(jobs, i)->count_max);
    };
  };
  dr_status s = launch_jobs<fit_poly_keys>(exec, jobs, n, common,
                                           fill([](uint64_t n) { return ceil_div(n, fit_poly_keys_tile); }));
  if (s == DR_OK) s = exec.sort(exec.device, &sort);
  if (s == DR_OK) s = launch_jobs<fit_poly_fit_sorted>(exec, jobs, n, common, fill(tiles_of_all));
  return s;
}

dr_status encode(const dr_exec* exec, const dr_params* params, const dr_job* jobs, size_t n) {
  const fit_poly_common common{.dtype = dr_job_at(jobs, 0)->dtype, .degree = degree(*params), .knots = knots(*params)};
  const auto small = [&](size_t i, tile_job&) -> uint64_t { return !sorted_together(*dr_job_at(jobs, i)); };
  if (const dr_status s = launch_jobs<fit_poly_encode_small>(*exec, jobs, n, common, small)) return s;
  auto* scratch = static_cast<std::byte*>(exec->scratch);
  for (size_t begin = 0; begin < n; begin += jobs_many) {
    const size_t end = std::min(n, begin + jobs_many);
    if (const dr_status s = encode_sorted(*exec, dr_job_at(jobs, begin), end - begin, common, scratch)) return s;
    for (size_t i = begin; scratch && i < end; ++i)
      scratch += ceil_div(encode_scratch(*dr_job_at(jobs, i), common.degree, common.knots), 64) * 64;
  }
  return DR_OK;
}

dr_status decode(const dr_exec* exec, const dr_params* params, const dr_job* jobs, size_t n) {
  const fit_poly_common common{.dtype = dr_job_at(jobs, 0)->dtype, .degree = degree(*params), .knots = knots(*params)};
  return launch_jobs<fit_poly_decode>(*exec, jobs, n, common, [&](size_t i, tile_job& t) {
    t.in_size = dr_job_at(jobs, i)->in_size;
    t.extra = static_cast<uint32_t>(std::min<uint64_t>(dr_job_at(jobs, i)->in_max, 0xffffffff));
    return ceil_div(dr_job_at(jobs, i)->count_max, fit_poly_decode_tile);
  });
}

}  // namespace

// Encode: the small jobs; pairs, the sort and the fit of the others.
constinit const dr_ops fit_poly_cuda = {sizeof(dr_ops), nullptr, need_of_known, nullptr, encode, decode, {4, 1}};

}  // namespace dr
