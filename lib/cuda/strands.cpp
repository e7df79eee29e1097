#include "cuda/strands.hpp"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "primitive/rng.hpp"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
// Our bookkeeping: TSan regards strands as threads and would report races in it.
#define DR_BOOKKEEPING __attribute__((no_sanitize("thread")))
#else
#define DR_BOOKKEEPING
#endif

namespace dr {
namespace {

// A large stack with guard pages: a kernel's frame has an array where a GPU has a register. Untouched pages cost
// nothing.
class stack {
 public:
  static constexpr size_t size = size_t{384} << 10, guard = size_t{64} << 10;

  stack()
      : all_(mmap(nullptr, guard + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (all_ == MAP_FAILED || mprotect(all_, guard, PROT_NONE)) std::abort();
  }
  ~stack() { munmap(all_, guard + size); }
  stack(const stack&) = delete;
  stack& operator=(const stack&) = delete;

  void* data() const { return static_cast<std::byte*>(all_) + guard; }

  // Stacks that later launches reuse.
  static std::vector<std::unique_ptr<stack>>& spare() {
    static thread_local std::vector<std::unique_ptr<stack>> all;
    return all;
  }
  static std::unique_ptr<stack> take() {
    if (spare().empty()) return std::make_unique<stack>();
    auto s = std::move(spare().back());
    spare().pop_back();
    return s;
  }

 private:
  void* const all_;
};

// The state of a control flow while others run. To TSan strands are threads that only barriers order: it reports
// accesses of two strands to the same memory between two barriers as a race.
struct flow {
  ucontext_t context{};
#if defined(__SANITIZE_THREAD__)
  void* fiber = nullptr;
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  // (ASan drops its knowledge of the stack at each switch.)
  DR_BOOKKEEPING static void change(flow& from, flow& to) {
#if defined(__SANITIZE_THREAD__)
    from.fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.fiber, __tsan_switch_to_fiber_no_sync);
#endif
    swapcontext(&from.context, &to.context);
  }
  void begin() {}
#else
  // swapcontext makes two system calls, which cost more than all the rest.
  [[gnu::noinline]] static void change(flow& from, flow& to) {
    if (__builtin_setjmp(from.resume_) == 0) to.go();
  }
  void begin() { has_begun_ = false; }

 private:
  // (A function of its own, as __builtin_longjmp requires.)
  [[gnu::noinline, noreturn]] void go() {
    if (has_begun_) __builtin_longjmp(resume_, 1);
    has_begun_ = true;
    setcontext(&context);
    std::abort();
  }
  void* resume_[5];
  bool has_begun_ = true;
#endif
};
void tell_order([[maybe_unused]] char& mark) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&mark);
#endif
}
void acquire([[maybe_unused]] char& mark) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&mark);
#endif
}

bool is_planted(const dr_kernel& kernel, const char* file, unsigned line) {
  const emulator_control& control = emulator();
  return control.planted_kernel && line == control.planted_line &&
         std::strcmp(control.planted_kernel, kernel.name) == 0 && std::strcmp(control.planted_file, file) == 0;
}

}  // namespace

class strands::member final : public strand {
 public:
  // The barrier at which it waits. The strands must agree.
  struct barrier {
    enum kind { none, phase, get, complete, follow, end } what = none;
    const char* file = nullptr;
    size_t line = 0;  // or size
    bool operator==(const barrier&) const = default;
  };

  member(const dr_kernel& kernel, strands& all) : kernel_(kernel), all_(all) {
    getcontext(&own_.context);
#if defined(__SANITIZE_THREAD__)
    own_.fiber = __tsan_create_fiber(0);
#endif
  }
  ~member() {
    stack::spare().push_back(std::move(stack_));
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(own_.fiber);
#endif
  }

