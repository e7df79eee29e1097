// index=bitmap (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/index/bitmap/bitmap_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = ceil_div(job.universe, 8);
  need.tell = job.count_max;
  return true;
}

uint64_t cost(const dr_params&, const dr_job& job) { return ceil_div(job.universe, 8); }

void encode(const dr_params&, const dr_job& job, std::byte*) {
  bitmap_encode(job_in<uint32_t>(job), job_count(job), job.universe, cpu(), job_out<uint8_t>(job));
  *job.out_size = ceil_div(job.universe, 8);
  tell_same(job);
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job);
  if (bitmap_decode(job_in<uint8_t>(job), n, job.universe, cpu(), job_out<uint32_t>(job)))
    *job.out_size = 4 * n;
  else
    fault(job, DR_E_CORRUPT, 0, n, "bitmap: number of ones differs from the support, or one is not below the universe");
}

constexpr dr_ops ops = cpu_ops<need, encode, decode, cost>();

}  // namespace

constinit const dr_codec bitmap_codec = make_codec("bitmap", "one bit per element of the universe", 5, DR_ROLE_INDEX,
                                                   DR_EXACT | DR_FIXED_SIZE | DR_TOTAL, &ops, {.forms = list_form});
constinit const codec_notes bitmap_notes = {.codec = &bitmap_codec, .tries = tried_once};

}  // namespace dr
