#include "codecs/family/golomb/golomb_payload.hpp"

namespace dr {

const golomb_block_coder& golomb_at(cpu_level level) {
  static constexpr golomb_block_coder scalar{golomb_put_block, golomb_get_block};
#if DR_X86
  if (level == cpu_level::avx512) return golomb_avx512;
  if (level == cpu_level::avx2) return golomb_avx2;
#endif
  (void)level;
  return scalar;
}

}  // namespace dr
