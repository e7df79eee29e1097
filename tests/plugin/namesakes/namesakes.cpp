// A plug-in whose codecs are named as built-ins are: what a plug-in of today is to a release that brings codecs of its
// names. index=rice: the indices as they are. value=qsgd: the values as they are, with a byte before them. bytes zstd: the
// bytes, each inverted.
#include <deepreduce/version.h>
#include <deepreduce/codec.hpp>

#include <iterator>

namespace {

constexpr uint8_t mark = 0x5a;

template <class F>
bool copy(const dr_job& job, uint64_t expected, F&& f) {
  if (dr::job_in_size(job) != expected)
    return dr::fault(job, DR_E_CORRUPT, 0, dr::job_in_size(job), "namesakes: a payload of another size");
  return f();
}

bool need_index(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 4 * job.count_max;
  need.tell = job.count_max;
  return true;
}
void encode_index(const dr_params&, const dr_job& job, std::byte*) {
  *job.out_size = 4 * dr::job_count(job);
  std::memcpy(job.out, job.in, *job.out_size);
  dr::tell_same(job);
}
void decode_index(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = dr::job_count(job);
  copy(job, 4 * n, [&] {
    auto* const out = dr::job_out<uint32_t>(job);
    std::memcpy(out, job.in, 4 * n);
    for (uint64_t i = 0; i < n; ++i)
      if (out[i] >= job.universe || (i && out[i] <= out[i - 1]))
        return dr::fault(job, DR_E_CORRUPT, 4 * i, out[i], "rice of a plug-in: indices do not ascend in the universe");
    *job.out_size = 4 * n;
    return true;
  });
}

uint64_t values_size(const dr_job& job, uint64_t count) { return count * job.width * (job.dtype == DR_F32 ? 4 : 2); }
bool need_value(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 1 + values_size(job, job.count_max);
  return true;
}
void encode_value(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t size = values_size(job, dr::job_count(job));
  dr::job_out<uint8_t>(job)[0] = mark;
  std::memcpy(dr::job_out<uint8_t>(job) + 1, job.in, size);
  *job.out_size = 1 + size;
}
void decode_value(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t size = values_size(job, dr::job_count(job));
  copy(job, 1 + size, [&] {
    if (*dr::job_in<uint8_t>(job) != mark) return dr::fault(job, DR_E_CORRUPT, 0, 0, "qsgd of a plug-in: no mark");
    std::memcpy(job.out, dr::job_in<uint8_t>(job) + 1, size);
    *job.out_size = size;
    return true;
  });
}

bool need_bytes(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = job.in_max;
  return true;
}
void invert(const dr_job& job) {
  const uint64_t size = dr::job_in_size(job);
  for (uint64_t i = 0; i < size; ++i) dr::job_out<uint8_t>(job)[i] = static_cast<uint8_t>(~dr::job_in<uint8_t>(job)[i]);
  *job.out_size = size;
}
void encode_bytes(const dr_params&, const dr_job& job, std::byte*) { invert(job); }
void decode_bytes(const dr_params&, const dr_job& job, std::byte*) {
  if (dr::job_in_size(job) > job.out_capacity)
    dr::fault(job, DR_E_CORRUPT, job.out_capacity, dr::job_in_size(job), "zstd of a plug-in: too many bytes");
  else
    invert(job);
}

constexpr dr_ops index_ops = dr::cpu_ops<need_index, encode_index, decode_index>();
constexpr dr_ops value_ops = dr::cpu_ops<need_value, encode_value, decode_value>();
constexpr dr_ops bytes_ops = dr::cpu_ops<need_bytes, encode_bytes, decode_bytes>();

}  // namespace

extern "C" __attribute__((visibility("default"))) const dr_codec* const* dr_plugin_v2(const dr_host* host,
                                                                                      size_t* count) {
  static const dr_codec index = dr::make_codec("rice", "indices as they are", dr_private_id("org.example.rice"),
                                               DR_ROLE_INDEX, DR_EXACT, &index_ops, {.forms = dr::list_form});
  static const dr_codec value = dr::make_codec("qsgd", "values as they are", dr_private_id("org.example.qsgd"),
                                               DR_ROLE_VALUE, DR_EXACT, &value_ops, {.dtypes = dr::all_value_dtypes});
  static const dr_codec bytes =
      dr::make_codec("zstd", "inverted bytes", dr_private_id("org.example.zstd"), DR_ROLE_BYTES, DR_EXACT, &bytes_ops);
  static const dr_codec* const all[] = {&index, &value, &bytes};
  if (host->codec_abi != DR_CODEC_ABI_VERSION) return nullptr;
  *count = std::size(all);
  return all;
}
