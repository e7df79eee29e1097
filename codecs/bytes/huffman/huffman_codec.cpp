// bytes=huffman (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/bytes/huffman/huffman_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = huffman_bound(job.in_max);
  return true;
}

void encode(const dr_params&, const dr_job& job, std::byte*) {
  *job.out_size = huffman_encode(job_in<uint8_t>(job), job_in_size(job), job_out<uint8_t>(job));
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  uint64_t n = 0, where = 0;
  if (huffman_decode(job_in<uint8_t>(job), job_in_size(job), job_out<uint8_t>(job), job.out_capacity, &n, &where))
    *job.out_size = n;
  else
    fault(job, DR_E_CORRUPT, where, n, "huffman: invalid code table or stream, or output exceeds capacity");
}

constexpr dr_ops ops = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec huffman_codec =
    make_codec("huffman", "canonical Huffman codes of at most 11 bits", 3, DR_ROLE_BYTES, DR_EXACT, &ops);

}  // namespace dr
