// A rank that stops, is killed, or comes late, over MPI. Rank 1 is the one.
//   mpiexec -n N fault_ranks stop|kill|late SCHEDULE
#include <signal.h>

#include <utility>

#include "ranks.hpp"

namespace {

using ranks::expect;

double timeout = 4;  // seconds
constexpr int guilty = 1;

// How the others see that rank 1 is gone: PEER only if MPI says so.
bool is_loss(dr_status status, bool killed) { return status == DR_E_TIMEOUT || (killed && status == DR_E_PEER); }

// The exchange without rank 1: an error, in time, on all others, who name it; nothing is written.
void fails(ranks::reduction& r, const std::string& where, bool killed) {
  const std::vector<ranks::floats> before = r.results;
  const double begin = MPI_Wtime();
  const dr_status status = dr_mpi_allreduce(r.mpi, nullptr);
  const double took = MPI_Wtime() - begin;
  const std::string what = where + ": " + dr_status_name(status) + " after " + std::to_string(took) + " s: " + r.said();
  expect(is_loss(status, killed) && dr_mpi_last_error(r.mpi)->frame == guilty, what);
  expect(took < timeout + 1, what);
  expect(r.results == before, where + ": outputs are touched");
  // An exchange that MPI still holds memory of is of no more use; one that it does not fails again. Neither waits for ever.
  const dr_status again = dr_mpi_allreduce(r.mpi, nullptr);
  expect(again == DR_E_ARGUMENT || is_loss(again, killed),
         where + ", again: " + dr_status_name(again) + ": " + r.said());
  expect(MPI_Wtime() - begin < 2 * timeout + 1, where + ": the next took too long");
  const double end = MPI_Wtime();
  dr_mpi_destroy(std::exchange(r.mpi, nullptr));
  expect(MPI_Wtime() - end < 1, where + ": it was not destroyed at once");
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &ranks::rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks::count);
  if (argc != 3) return 2;
  const std::string fault = argv[1], where = fault + ", " + argv[2];
  if (fault == "late") timeout = 30;

  dr_exchange_options options{};
  options.timeout_ns = static_cast<uint64_t>(timeout * 1e9);
  ranks::reduction r(std::string("sparsify=topr(ratio=0.1) feedback=residual exchange=") + argv[2], {20000, 100},
                     options);
  expect(r.status == DR_OK, where + ": " + r.said());
  if (r.status) return ranks::verdict();
  for (uint64_t step = 0; step < 2; ++step) {
    r.fill(step);
    expect(dr_mpi_allreduce(r.mpi, nullptr) == DR_OK, where + ", before: " + r.said());
  }
  r.fill(2);
  if (fault == "late") {
    if (ranks::rank == guilty) usleep(500'000);
    expect(dr_mpi_allreduce(r.mpi, nullptr) == DR_OK, where + ": " + r.said());
    expect(ranks::same_everywhere(r.results[0].data(), r.results[0].size() * sizeof(float)), where + ": ranks differ");
    MPI_Finalize();
    return ranks::verdict();
  }
  if (ranks::rank == guilty) raise(fault == "stop" ? SIGSTOP : SIGKILL);
  fails(r, where, fault == "kill");
  const int bad = ranks::verdict();
  sleep(10);   // until run_ranks.py ends it: Open MPI's mpiexec ends all when one ends so
  _exit(bad);  // MPI_Finalize would wait for rank 1
}
