// index=rice (SPEC.md). The kernel is primitive/golomb.hpp.
#include "codecs/builtin.hpp"
#include "primitive/golomb_index.hpp"

namespace dr {

using rice_ops = golomb_index<rice_divisor>;

constinit const dr_codec rice_codec{sizeof(dr_codec), "rice", "as golomb, with a power of two as divisor", 3, DR_ROLE_INDEX, DR_EXACT, 0, 1u << DR_FORM_LIST, 0, 0,
                                    rice_ops::params, 1, rice_ops::fields, 1, &rice_ops::cpu, nullptr};

}  // namespace dr
