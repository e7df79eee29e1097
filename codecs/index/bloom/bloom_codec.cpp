// index=bloom (SPEC.md; DeepReduce, Xu et al. 2021).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "codecs/builtin.hpp"
#include "codecs/index/bloom/bloom_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

enum param : size_t { param_policy, param_fpr, param_seed, param_max_ratio };

constexpr dr_param params[] = {
    param_choice("policy", "which of the filter's positives are the support", "leftmost|p0", bloom_leftmost),
    param_real("fpr", "false-positive rate; 0: a tenth of the density", 0, 0.999, 0),
    param_int("seed", "of the hash functions", 0, 4294967295.0, 0),
    param_real("max_ratio",
               "p0: the largest support, as a share of the universe, before falling back to raw keys; "
               "0: its expectation + 8 standard deviations",
               0, 1, 0),
};
constexpr dr_field fields[] = {
    {"policy", 0, 1, 0}, {"k", 1, 64, 1}, {"c", 1, 4294967295, 1}, {"seed", 0, 4294967295, 0}};

// Two integers carry the false-positive rate; from here on nothing is floating point (but for the bound of p0's support).
dr_status resolve(const dr_params* p, const dr_job* job, uint64_t* out, dr_fault* fault) {
  double fpr = p->values[param_fpr].number;
  if (job->universe == 0) fpr = 0.5;  // nothing to filter, whatever the rate
  if (fpr == 0) {
    if (job->count_max >= job->universe) {
      *fault = {DR_E_ARGUMENT, DR_STREAM_INDEX, 0, job->count_max,
                "bloom needs fpr where the support may be the whole universe (the default is a tenth of the density)"};
      return DR_E_ARGUMENT;
    }
    fpr = 0.1 * static_cast<double>(std::max<uint64_t>(job->count_max, 1)) / static_cast<double>(job->universe);
  }
  const double inverse_log2 = -std::log2(fpr);
  out[bloom_field_policy] = static_cast<uint64_t>(p->values[param_policy].number);
  out[bloom_field_k] = static_cast<uint64_t>(std::clamp(std::round(inverse_log2), 1.0, 64.0));
  out[bloom_field_c] = static_cast<uint64_t>(std::max(1.0, std::round(65536 * inverse_log2 / std::log(2.0))));
  out[bloom_field_seed] = static_cast<uint64_t>(p->values[param_seed].number);
  if (bloom_bits(job->count_max, out[bloom_field_c]) == 0) {
    *fault = {DR_E_ARGUMENT, DR_STREAM_INDEX, 0, job->count_max,
              "bloom: the filter would have 2^32 bits or more; use smaller segments"};
    return DR_E_ARGUMENT;
  }
  return DR_OK;
}

// A filter of few bits is fuller or emptier than expected, and its rate moves with the k-th power of that: both are in
// the standard deviation. Above the bound the row falls back to raw keys, so this decides size, never correctness.
uint64_t largest_support(const dr_params& p, const dr_job& job) {
  const double d = static_cast<double>(job.universe), r = static_cast<double>(job.count_max);
  if (const double ratio = p.values[param_max_ratio].number; ratio > 0)
    return std::clamp<uint64_t>(static_cast<uint64_t>(ratio * d), std::min(job.count_max, job.universe), job.universe);
  const double k = static_cast<double>(p.fields[bloom_field_k]),
               m = static_cast<double>(bloom_bits(job.count_max, p.fields[bloom_field_c]));
  const double empty = std::exp(-k * r / m), rate = std::pow(1 - empty, k), mean = rate * (d - r);
  const double fill_deviation = k * std::sqrt(empty * (1 - empty) / m) / std::max(1 - empty, 1e-9);
  const double bound = r + mean + 8 * (std::sqrt(mean) + mean * fill_deviation) + 8;
  return bound < d ? static_cast<uint64_t>(bound) : job.universe;
}

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  const uint64_t bits = bloom_bits(job.count_max, p.fields[bloom_field_c]);
  if (bits == 0) return false;
  need.payload = bits / 8;
  need.tell = p.fields[bloom_field_policy] == bloom_p0 && p.values ? largest_support(p, job) : job.count_max;
  return true;
}

bloom_shape shape(const dr_params& p, uint64_t count) {
  return {divisor::of(static_cast<uint32_t>(bloom_bits(count, p.fields[bloom_field_c]))),
          static_cast<uint32_t>(p.fields[bloom_field_k]), static_cast<uint32_t>(p.fields[bloom_field_seed])};
}

uint64_t cost(const dr_params& p, const dr_job& job) {
  return bloom_bits(job_count(job), p.fields[bloom_field_c]) / 8;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t r = job_count(job);
  const bloom_shape s = shape(p, r);
  auto* filter = job_out<uint8_t>(job);
  const uint64_t size = s.bits.value / 8;
  std::memset(filter, 0, size);
  for (uint64_t i = 0; i < r; ++i) bloom_insert(s, filter, job_in<uint32_t>(job)[i]);
  *job.out_size = size;
  if (!job.tell) return;
  const uint64_t wanted = p.fields[bloom_field_policy] == bloom_p0 ? job.universe : r;
  const uint64_t told = bloom_positives(s, filter, job.universe, wanted, job_tell(job), job.tell_capacity);
  if (told > job.tell_capacity) {
    fault(job, DR_E_CAPACITY, 0, told, "bloom: more positives than max_ratio allows");
    return;
  }
  *job.tell_count = told;
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t r = job_count(job), capacity = job.out_capacity / 4;
  const bloom_shape s = shape(p, r);
  const uint64_t wanted = p.fields[bloom_field_policy] == bloom_p0 ? job.universe : r;
  const uint64_t told =
      bloom_positives(s, job_in<uint8_t>(job), job.universe, wanted, job_out<uint32_t>(job), capacity);
  if (told != capacity) {
    fault(job, DR_E_CORRUPT, 0, told, "bloom: the filter's support is not the size that the frame says");
    return;
  }
  *job.out_size = 4 * told;
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode, cost>(resolve);

}  // namespace

constinit const dr_codec bloom_codec =
    make_codec("bloom", "a Bloom filter, asked for every element of the universe", 4, DR_ROLE_INDEX,
               DR_REPLACES_SUPPORT | DR_FIXED_SIZE, &cpu,
               {.forms = list_form, .params = params, .fields = fields, .cuda = &bloom_cuda});

}  // namespace dr