  void begin(const emulated_grid& grid, std::span<const uint32_t> lanes, uint32_t block, uint32_t grid_phase,
             const void* args) {
    grid_ = grid;
    grid_.lane_order = lanes;
    grid_.others = this;
    block_ = block;
    grid_phase_ = grid_phase;
    args_ = args;
    at_ = last_ = {};
    barriers_ = 0;
    own_.begin();
    own_.context.uc_stack.ss_sp = stack_->data();
    own_.context.uc_stack.ss_size = stack::size;
    own_.context.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&own_.context, reinterpret_cast<void (*)()>(&member::enter), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self));
  }
  // Runs up to the next barrier, or the end.
  DR_BOOKKEEPING barrier go_on() {
    flow::change(caller_, own_);
    return at_;
  }

  void end_phase(const char* file, unsigned line) override {
    tell_phase(phase_then::phase);
    last_ = {barrier::phase, file, line};
    if (!is_planted(kernel_, file, line)) wait(last_);
  }
  void end_get() override {
    tell_phase(phase_then::uniform);
    wait({barrier::get});
  }
  void complete(void* x, size_t size) override {
    tell_phase(phase_then::barrier);
    shown_ = static_cast<std::byte*>(x);
    wait({barrier::complete, nullptr, size});
    for (const auto& m : all_.members_)
      if (m.get() != this)
        for (const uint32_t lane : m->grid_.lane_order)
          std::memcpy(shown_ + lane * size, m->shown_ + lane * size, size);
    wait({barrier::complete, nullptr, size});
  }
  void follow(void* x, size_t size) override {
    tell_phase(phase_then::uniform);
    shown_ = static_cast<std::byte*>(x);
    wait({barrier::follow, nullptr, size});
    for (const auto& m : all_.members_)
      if (m.get() != this && m->has_lane_0()) std::memcpy(shown_, m->shown_, size);
    wait({barrier::follow, nullptr, size});
  }
  bool has_lane_0() const override { return std::ranges::find(grid_.lane_order, 0u) != grid_.lane_order.end(); }

 private:
  DR_BOOKKEEPING static void enter(unsigned high, unsigned low) {
    auto& m = *reinterpret_cast<member*>(static_cast<uintptr_t>(high) << 32 | low);
    acquire(m.all_.marks_.begin);
    m.kernel_.host(&m.grid_, m.block_, m.grid_phase_, m.args_);
    m.tell_phase(phase_then::barrier);
    m.at_ = {barrier::end};
    tell_order(m.all_.marks_.end);
    flow::change(m.own_, m.caller_);
  }
  DR_BOOKKEEPING void wait(const barrier& at) {
    at_ = at;
    char& mark = all_.marks_.barrier[barriers_++ % 2];
    tell_order(mark);
    flow::change(own_, caller_);
    acquire(mark);
  }
  void tell_phase(phase_then then) {
    if (last_.what && emulator().phase_seen)
      emulator().phase_seen(kernel_, last_.file, static_cast<unsigned>(last_.line), then);
    last_ = {};
  }

  const dr_kernel& kernel_;
  strands& all_;
  std::unique_ptr<stack> stack_ = stack::take();
  emulated_grid grid_;
  uint32_t block_ = 0, grid_phase_ = 0, barriers_ = 0;
  const void* args_ = nullptr;
  std::byte* shown_ = nullptr;  // to the other strands
  barrier at_, last_;           // last_: the previous phase, until the next one is known
  flow own_, caller_;
};

strands::strands(const dr_kernel& kernel, uint32_t n) : turns_(n) {
  for (uint32_t i = 0; i < n; ++i) members_.push_back(std::make_unique<member>(kernel, *this));
  std::iota(turns_.begin(), turns_.end(), 0u);
}
strands::~strands() = default;

void strands::shuffle_turns(uint64_t key) {
  for (size_t i = turns_.size(); i > 1; --i) std::swap(turns_[i - 1], turns_[draw(key, i) % i]);
}

bool strands::run(const emulated_grid& grid, std::span<const uint32_t> order, uint32_t block, uint32_t grid_phase,
                  const void* args, uint64_t jitter) {
  const size_t n = members_.size();
  for (size_t i = 0; i < n; ++i) {
    const size_t begin = i * order.size() / n, end = (i + 1) * order.size() / n;
    members_[i]->begin(grid, order.subspan(begin, end - begin), block, grid_phase, args);
  }
  tell_order(marks_.begin);
  bool together = true, ended = false;
  for (uint64_t round = 0; together && !ended; ++round) {
    if (jitter) shuffle_turns(combine(jitter, round));
    const member::barrier first = members_[turns_[0]]->go_on();
    for (size_t i = 1; i < n; ++i) together = members_[turns_[i]]->go_on() == first && together;
    ended = first.what == member::barrier::end;
  }
  for (char* mark : {&marks_.barrier[0], &marks_.barrier[1], &marks_.end}) acquire(*mark);
  return together;
}

}  // namespace dr
