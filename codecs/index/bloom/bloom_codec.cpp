// index=bloom (SPEC.md; DeepReduce, Xu et al. 2021).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "codecs/builtin.hpp"
#include "codecs/index/bloom/bloom_policy_kernel.hpp"
#include "codecs/index/bloom/bloom_positives.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/rng.hpp"

namespace dr {
namespace {

enum param : size_t { param_policy, param_fpr, param_seed, param_max_ratio, param_bits, param_layout };

constexpr dr_param params[] = {
    param_choice("policy", "which of the filter's positives are the support; naive: leftmost with regather=off",
                 "leftmost|p0|middle|rightmost|p1|p2", 0),
    param_real("fpr", "false-positive rate; 0: a tenth of the density", 0, 0.999, 0),
    param_int("seed", "of the hash functions", 0, 4294967295.0, 0),
    param_real("max_ratio",
               "p0: largest support, as a share of the universe; beyond it raw keys are sent; "
               "0: its expectation + 8 standard deviations",
               0, 1, 0),
    param_real("bits", "bits of the filter per index, instead of fpr; 0: by fpr", 0, 4096, 0),
    param_choice("layout", "bits anywhere in the filter, or all in one block of 256", "standard|split_block", 0),
};
constexpr dr_field fields[] = {wire_field("policy", 0, 1, 0),     wire_field("k", 1, 64, 1),
                               wire_field("c", 1, 4294967295, 1), wire_field("seed", 0, 4294967295, 0),
                               wire_field("choice", 0, 4, 0),     wire_field("layout", 0, 1, 0)};

// ---- Parameters to fields ----------------------------------------------------------------------------------

// For split blocks with `bits` bits per index: false-positive rate, and its variance from block to block. A block holds
// a number of elements that is Poisson distributed; an element leaves a bit of a word unset with probability 31/32.
struct split_rate {
  double mean = 0, variance = 0;

