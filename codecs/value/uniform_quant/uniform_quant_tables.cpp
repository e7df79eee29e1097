#include "codecs/value/uniform_quant/uniform_quant_kernel.hpp"

namespace dr {

#if DR_X86
constinit const cpu_table<decltype(&uniform_squares_scalar)> uniform_squares{
    uniform_squares_scalar, uniform_squares_avx2, uniform_squares_avx512};
constinit const cpu_table<decltype(&uniform_quantise_scalar)> uniform_quantise{
    uniform_quantise_scalar, uniform_quantise_avx2, uniform_quantise_avx512};
constinit const cpu_table<decltype(&uniform_restore_scalar)> uniform_restore{
    uniform_restore_scalar, uniform_restore_avx2, uniform_restore_avx512};
#else
constinit const cpu_table<decltype(&uniform_squares_scalar)> uniform_squares{uniform_squares_scalar};
constinit const cpu_table<decltype(&uniform_quantise_scalar)> uniform_quantise{uniform_quantise_scalar};
constinit const cpu_table<decltype(&uniform_restore_scalar)> uniform_restore{uniform_restore_scalar};
#endif

}  // namespace dr
