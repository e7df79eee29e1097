// Every schedule with several plans over MPI, one exchange at a time and several side by side: the same bits on all ranks; `gather` against frames of all ranks merged here.
//   mpiexec -n N allreduce_ranks
#include <sched.h>

#include <memory>

#include "ranks.hpp"

namespace {

using ranks::expect, ranks::floats, ranks::reduction;

const std::vector<size_t> sizes = {10007, 0, 1, 333, 4096};
constexpr uint64_t steps = 4;

// What `gather` promises: each rank's frame of its whole gradient, merged in rank order with weights 1/n.
struct local_gather {
  dr::context context;
  dr::plan plan;
  std::vector<std::vector<std::vector<uint64_t>>> states;  // [rank][tensor]: bytes in words

  explicit local_gather(const std::string& text) : plan(text), states(static_cast<size_t>(ranks::count)) {
    for (auto& of_rank : states)
      for (const size_t size : sizes) of_rank.emplace_back((dr::state_size(plan, dr::dense(floats(size))) + 7) / 8);
  }

  std::vector<floats> merge(const reduction& r, uint64_t step) {
    std::vector<std::vector<std::byte>> frames;
    std::vector<dr_bytes> views;
    for (int rank = 0; rank < ranks::count; ++rank) {
      std::vector<floats> gradients;
      std::vector<dr_tensor> tensors;
      for (size_t i = 0; i < sizes.size(); ++i) gradients.push_back(ranks::gradient(sizes[i], rank, step, i + 1));
      for (size_t i = 0; i < sizes.size(); ++i) {
        std::vector<uint64_t>& state = states[static_cast<size_t>(rank)][i];
        dr_tensor& t = tensors.emplace_back(dr::dense(gradients[i]));
        t.state = state.empty() ? nullptr : state.data();
        t.state_size = dr::state_size(plan, t);
      }
      const dr_call call = r.call(step);
      frames.push_back(context.encode(plan, tensors, &call));
      views.push_back(dr::bytes_of(frames.back()));
    }
    std::vector<floats> results;
    std::vector<dr_tensor_out> outs;
    for (const size_t size : sizes) results.emplace_back(size);
    for (floats& each : results) outs.push_back(dr::dense_out(each));
    const floats weights(views.size(), 1.f / static_cast<float>(ranks::count));
    const dr_status status = dr_merge(context.get(), nullptr, views.data(), weights.data(), views.size(), nullptr,
                                      outs.data(), sizeof(dr_tensor_out), outs.size());
    expect(status == DR_OK, "dr_merge: " + std::string(dr_last_error(context.get())->message));
    return results;
  }
};

// Begins, computes something else, and asks now and then.
dr_status in_pieces(reduction& r, const dr_call& call) {
  dr_status status = dr_mpi_iallreduce(r.mpi, &call);
  if (status) return status;
  while ((status = dr_mpi_test(r.mpi)) == DR_PENDING) sched_yield();
  return status;
}

void run(const std::string& schedule, const std::string& method, bool exact, bool draws) {
  const std::string text = method + " exchange=" + schedule;
  reduction r(text, sizes);
  expect(r.status == DR_OK, text + ": " + r.said());
  if (r.status) return;
  local_gather local(method);
  for (uint64_t step = 0; step < steps; ++step) {
    r.fill(step);
    const dr_call call = r.call(step);
    const dr_status status = step % 2 ? in_pieces(r, call) : dr_mpi_allreduce(r.mpi, &call);
    const std::string where = text + ", step " + std::to_string(step);
    expect(status == DR_OK, where + ": " + r.said());
    if (status) return;
    for (const floats& each : r.results)
      expect(ranks::same_everywhere(each.data(), each.size() * sizeof(float)), where + ": ranks differ");
    if (schedule == "gather" && !draws)
      expect(local.merge(r, step) == r.results, where + ": not what dr_merge makes of the frames");
    for (size_t i = 0; exact && i < sizes.size(); ++i) {
      std::vector<double> mean(sizes[i]);
      double largest = 0;
      for (int rank = 0; rank < ranks::count; ++rank) {
        const floats g = ranks::gradient(sizes[i], rank, step, i + 1);
        for (size_t k = 0; k < g.size(); ++k) mean[k] += g[k] / static_cast<double>(ranks::count);
      }
      for (size_t k = 0; k < mean.size(); ++k) largest = std::fmax(largest, std::fabs(mean[k] - r.results[i][k]));
      expect(largest < 1e-6, where + ": off the mean by " + std::to_string(largest));
    }
  }
  auto info = dr::sized<dr_exchange_info>();
  expect(dr_exchange_describe(r.mpi->exchange, &info, nullptr) == DR_OK && info.calls == steps && info.failures == 0,
         text + ": calls and failures");
  expect(ranks::count == 1 || (info.sent > 0 && info.sent <= info.sent_max), text + ": bytes sent");
}

// A NaN on one rank: PEER on the others, who all name it; ARGUMENT there; and the next
// exchange is good.
void one_rank_cannot_encode(const std::string& schedule) {
  const std::string text = "sparsify=topr(ratio=0.1) value=log_quant exchange=" + schedule;
  reduction r(text, sizes);
  expect(r.status == DR_OK, text + ": " + r.said());
  if (r.status) return;
  const int guilty = ranks::count - 1;
  r.fill(0);
  if (ranks::rank == guilty) r.gradients[3][5] = NAN;
  const dr_status status = dr_mpi_allreduce(r.mpi, nullptr);
  expect(status == (ranks::rank == guilty ? DR_E_ARGUMENT : DR_E_PEER),
         text + ": a NaN gives " + dr_status_name(status));
  expect(dr_mpi_last_error(r.mpi)->frame == static_cast<uint64_t>(guilty), text + ": a NaN: " + r.said());
  for (const floats& each : r.results)
    for (const float v : each) expect(v == -1, text + ": outputs are touched");
  r.fill(1);
  expect(dr_mpi_allreduce(r.mpi, nullptr) == DR_OK, text + ", after a NaN: " + r.said());
}

// Buckets in flight, each with a plan of its own: as many results as by one after the other, in a time that is far from
// the timeout, also where all ranks share one core.
struct buckets {
  std::vector<std::unique_ptr<reduction>> list;
  std::vector<dr_mpi*> all;

