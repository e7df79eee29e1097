// value=history (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/family/history/history_words.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/word.hpp"

namespace dr {
namespace {

uint64_t words_of(const dr_job& job, uint64_t count) { return count * job.width; }

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = words_of(job, job.count_max);
  with_word(value_size(job.dtype), [&](auto word) {
    need.payload = history_changes_bound<decltype(word)>(n);
    need.encode_scratch = need.decode_scratch = history_change_scratch<decltype(word)>::size(n);
  });
  return true;
}

void encode(const dr_params&, const dr_job& job, std::byte* scratch) {
  const uint64_t n = words_of(job, job_count(job));
  with_word_type(job.dtype, [&](auto type) {
    using Bits = typename decltype(type)::bits;
    *job.out_size =
        history_changes_encode<decltype(type)>(static_cast<const Bits*>(job.base), job_in<Bits>(job), job.history, n,
                                               history_change_scratch<Bits>::at(scratch, n), job_out<uint8_t>(job));
  });
}

void decode(const dr_params&, const dr_job& job, std::byte* scratch) {
  const uint64_t n = words_of(job, job_count(job));
  with_word_type(job.dtype, [&](auto type) {
    using Bits = typename decltype(type)::bits;
    const history_fault found = history_changes_decode<decltype(type)>(
        static_cast<const Bits*>(job.base), job.history, job_in<uint8_t>(job), job_in_size(job), n,
        history_change_scratch<Bits>::at(scratch, n), job_out<Bits>(job));
    if (found == history_fault::none)
      *job.out_size = n * sizeof(Bits);
    else
      fault(job, DR_E_CORRUPT, 0, n, sentence_of(found));
  });
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec value_history_codec = make_codec(
    "history", "of a patch in a chain: by how many units in the last place, forwards from where a weight went before",
    20, DR_ROLE_VALUE, DR_EXACT | DR_TOTAL | DR_NEEDS_BASE | DR_NEEDS_HISTORY, &operations,
    {.dtypes = all_word_dtypes});

}  // namespace dr
