// What a context outlives: being trimmed, a fork, a system that has no thread to spare.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>

#include "client.hpp"

// A child that makes threads of its own is what is tested here.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool limits_memory = false;  // a sanitizer has reserved more than any limit
#else
constexpr bool limits_memory = true;
#endif

namespace {

using client::bytes;
using client::floats;

constexpr const char* text = "sparsify=topr(ratio=0.05) index=golomb value=qsgd";

dr_context* create(uint32_t threads) {
  dr_context_options options{};
  options.struct_size = sizeof options;
  options.threads = threads;
  dr_context* c = nullptr;
  return dr_context_create(&options, &c, nullptr) == DR_OK ? c : nullptr;
}

dr_status encode(dr_context* c, const client::plan& p, const dr_tensor& t, bytes& frame) {
  dr_result result{};
  result.struct_size = sizeof result;
  frame.assign(1 << 16, 0);
  const dr_status s = dr_encode(c, p.handle, nullptr, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), &result);
  frame.resize(result.size);
  return s;
}

// Of gcc's ASan the locks of its allocator are not released in a child: no thread may be at its start, which allocates, while we fork.
pid_t fork_at_rest() {
#if defined(DR_SANITIZED)
  usleep(100000);
#endif
  return fork();
}

// What f returns, of a child that has 20 seconds for it; -1: it did not end by itself.
int in_child(const std::function<int()>& f) {
  std::fflush(nullptr);
  const pid_t child = fork_at_rest();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(20);
    _exit(f());
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("a context with threads reports ARGUMENT in a forked child and can be destroyed there; a new one works") {
  const floats g = client::laplace(20000, 1);
  const dr_tensor t = client::dense(g);
  client::plan p(text);
  dr_context* const c = create(4);
  REQUIRE(c);
  bytes want, got;
  REQUIRE(encode(c, p, t, want) == DR_OK);
  const int said = in_child([&]() -> int {
    if (encode(c, p, t, got) != DR_E_ARGUMENT) return 1;
    if (!std::strstr(dr_last_error(c)->message, "fork")) return 2;
    dr_call call{};
    call.struct_size = sizeof call;
    call.flags = DR_CALL_STATUS_FRAME;
    dr_result told{.struct_size = sizeof(dr_result)};
    got.assign(1024, 0);
    if (dr_encode(c, p.handle, &call, nullptr, &t, sizeof t, 1, got.data(), got.size(), &told) != DR_E_ARGUMENT ||
        told.status != DR_E_ARGUMENT || !told.size)
      return 10;
    size_t n = 0;
    if (dr_bound(c, p.handle, nullptr, nullptr, &t, sizeof t, 1, &n) != DR_E_ARGUMENT) return 3;
    floats room(g.size());
    dr_tensor_out out = client::dense_out(room);
    if (dr_decode(c, nullptr, want.data(), want.size(), nullptr, &out, sizeof out, 1) != DR_E_ARGUMENT) return 4;
    if (dr_context_trim(c) != DR_E_ARGUMENT) return 5;
    dr_context_destroy(c);
    for (const uint32_t threads : {1u, 3u}) {
      dr_context* const fresh = create(threads);
      if (!fresh || encode(fresh, p, t, got) != DR_OK || got != want) return 6;
      // What was made here is of use here, and not in the child's child.
      const pid_t grandchild = fork_at_rest();
      if (grandchild == 0) _exit(encode(fresh, p, t, got));
      int status = 0;
      if (waitpid(grandchild, &status, 0) != grandchild || !WIFEXITED(status)) return 7;
      if (WEXITSTATUS(status) != (threads > 1 ? DR_E_ARGUMENT : DR_OK)) return 8;
      if (encode(fresh, p, t, got) != DR_OK) return 9;
      dr_context_destroy(fresh);
    }
    return 0;
  });
  CHECK(said == 0);
  // The parent notices nothing.
  CHECK(encode(c, p, t, got) == DR_OK);
  CHECK(got == want);
  dr_context_destroy(c);
}

TEST_CASE("a context without threads serves a forked child as well") {
  const floats g = client::laplace(2000, 1);
  const dr_tensor t = client::dense(g);
  client::plan p(text);
  dr_context* const c = create(1);
  bytes want, got;
  REQUIRE(encode(c, p, t, want) == DR_OK);
  CHECK(in_child([&] { return encode(c, p, t, got) == DR_OK && got == want && !dr_context_trim(c) ? 0 : 1; }) == 0);
  dr_context_destroy(c);
}

TEST_CASE("no thread to be had is MEMORY, in words, and the next try may do") {
  if (!limits_memory) return;
  const int said = in_child([]() -> int {
    long pages = 0;
    FILE* const statm = std::fopen("/proc/self/statm", "r");
    if (!statm || std::fscanf(statm, "%ld", &pages) != 1) return 1;
    std::fclose(statm);
    rlimit before{};
    if (getrlimit(RLIMIT_AS, &before)) return 2;
    rlimit tight = before;  // room for a few stacks of 8 MiB, not for 255
    tight.rlim_cur = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{96} << 20);
    if (setrlimit(RLIMIT_AS, &tight)) return 3;
    dr_context_options options{};
    options.struct_size = sizeof options;
    options.threads = 256;
    dr_context* c = reinterpret_cast<dr_context*>(&options);
    dr_error error{};
    error.struct_size = sizeof error;
    if (dr_context_create(&options, &c, &error) != DR_E_MEMORY) return 4;
    if (c || error.code != DR_E_MEMORY || !std::strstr(error.message, "256 threads")) return 5;
    if (setrlimit(RLIMIT_AS, &before)) return 6;
    options.threads = 4;
    if (dr_context_create(&options, &c, &error) != DR_OK) return 7;
    dr_context_destroy(c);
    return 0;
  });
  CHECK(said == 0);
}

