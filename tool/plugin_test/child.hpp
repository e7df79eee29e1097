// Runs a check in its own process, so that a codec that crashes, hangs or prints becomes a line of the report.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "guarded_bytes.hpp"

namespace dr::plugin_test {

// A broken promise: the operation and its result.
struct failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct verdict {
  std::string failed;    // "": passed
  uint64_t streams = 0;  // checked; 0: the check does not apply to this codec
};

// check() throws failure, or returns the number of checked streams.
verdict in_child(const std::function<uint64_t()>& check);

// In the child: records the codec's input, and before every call the operation; starts its time limit.
void about(std::string_view what);
void note(const char* operation);

// During its lifetime a fault report names its memory. For the child's first thread; `off` disables notes and names while
// other threads run codecs.
class lending {
 public:
  lending() = default;
  lending(const lending&) = delete;
  lending& operator=(const lending&) = delete;
  ~lending();
  void add(const char* name, const properties::guarded_bytes& bytes);

  static inline bool off = false;

 private:
  size_t count_ = 0;
};

}  // namespace dr::plugin_test
