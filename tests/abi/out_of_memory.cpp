// The i-th allocation fails, for every i: MEMORY, nothing leaks, nothing changes, and the next try works. Both allocators count:
// the context's callbacks (workspaces), and operator new (all else), which this program replaces for the library too.
#include "failing_new.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

// f must give MEMORY wherever memory runs out, leave as many blocks as there were, and succeed in the end. `undo` frees what f made.
long fails_everywhere(
    const std::function<dr_status()>& f, const std::function<void()>& undo = [] {}) {
  for (long i = 0; i < 10000; ++i) {
    CAPTURE(i);
    const long before = live;
    const dr_status s = run(i, f);
    if (s == DR_OK) {
      undo();
      CHECK(live == before);
      return i;
    }
    REQUIRE(s == DR_E_MEMORY);
    REQUIRE(live == before);
  }
  FAIL("never succeeds");
  return 0;
}

// The caller's allocator: checks requests and releases, and fails on request.
struct allocator {
  std::map<void*, size_t> blocks;
  std::mutex mutex;
  long calls = 0, until_failure = -1;
  bool sound = true;

  static void* allocate(void* user, size_t size, size_t alignment) {
    auto& a = *static_cast<allocator*>(user);
    std::lock_guard lock(a.mutex);
    a.sound = a.sound && size > 0 && alignment > 0 && alignment <= 64 && (alignment & (alignment - 1)) == 0;
    ++a.calls;
    if (a.until_failure >= 0 && a.until_failure-- == 0) return nullptr;
    void* const memory = std::aligned_alloc(64, (size + 63) / 64 * 64);
    a.blocks[memory] = size;
    return memory;
  }
  static void release(void* user, void* memory, size_t size) {
    auto& a = *static_cast<allocator*>(user);
    std::lock_guard lock(a.mutex);
    const auto block = a.blocks.find(memory);
    a.sound = a.sound && block != a.blocks.end() && block->second == size;
    a.blocks.erase(block);
    std::free(memory);
  }
  dr_context* context(uint32_t threads = 1) {
    dr_context_options options{};
    options.struct_size = sizeof options;
    options.allocate = allocate;
    options.release = release;
    options.user = this;
    options.threads = threads;
    dr_context* c = nullptr;
    REQUIRE(dr_context_create(&options, &c, nullptr) == DR_OK);
    return c;
  }
};

constexpr const char* plan_text =
    "sparsify=topr(ratio=0.1) feedback=residual index=bloom(policy=p0,fpr=0.05)+deflate value=fit_poly+deflate";

struct fixture {
  client::plan plan{plan_text};
  floats gradient = client::laplace(500, 1);
  std::vector<uint64_t> state = std::vector<uint64_t>(2 + 250);
  dr_tensor tensor = client::dense(gradient);
  bytes frame = bytes(8192);
  dr_result result{.struct_size = sizeof(dr_result)};
  floats decoded = floats(500);
  dr_tensor_out out{};

  fixture() {
    tensor.state = state.data();
    tensor.state_size = 8 * state.size();
    result.struct_size = sizeof result;
    out.struct_size = sizeof out;
    out.dtype = DR_F32;
    out.universe = 500;
    out.values = decoded.data();
  }
  dr_status encode(dr_context* c) {
    return dr_encode(c, plan.handle, nullptr, nullptr, &tensor, sizeof tensor, 1, frame.data(), frame.size(), &result);
  }
  dr_status decode(dr_context* c) {
    return dr_decode(c, nullptr, frame.data(), result.size, nullptr, &out, sizeof out, 1);
  }
  dr_status merge(dr_context* c) {
    const dr_bytes frames[] = {{frame.data(), result.size}, {frame.data(), result.size}};
    return dr_merge(c, nullptr, frames, nullptr, 2, nullptr, &out, sizeof out, 1);
  }
};

}  // namespace

TEST_CASE("the library allocates through this program's operator new") {
  dr_plan* p = nullptr;
  const long calls =
      fails_everywhere([&] { return dr_plan_parse(plan_text, &p, nullptr); }, [&] { dr_plan_destroy(p); });
  CHECK(calls > 3);
}

