// What memory an encode with feedback touches, the first time and without need.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "abi/prepared.hpp"
#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

constexpr size_t n = 4 << 20;

// Untouched memory.
struct untouched {
  size_t size;
  void* data;
  explicit untouched(size_t bytes)
      : size((bytes + 65535) / 65536 * 65536),
        data(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(data != MAP_FAILED);
    madvise(data, size, MADV_NOHUGEPAGE);
  }
  ~untouched() { munmap(data, size); }
  untouched(const untouched&) = delete;
  untouched& operator=(const untouched&) = delete;
  double touched() const {  // of 1
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> there(size / page);
    REQUIRE(mincore(data, size, there.data()) == 0);
    return static_cast<double>(std::count_if(there.begin(), there.end(), [](unsigned char c) { return c & 1; })) /
           static_cast<double>(there.size());
  }
};

long faults() {
  rusage r{};
  getrusage(RUSAGE_THREAD, &r);
  return r.ru_minflt;
}

struct encoder {
  client::context c;
  client::plan p;
  floats g = floats(n);
  dr_tensor t = client::dense(g);
  abi::batch b;
  dr_batch_info info{};
  std::unique_ptr<untouched> state, workspace;

  explicit encoder(const char* text) : p(text) {
    for (size_t i = 0; i < n; ++i) g[i] = static_cast<float>(i * 7919 % n) / n - 0.5f;
    REQUIRE(dr_state_size(p.handle, &t, &t.state_size, nullptr) == DR_OK);
    state = std::make_unique<untouched>(t.state_size);
    t.state = state->data;
    REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &b.handle) == DR_OK);
    info = abi::describe(b);
    workspace = std::make_unique<untouched>(info.workspace);
  }
  dr_status encode(size_t capacity) {
    bytes frame(info.bound);
    return dr_batch_encode(c.handle, b.handle, nullptr, nullptr, &t, sizeof t, 1, workspace->data, info.workspace,
                           frame.data(), std::min(capacity, frame.size()), nullptr);
  }
};

}  // namespace

TEST_CASE("the undo copy of feedback takes no memory where nothing can fail, and is made where something can") {
  encoder total("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw");
  REQUIRE(total.info.workspace > 4 * n);  // it is there
  REQUIRE(total.encode(SIZE_MAX) == DR_OK);
  CHECK(total.workspace->touched() < 0.2);
  // A frame that may not fit: then a failure must leave the state as it was.
  const bytes before(static_cast<uint8_t*>(total.t.state), static_cast<uint8_t*>(total.t.state) + total.t.state_size);
  CHECK(total.encode(100) == DR_E_CAPACITY);
  CHECK(total.workspace->touched() > 0.8);
  CHECK(std::equal(before.begin(), before.end(), static_cast<uint8_t*>(total.t.state)));
  encoder lossy("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=qsgd");
  REQUIRE(lossy.encode(SIZE_MAX) == DR_OK);
  CHECK(lossy.workspace->touched() > 0.8);
}

#ifdef MADV_POPULATE_WRITE
TEST_CASE("an encode to a fresh, untouched state faults every page of it once, not twice") {
  untouched page(65536);
  if (madvise(page.data, page.size, MADV_POPULATE_WRITE)) return;  // the kernel cannot
  encoder e("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw");
  {
    encoder warm("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw");
    REQUIRE(warm.encode(SIZE_MAX) == DR_OK);
  }
  const double pages = static_cast<double>(e.state->size) / static_cast<double>(sysconf(_SC_PAGESIZE));
  const long before = faults();
  REQUIRE(e.encode(SIZE_MAX) == DR_OK);
  const auto met = static_cast<double>(faults() - before);
  INFO(met << " faults of " << pages << " pages");
  CHECK(met < 1.5 * pages);  // the rest is the workspace, and the frame
  CHECK(e.state->touched() > 0.99);
  // One that was touched, or is not fresh, is left alone.
  const long again = faults();
  REQUIRE(e.encode(SIZE_MAX) == DR_OK);
  CHECK(static_cast<double>(faults() - again) < 0.5 * pages);
}
#endif
