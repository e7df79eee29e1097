#include "codecs/index/gap_huffman/gap_huffman_kernel.hpp"

namespace dr {

constinit const cpu_table<decltype(&gap_split_scalar)> gap_split{gap_split_scalar};
constinit const cpu_table<decltype(&gap_extras_scalar)> gap_extras{gap_extras_scalar};
constinit const cpu_table<decltype(&gap_join_scalar)> gap_join{gap_join_scalar};

}  // namespace dr