  explicit split_rate(double bits) {
    const double load = 256 / bits;
    if (load > 512) {  // no element of a block leaves a bit unset, and e^-load may be 0
      mean = 1;
      return;
    }
    double probability = std::exp(-load), empty = 1, square = 0;
    for (int i = 0; i < load + 12 * std::sqrt(load) + 64; ++i) {
      const double rate = std::pow(1 - empty, 8);
      mean += probability * rate;
      square += probability * rate * rate;
      probability *= load / (i + 1);
      empty *= 31.0 / 32;
    }
    variance = std::max(0.0, square - mean * mean);
  }
};

// Bits an index for a rate in split blocks; 0: no 4096 do.
double split_bits(double fpr) {
  double low = 1, high = 4096;
  if (split_rate(high).mean > fpr) return 0;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (split_rate(middle).mean > fpr ? low : high) = middle;
  }
  return high;
}

dr_status refuse(const dr_job* job, dr_fault* fault, const char* message) {
  fault->stream = DR_STREAM_INDEX;
  fault->what = job->count_max;
  fault->message = message;
  return fault->code = DR_E_ARGUMENT;
}

uint64_t filter_bits(const uint64_t* f, uint64_t r) {
  return f[bloom_field_layout] == bloom_split_block ? 256 * split_blocks(r, f[bloom_field_c])
                                                    : bloom_bits(r, f[bloom_field_c]);
}

// The same of the largest filter that this universe may have: that of a call which knows a bound of r only, and of the
// filter for which more r have keys instead.
uint64_t largest_filter(const uint64_t* f, uint64_t universe, uint64_t r) {
  const uint64_t granule = f[bloom_field_layout] == bloom_split_block ? 256 : 32;
  return std::min(filter_bits(f, r), bloom_bits_max(universe) / granule * granule);
}

// Two integers carry the false-positive rate; from here on nothing is floating point (but for the bound of p0's
// support).
dr_status resolve(const dr_params* p, const dr_job* job, uint64_t* out, dr_fault* fault) {
  const bool split = param_value(*p, param_layout).number == 1;
  double fpr = param_value(*p, param_fpr).number, bits = param_value(*p, param_bits).number;
  if (fpr != 0 && bits != 0) return refuse(job, fault, "bloom accepts fpr or bits, not both");
  if (job->universe == 0) fpr = 0.5;  // nothing to filter at any rate
  double hashes = 8;
  if (bits != 0) {
    if (!split) hashes = std::round(bits * std::log(2.0));
  } else {
    if (fpr == 0) {
      if (job->count_max >= job->universe)
        return refuse(job, fault,
                      "bloom needs fpr or bits where the support may be the whole universe (the default is a tenth of "
                      "the density)");
      fpr = 0.1 * static_cast<double>(std::max<uint64_t>(job->count_max, 1)) / static_cast<double>(job->universe);
    }
    const double inverse_log2 = -std::log2(fpr);
    bits = split ? split_bits(fpr) : inverse_log2 / std::log(2.0);
    if (!split) hashes = std::round(inverse_log2);
    if (bits == 0) return refuse(job, fault, "bloom: layout=split_block cannot reach this fpr with 4096 bits an index");
  }
  const auto policy = static_cast<uint64_t>(param_value(*p, param_policy).number);
  out[bloom_field_policy] = policy == bloom_p0;
  out[bloom_field_choice] = bloom_choice(policy);
  out[bloom_field_k] = static_cast<uint64_t>(std::clamp(hashes, 1.0, 64.0));
  out[bloom_field_c] = static_cast<uint64_t>(std::max(1.0, std::round(65536 * bits)));
  out[bloom_field_seed] = static_cast<uint64_t>(param_value(*p, param_seed).number);
  out[bloom_field_layout] = split ? bloom_split_block : bloom_standard;
  if (filter_bits(out, job->count_max) == 0)
    return refuse(job, fault, "bloom: the filter would have 2^32 bits or more; use smaller segments");
  return DR_OK;
}

// ---- Bounds ------------------------------------------------------------------------------------------------

// A filter of few bits is fuller or emptier than expected, and its rate moves with the k-th power of that: both are in
// the standard deviation. Above the bound the row falls back to raw keys, so this decides size, never correctness.
uint64_t largest_support(const dr_params& p, const dr_job& job) {
  const double d = static_cast<double>(job.universe), r = static_cast<double>(job.count_max);
  if (const double ratio = param_value(p, param_max_ratio).number; ratio > 0)
    return std::clamp<uint64_t>(static_cast<uint64_t>(ratio * d), std::min(job.count_max, job.universe), job.universe);
  const double k = static_cast<double>(p.fields[bloom_field_k]),
               m = static_cast<double>(filter_bits(p.fields, job.count_max));
  double rate = 0, deviation = 0;
  if (p.fields[bloom_field_layout] == bloom_split_block) {
    const split_rate split(m / r);
    const double empty = std::pow(31.0 / 32, 256 * r / m);
    rate = split.mean;
    deviation =
        std::sqrt((split.variance / std::max(rate * rate, 1e-30) + empty / (4 * std::max(1 - empty, 1e-9))) * 256 / m);
  } else {
    const double empty = std::exp(-k * r / m);
    rate = std::pow(1 - empty, k);
    deviation = k * std::sqrt(empty * (1 - empty) / m) / std::max(1 - empty, 1e-9);
  }
  const double mean = rate * (d - r), bound = r + mean + 8 * (std::sqrt(mean) + mean * deviation) + 8;
  return bound < d ? static_cast<uint64_t>(bound) : job.universe;
}

constexpr bool has_salt(uint64_t policy) { return policy == bloom_p1 || policy == bloom_p2; }
constexpr bool sees_all_first(uint64_t policy) { return policy == bloom_middle || has_salt(policy); }

// Offsets in a job's memory after the slots, in bytes.
struct room {
  uint64_t positives_max = 0, positives = 0, scores = 0, work = 0, highest = 0, sizes = 0, end = 0;

