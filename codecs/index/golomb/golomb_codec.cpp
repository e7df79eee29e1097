// index=golomb (SPEC.md). The kernel is primitive/golomb.hpp.
#include "codecs/builtin.hpp"
#include "primitive/golomb_index.hpp"

namespace dr {

using golomb_ops = golomb_index<golomb_divisor>;

constinit const dr_codec golomb_codec{sizeof(dr_codec), "golomb", "gaps in split Golomb codes, near the entropy of a uniform set", 2, DR_ROLE_INDEX, DR_EXACT, 0, 1u << DR_FORM_LIST, 0, 0,
                                    golomb_ops::params, 1, golomb_ops::fields, 1, &golomb_ops::cpu, nullptr};

}  // namespace dr
