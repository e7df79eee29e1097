// bytes=deflate (SPEC.md): raw Deflate by zlib, with its memory in our scratch.
#include <zlib.h>

#include <algorithm>

#include "codecs/builtin.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr int window_bits = 15, memory_level = 8;
// zconf.h: deflate needs (1 << (window_bits + 2)) + (1 << (memory_level + 9)) bytes "plus a few kilobytes", inflate
// (1 << window_bits) + about 7 KB. Overlays of 1.2.13 and newer take one more buffer of a quarter of the second term.
constexpr uint64_t deflate_memory = (1u << (window_bits + 2)) + 2 * (1u << (memory_level + 9)) + (32u << 10);
constexpr uint64_t inflate_memory = (1u << window_bits) + (32u << 10);

constexpr dr_param params[] = {param_int("level", "1 is fast, 9 is small", 1, 9, 6)};

// A bump allocator: zlib asks a handful of times and frees all at the end.
struct bump {
  std::byte* next;
  std::byte* end;

  static void* take(void* self, uInt items, uInt size) {
    auto& b = *static_cast<bump*>(self);
    const uint64_t bytes = (uint64_t{items} * size + 15) / 16 * 16;
    if (bytes > static_cast<uint64_t>(b.end - b.next)) return Z_NULL;
    void* const at = b.next;
    b.next += bytes;
    return at;
  }
  static void give(void*, void*) {}
};

z_stream stream(bump& memory) {
  z_stream z{};
  z.zalloc = bump::take;
  z.zfree = bump::give;
  z.opaque = &memory;
  return z;
}

// zlib counts in 32 bits: feeds it piece by piece until `step` is done or stuck. True if the stream ended.
template <class Step>
bool drive(z_stream& z, const dr_job& job, Step&& step) {
  constexpr uint64_t piece = 1u << 30;
  uint64_t in_left = job_in_size(job), out_left = job.out_capacity;
  z.next_in = const_cast<Bytef*>(job_in<Bytef>(job));
  z.next_out = job_out<Bytef>(job);
  for (;;) {
    const uInt in_now = static_cast<uInt>(std::min(in_left, piece)),
               out_now = static_cast<uInt>(std::min(out_left, piece));
    z.avail_in = in_now;
    z.avail_out = out_now;
    const int result = step(z, in_left == in_now);
    in_left -= in_now - z.avail_in;
    out_left -= out_now - z.avail_out;
    if (result == Z_STREAM_END) break;
    const bool moved = z.avail_in != in_now || z.avail_out != out_now;
    if ((result != Z_OK && result != Z_BUF_ERROR) || !moved) return false;
  }
  *job.out_size = job.out_capacity - out_left;
  return in_left == 0;
}

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  // zlib's deflateBound for any settings (deflate.c): no stored block is smaller than 2^(memory_level+6) / 2.
  need.payload =
      job.in_max + (job.in_max >> 12) + (job.in_max >> 14) + (job.in_max >> 25) + 5 * (job.in_max >> 13) + 64;
  need.encode_scratch = deflate_memory;
  need.decode_scratch = inflate_memory;
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  bump memory{scratch, scratch + deflate_memory};
  z_stream z = stream(memory);
  if (deflateInit2(&z, static_cast<int>(param_value(p, 0).number), Z_DEFLATED, -window_bits, memory_level,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    fault(job, DR_E_INTERNAL, 0, 0, "deflate: zlib needs more memory than documented");
    return;
  }
  if (!drive(z, job, [](z_stream& s, bool last) { return deflate(&s, last ? Z_FINISH : Z_NO_FLUSH); }))
    fault(job, DR_E_INTERNAL, 0, job_in_size(job), "deflate: output exceeds its bound");
  deflateEnd(&z);
}

void decode(const dr_params&, const dr_job& job, std::byte* scratch) {
  bump memory{scratch, scratch + inflate_memory};
  z_stream z = stream(memory);
  if (inflateInit2(&z, -window_bits) != Z_OK) {
    fault(job, DR_E_INTERNAL, 0, 0, "deflate: zlib needs more memory than documented");
    return;
  }
  if (!drive(z, job, [](z_stream& s, bool) { return inflate(&s, Z_NO_FLUSH); }))
    fault(job, DR_E_CORRUPT, 0, job_in_size(job),
          "deflate: damaged stream, bytes after it, or output exceeds capacity");
  inflateEnd(&z);
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec deflate_codec = make_codec("deflate", "Deflate (RFC 1951) by zlib, on the CPU", 1,
                                                    DR_ROLE_BYTES, DR_EXACT | DR_HOST_ONLY, &cpu, {.params = params});

}  // namespace dr