TEST_CASE("stages and books: memory that runs out leaves nothing behind, and a book as it was") {
  dr_plan *p = nullptr, *made = nullptr;
  REQUIRE(dr_plan_parse(plan_text, &p, nullptr) == DR_OK);
  fails_everywhere([&] { return dr_plan_with(p, "exchange=owner(parts=2) feedback=residual", &made, nullptr); },
                   [&] { dr_plan_destroy(made); });
  dr_stages* stages = nullptr;
  fails_everywhere(
      [&] { return dr_stages_parse("index=another_codec_with_a_long_name(parameter=3)", &stages, nullptr); },
      [&] { dr_stages_destroy(stages); });
  const std::string text = "a_pattern_of_some_length.*: " + std::string(plan_text) + "\n*: dense\n";
  dr_book* book = nullptr;
  const auto parse = [&] { return dr_book_parse(text.data(), text.size(), "where", &book, nullptr); };
  fails_everywhere(parse, [&] { dr_book_destroy(book); });
  REQUIRE(parse() == DR_OK);
  const std::string before = dr_book_text(book);
  for (long i = 0;; ++i) {
    const dr_status s = run(i, [&] { return dr_book_add(book, "another pattern of some length [*", 0, p, nullptr); });
    if (s == DR_OK) break;
    REQUIRE(s == DR_E_MEMORY);
    REQUIRE(dr_book_text(book) == before);
    REQUIRE(dr_book_line_count(book) == 2);
  }
  CHECK(dr_book_line_count(book) == 3);
  dr_book_destroy(book);
  dr_plan_destroy(p);
}

TEST_CASE("a plan that is refused for want of memory leaves no plan, and its error reports MEMORY") {
  dr_plan* p = nullptr;
  dr_error error{sizeof(dr_error)};
  error.struct_size = sizeof error;
  CHECK(run(0, [&] { return dr_plan_parse(plan_text, &p, &error); }) == DR_E_MEMORY);
  CHECK(p == nullptr);
  CHECK(error.code == DR_E_MEMORY);
  CHECK(error.message[0]);
}

TEST_CASE("plans that are refused leak nothing, wherever memory runs out on the way") {
  for (const char* text :
       {"index=nowhere", "index=bloom(fpr=2)", "value=raw+nothing", "sparsify=topr", "x", "index=raw index=raw"}) {
    INFO(std::string(text));
    for (long i = 0; i < 200; ++i) {
      const long before = live;
      dr_plan* p = nullptr;
      const dr_status s = run(i, [&] { return dr_plan_parse(text, &p, nullptr); });
      REQUIRE((s == DR_E_MEMORY || s == DR_E_ARGUMENT));
      REQUIRE(live == before);
    }
  }
}

TEST_CASE("a context: creating it fails cleanly, with and without threads") {
  for (const uint32_t threads : {0u, 1u, 2u, 4u}) {
    CAPTURE(threads);
    dr_context_options options{};
    options.struct_size = sizeof options;
    options.threads = threads;
    dr_context* c = nullptr;
    fails_everywhere([&] { return dr_context_create(&options, &c, nullptr); }, [&] { dr_context_destroy(c); });
  }
}

TEST_CASE("encode: MEMORY wherever operator new fails, the state stays, and the context continues") {
  fixture f;
  client::context c;
  const std::vector<uint64_t> fresh = f.state;
  REQUIRE(f.encode(c.handle) == DR_OK);  // has its workspace now, and a state
  const bytes expected(f.frame.begin(), f.frame.begin() + static_cast<long>(f.result.size));
  f.state = fresh;
  for (long i = 0;; ++i) {
    CAPTURE(i);
    REQUIRE(i < 10000);
    const long before = live;
    const dr_status s = run(i, [&] { return f.encode(c.handle); });
    CHECK(live == before);
    if (s == DR_OK) break;
    REQUIRE(s == DR_E_MEMORY);
    CHECK(f.state == fresh);
    CHECK(f.result.size == 0);
    CHECK(f.result.status == DR_E_MEMORY);
    CHECK(dr_last_error(c.handle)->code == DR_E_MEMORY);
    CHECK(c.error() != "");
  }
  CHECK(bytes(f.frame.begin(), f.frame.begin() + static_cast<long>(f.result.size)) == expected);
}

