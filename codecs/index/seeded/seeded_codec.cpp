// index=seeded (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/index/seeded/seeded_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

enum param : size_t { param_ratio, param_count };
constexpr double usual_ratio = 0.01;
constexpr dr_param params[] = {
    param_real("ratio", "share of the universe to draw", 0, 1, usual_ratio),
    param_int("count", "elements to draw per segment; 0: by ratio", 0, 4294967295.0, 0),
};
constexpr uint64_t payload_size = 8;

dr_status resolve(const dr_params* p, const dr_job*, uint64_t*, dr_fault* fault) {
  const dr_value &ratio = param_value(*p, param_ratio), &count = param_value(*p, param_count);
  // (A parameter that a plan's text omits counts as absent: plans with equal texts are equal.)
  const char* wrong = ratio.number != usual_ratio && count.number > 0 ? "seeded accepts either ratio or count"
                      : ratio.number <= 0                             ? "seeded(ratio) must be above 0"
                                                                      : nullptr;
  if (!wrong) return DR_OK;
  fault->stream = DR_STREAM_INDEX;
  fault->message = wrong;
  return fault->code = DR_E_ARGUMENT;
}

// As in topr (lib/sparsify). Decode reads the count from the frame.
uint64_t target(const dr_params& p, uint64_t universe) {
  const double count = param_value(p, param_count).number;
  const uint64_t n = static_cast<uint64_t>(
      count > 0 ? count : param_value(p, param_ratio).number * static_cast<double>(universe) + 1e-9);
  return std::clamp<uint64_t>(n, 1, std::max<uint64_t>(universe, 1));
}

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  need.payload = payload_size;
  need.tell = p.values ? target(p, job.universe) : job.count_max;
  need.tell_suffices = p.values != nullptr;
  need.encode_scratch = need.decode_scratch = seeded_scratch(job.universe);
  return true;
}

uint64_t cost(const dr_params&, const dr_job&) { return payload_size; }

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  store(job.out, job.shared_key);
  *job.out_size = payload_size;
  if (!job.tell) return;
  const uint64_t n = target(p, job.universe);
  if (n > job.tell_capacity)
    fault(job, DR_E_CAPACITY, 0, n, "seeded: more elements than the capacity");
  else if (!seeded_support(job.shared_key, job.universe, n, cpu(), scratch, job_tell(job)))
    fault(job, DR_E_INTERNAL, 0, job.shared_key, "seeded: the key does not draw enough distinct indices");
  else
    *job.tell_count = n;
}

void decode(const dr_params&, const dr_job& job, std::byte* scratch) {
  const uint64_t n = job.out_capacity / 4;
  if (n == 0 || n > job.universe) {
    fault(job, DR_E_CORRUPT, 0, n, "seeded: support is not in 1 … universe");
    return;
  }
  const auto key = load<uint64_t>(job.in);
  if (seeded_support(key, job.universe, n, cpu(), scratch, job_out<uint32_t>(job)))
    *job.out_size = 4 * n;
  else
    fault(job, DR_E_CORRUPT, 0, key, "seeded: the key does not draw enough distinct indices");
}

constexpr dr_ops ops = cpu_ops<need, encode, decode, cost>(resolve);

}  // namespace

constinit const dr_codec seeded_codec =
    make_codec("seeded", "a support drawn from the shared key (Random-k): only the key travels", 10, DR_ROLE_INDEX,
               DR_REPLACES_SUPPORT | DR_FIXED_SIZE | DR_SHARED_RANDOM, &ops, {.forms = list_form, .params = params});
// (Bloom filters have the same traits, and a support that follows from the data.)
constinit const codec_notes seeded_notes = {.codec = &seeded_codec, .blind = true};

}  // namespace dr
