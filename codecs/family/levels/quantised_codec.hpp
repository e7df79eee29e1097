// Decode of the payloads of quantised.hpp, for the binding of a codec.
#pragma once

#include "codecs/family/levels/quantised.hpp"
#include "deepreduce/codec.hpp"

namespace dr {

// A codec's decode of such payloads: as they are, or by levels(type, payload, size, n, values, &where), which returns
// false where it is corrupt and leaves the place in where.
template <class F>
void decode_quantised(const dr_job& job, const char* corrupt, F&& levels) {
  const uint64_t n = job_count(job) * job.width, size = job_in_size(job);
  const auto* in = job_in<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    auto* out = job_out<typename T::bits>(job);
    uint64_t where = 0;
    const bool good = size > 0 && (in[0] == kind_raw ? read_raw_payload<T>(in, size, n, out, &where)
                                                     : levels(type, in, size, n, out, &where));
    if (good)
      *job.out_size = n * sizeof *out;
    else
      fault(job, DR_E_CORRUPT, where, size, corrupt);
  });
}

}  // namespace dr
