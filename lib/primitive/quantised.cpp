#include "primitive/quantised.hpp"

namespace dr {

#if DR_X86
constinit const cpu_table<decltype(&range_of_scalar)> range_of{range_of_scalar, nullptr, range_of_avx512};
#else
constinit const cpu_table<decltype(&range_of_scalar)> range_of{range_of_scalar};
#endif

}  // namespace dr
