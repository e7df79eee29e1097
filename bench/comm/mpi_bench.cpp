// All-reduce of compressed gradients over MPI beside MPI_Iallreduce of dense ones: see README.md.
#include "mpi_bench.hpp"

namespace comm {
namespace {

// ---- A row ------------------------------------------------------------------------------------------------

// Waits at a barrier without holding the core.
void meet() {
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  wait_for(request);
}

class dense final : public candidate {
 public:
  explicit dense(size_t elements) : gradient_(gradient(elements, ranks.rank, 0)), sum_(elements) {}
  std::string plan() const override { return "MPI_Iallreduce"; }
  void run(uint64_t) override {
    MPI_Request request;
    MPI_Iallreduce(gradient_.data(), sum_.data(), static_cast<int>(sum_.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                   &request);
    wait_for(request);
  }
  double sent() const override {
    return 2.0 * (ranks.count - 1) / ranks.count * 4.0 * static_cast<double>(sum_.size());
  }
  std::span<const float> result() const override { return sum_; }
  // Within rounding of the sum in f64: MPI says nothing of the order.
  void verify() override {
    std::vector<double> sum(sum_.size()), largest(sum_.size());
    for (int r = 0; r < ranks.count; ++r) {
      const floats g = gradient(sum_.size(), r, 0);
      for (size_t i = 0; i < g.size(); ++i) sum[i] += g[i], largest[i] += std::fabs(g[i]);
    }
    run(0);
    for (size_t i = 0; i < sum.size(); ++i)
      if (std::fabs(sum[i] - sum_[i]) > 1e-6 * largest[i]) throw std::runtime_error("MPI_Iallreduce: not the sum");
  }

 private:
  floats gradient_, sum_;
};

class compressed final : public candidate {
 public:
  compressed(const std::string& text, size_t elements, double timeout)
      : plan_(text), gradients_{gradient(elements, ranks.rank, 0), gradient(elements, ranks.rank, 1)}, mean_(elements) {
    auto options = dr::sized<dr_exchange_options>();
    auto error = dr::sized<dr_error>();
    options.timeout_ns = static_cast<uint64_t>(timeout * 1e9);
    if (dr_mpi_create(context_.get(), plan_.get(), MPI_COMM_WORLD, &options, &in_, sizeof in_, &out_, sizeof out_, 1,
                      &mpi_, &error))
      throw dr::error(error);
  }
  ~compressed() override { dr_mpi_destroy(mpi_); }
  compressed(const compressed&) = delete;
  compressed& operator=(const compressed&) = delete;

  std::string plan() const override { return std::string(plan_.text()); }
  void run(uint64_t step) override {
    const dr_call call = call_of(step);
    if (dr_mpi_allreduce(mpi_, &call)) throw dr::error(*dr_mpi_last_error(mpi_));
  }
  // The gradients of two steps take turns.
  void prepare(uint64_t step) override {
    in_ = dr::dense(gradients_[step % 2]);
    if (dr_exchange_rebind(mpi_->exchange, &in_, sizeof in_, &out_, sizeof out_, 1))
      throw dr::error(*dr_last_error(context_.get()));
  }
  double sent() const override { return static_cast<double>(info().sent); }
  std::span<const float> result() const override { return mean_; }

