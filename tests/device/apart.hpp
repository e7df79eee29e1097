// For what is meant to go wrong: a process of its own.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace dr::device_tests {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitizes = true;
#elif defined(__has_feature)
inline constexpr bool sanitizes = __has_feature(address_sanitizer);
#else
inline constexpr bool sanitizes = false;
#endif

// Runs f in a process of its own, without output. True if it returned true within 20 seconds.
template <class F>
bool survives(F&& f) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGALRM, SIG_DFL);
    alarm(20);
    if (!std::freopen("/dev/null", "w", stdout) || !std::freopen("/dev/null", "w", stderr)) _exit(1);
    _exit(f() ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace dr::device_tests
