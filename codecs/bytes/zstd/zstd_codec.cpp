// bytes=zstd (SPEC.md): one Zstandard frame by libzstd, with its memory in our scratch.
#define ZSTD_STATIC_LINKING_ONLY  // contexts in the caller's memory, and the size that they need
#include <zstd.h>

#include <algorithm>

#include "codecs/builtin.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {param_int("level", "1 is fast, 19 is small", 1, 19, 3)};

int level_of(const dr_params& p) { return static_cast<int>(param_value(p, 0).number); }

// A level's settings and tables depend on which of these sizes bounds the input.
uint64_t encode_memory(int level, uint64_t in_max) {
  uint64_t largest = 0;
  for (const uint64_t size : {uint64_t{16} << 10, uint64_t{128} << 10, uint64_t{256} << 10, in_max})
    largest = std::max<uint64_t>(largest, ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(
                                              level, std::max<uint64_t>(1, std::min(size, in_max)), 0)));
  return largest;
}

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  // ZSTD_compressBound, which newer libraries refuse to say of sizes that no memory holds.
  constexpr uint64_t small = uint64_t{128} << 10;
  need.payload = job.in_max + (job.in_max >> 8) + (job.in_max < small ? (small - job.in_max) >> 11 : 0);
  need.encode_scratch = p.values ? encode_memory(level_of(p), job.in_max) : 0;
  need.decode_scratch = ZSTD_estimateDCtxSize();
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  ZSTD_CCtx* const context = ZSTD_initStaticCCtx(scratch, encode_memory(level_of(p), job.in_max));
  const size_t size =
      context ? ZSTD_compressCCtx(context, job.out, job.out_capacity, job.in, job_in_size(job), level_of(p)) : 0;
  if (!context || ZSTD_isError(size))
    fault(job, DR_E_INTERNAL, 0, job_in_size(job), "zstd: libzstd needs more memory or capacity than documented");
  else
    *job.out_size = size;
}

void decode(const dr_params&, const dr_job& job, std::byte* scratch) {
  ZSTD_DCtx* const context = ZSTD_initStaticDCtx(scratch, ZSTD_estimateDCtxSize());
  if (!context) {
    fault(job, DR_E_INTERNAL, 0, 0, "zstd: libzstd needs more memory than documented");
    return;
  }
  // By default libzstd also accepts several frames, skippable frames and those of versions before 0.8.
  const uint64_t size = job_in_size(job);
  if (size < 4 || load<uint32_t>(job.in) != ZSTD_MAGICNUMBER || ZSTD_findFrameCompressedSize(job.in, size) != size) {
    fault(job, DR_E_CORRUPT, 0, size, "zstd: payload is not exactly one Zstandard frame");
    return;
  }
  const size_t decoded = ZSTD_decompressDCtx(context, job.out, job.out_capacity, job.in, size);
  if (ZSTD_isError(decoded))
    fault(job, DR_E_CORRUPT, 0, size, "zstd: damaged frame, or output exceeds capacity");
  else
    *job.out_size = decoded;
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec zstd_codec = make_codec("zstd", "Zstandard (RFC 8878) by libzstd, on the CPU", 2,
                                                 DR_ROLE_BYTES, DR_EXACT | DR_HOST_ONLY, &cpu, {.params = params});

}  // namespace dr