TEST_CASE("trim returns all that the context asked its allocator for, and the next call works as before") {
  struct counts {
    std::map<void*, size_t> blocks;
    size_t bytes() const {
      size_t n = 0;
      for (const auto& [at, size] : blocks) n += size;
      return n;
    }
  } counted;
  dr_context_options options{};
  options.struct_size = sizeof options;
  options.user = &counted;
  options.allocate = [](void* user, size_t size, size_t alignment) {
    void* const memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    static_cast<counts*>(user)->blocks[memory] = size;
    return memory;
  };
  options.release = [](void* user, void* memory, size_t) {
    static_cast<counts*>(user)->blocks.erase(memory);
    std::free(memory);
  };
  const floats g = client::laplace(300000, 2);
  const dr_tensor t = client::dense(g);
  for (const uint32_t threads : {1u, 3u}) {
    options.threads = threads;
    dr_context* c = nullptr;
    REQUIRE(dr_context_create(&options, &c, nullptr) == DR_OK);
    CHECK(dr_context_trim(c) == DR_OK);  // of nothing
    for (const char* each : {"sparsify=topr(ratio=0.01) index=golomb value=qsgd", "index=auto value=auto(error=0.1)"}) {
      INFO(std::string(each));
      client::plan p(each);
      bytes frame(size_t{1} << 21), again(frame.size());
      dr_result first{}, second{};
      first.struct_size = second.struct_size = sizeof first;
      REQUIRE(dr_encode(c, p.handle, nullptr, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), &first) == DR_OK);
      CHECK(counted.bytes() > 100000);
      CHECK(dr_context_trim(c) == DR_OK);
      CHECK(counted.blocks.empty());
      REQUIRE(dr_encode(c, p.handle, nullptr, nullptr, &t, sizeof t, 1, again.data(), again.size(), &second) == DR_OK);
      CHECK(first.size == second.size);
      CHECK(frame == again);
    }
    dr_context_destroy(c);
    CHECK(counted.blocks.empty());
  }
  CHECK(dr_context_trim(nullptr) == DR_E_ARGUMENT);
}
