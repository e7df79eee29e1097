// Frameworks flush denormals and change rounding. Bytes do not depend on it, and the caller gets its environment back.
#include <cfenv>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

unsigned control() {
#if defined(__SSE2__)
  return _mm_getcsr();
#else
  return static_cast<unsigned>(std::fegetround());
#endif
}

// Flush to zero, denormals are zero, rounding upward; back again in the end.
class hostile_environment {
 public:
  hostile_environment() {
    std::fegetenv(&saved_);
    std::feclearexcept(FE_ALL_EXCEPT);
    std::fesetround(FE_UPWARD);
#if defined(__SSE2__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
  }
  ~hostile_environment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
};

// Denormals in f32, results that need rounding, and ties.
floats awkward() {
  floats g = client::laplace(2000, 5, 1e-3);
  for (size_t i = 0; i < 300; ++i) g[7 * i % g.size()] *= 1e-37f;
  for (size_t i = 0; i < 100; ++i) g[11 * i] = 0x1p-149f * static_cast<float>(i + 1);
  return g;
}

// All that a client may do, one behind the other; its bytes.
bytes everything(client::context& c, const std::string& plan_text, dr_dtype dtype, const floats& g,
                 const std::vector<uint16_t>& halves) {
  const client::plan p(plan_text);
  dr_tensor t = client::dense(g);
  t.dtype = dtype;
  t.values = dtype == DR_F32 ? static_cast<const void*>(g.data()) : halves.data();
  std::vector<uint64_t> state(2 + g.size() / 2 + 1);
  t.state = state.data();
  t.state_size = 8 * state.size();
  bytes all;
  floats out(g.size(), 0.1f);
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = DR_F32;
  o.universe = g.size();
  o.values = out.data();
  dr_decode_options add{};
  add.struct_size = sizeof add;
  add.flags = DR_DECODE_ADD;
  for (uint64_t step = 0; step < 3; ++step) {
    bytes frame(1 << 16);
    dr_result result{.struct_size = sizeof(dr_result)};
    dr_call call{};
    call.struct_size = sizeof call;
    call.step = step;
    if (dr_encode(c.handle, p.handle, &call, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), &result)) return {};
    all.insert(all.end(), frame.begin(), frame.begin() + static_cast<long>(result.size));
    const dr_bytes frames[] = {{frame.data(), result.size}, {frame.data(), result.size}};
    const float weights[] = {0.3f, 1e-3f};
    if (dr_merge(c.handle, nullptr, frames, weights, 2, &add, &o, sizeof o, 1)) return {};
  }
  const auto append = [&](const void* from, size_t size) {
    all.insert(all.end(), static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + size);
  };
  append(out.data(), 4 * out.size());
  append(state.data(), 8 * state.size());
  return all;
}

}  // namespace

TEST_CASE("frames, decoded values and states are the same bytes under flushed denormals and rounding upward") {
  const floats g = awkward();
  std::vector<uint16_t> halves(g.size());
  client::rng r{9};
  for (auto& h : halves) h = static_cast<uint16_t>(r.next() & 0xbbff);  // finite in both types, denormals among them
  const char* plans[] = {"feedback=residual index=golomb value=qsgd",
                         "sparsify=topr(ratio=0.3) feedback=residual(beta=0.9,gamma=0.3) index=rice value=fit_poly",
                         "sparsify=threshold(value=1e-40) feedback=residual index=bloom(policy=p0,fpr=0.003) value=raw",
                         "sparsify=topr(ratio=0.2) feedback=residual index=bloom value=qsgd(levels=5)+deflate"};
  for (const uint32_t threads : {1u, 3u})
    for (const char* text : plans)
      for (const dr_dtype dtype : {DR_F32, DR_F16, DR_BF16}) {
        CAPTURE(threads);
        CAPTURE(dtype);
        INFO(std::string(text));
        client::context c(threads);
        const bytes expected = everything(c, text, dtype, g, halves);
        REQUIRE(!expected.empty());
        bytes found;
        unsigned before, after;
        {
          hostile_environment hostile;
          client::context of_its_own(threads);  // its threads start in this environment, too
          before = control();
          found = everything(of_its_own, text, dtype, g, halves);
          after = control();
        }
        CHECK(found == expected);
        CHECK(after == before);
      }
}

