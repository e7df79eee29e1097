// index=gap_huffman (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/index/gap_huffman/gap_huffman_kernel.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/block_parts.hpp"

namespace dr {
namespace {

bool large(const dr_job& job) { return job.count_max >= 32 * gap_huffman_block; }

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = gap_huffman_bound(job.universe, job.count_max);
  need.tell = job.count_max;
  if (large(job))
    need.encode_scratch =
        gap_huffman_bound(job.universe, std::min(job.count_max, gap_payload::part * gap_huffman_block));
  return true;
}

gap_payload payload(const dr_job& job) { return {job_count(job), job.universe}; }

uint64_t cost(const dr_params&, const dr_job& job) { return payload(job).size(job_in<uint32_t>(job)); }

void encode(const dr_params&, const dr_job& job, std::byte* scratch, const dr_exec* exec) {
  const gap_payload all = payload(job);
  const auto* const x = job_in<uint32_t>(job);
  auto* const out = job_out<uint8_t>(job);
  *job.out_size =
      exec && all.blocks() > gap_payload::part ? encode_parts(all, x, out, scratch, *exec) : all.encode(x, out);
  tell_same(job);
}

void decode(const dr_params&, const dr_job& job, std::byte*, const dr_exec* exec) {
  const gap_payload all = payload(job);
  uint64_t where = 0;
  const bool sound = exec && all.blocks() > gap_payload::part ? decode_parts(all, job, &where, *exec)
                                                              : all.get(job_in<uint8_t>(job), job_in_size(job), 0,
                                                                        all.blocks(), job_out<uint32_t>(job), &where);
  if (sound)
    *job.out_size = 4 * all.n;
  else
    fault(job, DR_E_CORRUPT, where, all.n, "gap_huffman: invalid block");
}

constexpr dr_ops ops{sizeof(dr_ops),
                     nullptr,
                     each_need<need>,
                     each_cost<cost>,
                     each_job_or_part<encode, large>,
                     each_job_or_part<decode, large>,
                     {0, 0}};

}  // namespace

constinit const dr_codec gap_huffman_codec =
    make_codec("gap_huffman", "gaps in Huffman codes of their own: for supports that are not uniform", 12,
               DR_ROLE_INDEX, DR_EXACT | DR_TOTAL, &ops, {.forms = list_form});
constinit const codec_notes gap_huffman_notes = {.codec = &gap_huffman_codec, .tries = tried_once};

}  // namespace dr