  // The first two steps are, bit by bit, what all ranks' programs make of the same gradients in one thread, without MPI. Of
  // `gather` in one part that is what dr_merge makes of the ranks' frames (tests/mpi/allreduce_ranks.cpp).
  void verify() override {
    std::vector<uint64_t> hashes;
    for (uint64_t step = 0; step < 2; ++step) {
      prepare(step);
      run(step);
      hashes.push_back(hash(mean_));
    }
    error_ = distance_to_mean(1);
    uint64_t expected[2] = {};
    if (ranks.rank == 0) run_in_one_thread(expected);
    MPI_Bcast(expected, 2, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    if (hashes[0] != expected[0] || hashes[1] != expected[1])
      throw std::runtime_error(plan() + ": not the reference's bits");
  }
  double error() const override { return error_; }
  std::string times() const override {
    const dr_exchange_info i = info();
    char text[120];
    std::snprintf(text, sizeof text, "encode %.1f, wait %.1f, merge %.1f ms", 1e-6 * static_cast<double>(i.encode_ns),
                  1e-6 * static_cast<double>(i.wait_ns), 1e-6 * static_cast<double>(i.merge_ns));
    return text;
  }

 private:
  static dr_call call_of(uint64_t step) {
    auto call = dr::sized<dr_call>();
    call.step = step;
    call.seed = 1;
    return call;
  }
  dr_exchange_info info() const {
    auto i = dr::sized<dr_exchange_info>();
    dr_exchange_describe(mpi_->exchange, &i, nullptr);
    return i;
  }

  void run_in_one_thread(uint64_t* hashes) {
    const auto count = static_cast<uint32_t>(ranks.count);
    auto options = dr::sized<dr_loopback_options>();
    auto error = dr::sized<dr_error>();
    options.ranks = count;
    dr_loopback* loopback = nullptr;
    if (dr_loopback_create(&options, &loopback, &error)) throw dr::error(error);
    std::vector<std::unique_ptr<dr::context>> contexts;
    std::vector<dr_exchange*> exchanges(count);
    std::vector<floats> in(count), out(count, floats(mean_.size()));
    std::vector<dr_tensor> tensors(count);
    std::vector<dr_tensor_out> outs(count);
    for (uint64_t step = 0; step < 2; ++step) {
      for (uint32_t r = 0; r < count; ++r) {
        floats g = gradient(mean_.size(), static_cast<int>(r), step);
        if (step) {
          std::copy(g.begin(), g.end(), in[r].begin());
        } else {
          in[r] = std::move(g);
          contexts.push_back(std::make_unique<dr::context>());
          auto transport = dr::sized<dr_transport>();
          tensors[r] = dr::dense(in[r]);
          outs[r] = dr::dense_out(out[r]);
          if (dr_loopback_transport(loopback, r, &transport) ||
              dr_exchange_create(contexts[r]->get(), plan_.get(), &transport, nullptr, &tensors[r], sizeof tensors[r],
                                 &outs[r], sizeof outs[r], 1, &exchanges[r]))
            throw dr::error(*dr_last_error(contexts[r]->get()));
        }
        const dr_call call = call_of(step);
        if (dr_exchange_start(exchanges[r], &call)) throw dr::error(*dr_last_error(contexts[r]->get()));
      }
      if (dr_loopback_run(loopback, exchanges.data(), nullptr)) throw dr::error(*dr_last_error(contexts[0]->get()));
      hashes[step] = hash(out[0]);
    }
    for (dr_exchange* each : exchanges) dr_exchange_destroy(each);
    dr_loopback_destroy(loopback);
  }

  // ‖result - mean‖ / ‖mean‖ of a step's gradients, which ranks know of one another.
  double distance_to_mean(uint64_t step) const {
    std::vector<double> mean(mean_.size());
    for (int r = 0; r < ranks.count; ++r) {
      const floats g = gradient(mean.size(), r, step);
      for (size_t i = 0; i < g.size(); ++i) mean[i] += g[i] / static_cast<double>(ranks.count);
    }
    double off = 0, norm = 0;
    for (size_t i = 0; i < mean.size(); ++i)
      off += (mean[i] - mean_[i]) * (mean[i] - mean_[i]), norm += mean[i] * mean[i];
    return norm > 0 ? std::sqrt(off / norm) : 0;
  }

  dr::context context_;
  dr::plan plan_;
  floats gradients_[2], mean_;
  // The exchange reads these, and writes counts, as long as it is there.
  dr_tensor in_ = dr::dense(gradients_[0]);
  dr_tensor_out out_ = dr::dense_out(mean_);
  dr_mpi* mpi_ = nullptr;
  double error_ = 0;
};

// ---- A size -----------------------------------------------------------------------------------------------

// All candidates of a size, in turn, so that what else the machine does hits all alike.
std::vector<row> measure(const options& asked, size_t elements) {
  std::vector<std::unique_ptr<candidate>> candidates;
  candidates.push_back(std::make_unique<dense>(elements));
  for (const std::string& plan : asked.plans)
    candidates.push_back(std::make_unique<compressed>(plan, elements, asked.timeout));
  std::vector<std::vector<double>> times(candidates.size());
  for (const auto& each : candidates) each->verify();
  for (int round = -asked.warm_up; round < asked.rounds; ++round) {
    for (size_t c = 0; c < candidates.size(); ++c) {
      const auto step = static_cast<uint64_t>(2 + asked.warm_up + round);
      candidates[c]->prepare(step);
      meet();
      const double begin = MPI_Wtime();
      candidates[c]->run(step);
      const double took = MPI_Wtime() - begin;
      if (round >= 0) times[c].push_back(took);
      if (!same_everywhere(hash(candidates[c]->result())))
        throw std::runtime_error(candidates[c]->plan() + ": ranks differ");
    }
  }
  std::vector<row> rows;
  for (size_t c = 0; c < candidates.size(); ++c) {
    std::vector<double>& t = times[c];
    MPI_Allreduce(MPI_IN_PLACE, t.data(), static_cast<int>(t.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double sent = candidates[c]->sent();
    MPI_Allreduce(MPI_IN_PLACE, &sent, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    std::sort(t.begin(), t.end());
    const auto at = [&t](double q) { return t[static_cast<size_t>(q * static_cast<double>(t.size() - 1) + 0.5)]; };
    rows.push_back({candidates[c]->plan(), elements, at(0.5), at(0.1), at(0.9), sent, candidates[c]->error(),
                    candidates[c]->times()});
  }
  return rows;
}

// Bytes a second from rank 0 to rank 1, by messages of 4 MiB, of which the first goes unmeasured.
double link_rate() {
  std::vector<char> bytes(4u << 20);
  double rate = 0;
  if (ranks.count < 2) return 0;
  for (int i = 0; i < 3; ++i) {
    meet();
    const double begin = MPI_Wtime();
    MPI_Request request;
    char word = 0;
    if (ranks.rank == 0)
      MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_CHAR, 1, 1, MPI_COMM_WORLD, &request),
          wait_for(request);
    if (ranks.rank == 0) MPI_Irecv(&word, 1, MPI_CHAR, 1, 2, MPI_COMM_WORLD, &request), wait_for(request);
    if (ranks.rank == 1)
      MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_CHAR, 0, 1, MPI_COMM_WORLD, &request),
          wait_for(request);
    if (ranks.rank == 1) MPI_Isend(&word, 1, MPI_CHAR, 0, 2, MPI_COMM_WORLD, &request), wait_for(request);
    rate = static_cast<double>(bytes.size()) / (MPI_Wtime() - begin);
  }
  MPI_Bcast(&rate, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  return rate;
}

// ---- Messages ---------------------------------------------------------------------------------------------

// ns of a hop in a chain of so many, of each `messages` of 64 bytes to the next rank, as mpi.h sends, polls and rests.
double chain_ns(dr_mpi_transport* transport, int hops, int messages) {
  const dr_transport t = dr_mpi_transport_of(transport);
  const uint32_t right = (t.rank + 1) % t.ranks, left = (t.rank + t.ranks - 1) % t.ranks;
  std::vector<char> sent(64), received(64 * static_cast<size_t>(messages));
  std::vector<uint64_t> open;
  meet();
  const double begin = MPI_Wtime();
  for (int hop = 0; hop < hops; ++hop) {
    open.assign(2 * static_cast<size_t>(messages), 0);
    for (size_t i = 0; i < open.size(); ++i)
      if (i % 2 ? t.send(t.user, right, 1, sent.data(), sent.size(), &open[i])
                : t.recv(t.user, left, 1, &received[32 * i], 64, &open[i]))
        throw std::runtime_error("a hop cannot be sent");
    for (dr_mpi_pause_ pause{}; !open.empty();) {
      size_t size = 0;
      std::erase_if(open, [&](uint64_t request) { return t.test(t.user, request, &size) == DR_OK; });
      if (!open.empty()) dr_mpi_rest_(transport->crowded, transport->ended, &pause);
    }
  }
  return 1e9 * (MPI_Wtime() - begin);
}

// Prints {"hop_ns", "message_ns"} of the slowest rank; what two chains differ by has nothing of how ranks leave a
// barrier.
void measure_hops() {
  constexpr int rounds = 40, shorter = 8, longer = 40, several = 4;
  dr_mpi_transport* transport = nullptr;
  auto error = dr::sized<dr_error>();
  if (dr_mpi_transport_create(MPI_COMM_WORLD, 0, &transport, &error)) throw dr::error(error);
  const auto quartile = [&](int hops, int messages) {
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) times.push_back(chain_ns(transport, hops, messages));
    MPI_Allreduce(MPI_IN_PLACE, times.data(), rounds, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    std::sort(times.begin(), times.end());
    return times[rounds / 4];
  };
  const auto hop = [&](int messages) {
    const double most = quartile(longer, messages), least = quartile(shorter, messages);
    return most > least ? (most - least) / (longer - shorter) : most / longer;
  };
  const double one = hop(1), more = hop(several);
  if (ranks.rank == 0)
    std::printf("{\"hop_ns\": %.0f, \"message_ns\": %.0f}\n", one, std::max(0.0, more - one) / (several - 1));
  dr_mpi_transport_destroy(transport);
}

int run(const options& asked) {
  if (asked.hops) {
    measure_hops();
    return 0;
  }
  const double rate = link_rate(), megabits = 8e-6 * rate;
  if (asked.expect_megabits > 0 && (megabits > 1.1 * asked.expect_megabits || megabits < 0.6 * asked.expect_megabits)) {
    if (ranks.rank == 0)
      std::fprintf(stderr, "the link runs at %.0f Mbit/s, not at %.0f\n", megabits, asked.expect_megabits);
    return 3;
  }
  report out(asked, megabits);
  for (size_t bytes = asked.begin; bytes <= asked.end; bytes *= asked.factor)
    out.add(measure(asked, bytes / sizeof(float)));
  out.end();
  return 0;
}

}  // namespace
}  // namespace comm

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &comm::ranks.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &comm::ranks.count);
  int status = 0;
  comm::options asked;
  try {
    asked = comm::parse(argc, argv);
    status = comm::run(asked);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", comm::ranks.rank, e.what());
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  std::fflush(nullptr);
  if (asked.finalize) {
    MPI_Finalize();
  } else {
    comm::meet();  // mpiexec may end all when one ends so
  }
  _exit(status);
}