TEST_CASE("a plan's numbers are read and printed the same in any environment") {
  const std::string text = "sparsify=threshold(value=0.1) index=bloom(fpr=0.001) value=raw";
  const std::string expected = dr_plan_text(client::plan(text).handle);
  hostile_environment hostile;
  CHECK(dr_plan_text(client::plan(text).handle) == expected);
}

namespace {

#if defined(__x86_64__)
uint16_t x87_control() {
  uint16_t word;
  __asm__ volatile("fnstcw %0" : "=m"(word));
  return word;
}
// Rounds upward, to 24 bits: the SSE environment knows nothing of it.
class hostile_x87 {
 public:
  hostile_x87() : saved_(x87_control()) { set(0x087f); }
  ~hostile_x87() { set(saved_); }

 private:
  static void set(uint16_t word) { __asm__ volatile("fldcw %0" : : "m"(word)); }
  uint16_t saved_;
};
#endif

// Calls of every kind, after each of which control and flags are those of before; `flags`: raised before.
void check_environment(int flags) {
  const floats g = awkward();
  client::context c;
  client::plan p("index=golomb value=qsgd");
  floats nan(g);
  nan[3] = NAN;
  const dr_tensor good = client::dense(g), bad = client::dense(nan);
  bytes frame(1 << 16);
  dr_result result{.struct_size = sizeof(dr_result)};
  floats out(g.size());
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = DR_F32;
  o.universe = g.size();
  o.values = out.data();
  size_t bound = 0;
  std::feclearexcept(FE_ALL_EXCEPT);
  std::feraiseexcept(flags);
  const unsigned before = control();
  dr_status s[6];
  unsigned after[6];
  int raised = 0;
  const auto note = [&](int i, dr_status status) {
    s[i] = status;
    after[i] = control();
    raised |= std::fetestexcept(FE_ALL_EXCEPT) ^ flags;
  };
  note(0, dr_bound(c.handle, p.handle, nullptr, nullptr, &good, sizeof good, 1, &bound));
  note(1, dr_encode(c.handle, p.handle, nullptr, nullptr, &good, sizeof good, 1, frame.data(), frame.size(), &result));
  note(2, dr_decode(c.handle, nullptr, frame.data(), result.size, nullptr, &o, sizeof o, 1));
  note(3, dr_encode(c.handle, p.handle, nullptr, nullptr, &bad, sizeof bad, 1, frame.data() + result.size,
                    frame.size() - result.size, nullptr));
  frame[20] ^= 1;
  note(4, dr_decode(c.handle, nullptr, frame.data(), result.size, nullptr, &o, sizeof o, 1));
  dr_plan* none = nullptr;
  note(5, dr_plan_parse("index=bloom(fpr=1e-400000)", &none, nullptr));
  CHECK(s[0] == DR_OK);
  CHECK(s[1] == DR_OK);
  CHECK(s[2] == DR_OK);
  CHECK(s[3] == DR_E_ARGUMENT);
  CHECK(s[4] == DR_E_CORRUPT);
  CHECK(s[5] == DR_E_ARGUMENT);
  for (const unsigned a : after) CHECK(a == before);
  CHECK(raised == 0);
}

}  // namespace

TEST_CASE(
    "the caller's environment comes back after every call, failing ones included, and no exception flag is raised") {
  for (const int flags : {0, FE_INEXACT, FE_DIVBYZERO | FE_OVERFLOW}) {
    CAPTURE(flags);
    // The default one stays as it is while we work, any other is put aside.
    check_environment(flags);
    {
      hostile_environment hostile;
      check_environment(flags);
    }
#if defined(__x86_64__)
    hostile_x87 hostile;
    const unsigned before = x87_control();
    check_environment(flags);
    CHECK(x87_control() == before);
#endif
  }
  std::feclearexcept(FE_ALL_EXCEPT);
}

#if defined(__GLIBC__) && defined(__SSE2__)
TEST_CASE("a caller that traps floating-point exceptions is not trapped in here") {
  const floats g = awkward();
  client::context c;
  client::plan p("sparsify=topr(ratio=0.3) index=bloom value=fit_poly");
  const dr_tensor t = client::dense(g);
  bytes frame(1 << 16);
  std::fenv_t saved;
  std::fegetenv(&saved);
  std::feclearexcept(FE_ALL_EXCEPT);
  feenableexcept(FE_ALL_EXCEPT);
  const dr_status s =
      dr_encode(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), nullptr);
  const int trapping = fegetexcept();
  std::fesetenv(&saved);
  CHECK(s == DR_OK);
  CHECK(trapping == FE_ALL_EXCEPT);
}
#endif