  room(uint64_t policy, uint64_t universe, uint64_t r, uint64_t bits) {
    if (sees_all_first(policy)) positives_max = bloom_positives_max(universe, r);
    const uint64_t begin = universe >= bloom_large_universe ? bloom_slots_size : 0,
                   salted = has_salt(policy) ? positives_max : 0;
    const uint64_t sets = policy == bloom_p2 ? bits : 0;
    positives = begin;
    scores = positives + 4 * positives_max;
    work = scores + 4 * salted;
    highest = work + 4 * 3 * salted;
    sizes = highest + 4 * sets;
    end = sizes + 2 * sets;
  }
};

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  const uint64_t *const f = p.fields, policy = bloom_policy_of(f), stated = filter_bits(f, job.count_max),
                        bits = largest_filter(f, job.universe, job.count_max);
  if (stated == 0 || (f[bloom_field_choice] && f[bloom_field_policy])) return false;
  if (f[bloom_field_layout] == bloom_split_block ? f[bloom_field_k] != 8
                                                 : f[bloom_field_k] > bloom_hashes_max(f[bloom_field_c]))
    return false;
  // Encode sends keys where the filter would be larger; a frame that has one is corrupt.
  if (!p.values && stated != bits) return false;
  need.payload = bits / 8 + (has_salt(policy) ? 4 : 0);
  need.tell = policy == bloom_p0 && p.values ? largest_support(p, job) : job.count_max;
  const room places(policy, job.universe, job.count_max, bits);
  need.encode_scratch = need.decode_scratch = places.end;
  // p0 reports all positives, policies that need all of them first have room for all; the others select the first or
  // last of them, which include the support. (With fewer elements than count_max there is less room.) A filter above
  // its limit is replaced by keys.
  need.tell_suffices =
      stated == bits && (policy == bloom_p0       ? need.tell >= job.universe
                         : sees_all_first(policy) ? bloom_positives_max(job.universe, 1) >= job.universe
                                                  : true);
  return true;
}

// ---- Encode and decode -------------------------------------------------------------------------------------

// The output of a support, and its outcome.
struct destination {
  uint32_t* out;  // NULL: not requested
  uint64_t capacity;
  uint64_t positives = 0;           // capacity + 1: too many
  const char* complaint = nullptr;  // about the filter: `positives` has their number

  bool fits(uint64_t r) {
    if (out && r > capacity) positives = capacity + 1;
    return !out || r <= capacity;
  }
};

// The support of a filter of r elements, by a policy. `salt`: what the payload holds, if it does; encode has it found,
// from the support.
template <class Shape>
void tell_support(const Shape& shape, const uint8_t* filter, uint64_t policy, uint64_t universe, uint64_t r,
                  const dr_exec* exec, std::byte* scratch, const uint32_t* support, uint32_t& salt, destination& to) {
  constexpr const char* fewer = "bloom: fewer positives than elements";
  if (!sees_all_first(policy)) {
    if (!to.out) return;
    if (policy == bloom_p0)
      to.positives = bloom_first_positives(shape, filter, universe, exec, universe, to.out, to.capacity);
    else if (policy == bloom_leftmost)
      to.positives = bloom_first_positives(shape, filter, universe, exec, r, to.out, to.capacity);
    else if (to.fits(r))
      to.positives = bloom_last_positives(shape, filter, universe, exec, r, to.out);
    if (policy != bloom_p0 && to.positives < std::min(r, to.capacity)) to.complaint = fewer;
    return;
  }
  const uint64_t bits = uint64_t{shape.size()} * 8;
  const room places(policy, universe, r, bits);
  const auto words = [&](uint64_t at) { return reinterpret_cast<uint32_t*>(scratch + at); };
  uint32_t *const positives = words(places.positives), *const scores = words(places.scores),
                  *const work = words(places.work);
  const uint64_t n = bloom_first_positives(shape, filter, universe, exec, universe, positives, places.positives_max);
  if (n > places.positives_max || n < r) {
    to.positives = n;
    to.complaint = n < r ? fewer : "bloom: more positives than policies middle, p1 and p2 support";
    return;
  }
  bloom_cut cut{};
  if (policy == bloom_p2) {
    const bloom_sets sets{reinterpret_cast<uint16_t*>(scratch + places.sizes), words(places.highest)};
    std::fill(sets.size, sets.size + bits, uint16_t{0});
    std::fill(sets.highest, sets.highest + bits, 0);
    bloom_scores(shape, cpu(), positives, n, sets, scores, work);
  } else if (policy == bloom_p1) {
    std::fill(scores, scores + n, 0);
  }
  if (has_salt(policy)) cut = bloom_cut_of(scores, n, r, work);
  if (policy == bloom_p2 && support) salt = bloom_best_salt(positives, scores, n, cut, support, r, work);
  if (!to.out || !to.fits(r)) return;
  to.positives = r;
  if (policy == bloom_middle)
    std::copy_n(positives + (n - r) / 2, r, to.out);
  else
    bloom_keep(positives, scores, n, cut, salt, work, to.out);
}

