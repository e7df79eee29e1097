// Long sweeps: whole in a release build; under sanitizers a part of the combinations, in which each single value still comes.
#pragma once

namespace dr {

#ifdef DR_SANITIZED
inline constexpr bool whole_sweep = false;
#else
inline constexpr bool whole_sweep = true;
#endif

}  // namespace dr
