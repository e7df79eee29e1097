// Messages on stderr, and progress if stderr is a terminal.
#pragma once

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>

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

class console {
 public:
  console() = default;
  ~console() { clear(); }
  console(const console&) = delete;
  console& operator=(const console&) = delete;

  // In a long run: part `at` of `count` begins, after `done` of `all` work, in any unit.
  void part(size_t at, size_t count, double done, double all) {
    if (at == 0) begun = clock::now();
    part_begun = clock::now();
    work_done = done;
    work_all = all;
    place = count > 1 ? std::to_string(at + 1) + "/" + std::to_string(count) : "";
  }

  // Replaces the progress line. Throws interrupted.
  void progress(const std::string& text) {
    if (noted_signal != 0) throw interrupted{static_cast<int>(noted_signal)};
    if (!terminal) return;
    const std::string line = without_controls(place.empty() ? text : "[" + place + left() + "] " + text);
    std::fprintf(stderr, "\r\033[K%.100s", line.c_str());
    std::fflush(stderr);
    shown = true;
  }
  void line(const std::string& text) {
    clear();
    std::fprintf(stderr, "deepreduce: %s\n", without_controls(text).c_str());
  }
  void clear() {
    if (shown) std::fputs("\r\033[K", stderr);
    shown = false;
  }
  bool is_terminal() const { return terminal; }

 private:
  using clock = std::chrono::steady_clock;
  static double seconds(clock::duration time) { return std::chrono::duration<double>(time).count(); }

  // The remaining time at the speed of the finished parts; empty before the first.
  std::string left() const {
    if (work_done <= 0) return {};
    const double speed = work_done / seconds(part_begun - begun);
    const double rest = (work_all - work_done) / speed - seconds(clock::now() - part_begun);
    return ", " + duration_text(rest < 1 ? 1 : rest) + " left";
  }

  bool terminal = isatty(STDERR_FILENO) == 1, shown = false;
  clock::time_point begun, part_begun;
  double work_done = 0, work_all = 0;
  std::string place;
};

}  // namespace dr::compare