  explicit buckets(uint64_t timeout_ns) {
    auto options = dr::sized<dr_exchange_options>();
    options.timeout_ns = timeout_ns;
    for (const char* plan :
         {"sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw exchange=owner(parts=2)",
          "index=all value=raw exchange=ring", "sparsify=topr(ratio=0.05) value=log_quant"}) {
      list.push_back(std::make_unique<reduction>(plan, sizes, options));
      expect(list.back()->status == DR_OK, plan + (": " + list.back()->said()));
      all.push_back(list.back()->mpi);
    }
  }
  std::vector<dr_status> begin(uint64_t step) {
    std::vector<dr_status> statuses;
    for (const auto& r : list) {
      r->fill(step);
      const dr_call call = r->call(step);
      statuses.push_back(dr_mpi_iallreduce(r->mpi, &call));
    }
    return statuses;
  }
};

void several_at_once() {
  buckets one_by_one(0), all_wait(0), any_waits(0);
  cpu_set_t before, one;
  sched_getaffinity(0, sizeof before, &before);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && !CPU_COUNT(&one); ++core)
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);
  for (uint64_t step = 0; step < steps; ++step) {
    const std::string where = "several, step " + std::to_string(step);
    one_by_one.begin(step);
    for (dr_mpi* const m : one_by_one.all) expect(dr_mpi_wait(m) == DR_OK, where);

    all_wait.begin(step);
    std::vector<dr_mpi*> list = all_wait.all;
    list.insert(list.begin() + 1, nullptr);
    std::vector<dr_status> statuses(list.size(), DR_E_INTERNAL);
    expect(dr_mpi_waitall(list.data(), list.size(), statuses.data()) == DR_OK, where + ": dr_mpi_waitall");
    expect(statuses == std::vector<dr_status>(list.size(), DR_OK), where + ": statuses of dr_mpi_waitall");

    any_waits.begin(step);
    size_t which = 0;
    std::vector<int> times(any_waits.all.size());
    while (expect(dr_mpi_waitany(any_waits.all.data(), any_waits.all.size(), &which) == DR_OK, where),
           which < any_waits.all.size())
      ++times[which];
    expect(times == std::vector<int>(times.size(), 1), where + ": dr_mpi_waitany ends each once");
    for (size_t i = 0; i < list.size() - 1; ++i)
      for (const buckets* const b : {&all_wait, &any_waits})
        expect(b->list[i]->results == one_by_one.list[i]->results, where + ": another result");
  }
  sched_setaffinity(0, sizeof before, &before);
}

