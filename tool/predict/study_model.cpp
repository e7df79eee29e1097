#include "study_model.hpp"

#include <algorithm>
#include <cmath>

namespace dr::predict {

double study_sync_ns(double bytes, double bucket_bytes, double backward_ns, double slowdown, uint32_t ranks,
                     const link& l) {
  const double k = std::max(1.0, std::ceil(bytes / bucket_bytes)), last = bytes - (k - 1) * bucket_bytes;
  return std::max(slowdown * backward_ns, (k - 1) * ring_allreduce_ns(bucket_bytes, ranks, l)) +
         ring_allreduce_ns(last, ranks, l);
}

double study_allreduce_ns(double bytes, uint32_t messages, double backward_ns, double coding_ns, uint32_t ranks,
                          const link& l) {
  const double latencies = 2.0 * (messages - 1.0) * (ranks - 1.0) * l.latency_ns;
  return backward_ns + coding_ns + ring_allreduce_ns(bytes, ranks, l) + latencies;
}

double study_allgather_ns(double bytes, uint32_t messages, double backward_ns, double coding_ns, uint32_t ranks,
                          const link& l) {
  const double latencies = (messages - 1.0) * (ranks - 1.0) * l.latency_ns;
  return backward_ns + coding_ns + ring_allgather_ns(bytes, ranks, l) + latencies;
}

factor_size factors_of(const tensor_spec& t, uint32_t rank) {
  const bool guessed = t.rows <= 0;
  const double rows = guessed ? std::sqrt(t.elements) : t.rows, columns = rows > 0 ? t.elements / rows : 0;
  if (columns <= 1 || rank * (rows + columns) >= t.elements) return {t.elements, 0, guessed};
  return {rank * rows, rank * columns, guessed};
}

powersgd_size powersgd_of(const training& t, uint32_t rank) {
  powersgd_size s;
  const double r = rank;
  for (const tensor_spec& tensor : t.tensors) {
    const factor_size f = factors_of(tensor, rank);
    s.guessed |= f.guessed;
    s.bytes += 4 * (f.first + f.second);
    if (f.second > 0) s.flops += 6 * tensor.elements * r + 2 * f.first * r;
  }
  return s;
}

}  // namespace dr::predict
