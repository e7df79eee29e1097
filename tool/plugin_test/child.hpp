// Runs a check in a process of its own, so that a codec that crashes, hangs or prints is a line of the report.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "guarded_bytes.hpp"

namespace dr::plugin_test {

// A promise that was not kept: what was done, and what came of it.
struct failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct verdict {
  std::string failed;    // "" if all is well
  uint64_t streams = 0;  // that were looked at; 0: the check has no meaning for this codec
};

// check() throws failure, or returns how many streams it looked at.
verdict in_child(const std::function<uint64_t()>& check);

// In the child: on what the codec works, and, before every call of it, which operation; the time that it may take begins.
void about(std::string_view what);
void note(const char* operation);

// While it lives its memory is known by name when a fault touches its guards. Of the child's first thread; where others
// run codecs, `off` keeps notes and names out of their way.
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
