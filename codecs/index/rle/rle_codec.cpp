// index=rle (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/index/rle/rle_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {
    param_choice("code",
                 "of a length: packed in as many bits as the longest needs, or in units of 8, 16 or 32 bits; "
                 "runs: of zeros and ones in turn; gaps: of the zeros before every one",
                 rle_codes, rle_packed)};
constexpr dr_field fields[] = {wire_field("code", rle_packed, rle_gaps32, rle_packed)};

uint32_t code_of(const dr_params& p) { return static_cast<uint32_t>(p.fields[0]); }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  need.payload = rle_bound(code_of(p), job.universe, job.count_max);
  need.tell = job.count_max;
  return true;
}

uint64_t cost(const dr_params& p, const dr_job& job) {
  return rle_measure(job_in<uint32_t>(job), job_count(job), code_of(p)).size;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  *job.out_size = rle_encode(job_in<uint32_t>(job), job_count(job), code_of(p), job_out<uint8_t>(job));
  tell_same(job);
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job);
  uint64_t where = 0;
  if (rle_decode(job_in<uint8_t>(job), job_in_size(job), n, job.universe, code_of(p), job_out<uint32_t>(job), &where))
    *job.out_size = 4 * n;
  else
    fault(job, DR_E_CORRUPT, where, n, "rle: runs do not decode to that many indices below the universe");
}

constexpr dr_ops ops = cpu_ops<need, encode, decode, cost>(fields_are_params<1>);

}  // namespace

constinit const dr_codec rle_codec =
    make_codec("rle", "run lengths of the bitmap, as in the paper", 6, DR_ROLE_INDEX, DR_EXACT | DR_TOTAL, &ops,
               {.forms = list_form, .params = params, .fields = fields});
constinit const codec_notes rle_notes = {.codec = &rle_codec, .tries = tried_once};

}  // namespace dr
