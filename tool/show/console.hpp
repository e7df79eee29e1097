// Messages on stderr, and progress if stderr is a terminal.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "plain_text.hpp"

namespace dr::compare {

// Thrown at the next progress after Ctrl-C or SIGTERM; not a std::exception, so that no handler mistakes it for a failed plan.
struct interrupted {
  int signal;
};

// The first signal is recorded, the second ends the process.
inline volatile std::sig_atomic_t noted_signal = 0;
inline void note_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { noted_signal = number; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
}

// "3 s", "2 min 5 s", "1 h 20 min".
inline std::string duration_text(double seconds) {
  const auto s = static_cast<long long>(seconds + 0.5);
  if (s < 60) return std::to_string(s) + " s";
  if (s < 3600) return std::to_string(s / 60) + " min " + std::to_string(s % 60) + " s";
  return std::to_string(s / 3600) + " h " + std::to_string(s / 60 % 60) + " min";
}

// Replaces control characters by '?', U+0080 to U+009F included: names must not control the terminal. `lines`: keeps
// newlines.
inline std::string without_controls(const std::string& text, bool lines = false) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool wide = byte(i) == 0xc2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xa0;
    out += wide || byte(i) == 0x7f || (byte(i) < 0x20 && !(lines && text[i] == '\n')) ? '?' : text[i];
    i += wide;
  }
  return out;
}

// The columns of the terminal behind a file descriptor, at least 20; `otherwise`: it is none.
inline size_t terminal_width(int fd, size_t otherwise) {
  struct winsize size {};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return otherwise;
  return std::max<size_t>(size.ws_col, 20);
}

// Whether a file descriptor is a terminal that knows sequences such as "erase this line".
inline bool draws(int fd) {
  const char* const kind = std::getenv("TERM");
  return isatty(fd) == 1 && !(kind != nullptr && std::string_view(kind) == "dumb");
}

class console {
 public:
  console() = default;
  ~console() { clear(); }
  console(const console&) = delete;
  console& operator=(const console&) = delete;

  // In a long run: the part `at` of `count`, an "input", begins, after `done` of `all` work, in any unit; it is `work` itself.
  void part(const char* unit, size_t at, size_t count, double done, double work, double all) {
    if (at == 0) begun = noted = clock::now();
    work_done = done, work_here = work, work_all = all;
    place = count > 1 ? std::string(unit) + ' ' + std::to_string(at + 1) + '/' + std::to_string(count) + ", " : "";
  }

  // Replaces the progress line: "input 3/4, plan 5/13, about 40 s left: detail", cut to the terminal's width. Where stderr is none, a line
  // without the detail every ten seconds. share: of the part that is done. Throws interrupted.
  void progress(const std::string& text, double share = 0, const std::string& detail = "") {
    if (noted_signal != 0) throw interrupted{static_cast<int>(noted_signal)};
    const std::string line = plain(without_controls(place + text + left(share)));
    if (!terminal) {
      if (seconds(clock::now() - noted) < seconds_between_lines) return;
      noted = clock::now();
      return this->line(line);
    }
    const std::string whole = detail.empty() ? line : line + ": " + plain(without_controls(detail));
    std::fprintf(stderr, "\r\033[K%s", begin_of(whole, terminal_width(STDERR_FILENO, 80) - 1).c_str());
    std::fflush(stderr);
    shown = true;
  }
  void line(const std::string& text) {
    clear();
    std::fprintf(stderr, "deepreduce: %s\n", plain(without_controls(text)).c_str());
  }
  void clear() {
    if (shown) std::fputs("\r\033[K", stderr);
    shown = false;
  }
  bool is_terminal() const { return terminal; }

 private:
  using clock = std::chrono::steady_clock;
  static double seconds(clock::duration time) { return std::chrono::duration<double>(time).count(); }

  static constexpr double seconds_between_lines = 10;

  // At most `width` code points.
  static std::string begin_of(const std::string& text, size_t width) {
    size_t at = 0;
    for (; at < text.size(); ++at)
      if ((text[at] & 0xc0) != 0x80 && width-- == 0) break;
    return text.substr(0, at);
  }

  // The remaining time at the speed so far; empty in the first second.
  std::string left(double share) const {
    const double done = work_done + share * work_here, elapsed = seconds(clock::now() - begun);
    if (done <= 0 || elapsed < 1) return {};
    return ", about " + duration_text(std::max(1.0, elapsed * (work_all - done) / done)) + " left";
  }

  bool terminal = draws(STDERR_FILENO), shown = false;
  clock::time_point begun = clock::now(), noted = begun;
  double work_done = 0, work_here = 0, work_all = 0;
  std::string place;
};

}  // namespace dr::compare