TEST_CASE("every other call: MEMORY wherever operator new fails, and no leak") {
  fixture f;
  client::context c;
  REQUIRE(f.encode(c.handle) == DR_OK);
  size_t size = 0;
  dr_batch* batch = nullptr;
  dr_frame_info info{};
  info.struct_size = sizeof info;
  dr_tensor_info tensor_info{};
  tensor_info.struct_size = sizeof tensor_info;
  REQUIRE(f.merge(c.handle) == DR_OK);
  fails_everywhere(
      [&] { return dr_bound(c.handle, f.plan.handle, nullptr, nullptr, &f.tensor, sizeof f.tensor, 1, &size); });
  fails_everywhere(
      [&] { return dr_batch_create(c.handle, f.plan.handle, nullptr, &f.tensor, sizeof f.tensor, 1, 100, &batch); },
      [&] { dr_batch_destroy(batch); });
  fails_everywhere(
      [&] { return dr_inspect(f.frame.data(), f.result.size, &info, &tensor_info, sizeof tensor_info, 1, nullptr); });
  fails_everywhere([&] { return f.decode(c.handle); });
  fails_everywhere([&] { return f.merge(c.handle); });
}

TEST_CASE(
    "a patch: MEMORY wherever memory runs out; the base and the sums of both sides stay, and the next try works") {
  for (const char* text : {"sparsify=changed index=auto value=ulp", "sparsify=changed index=all value=xor"}) {
    const client::plan plan(text);
    client::context c;
    floats base = client::laplace(9000, 5), now = base, got = base;
    for (size_t i = 0; i < now.size(); i += 50) now[i] *= 1.01f;
    std::vector<uint64_t> fresh(9);
    REQUIRE(dr_base_sums(base.data(), 36000, fresh.data(), 9, nullptr) == DR_OK);
    std::vector<uint64_t> ours = fresh, theirs = fresh;
    dr_tensor t = client::dense(now);
    t.base = base.data();
    t.sums = ours.data();
    bytes frame(1 << 17);
    dr_result result{.struct_size = sizeof(dr_result)};
    for (long i = 0;; ++i) {
      CAPTURE(i);
      REQUIRE(i < 10000);
      dr_context_trim(c.handle);
      const dr_status s = run(i, [&] {
        return dr_encode(c.handle, plan.handle, nullptr, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), &result);
      });
      if (s == DR_OK) break;
      REQUIRE(s == DR_E_MEMORY);
      CHECK(ours == fresh);
    }
    CHECK(ours != fresh);
    dr_tensor_out out = client::dense_out(got);
    out.sums = theirs.data();
    dr_decode_options options{};
    options.struct_size = sizeof options;
    options.flags = DR_DECODE_APPLY;
    for (long i = 0;; ++i) {
      CAPTURE(i);
      REQUIRE(i < 10000);
      dr_context_trim(c.handle);
      const dr_status s = run(
          i, [&] { return dr_decode(c.handle, nullptr, frame.data(), result.size, &options, &out, sizeof out, 1); });
      if (s == DR_OK) break;
      REQUIRE(s == DR_E_MEMORY);
      REQUIRE(client::same_bits(got, base));
      CHECK(theirs == fresh);
    }
    CHECK(client::same_bits(got, now));
    CHECK(theirs == ours);
  }
}

TEST_CASE("merge leaves its outputs alone when memory runs out") {
  fixture f;
  client::context c;
  REQUIRE(f.encode(c.handle) == DR_OK);
  REQUIRE(f.merge(c.handle) == DR_OK);
  std::fill(f.decoded.begin(), f.decoded.end(), 3);  // in place: the output points there
  const floats before = f.decoded;
  for (long i = 0; run(i, [&] { return f.merge(c.handle); }) == DR_E_MEMORY; ++i)
    REQUIRE(client::same_bits(f.decoded, before));
}

