// What a person at a terminal sees beside the result: lines on stderr, and progress if that is a terminal.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

namespace dr::compare {

class console {
 public:
  console() = default;
  ~console() { clear(); }
  console(const console&) = delete;
  console& operator=(const console&) = delete;

  // Replaces the progress line.
  void progress(const std::string& text) {
    if (!terminal) return;
    std::fprintf(stderr, "\r\033[K%.78s", text.c_str());
    std::fflush(stderr);
    shown = true;
  }
  void line(const std::string& text) {
    clear();
    std::fprintf(stderr, "deepreduce: %s\n", text.c_str());
  }
  void clear() {
    if (shown) std::fputs("\r\033[K", stderr);
    shown = false;
  }

 private:
  bool terminal = isatty(STDERR_FILENO) == 1, shown = false;
};

}  // namespace dr::compare
