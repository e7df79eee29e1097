// value=ulp and value=xor (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/family/classes/word_changes.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

uint64_t words_of(const dr_job& job, uint64_t count) { return count * job.width; }

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = words_of(job, job.count_max);
  need.payload = 1 + n * value_size(job.dtype);
  need.encode_scratch = need.decode_scratch = change_scratch::size(n);
  return true;
}

// Calls f(change) for the words of a type.
template <template <class> class Change, class F>
void with_change(uint32_t dtype, F&& f) {
  with_word_type(dtype, [&](auto type) { f(Change<decltype(type)>{}); });
}

template <template <class> class Change>
void encode(const dr_params&, const dr_job& job, std::byte* scratch) {
  const uint64_t n = words_of(job, job_count(job));
  with_change<Change>(job.dtype, [&](auto change) {
    using Bits = typename decltype(change)::bits;
    *job.out_size = changes_encode<decltype(change)>(static_cast<const Bits*>(job.base), job_in<Bits>(job), n,
                                                     change_scratch::at(scratch, n), job_out<uint8_t>(job));
  });
}

template <template <class> class Change>
void decode(const dr_params&, const dr_job& job, std::byte* scratch) {
  const uint64_t n = words_of(job, job_count(job));
  with_change<Change>(job.dtype, [&](auto change) {
    using Bits = typename decltype(change)::bits;
    if (changes_decode<decltype(change)>(static_cast<const Bits*>(job.base), job_in<uint8_t>(job), job_in_size(job), n,
                                         change_scratch::at(scratch, n), job_out<Bits>(job)))
      *job.out_size = n * sizeof(Bits);
    else
      fault(job, DR_E_CORRUPT, 0, n, "invalid classes, tables or coded symbols");
  });
}

constexpr dr_ops ulp_cpu = cpu_ops<need, encode<ulp_change>, decode<ulp_change>>();
constexpr dr_ops xor_cpu = cpu_ops<need, encode<xor_change>, decode<xor_change>>();
constexpr uint32_t traits = DR_EXACT | DR_TOTAL | DR_NEEDS_BASE;

}  // namespace

constinit const dr_codec ulp_codec =
    make_codec("ulp", "of a patch: by how many units in the last place, class by class of the base's magnitude", 17,
               DR_ROLE_VALUE, traits, &ulp_cpu, {.dtypes = all_word_dtypes, .cuda = &ulp_cuda});
constinit const dr_codec xor_codec = make_codec("xor", "for patches: which bits differ, for words that are not numbers",
                                                18, DR_ROLE_VALUE, traits, &xor_cpu, {.dtypes = all_word_dtypes});
constinit const codec_notes ulp_notes = {.codec = &ulp_codec, .tries = tried_once};
constinit const codec_notes xor_notes = {.codec = &xor_codec, .tries = tried_once};

}  // namespace dr