// Calls f with the shape of the filter of r elements.
template <class F>
void with_shape(const dr_params& p, uint64_t r, F&& f) {
  const auto bits = static_cast<uint32_t>(filter_bits(p.fields, r)),
             seed = static_cast<uint32_t>(p.fields[bloom_field_seed]);
  if (p.fields[bloom_field_layout] == bloom_split_block)
    f(split_block_shape{bits / 256, seed});
  else
    f(bloom_shape{divisor::of(bits), static_cast<uint32_t>(p.fields[bloom_field_k]), seed});
}

void store_salt(uint8_t* to, uint32_t salt) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(salt >> 8 * i);
}
uint32_t load_salt(const uint8_t* from) {
  uint32_t salt = 0;
  for (int i = 0; i < 4; ++i) salt |= uint32_t{from[i]} << 8 * i;
  return salt;
}

void encode(const dr_params& p, const dr_job& job, std::byte* scratch, const dr_exec* exec) {
  const uint64_t r = job_count(job), policy = bloom_policy_of(p.fields);
  if (const uint64_t bits = filter_bits(p.fields, r); bits > bloom_bits_max(job.universe)) {
    fault(job, DR_E_CAPACITY, 0, bits, "bloom: filter exceeds 16 bits per element of the universe");
    *job.out_size = 0;
    return;
  }
  with_shape(p, r, [&](const auto& shape) {
    auto* filter = job_out<uint8_t>(job);
    std::memset(filter, 0, shape.size());
    bloom_insert(shape, cpu(), filter, job_in<uint32_t>(job), r);
    // p1: the same on every rank. p2: the best one for this support.
    auto salt = static_cast<uint32_t>(draw(job.shared_key, 0) >> 32);
    *job.out_size = shape.size() + (has_salt(policy) ? 4 : 0);
    destination to{job.tell ? job_tell(job) : nullptr, job.tell_capacity};
    tell_support(shape, filter, policy, job.universe, r, exec, scratch, job_in<uint32_t>(job), salt, to);
    if (to.complaint || to.positives > to.capacity) {
      fault(job, DR_E_CAPACITY, 0, to.positives,
            to.complaint ? to.complaint : "bloom: more positives than max_ratio allows");
      return;
    }
    if (has_salt(policy)) store_salt(filter + shape.size(), salt);
    if (job.tell) *job.tell_count = to.positives;
  });
}

void decode(const dr_params& p, const dr_job& job, std::byte* scratch, const dr_exec* exec) {
  const uint64_t r = job_count(job), policy = bloom_policy_of(p.fields);
  if (policy != bloom_p0 && job.out_capacity / 4 != r) {
    fault(job, DR_E_CORRUPT, 0, job.out_capacity / 4, "bloom: support differs from count");
    return;
  }
  with_shape(p, r, [&](const auto& shape) {
    const auto* filter = job_in<uint8_t>(job);
    uint32_t salt = has_salt(policy) ? load_salt(filter + shape.size()) : 0;
    destination to{job_out<uint32_t>(job), job.out_capacity / 4};
    tell_support(shape, filter, policy, job.universe, r, exec, scratch, nullptr, salt, to);
    if (to.complaint || to.positives != to.capacity) {
      fault(job, DR_E_CORRUPT, 0, to.positives,
            to.complaint ? to.complaint : "bloom: number of selected positives differs from the support");
      return;
    }
    *job.out_size = 4 * to.positives;
  });
}

uint64_t cost(const dr_params& p, const dr_job& job) {
  return filter_bits(p.fields, job_count(job)) / 8 + (has_salt(bloom_policy_of(p.fields)) ? 4 : 0);
}

bool is_large(const dr_job& job) { return job.universe >= bloom_large_universe; }

constexpr dr_ops cpu_side{sizeof(dr_ops),
                          resolve,
                          each_need<need>,
                          each_cost<cost>,
                          each_job_or_part<encode, is_large>,
                          each_job_or_part<decode, is_large>,
                          {0, 0}};

}  // namespace

constinit const dr_codec bloom_codec =
    make_codec("bloom", "a Bloom filter, queried for every element of the universe", 4, DR_ROLE_INDEX,
               DR_REPLACES_SUPPORT | DR_FIXED_SIZE | DR_SHARED_RANDOM, &cpu_side,
               {.forms = list_form, .params = params, .fields = fields, .cuda = &bloom_cuda});

}  // namespace dr
