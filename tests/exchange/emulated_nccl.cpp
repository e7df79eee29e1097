// NCCL's names over memory of the host, for ranks of one process, of one thread or of many. Its communicators are
// non-blocking: a collective that was issued is in progress until all ranks have issued theirs, and is then done at once.
// In place of one it can fail, as it is told.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace {

enum result { success = 0, internal_error = 3, invalid_argument = 4, invalid_usage = 5, in_progress = 7 };

enum class kind { reduce_scatter, all_gather, reduce, broadcast };

struct operation {
  kind what;
  const float* sent;
  float* received;
  size_t count;
  int root;
};

struct communicator {
  std::shared_ptr<std::vector<communicator*>> all;
  int rank = 0, state = success;
  std::deque<operation> issued;
  long calls = 0;
  // The call (of collectives, from 0) that fails, and whether it says so itself or the state does.
  long fails_at = -1;
  bool fails_later = false;
};

std::mutex turn;
thread_local std::vector<std::pair<communicator*, operation>> group;
thread_local int groups = 0;

// A sum of rank r begins with rank r + 1's, as around a ring: not in the order of ranks.
void carry_out(const std::vector<communicator*>& all) {
  const int n = static_cast<int>(all.size());
  const operation first = all[0]->issued.front();
  const auto op = [&](int r) { return all[static_cast<size_t>(r)]->issued.front(); };
  const auto sum = [&](int to, size_t offset, float* out) {
    std::vector<float> sums(op((to + 1) % n).sent + offset, op((to + 1) % n).sent + offset + first.count);
    for (int i = 2; i <= n; ++i)
      for (size_t k = 0; k < first.count; ++k) sums[k] += op((to + i) % n).sent[offset + k];
    std::memcpy(out, sums.data(), 4 * sums.size());
  };
  switch (first.what) {
    case kind::reduce_scatter: {
      // (Where it is in place, a share is read by its own rank only after it is written.)
      for (int r = 0; r < n; ++r) sum(r, static_cast<size_t>(r) * first.count, op(r).received);
      break;
    }
    case kind::reduce: sum(first.root, 0, op(first.root).received); break;
    case kind::all_gather:
      for (int from = 0; from < n; ++from)
        for (int to = 0; to < n; ++to)
          std::memmove(op(to).received + static_cast<size_t>(from) * first.count, op(from).sent, 4 * first.count);
      break;
    case kind::broadcast:
      for (int to = 0; to < n; ++to) std::memmove(op(to).received, op(first.root).sent, 4 * first.count);
  }
}

void go_on(communicator& c) {
  const std::vector<communicator*>& all = *c.all;
  for (;;) {
    for (const communicator* const x : all)
      if (!x || x->issued.empty() || x->state != in_progress) return;
    const operation& first = all[0]->issued.front();
    bool alike = true;
    for (const communicator* const x : all) {
      const operation& o = x->issued.front();
      alike = alike && o.what == first.what && o.count == first.count && o.root == first.root;
    }
    if (alike) carry_out(all);
    for (communicator* const x : all) {
      x->issued.pop_front();
      x->state = !alike ? invalid_usage : x->issued.empty() ? success : in_progress;
    }
  }
}

int enqueue(communicator& c, const operation& o) {
  if (c.state != success && c.state != in_progress) return c.state;
  if (c.calls++ == c.fails_at) {
    c.state = internal_error;
    return c.fails_later ? in_progress : internal_error;
  }
  c.issued.push_back(o);
  c.state = in_progress;
  go_on(c);
  return in_progress;
}

int issue(void* comm, const operation& o, int type, int operator_) {
  const std::lock_guard<std::mutex> mine(turn);
  if (!comm || !o.count || type != 7 || operator_ != 0) return invalid_argument;
  auto& c = *static_cast<communicator*>(comm);
  if (!groups) return enqueue(c, o);
  // A call's own error is told at once, within a group, too.
  if (c.calls == c.fails_at && !c.fails_later) return enqueue(c, o);
  group.emplace_back(&c, o);
  return success;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int ncclGetVersion(int* version) { return *version = 22000, success; }

EXPORT const char* ncclGetErrorString(int code) {
  switch (code) {
    case success: return "no error";
    case internal_error: return "internal error - please report this issue to the NCCL developers";
    case invalid_argument: return "invalid argument";
    case invalid_usage: return "invalid usage";
    default: return "NCCL operation in progress";
  }
}
EXPORT const char* ncclGetLastError(void*) { return "the emulated one was told to"; }

EXPORT int ncclCommInitAll(void** comms, int n, const int*) {
  const auto all = std::make_shared<std::vector<communicator*>>();
  for (int r = 0; r < n; ++r) {
    auto* const c = new communicator;
    c->all = all;
    c->rank = r;
    all->push_back(c);
    comms[r] = c;
  }
  return success;
}
EXPORT int ncclCommDestroy(void* comm) {
  const std::lock_guard<std::mutex> mine(turn);
  auto* const c = static_cast<communicator*>(comm);
  for (communicator*& x : *c->all)
    if (x == c) x = nullptr;
  delete c;
  return success;
}
EXPORT int ncclCommAbort(void* comm) { return ncclCommDestroy(comm); }

EXPORT int ncclCommCount(void* comm, int* n) {
  return *n = static_cast<int>(static_cast<communicator*>(comm)->all->size()), success;
}
EXPORT int ncclCommUserRank(void* comm, int* rank) { return *rank = static_cast<communicator*>(comm)->rank, success; }
EXPORT int ncclCommGetAsyncError(void* comm, int* state) {
  const std::lock_guard<std::mutex> mine(turn);
  return *state = static_cast<communicator*>(comm)->state, success;
}

EXPORT int ncclGroupStart() { return ++groups, success; }
EXPORT int ncclGroupEnd() {
  const std::lock_guard<std::mutex> mine(turn);
  if (!groups) return invalid_usage;
  if (--groups) return success;
  int told = success;
  for (const auto& [c, o] : group) {
    const int code = enqueue(*c, o);
    if (told == success || told == in_progress) told = code;
  }
  group.clear();
  return told;
}

EXPORT int ncclReduceScatter(const void* from, void* to, size_t n, int type, int op, void* comm, void*) {
  return issue(comm, {kind::reduce_scatter, static_cast<const float*>(from), static_cast<float*>(to), n, 0}, type, op);
}
EXPORT int ncclAllGather(const void* from, void* to, size_t n, int type, void* comm, void*) {
  return issue(comm, {kind::all_gather, static_cast<const float*>(from), static_cast<float*>(to), n, 0}, type, 0);
}
EXPORT int ncclReduce(const void* from, void* to, size_t n, int type, int op, int root, void* comm, void*) {
  return issue(comm, {kind::reduce, static_cast<const float*>(from), static_cast<float*>(to), n, root}, type, op);
}
EXPORT int ncclBroadcast(const void* from, void* to, size_t n, int type, int root, void* comm, void*) {
  return issue(comm, {kind::broadcast, static_cast<const float*>(from), static_cast<float*>(to), n, root}, type, 0);
}

// For tests: the communicator's collective number `call` fails, at once or (later) by its state.
EXPORT void emulated_nccl_fail(void* comm, long call, int later) {
  auto& c = *static_cast<communicator*>(comm);
  c.fails_at = c.calls + call;
  c.fails_later = later;
}
// What it has been told to do so far.
EXPORT long emulated_nccl_calls(void* comm) { return static_cast<communicator*>(comm)->calls; }
