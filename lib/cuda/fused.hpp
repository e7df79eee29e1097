// The host's side of fused launches (primitive/fused_tile.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "cuda/device.hpp"
#include "primitive/fused_tile.hpp"

namespace dr {

// A fused kernel. Its arguments begin with the blocks of each part.
struct fused_kernel {
  struct part {
    const dr_kernel* alone;
    bool (*take)(const void* from, void* to);  // the arguments of one into those of the other; false: they do not fit
  };
  const dr_kernel* whole;
  std::span<const part> parts;

  template <class Fused>
  static const fused_kernel& of();
};

inline constexpr size_t fused_args_max = 4096;  // bytes

// While it lives, the first launches of a queue are one, as far as the kernel takes them; NULL: none are. The caller ends
// with device_queue::fused_end.
class fused_call {
 public:
  fused_call(device_queue& queue, const fused_kernel* by) : queue_(queue), by_(by) {
    if (!by) return;
    std::memset(args_, 0, by->parts.size() * sizeof(uint32_t));
    queue.fused = this;
  }
  ~fused_call() { queue_.fused = nullptr; }
  fused_call(const fused_call&) = delete;
  fused_call& operator=(const fused_call&) = delete;

  const dr_kernel& whole() const { return *by_->whole; }
  const void* args() const { return args_; }
  bool is_empty() const { return next_ == 0; }

  // Whether the launch is one of the parts behind those that it took.
  bool take(const dr_kernel& alone, uint32_t blocks, const void* from) {
    if (blocks > fused_blocks) return false;
    for (size_t i = next_; i < by_->parts.size(); ++i) {
      if (by_->parts[i].alone != &alone) continue;
      if (!by_->parts[i].take(from, args_)) return false;
      std::memcpy(args_ + i * sizeof blocks, &blocks, sizeof blocks);
      next_ = i + 1;
      return true;
    }
    return false;
  }

 private:
  device_queue& queue_;
  const fused_kernel* const by_;
  size_t next_ = 0;
  alignas(16) std::byte args_[fused_args_max];
};

// Those of a call that has one small tensor (codecs/small_calls.cpp).
const fused_kernel& small_encode_kernel();
const fused_kernel& small_decode_kernel();

// ---- The arguments of parts ---------------------------------------------------------------------------------

template <class From, class To>
bool take_args(const From& from, To& to) {
  if constexpr (std::is_same_v<From, To>) {
    to = from;
  } else if constexpr (requires { from.job; }) {
    static_assert(offsetof(From, job) == offsetof(To, job));
    if (from.jobs > std::size(to.job)) return false;
    std::memcpy(&to, &from, sizeof to);
  } else if constexpr (requires { from.data; }) {
    static_assert(offsetof(From, data) == offsetof(To, data));
    if (from.words > std::size(to.data)) return false;
    std::memcpy(&to, &from, offsetof(To, data) + 8 * from.words);
  } else {
    if (!take_args(from.begin, to.begin)) return false;
    to.frames = from.frames;
  }
  return true;
}

template <size_t I, class Part, class... More>
auto& fused_args_at(fused_args<Part, More...>& of) {
  if constexpr (I == 0)
    return of.args;
  else
    return fused_args_at<I - 1>(of.more);
}

template <class... Parts>
struct fused_parts_of;
template <class... Parts>
struct fused_parts_of<fused<Parts...>> {
  using args = typename fused<Parts...>::args;
  template <size_t I, class Part>
  static bool take(const void* from, void* to) {
    return take_args(*static_cast<const typename Part::alone::args*>(from),
                     fused_args_at<I>(static_cast<args*>(to)->of));
  }
  template <size_t... I>
  static constexpr std::array<fused_kernel::part, sizeof...(Parts)> list(std::index_sequence<I...>) {
    return {fused_kernel::part{&dr::kernel<typename Parts::alone>, &take<I, Parts>}...};
  }
  static constexpr auto all = list(std::make_index_sequence<sizeof...(Parts)>{});
};

// Fused: a kernel, whose `as` is fused<…>.
template <class Fused>
const fused_kernel& fused_kernel::of() {
  using as = typename Fused::as;
  static_assert(sizeof(typename as::args) <= fused_args_max);
  static constexpr fused_kernel one{&dr::kernel<Fused>, fused_parts_of<as>::all};
  return one;
}

}  // namespace dr
