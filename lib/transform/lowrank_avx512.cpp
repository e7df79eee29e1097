#include <cstring>

#include "transform/lowrank_kernel.hpp"

#if DR_X86
DR_AVX512_BEGIN
#include "transform/lowrank_vectors.hpp"
namespace dr {
namespace {

struct vectors {
  using vector = __m512;
  static constexpr uint32_t lanes = 16;

  static vector all(float x) { return _mm512_set1_ps(x); }
  static vector load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, vector x) { _mm512_storeu_ps(to, x); }
  static vector add(vector x, vector y) { return _mm512_add_ps(x, y); }
  static vector sub(vector x, vector y) { return _mm512_sub_ps(x, y); }
  static vector mul(vector x, vector y) { return _mm512_mul_ps(x, y); }
};

}  // namespace

constinit const lowrank_kernels lowrank_avx512 = make_lowrank_kernels<vectors>();

}  // namespace dr
DR_ISA_END
#endif