// One of the buckets fails on all ranks; the others go on to their ends.
void one_of_several_fails() {
  buckets b(0);
  const int guilty = ranks::count - 1;
  b.begin(0);
  expect(dr_mpi_waitall(b.all.data(), b.all.size(), nullptr) == DR_OK, "several, before a NaN");
  for (const auto& r : b.list) r->fill(1);
  if (ranks::rank == guilty) b.list[2]->gradients[3][5] = NAN;
  for (dr_mpi* const m : b.all) expect(dr_mpi_iallreduce(m, nullptr) == DR_OK, "several, start with a NaN");
  dr_status statuses[3];
  const dr_status first = dr_mpi_waitall(b.all.data(), 3, statuses);
  expect(first == (ranks::rank == guilty ? DR_E_ARGUMENT : DR_E_PEER) && statuses[2] == first,
         std::string("several, one with a NaN: ") + dr_status_name(first));
  expect(statuses[0] == DR_OK && statuses[1] == DR_OK, "several, those without a NaN");
  const dr_error& error = *dr_mpi_last_error(b.all[2]);
  expect(error.frame == static_cast<uint64_t>(guilty), "several: " + b.list[2]->said());
  expect(error.struct_size == sizeof error, "an error of this program's size");
}

// Outputs of a wrong shape on one rank: no rank waits for it.
void one_rank_cannot_prepare() {
  reduction r("index=golomb value=raw", {100});
  const bool guilty = ranks::rank == 0;
  r.outs[0].universe -= guilty;
  dr_mpi* made = nullptr;
  auto error = dr::sized<dr_error>();
  const dr_status status = dr_mpi_create(r.context.get(), r.plan.get(), MPI_COMM_WORLD, nullptr, r.tensors.data(),
                                         sizeof(dr_tensor), r.outs.data(), sizeof(dr_tensor_out), 1, &made, &error);
  const std::string said = "create where rank 0 cannot: " + std::string(error.message);
  expect(!made && status == (guilty ? DR_E_ARGUMENT : DR_E_PEER), said);
  expect(guilty || error.frame == 0, said);
  expect(error.struct_size == sizeof error, "an error of this program's size, by dr_mpi_create");
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &ranks::rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks::count);
  std::vector<std::string> schedules = {"gather", "gather(parts=4)", "owner", "owner(parts=4)",
                                        "ring",   "ring(parts=2)"};
  if (ranks::count % 2 == 0) schedules.push_back("hierarchy(inner=2)");
  for (const std::string& schedule : schedules) {
    run(schedule, "index=all value=raw", true, false);
    run(schedule, "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw", false, false);
    run(schedule, "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=log_quant", false, false);
    run(schedule, "sparsify=topr(ratio=0.01) feedback=residual index=bloom(fpr=0.01) value=qsgd(levels=127)", false,
        true);
    one_rank_cannot_encode(schedule);
  }
  several_at_once();
  one_of_several_fails();
  if (ranks::count > 1) one_rank_cannot_prepare();
  MPI_Finalize();
  return ranks::verdict();
}
