// DeepReduce: helpers for codecs in C++20. Header only; built-ins and plug-ins use it alike.
#ifndef DEEPREDUCE_CODEC_HPP
#define DEEPREDUCE_CODEC_HPP

#if !defined(__cplusplus) || __cplusplus < 201709L
#error "codec.hpp needs C++20 (-std=c++20); codec.h serves older C++ and C"
#else

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "codec.h"

namespace dr {

// The value of declared parameter i. Not available in decode and `need`, which have wire fields only.
inline const dr_value& param_value(const dr_params& params, size_t i) { return *dr_value_at(params.values, i); }

inline uint64_t job_count(const dr_job& job) { return dr_job_count(&job); }
inline uint64_t job_in_size(const dr_job& job) { return dr_job_in_size(&job); }

template <class T>
const T* job_in(const dr_job& job) {
  return static_cast<const T*>(job.in);
}
template <class T>
T* job_out(const dr_job& job) {
  return static_cast<T*>(job.out);
}
inline uint32_t* job_tell(const dr_job& job) { return static_cast<uint32_t*>(job.tell); }

// Records the first fault of a job; `message` is a static string. Returns false, for `return fault(…)`.
inline bool fault(const dr_job& job, dr_status code, uint64_t where, uint64_t what, const char* message) {
  dr_job_fault(&job, code, where, what, message);
  return false;
}

// A dr_ops operation that calls F(params, job, scratch) for every job without a fault, on all workers. Scratch has the
// size that `need` computed. Always DR_OK: an error is the fault of a job.
template <auto F>
dr_status each_job(const dr_exec* exec, const dr_params* params, const dr_job* jobs, size_t n) {
  struct call {
    const dr_exec* exec;
    const dr_params* params;
    const dr_job* jobs;
  } call{exec, params, jobs};
  const auto one = [](void* arg, size_t item, size_t worker) {
    const auto& c = *static_cast<struct call*>(arg);
    const dr_job& job = *dr_job_at(c.jobs, item);
    if (job.fault->code != DR_OK) return;
    F(*c.params, job, static_cast<std::byte*>(c.exec->scratch) + worker * c.exec->scratch_size);
  };
  exec->parallel(exec->pool, n, one, &call);
  return DR_OK;
}

// The same, for codecs that can run one job on all workers: jobs for which Large is true run one after the other, by
// F(params, job, scratch, exec); then the others run in parallel, with exec NULL.
template <auto F, auto Large>
dr_status each_job_or_part(const dr_exec* exec, const dr_params* params, const dr_job* jobs, size_t n) {
  const auto alone = [](const dr_exec& e, const dr_job& job) { return e.workers > 1 && Large(job); };
  for (size_t i = 0; i < n; ++i)
    if (const dr_job& job = *dr_job_at(jobs, i); job.fault->code == DR_OK && alone(*exec, job))
      F(*params, job, static_cast<std::byte*>(exec->scratch), exec);
  struct call {
    const dr_exec* exec;
    const dr_params* params;
    const dr_job* jobs;
  } call{exec, params, jobs};
  const auto one = [](void* arg, size_t item, size_t worker) {
    const auto& c = *static_cast<struct call*>(arg);
    const dr_job& job = *dr_job_at(c.jobs, item);
    if (job.fault->code != DR_OK || (c.exec->workers > 1 && Large(job))) return;
    F(*c.params, job, static_cast<std::byte*>(c.exec->scratch) + worker * c.exec->scratch_size, nullptr);
  };
  exec->parallel(exec->pool, n, one, &call);
  return DR_OK;
}

// A dr_ops `need` that calls F(params, job, need), which returns false for fields that do not fit.
template <auto F>
dr_status each_need(const dr_params* params, const dr_job* jobs, size_t n, dr_need* needs) {
  for (size_t i = 0; i < n; ++i) {
    dr_need& need = *dr_need_at(needs, i);
    dr_need ours{};  // the caller's version may be shorter
    const size_t size = need.struct_size < sizeof ours ? need.struct_size : sizeof ours;
    ours.struct_size = need.struct_size;
    ours.rule = need.rule;
    if (!F(*params, *dr_job_at(jobs, i), ours)) return DR_E_CORRUPT;
    std::memcpy(&need, &ours, size);
  }
  return DR_OK;
}

// A dr_ops `cost` that computes the bytes of every job without a fault by F(params, job) or F(params, job, scratch).
template <auto F>
dr_status each_cost(const dr_exec* exec, const dr_params* params, const dr_job* jobs, size_t n, uint64_t* bytes) {
  struct call {
    const dr_exec* exec;
    const dr_params* params;
    const dr_job* jobs;
    uint64_t* bytes;
  } call{exec, params, jobs, bytes};
  const auto one = [](void* arg, size_t item, size_t worker) {
    const auto& c = *static_cast<struct call*>(arg);
    const dr_job& job = *dr_job_at(c.jobs, item);
    if (job.fault->code != DR_OK) return;
    if constexpr (std::is_invocable_v<decltype(F), const dr_params&, const dr_job&, std::byte*>)
      c.bytes[item] = F(*c.params, job, static_cast<std::byte*>(c.exec->scratch) + worker * c.exec->scratch_size);
    else
      c.bytes[item] = F(*c.params, job);
  };
  exec->parallel(exec->pool, n, one, &call);
  return DR_OK;
}

// Reports the support of an index codec that does not replace it.
inline void tell_same(const dr_job& job) {
  if (!job.tell) return;
  const uint64_t n = job_count(job);
  for (uint64_t i = 0; i < n; ++i) job_tell(job)[i] = job_in<uint32_t>(job)[i];
  *job.tell_count = n;
}

constexpr dr_param param_int(const char* name, const char* summary, double minimum, double maximum, double fallback) {
  return {sizeof(dr_param), name, summary, DR_PARAM_INT, 0, minimum, maximum, fallback, nullptr};
}
constexpr dr_param param_real(const char* name, const char* summary, double minimum, double maximum, double fallback) {
  return {sizeof(dr_param), name, summary, DR_PARAM_REAL, 0, minimum, maximum, fallback, nullptr};
}
constexpr dr_param param_choice(const char* name, const char* summary, const char* choices, double fallback) {
  return {sizeof(dr_param), name, summary, DR_PARAM_CHOICE, 0, 0, 0, fallback, choices};
}

// Operations on the CPU, from functions of one job. Cost, as of each_cost, is optional.
template <auto Need, auto Encode, auto Decode, auto Cost = nullptr>
constexpr dr_ops cpu_ops(dr_status (*resolve)(const dr_params*, const dr_job*, uint64_t*, dr_fault*) = nullptr) {
  decltype(dr_ops::cost) cost = nullptr;
  if constexpr (Cost != nullptr) cost = each_cost<Cost>;
  return {sizeof(dr_ops), resolve, each_need<Need>, cost, each_job<Encode>, each_job<Decode>, {0, 0}};
}

// The size of a payload of so many bits a row, rounded up to bytes.
constexpr dr_size_rule fixed_rate(uint64_t bits) { return {sizeof(dr_size_rule), bits << 16, 0, 8, 0, 0, 0, 0, 0, 0}; }
// Sets the rule of a payload's size in a CUDA `need`, if the caller requests it.
inline void set_rule(dr_need& need, const dr_size_rule& rule) {
  if (need.rule)
    std::memcpy(need.rule, &rule, need.rule->struct_size < sizeof rule ? need.rule->struct_size : sizeof rule);
}

constexpr dr_field wire_field(const char* name, uint64_t minimum, uint64_t maximum, uint64_t fallback) {
  return {sizeof(dr_field), name, minimum, maximum, fallback};
}

// Operations on a GPU: encode and decode process all jobs at once. `encodes`, `decodes`: their launches.
template <auto Need>
constexpr dr_ops cuda_ops(decltype(dr_ops::encode) encode, decltype(dr_ops::decode) decode, uint16_t encodes,
                          uint16_t decodes) {
  return {sizeof(dr_ops), nullptr, each_need<Need>, nullptr, encode, decode, {encodes, decodes}};
}

// Optional fields of a codec, besides name, traits and operations.
struct codec_parts {
  uint32_t dtypes = 0, forms = 0;
  std::span<const dr_param> params{};
  std::span<const dr_field> fields{};
  const dr_ops* cuda = nullptr;
};

constexpr dr_codec make_codec(const char* name, const char* summary, uint32_t id, dr_role role, uint32_t traits,
                              const dr_ops* cpu, const codec_parts& parts = {}) {
  return {sizeof(dr_codec),
          name,
          summary,
          id,
          role,
          traits,
          parts.dtypes,
          parts.forms,
          0,
          parts.params.data(),
          parts.params.size(),
          parts.fields.data(),
          parts.fields.size(),
          cpu,
          parts.cuda};
}

// A `resolve` for codecs whose wire fields are their first N parameters, all integers.
template <size_t N>
dr_status fields_are_params(const dr_params* params, const dr_job*, uint64_t* fields, dr_fault*) {
  for (size_t i = 0; i < N; ++i) fields[i] = static_cast<uint64_t>(param_value(*params, i).number);
  return DR_OK;
}

inline constexpr uint32_t list_form = 1u << DR_FORM_LIST, all_form = 1u << DR_FORM_ALL;
inline constexpr uint32_t all_value_dtypes = DR_DTYPE_BIT(DR_F32) | DR_DTYPE_BIT(DR_F16) | DR_DTYPE_BIT(DR_BF16);
// Including the types of patches.
inline constexpr uint32_t all_word_dtypes =
    all_value_dtypes | DR_DTYPE_BIT(DR_F64) | DR_DTYPE_BIT(DR_U8) | DR_DTYPE_BIT(DR_U16) | DR_DTYPE_BIT(DR_U32);

}  // namespace dr
#endif
#endif
