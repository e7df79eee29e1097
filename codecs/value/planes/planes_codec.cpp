// value=planes (SPEC.md).
#include <atomic>

#include "codecs/builtin.hpp"
#include "codecs/value/planes/planes_kernel.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

uint64_t words_of(const dr_job& job, uint64_t count) { return count * job.width; }

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = words_of(job, job.count_max);
  const unsigned size = value_size(job.dtype);
  need.payload = planes_bound(n, size);
  need.encode_scratch = planes_scratch::encode_size(n, size);
  need.decode_scratch = planes_scratch::decode_size(n, size);
  return true;
}

// Calls f(word) for the words of a type. A number's exponent is its upper bits after the sign; of 8 bits turning would
// change nothing.
template <class F>
void with_planes_word(uint32_t dtype, F&& f) {
  switch (dtype) {
    case DR_F32: return f(planes_word<uint32_t, true>{});
    case DR_F64: return f(planes_word<uint64_t, true>{});
    case DR_U8: return f(planes_word<uint8_t, false>{});
    case DR_U16: return f(planes_word<uint16_t, false>{});
    case DR_U32: return f(planes_word<uint32_t, false>{});
    default: return f(planes_word<uint16_t, true>{});
  }
}

// Calls f(block, worker) per block, on all workers of `exec`, if given.
template <class F>
void each_block(const dr_exec* exec, uint64_t blocks, F&& f) {
  if (!exec) {
    for (uint64_t b = 0; b < blocks; ++b) f(b, size_t{0});
    return;
  }
  const auto one = [](void* arg, size_t item, size_t worker) { (*static_cast<F*>(arg))(item, worker); };
  exec->parallel(exec->pool, blocks, one, &f);
}

bool large(const dr_job& job) { return words_of(job, job.count_max) > planes_block; }

void encode(const dr_params&, const dr_job& job, std::byte* scratch, const dr_exec* exec) {
  const uint64_t n = words_of(job, job_count(job)), blocks = ceil_div(n, planes_block);
  uint8_t* const sizes = job_out<uint8_t>(job);
  uint8_t* const body = sizes + 4 * (blocks - 1);
  with_planes_word(job.dtype, [&](auto word) {
    using Word = decltype(word);
    // Workers write a block at the offset that it has if all earlier blocks have their maximum size.
    constexpr uint64_t block_max = planes_block * Word::size + Word::size;
    const bool past = !exec && n * Word::size >= planes_past_from;  // (else what it wrote is read again below)
    uint8_t* next = body;
    uint64_t last_size = 0;
    each_block(exec, blocks, [&](uint64_t b, size_t worker) {
      const uint64_t first = b * planes_block;
      std::byte* const own = scratch + (exec ? worker * exec->scratch_size : 0);
      uint8_t* const to = exec ? body + b * block_max : next;
      uint8_t* const end =
          planes_encode<Word>(job_in<typename Word::bits>(job) + first, std::min(planes_block, n - first),
                              planes_scratch::at(own, n, Word::size), to, past, cpu());
      if (past) fence_streams();
      if (b + 1 < blocks)
        store(sizes + 4 * b, static_cast<uint32_t>(end - to));
      else
        last_size = static_cast<uint64_t>(end - to);
      if (!exec) next = end;
    });
    for (uint64_t b = 0; exec && b < blocks; ++b) {
      const uint64_t size = b + 1 < blocks ? load<uint32_t>(sizes + 4 * b) : last_size;
      std::memmove(next, body + b * block_max, size);
      next += size;
    }
    *job.out_size = static_cast<uint64_t>(next - sizes);
  });
}

void decode(const dr_params&, const dr_job& job, std::byte* scratch, const dr_exec* exec) {
  const uint64_t n = words_of(job, job_count(job)), blocks = ceil_div(n, planes_block), size = job_in_size(job);
  const auto* const in = job_in<uint8_t>(job);
  if (size / 4 < blocks - 1) {
    fault(job, DR_E_CORRUPT, size, blocks, "planes: the payload ends in the sizes of its blocks");
    return;
  }
  std::atomic<uint64_t> bad{blocks};
  with_planes_word(job.dtype, [&](auto word) {
    using Word = decltype(word);
    const bool past = n * Word::size >= planes_past_from;
    each_block(exec, ceil_div(blocks, 2), [&](uint64_t pair, size_t worker) {
      // (Sums sizes; reads a quarter of them per block, which costs little beside the block.)
      const uint64_t b = 2 * pair, first = b * planes_block;
      uint64_t begin = 4 * (blocks - 1);
      for (uint64_t k = 0; k < b; ++k) begin += load<uint32_t>(in + 4 * k);
      const uint64_t middle = b + 1 < blocks ? begin + load<uint32_t>(in + 4 * b) : size;
      const uint64_t end = b + 2 < blocks ? middle + load<uint32_t>(in + 4 * (b + 1)) : size;
      std::byte* const own = scratch + (exec ? worker * exec->scratch_size : 0);
      const bool sound =
          begin <= middle && middle <= end && end <= size &&
          planes_decode<Word>(in + begin, in + middle, in + end, in + size, std::min(2 * planes_block, n - first),
                              planes_scratch::at(own, n, Word::size), job_out<typename Word::bits>(job) + first, past,
                              cpu());
      if (past) fence_streams();
      if (sound) return;
      for (uint64_t before = bad; b < before && !bad.compare_exchange_weak(before, b);) {
      }
    });
    if (bad == blocks)
      *job.out_size = n * Word::size;
    else
      fault(job, DR_E_CORRUPT, 4 * bad, bad, "planes: a block with invalid modes, tables or coded symbols");
  });
}

constexpr dr_ops operations = {
    sizeof(dr_ops), nullptr, each_need<need>, nullptr, each_job_or_part<encode, large>, each_job_or_part<decode, large>,
    {0, 0}};

}  // namespace

constinit const dr_codec planes_codec =
    make_codec("planes", "the values, bit for bit; exponents are coded separately", 19, DR_ROLE_VALUE,
               DR_EXACT | DR_TOTAL, &operations, {.dtypes = all_word_dtypes});

}  // namespace dr