TEST_CASE(
    "the caller's allocator: MEMORY wherever it says no, balanced, asked for nothing odd, and the context goes on") {
  for (const uint32_t threads : {1u, 3u}) {
    CAPTURE(threads);
    fixture f;
    allocator counts;
    const std::vector<uint64_t> fresh = f.state;
    // One after the other on one context: encode, decode, merge; a larger frame each time, so that workspaces grow.
    const auto all = [&](dr_context* c, long fail_at, dr_status* failed) {
      counts.until_failure = fail_at;
      *failed = DR_OK;
      f.state = fresh;
      const auto step = [&](dr_status s) {
        if (s != DR_OK) *failed = s;
        return s == DR_OK;
      };
      const bool done = step(f.encode(c)) && step(f.decode(c)) && step(f.merge(c));
      counts.until_failure = -1;
      return done;
    };
    long i = 0;
    for (;; ++i) {
      CAPTURE(i);
      REQUIRE(i < 100);
      dr_context* const c = counts.context(threads);
      dr_status failed;
      const bool done = all(c, i, &failed);
      if (!done) {
        CHECK(failed == DR_E_MEMORY);
        CHECK(std::string(dr_last_error(c)->message) != "");
        CHECK(all(c, -1, &failed));  // the same context, once there is memory again
      }
      dr_context_destroy(c);
      CHECK(counts.blocks.empty());
      if (done) break;
    }
    CHECK(i > 0);
    CHECK(counts.sound);
  }
}

TEST_CASE("a context that has worked allocates no workspace for the same work again") {
  fixture f;
  allocator counts;
  dr_context* const c = counts.context();
  REQUIRE(f.encode(c) == DR_OK);
  REQUIRE(f.merge(c) == DR_OK);
  const long calls = counts.calls;
  for (int step = 0; step < 5; ++step) {
    REQUIRE(f.encode(c) == DR_OK);
    REQUIRE(f.decode(c) == DR_OK);
    REQUIRE(f.merge(c) == DR_OK);
  }
  CHECK(counts.calls == calls);
  dr_context_destroy(c);
  CHECK(counts.blocks.empty());
}

TEST_CASE("an allocation that no machine has is MEMORY or an argument, never a crash") {
  client::context c;
  client::plan p("index=raw");
  const float value = 1;
  const uint64_t index = 0;
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = DR_F32;
  t.index_dtype = DR_U64;
  t.values = &value;
  t.indices = &index;
  t.count = 1;
  size_t bytes = 0;
  for (const uint64_t universe :
       {uint64_t{1} << 40, uint64_t{1} << 55, uint64_t{1} << 56, uint64_t{1} << 60, UINT64_MAX}) {
    CAPTURE(universe);
    t.universe = universe;
    const dr_status s = dr_bound(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, &bytes);
    CHECK((s == DR_OK || s == DR_E_ARGUMENT || s == DR_E_UNSUPPORTED || s == DR_E_MEMORY));
    if (s) CHECK(c.error() != "");
  }
  t.universe = uint64_t{1} << 40;
  t.count = uint64_t{1} << 39;
  unsigned char frame[64];
  const dr_status s = dr_encode(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, frame, sizeof frame, nullptr);
  CHECK((s == DR_E_MEMORY || s == DR_E_UNSUPPORTED || s == DR_E_ARGUMENT));
}

TEST_CASE("trim returns every block that calls have left in the context") {
  fixture f;
  allocator counts;
  dr_context* const c = counts.context();
  const long before = live;
  counting = true;
  bool done = f.encode(c) == DR_OK && f.decode(c) == DR_OK && f.merge(c) == DR_OK;
  counting = false;
  CHECK(done);
  CHECK(live > before);
  CHECK(dr_context_trim(c) == DR_OK);
  CHECK(live == before);
  CHECK(counts.blocks.empty());
  done = f.encode(c) == DR_OK && f.decode(c) == DR_OK && f.merge(c) == DR_OK;
  CHECK(done);
  dr_context_destroy(c);
  CHECK(counts.blocks.empty());
}
