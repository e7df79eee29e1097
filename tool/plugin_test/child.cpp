#include "child.hpp"

#include <fmt/core.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace dr::plugin_test {
namespace {

// Measured: the slowest operation of a built-in codec on the largest input here takes 0.2 s without sanitizers.
constexpr int cpu_seconds = 10, wall_seconds = 200;
constexpr size_t lent_max = 4096;

struct lent {
  const char* name;
  const uint8_t* begin;
  size_t size;
};

// In memory shared with the parent.
struct shared_notes {
  char about[1024];
  const char* operation;  // a literal, valid in the parent
  char failed[2048];
  uint64_t streams;
  bool done;
  int signal;
  const char* memory;  // accessed outside its bounds; NULL: unknown
  uint64_t beyond;     // bytes from its nearer end
  bool before;
  const char* how;  // kind of access
};
shared_notes* notes = nullptr;  // NULL: not in a child
std::array<lent, lent_max> lents;
size_t lent_count = 0;

void put(char* to, size_t room, std::string_view text) {
  const size_t n = std::min(text.size(), room - 1);
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}

// The memory whose guard page contains this address, if any.
void place(const uint8_t* at) {
  constexpr ptrdiff_t guard = 4096;
  for (size_t i = lent_count; i-- > 0;) {
    const lent& l = lents[i];
    const ptrdiff_t behind = at - (l.begin + l.size), before = l.begin - at;
    if ((behind < 0 || behind >= 2 * guard) && (before <= 0 || before > guard)) continue;
    notes->memory = l.name;
    notes->before = behind < 0;
    notes->beyond = static_cast<uint64_t>(behind < 0 ? before : behind + 1);
    return;
  }
}

void on_fault(int number, siginfo_t* info, void* context) {
  notes->signal = number;
  if (number == SIGSEGV || number == SIGBUS) place(static_cast<const uint8_t*>(info->si_addr));
  notes->how = "touches memory outside of";
#if defined(__x86_64__)
  notes->how =
      static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2 ? "writes outside of" : "reads outside of";
#else
  (void)context;
#endif
  _exit(1);
}

void catch_faults() {
  static std::array<std::byte, 1 << 16> stack;  // for a codec that exhausted its own
  const stack_t other{stack.data(), 0, stack.size()};
  sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP}) sigaction(number, &action, nullptr);
  signal(SIGPROF, SIG_DFL);
  signal(SIGALRM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
}

[[noreturn]] void run_and_exit(const std::function<uint64_t()>& check, int output) {
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  catch_faults();
  try {
    notes->streams = check();
  } catch (const std::exception& e) {
    put(notes->failed, sizeof notes->failed, e.what());
  } catch (...) {
    put(notes->failed, sizeof notes->failed, "an exception left the codec");
  }
  notes->done = true;
  std::fflush(nullptr);
  _exit(0);
}

std::string doing() {
  const char* const operation = notes->operation ? notes->operation : "the check";
  return *notes->about ? fmt::format("{}: {}", notes->about, operation) : operation;
}

// Describes the end of a child that did not finish its check.
std::string death(int status) {
  const int number = notes->signal ? notes->signal : WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (number == SIGPROF || number == SIGALRM)
    return fmt::format("{} does not end within {} s", doing(), number == SIGPROF ? cpu_seconds : wall_seconds);
  if (notes->memory)
    return fmt::format("{} {} {}, {} bytes {} ({})", doing(), notes->how, notes->memory, notes->beyond,
                       notes->before ? "before its beginning" : "past its end", strsignal(number));
  if (number) return fmt::format("{} ends the process: {}", doing(), strsignal(number));
  return fmt::format("{} ends the process by exit({})", doing(), WEXITSTATUS(status));
}

// The child's output, on one line.
std::string printed(std::FILE* file) {
  std::string text(400, 0);
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  while (text.ends_with('\n')) text.pop_back();
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace

verdict in_child(const std::function<uint64_t()>& check) {
  void* const memory = mmap(nullptr, sizeof(shared_notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  std::FILE* const output = std::tmpfile();
  if (memory == MAP_FAILED || !output) throw std::runtime_error(std::string("test-plugin: ") + std::strerror(errno));
  notes = new (memory) shared_notes{};
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error(std::string("test-plugin: fork: ") + std::strerror(errno));
  if (child == 0) run_and_exit(check, fileno(output));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  verdict v{notes->failed, notes->streams};
  if (!notes->done) v.failed = death(status);
  const std::string text = printed(output);
  if (!text.empty()) v.failed += (v.failed.empty() ? doing() + " prints: " : "; it printed: ") + text;
  notes = nullptr;
  munmap(memory, sizeof(shared_notes));
  std::fclose(output);
  return v;
}

void about(std::string_view what) {
  if (notes && !lending::off) put(notes->about, sizeof notes->about, what);
}

void note(const char* operation) {
  if (!notes) return;
  if (!lending::off) notes->operation = operation;
  const itimerval limit{{0, 0}, {cpu_seconds, 0}};
  setitimer(ITIMER_PROF, &limit, nullptr);
  alarm(wall_seconds);
}

void lending::add(const char* name, const properties::guarded_bytes& bytes) {
  if (off || lent_count == lents.size()) return;
  lents[lent_count++] = {name, bytes.data(), bytes.size()};
  ++count_;
}
lending::~lending() { lent_count -= count_; }

}  // namespace dr::plugin_test
