// Several launches of few blocks in one: a block does the work of all their blocks, in order, and a barrier is where one
// launch ended and the next began. For small tensors: there a launch takes longer to begin than to do its work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "primitive/block.hpp"

namespace dr {

// A launch of more blocks is not fused, and a call of more values should not be: they are faster side by side. (Of as many
// values add_rows has four blocks, and codecs have one or two.)
inline constexpr uint32_t fused_blocks = 4, fused_values = 1024;

// A kernel that may be fused. `Alone`: the one that is launched otherwise. `Own`: the same with arguments of the size that
// it needs here, so that all of them fit into one launch.
template <class Alone, class Own = Alone>
struct fused_part {
  using alone = Alone;
  using own = Own;
};

template <class... Parts>
struct fused_args {};
template <class Part, class... More>
struct fused_args<Part, More...> {
  typename Part::own::args args;
  fused_args<More...> more;
};

template <class... T>
constexpr auto largest_of(T... x) {
  std::common_type_t<T...> most = 0;
  ((most = x > most ? x : most), ...);
  return most;
}

// Any of its parts, in their order.
template <class... Parts>
struct fused {
  static constexpr size_t count = sizeof...(Parts);
  static constexpr unsigned lanes = largest_of(Parts::own::lanes...), grid_phases = 1,
                            resident = 1;  // (one block is all of the launch; without saying so, registers spill)
  static_assert(((Parts::own::grid_phases == 1) && ...));
  struct args {
    uint32_t blocks[count];  // of each part; 0: it is left out, and has no arguments
    fused_args<Parts...> of;
  };
  struct shared {
    alignas(16) unsigned char memory[largest_of(sizeof(typename Parts::own::shared)...)];
  };

  // (As functions that are called, both spill.)
  template <class Block>
  [[gnu::always_inline]] DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    run_from<0>(b, s, a, a.of);
  }
  template <class F>
  DR_HD static void each_ahead(const args& a, uint32_t, F&& f) {
    ahead_from<0>(a, a.of, f);
  }

 private:
  template <size_t I, class Block, class Part, class... More>
  [[gnu::always_inline]] DR_HD static void run_from(Block& b, shared& s, const args& a,
                                                    const fused_args<Part, More...>& of) {
    using own = typename Part::own;
    if (a.blocks[I]) {
      b.template parts<own::lanes>(a.blocks[I], [&](auto& part) {
        own::run(part, *reinterpret_cast<typename own::shared*>(s.memory), of.args, 0);
      });
      b.phase([](unsigned) {});
    }
    if constexpr (sizeof...(More) > 0) run_from<I + 1>(b, s, a, of.more);
  }

  template <size_t I, class Part, class... More, class F>
  DR_HD static void ahead_from(const args& a, const fused_args<Part, More...>& of, F&& f) {
    using own = typename Part::own;
    if constexpr (requires { own::each_ahead(of.args, 0u, f); })
      for (uint32_t i = 0; i < a.blocks[I]; ++i) own::each_ahead(of.args, i, f);
    if constexpr (sizeof...(More) > 0) ahead_from<I + 1>(a, of.more, f);
  }
};

}  // namespace dr
