// Times of DeepReduce on a GPU, with their limits. `gpu_bench --help`; README.md describes a session with a device.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <numeric>
#include <set>

#include "bench/gpu/gpu_patches.hpp"
#include "bench/gpu/gpu_report.hpp"
#include "bench/gpu/models.hpp"

namespace gpu_bench {
namespace {

struct limits {
  std::optional<double> gate = {}, aim = {}, stream_gate = {};
  uint64_t launches_most = 0;
  double times = 0;  // the gate is so many times what row `of` of the group takes in the same run
  const char* of = nullptr;
};

struct options {
  settings how;
  uint64_t scale = place::on_cuda ? 1 : 2000;
  std::string json, only, profiled;
  bool lists = false, gates = false;
};

std::string topr(const std::string& amount, const std::string& rest) { return "sparsify=topr(" + amount + ") " + rest; }

constexpr const char* usual = "index=golomb value=qsgd";

class bench {
 public:
  explicit bench(const options& o) : o_(o), s_(o.how) {
    about_.start_ms = milliseconds_since(begin_);
    about_.device = place::describe();
    about_.compiler = "gcc " __VERSION__;
    const char* const commit = std::getenv("DR_COMMIT");
    about_.commit = commit ? commit : "unknown";
    const std::time_t now = std::time(nullptr);
    char date[32] = "";
    std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
    about_.date = date;
    about_.quick = o.how.quick;
    about_.rehearsal = !place::on_cuda;
  }

  int run() {
    const uint64_t d = scaled(25600000);
    if (!o_.lists && o_.profiled.empty()) first_call(d);
    group("machine", [&](auto& g) { machine_rows(g); });
    if (!o_.lists && o_.profiled.empty()) {
      about_.copy_bytes_per_second = fastest({copy_name, kernel_copy_name});
      about_.read_bytes_per_second = fastest({"reading 1 GiB"});
      about_.write_bytes_per_second = fastest({"writing 1 GiB"});
      std::printf("a copy moves %.3g TB/s, reads and writes counted; reading alone %.3g, writing alone %.3g\n\n",
                  1e-12 * about_.copy_bytes_per_second, 1e-12 * about_.read_bytes_per_second,
                  1e-12 * about_.write_bytes_per_second);
    }
    group("a dense tensor of 25.6 million to a frame", [&](auto& g) { dense_rows(g, d); });
    group("more and less of it", [&](auto& g) {
      encode(g, "25.6e6, 10 %", topr("ratio=0.1", usual), {{d}}, {120.0});
      encode(g, "25.6e6, 0.1 %", topr("ratio=0.001", usual), {{d}}, {});
      encode(g, "25.6e6, by a threshold (1 %)", "sparsify=threshold(value=0.004605) index=golomb value=qsgd", {{d}},
             {});
      residual(g, d);
    });
    group("inputs that defeat a sample", [&](auto& g) {
      const std::string p = topr("ratio=0.01", usual);
      encode(g, "25.6e6, constant", p, {{d}}, {250.0}, input_kind::constant);
      encode(g, "25.6e6, two values", p, {{d}}, {250.0}, input_kind::two_valued);
      encode(g, "25.6e6, ascending", p, {{d}}, {250.0}, input_kind::ascending);
    });
    group("larger", [&](auto& g) {
      encode(g, "1e8, 1 %", topr("ratio=0.01", usual), {{scaled(100000000)}}, {165.0, 145.0});
      encode(g, "1e8, 1 %, raw values", topr("ratio=0.01", "index=golomb value=raw"), {{scaled(100000000)}}, {});
    });
    group("sparse pairs to a frame", [&](auto& g) { sparse_rows(g, d); });
    group("frames to a dense tensor", [&](auto& g) { decode_rows(g, d); });
    group("a model of many tensors", [&](auto& g) { model_rows(g); });
    group("a small tensor", [&](auto& g) { small_rows(g); });
    if (!o_.how.quick || o_.gates)
      group("largest", [&](auto& g) {
        encode(g, "1e9, 0.1 %", topr("ratio=0.001", usual), {{scaled(1000000000)}}, {1250.0, 1100.0});
      });
    if (!o_.how.quick || o_.gates) group("patches of weights", [&](auto& g) { patch_rows(g); });
    return finish();
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr const char *copy_name = "copy of 1 GiB", *kernel_copy_name = "copy of 1 GiB, by a kernel";

  static double milliseconds_since(clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(clock::now() - begin).count();
  }

  // Bytes per second of the fastest of these rows, as a graph's node or as a plain call: on some drivers a node of a
  // graph copies at two thirds of the rate of the call.
  double fastest(const std::set<std::string>& names) const {
    double most = 0;
    for (const row& r : rows_)
      if (names.count(r.name))
        for (const spread& s : {r.graph, r.stream})
          if (s.n && s.median > 0) most = std::max(most, static_cast<double>(r.bytes) / (1e-6 * s.median));
    return most;
  }

  // What a program waits for once: its kernels are loaded, or compiled by the driver where the library has none for
  // this GPU.
  void first_call(uint64_t d) {
    try {
      encoder e(s_, topr("ratio=0.01", usual), {{d}});
      about_.create_ms = e.create_ms();
      for (double* const ms : {&about_.first_ms, &about_.second_ms}) {
        const auto begin = clock::now();
        e.enqueue(0);
        s_.stream.wait();
        *ms = milliseconds_since(begin);
      }
      std::printf("milliseconds: start of the driver %.1f, dr_batch_create %.1f, first encode %.2f, second %.2f\n\n",
                  about_.start_ms, about_.create_ms, about_.first_ms, about_.second_ms);
    } catch (const std::exception& e) {
      std::printf("the first call failed: %s\n\n", e.what());
    }
  }

  uint64_t scaled(uint64_t d) const { return std::max<uint64_t>(1, d / o_.scale); }

  // Makes the candidates of a group, measures them, and frees their memory.
  template <class F>
  void group(const char* name, F&& fill) {
    if (!o_.only.empty() && std::string(name).find(o_.only) == std::string::npos && std::string(name) != "machine")
      return;
    if (o_.lists) {
      std::printf("-- %s\n", name);
      return;
    }
    const auto begin = clock::now();
    std::vector<candidate> all;
    try {
      fill(all);
      if (all.empty()) return;
      std::printf("-- %s\n", name);
      if (!o_.profiled.empty()) {
        for (candidate& c : all) profile(c);
        return;
      }
      measure(s_, all);
    } catch (const std::exception& e) {
      candidate c;
      c.about.name = name;
      c.about.failed = e.what();
      all.push_back(c);
    }
    if (const std::string trouble = place::trouble(); !trouble.empty()) {
      candidate c;
      c.about.name = std::string(name) + ": CUDA";
      c.about.failed = trouble;
      all.push_back(c);
    }
    judge_by_others(all);
    print_head();
    for (candidate& c : all) {
      c.about.group = name;
      print(c.about, about_);
      rows_.push_back(c.about);
    }
    std::printf("   %.1f s\n\n", 1e-3 * milliseconds_since(begin));
    std::fflush(stdout);
    save();  // a run that is cut off leaves what it has
  }

  bool wanted(const std::string& name, bool gated) const {
    return o_.profiled.empty() ? gated || !o_.gates : name == o_.profiled;
  }

  // One call between the marks of a profiler, with cold caches.
  void profile(candidate& c) {
    if (!c.about.failed.empty() || !c.about.missing.empty())
      throw std::runtime_error(c.about.name + ": " + c.about.failed + c.about.missing);
    s_.prepare(c, 0);
    c.enqueue(0);
    s_.prepare(c, 0);
    s_.chill();
    s_.stream.wait();
    place::start_profile();
    c.enqueue(0);
    s_.stream.wait();
    place::stop_profile();
    std::printf("profiled: %s\n", c.about.name.c_str());
    profiled_ = true;
  }

  bool save() const {
    if (o_.json.empty()) return true;
    std::ofstream file(o_.json);
    file << json_of(rows_, about_);
    if (file.flush()) return true;
    std::printf("%s: could not be written\n", o_.json.c_str());
    return false;
  }

  // Adds the candidate of `make`, or a row with the reason why there is none.
  template <class F>
  void attempt(std::vector<candidate>& g, const std::string& name, const std::string& text, const limits& l, F&& make) {
    if (!wanted(name, l.gate || l.of || name == one_name)) return;
    candidate c;
    try {
      c = make();
    } catch (const not_here& e) {
      c.about.missing = e.what();
    } catch (const std::exception& e) {
      c.about.failed = e.what();
    }
    c.about.name = name;
    c.about.plan = text;
    c.about.gate = l.gate;
    c.about.aim = l.aim;
    c.about.stream_gate = l.stream_gate;
    c.about.launches_most = l.launches_most;
    c.about.gate_times = l.times;
    c.about.gate_of = l.of ? l.of : "";
    g.push_back(std::move(c));
  }

  void encode(std::vector<candidate>& g, const std::string& name, const std::string& text,
              const std::vector<tensor_shape>& shapes, const limits& l, input_kind kind = input_kind::laplace) {
    attempt(g, name, text, l, [&] {
      const auto e = std::make_shared<encoder>(s_, text, shapes, kind);
      e->verify();
      candidate c = e->as_candidate(e, name);
      c.about.verified = "the CPU's frame";
      return c;
    });
  }

  // Training adds another gradient at each step. The same one again and again drives accumulators to just below the
  // threshold, where they crowd and the estimate of the sample fails in one step of ten.
  void residual(std::vector<candidate>& g, uint64_t d) {
    const std::string text = topr("ratio=0.01", std::string(usual) + " feedback=residual");
    attempt(g, "25.6e6, 1 %, residual", text, {135.0, 115.0}, [&] {
      const auto e = std::make_shared<encoder>(s_, text, std::vector<tensor_shape>{{d}});
      e->verify();
      candidate c = e->as_candidate(e, "");
      c.before = [at = e.get()](size_t set, uint64_t n) { at->enqueue_refill(set, 5000 + n); };
      c.about.verified = "the CPU's frame";
      return c;
    });
    encode(g, "  the same gradient at each step", text, {{d}}, {});
  }

  void decode(std::vector<candidate>& g, const std::string& name, const std::string& text,
              const std::vector<tensor_shape>& shapes, size_t k, bool adds, const limits& l) {
    attempt(g, name, text, l, [&] {
      const auto from = std::make_shared<encoder>(s_, text, shapes);
      const auto e = std::make_shared<decoder>(s_, from, k, adds);
      e->verify();
      candidate c = e->as_candidate(e, name);
      c.about.verified = "the CPU's values";
      return c;
    });
  }

  // A baseline of the machine, which needs no verification.
  void plain(std::vector<candidate>& g, const std::string& name, uint64_t bytes, size_t sets,
             std::function<void(size_t)> enqueue, std::shared_ptr<void> keeps) {
    if (!wanted(name, true)) return;
    candidate c;
    c.about.name = name;
    c.about.bytes = bytes;
    c.about.verified = "not needed";
    c.sets = sets;
    c.enqueue = std::move(enqueue);
    c.keeps = std::move(keeps);
    g.push_back(std::move(c));
  }

  void machine_rows(std::vector<candidate>& g) {
    if (!o_.profiled.empty()) return;
    const uint64_t size = scaled(uint64_t{1} << 30) / 256 * 256;
    const auto from = std::make_shared<place::buffer>(size), to = std::make_shared<place::buffer>(size);
    const auto both =
        std::make_shared<std::pair<std::shared_ptr<place::buffer>, std::shared_ptr<place::buffer>>>(from, to);
    // Not zeros, which may be faster.
    fill_dense(s_.raw(), reinterpret_cast<float*>(from->at()), size / 4, input_kind::laplace, 1);
    plain(
        g, copy_name, 2 * size, 1, [=, this](size_t) { copy(s_.raw(), to->at(), from->at(), size); }, both);
    plain(
        g, kernel_copy_name, 2 * size, 1, [=, this](size_t) { copy_by_kernel(s_.raw(), to->at(), from->at(), size); },
        both);
    plain(
        g, "reading 1 GiB", size, 1,
        [=, this](size_t) { read_all(s_.raw(), from->at(), size, reinterpret_cast<uint64_t*>(s_.sink.at())); }, both);
    plain(
        g, "writing 1 GiB", size, 1, [=, this](size_t) { clear(s_.raw(), to->at(), size); }, both);
    plain(
        g, "nothing but a launch", 0, 1, [=, this](size_t) { clear(s_.raw(), s_.sink.at(), 64); }, both);
  }

  void dense_rows(std::vector<candidate>& g, uint64_t d) {
    static constexpr const char* first = "25.6e6, 1 %";
    encode(g, first, topr("ratio=0.01", usual), {{d}}, {85.0, 65.0});
    encode(g, "25.6e6, 1 %, log_quant", topr("ratio=0.01", "index=golomb value=log_quant"), {{d}},
           {.times = 1.1, .of = first});
    // The same with one of the stages raw: the differences are the costs of the stages.
    encode(g, "  raw values", topr("ratio=0.01", "index=golomb value=raw"), {{d}}, {});
    encode(g, "  raw indices", topr("ratio=0.01", "index=raw value=qsgd"), {{d}}, {});
    encode(g, "  raw both", topr("ratio=0.01", "index=raw value=raw"), {{d}}, {});
    for (const char* value : {"uniform_quant", "uniform_quant(bits=8)", "half", "sign", "ternary", "lloyd"})
      encode(g, std::string("  ") + value, topr("ratio=0.01", std::string("index=golomb value=") + value), {{d}}, {});
    encode(g, "  rice", topr("ratio=0.01", "index=rice value=qsgd"), {{d}}, {});
    encode(g, "  Bloom filter, P0", topr("ratio=0.01", "index=bloom(policy=p0,fpr=0.001) value=qsgd"), {{d}}, {});
    encode(g, "  Bloom filter, leftmost", topr("ratio=0.01", "index=bloom(fpr=0.001) value=raw"), {{d}}, {});
    if (o_.gates || !o_.profiled.empty()) return;
    const auto inputs = std::make_shared<std::vector<place::buffer>>();
    for (uint64_t seed = 0; seed < sets_for(4 * d); ++seed) {
      inputs->emplace_back(4 * d);
      fill_dense(s_.raw(), reinterpret_cast<float*>(inputs->back().at()), d, input_kind::laplace, 1000 * seed);
    }
    s_.stream.wait();
    const uint64_t k = std::max<uint64_t>(1, d / 100);
    peer(g, "  peer: CUB sorts it all, then a gather", inputs, d, k, sort_top_k(d, k));
    if (auto made = unordered_top_k(d, k))
      peer(g, "  peer: CUB's TopK without an order, then a gather", inputs, d, k, std::move(made));
    else
      std::printf("   this CUB has no DeviceTopK\n");
    attempt(g, "  peer: CUB selects, the threshold given", "", {}, [&] {
      std::vector<float> all(d);
      place::get(all.data(), inputs->back().at(), 4 * d);
      for (float& v : all) v = std::fabs(v);
      std::nth_element(all.begin(), all.begin() + static_cast<ptrdiff_t>(k - 1), all.end(), std::greater<>());
      return peer_candidate(inputs, d, k, select_top_k(d, k, all[k - 1]));
    });
  }

  void peer(std::vector<candidate>& g, const std::string& name,
            const std::shared_ptr<std::vector<place::buffer>>& inputs, uint64_t d, uint64_t k,
            std::unique_ptr<top_k> made) {
    attempt(g, name, "", {}, [&] { return peer_candidate(inputs, d, k, std::move(made)); });
  }

  candidate peer_candidate(const std::shared_ptr<std::vector<place::buffer>>& inputs, uint64_t d, uint64_t k,
                           std::unique_ptr<top_k> made) {
    const std::shared_ptr<top_k> p = std::move(made);
    const auto input = [inputs](size_t i) { return reinterpret_cast<const float*>((*inputs)[i].at()); };
    p->enqueue(s_.raw(), input(inputs->size() - 1));
    s_.stream.wait();
    check_top(input(inputs->size() - 1), d, k, *p);
    candidate c;
    c.about.elements = d;
    c.about.kept = k;
    c.about.bytes = 4 * d + 8 * k;
    c.about.verified = "none left out is larger";
    c.sets = inputs->size();
    c.fits_cache = fits_cache(4 * d, inputs->size());
    c.enqueue = [this, p, input](size_t set) { p->enqueue(s_.raw(), input(set)); };
    c.keeps = inputs;
    return c;
  }

  static void check_top(const float* from, uint64_t d, uint64_t k, const top_k& p) {
    std::vector<float> all(d), values(k);
    std::vector<uint32_t> indices(k);
    place::get(all.data(), from, 4 * d);
    place::get(values.data(), p.values(), 4 * k);
    place::get(indices.data(), p.indices(), 4 * k);
    float least = INFINITY;
    for (uint64_t i = 0; i < k; ++i) {
      if (indices[i] >= d || std::memcmp(&values[i], &all[indices[i]], 4) != 0)
        throw std::runtime_error("a value is not its index's");
      least = std::min(least, std::fabs(values[i]));
    }
    std::sort(indices.begin(), indices.end());
    if (std::adjacent_find(indices.begin(), indices.end()) != indices.end())
      throw std::runtime_error("an index comes twice");
    const auto larger =
        static_cast<uint64_t>(std::count_if(all.begin(), all.end(), [&](float v) { return std::fabs(v) > least; }));
    if (larger >= k) throw std::runtime_error("a larger value was left out");
  }

  void sparse_rows(std::vector<candidate>& g, uint64_t d) {
    const tensor_shape million{d, scaled(1000000)}, fig{d, scaled(256000)};
    limits l{25.0, 18.0};
    l.launches_most = 5;  // begin_call, select_adopt, golomb, qsgd, pack_frame
    encode(g, "1e6 pairs", usual, {million}, l);
    encode(g, "  raw values", "index=golomb value=raw", {million}, {});
    encode(g, "  raw indices", "index=raw value=qsgd", {million}, {});
    encode(g, "256e3 pairs, fit_poly, raw indices", "index=raw value=fit_poly", {fig}, {150.0});
    encode(g, "256e3 pairs, fit_poly, golomb", "index=golomb value=fit_poly", {fig}, {});
    encode(g, "256e3 pairs", usual, {fig}, {});
  }

  void decode_rows(std::vector<candidate>& g, uint64_t d) {
    const std::string text = topr("count=" + std::to_string(scaled(256000)), usual);
    decode(g, "a frame of 256e3, added", text, {{d}}, 1, true, {25.0, 18.0});
    decode(g, "a frame of 256e3, to a fresh tensor", text, {{d}}, 1, false, {50.0});
    decode(g, "8 frames of 256e3, added", text, {{d}}, 8, true, {60.0});
    decode(g, "64 frames of 256e3, added", text, {{d}}, 64, true, {250.0});
    decode(g, "  one, raw values", topr("count=" + std::to_string(scaled(256000)), "index=golomb value=raw"), {{d}}, 1,
           true, {});
    decode(g, "  one, fit_poly", topr("count=" + std::to_string(scaled(256000)), "index=golomb value=fit_poly"), {{d}},
           1, true, {});
    decode(g, "  one, Bloom filter, P0",
           topr("count=" + std::to_string(scaled(256000)), "index=bloom(policy=p0,fpr=0.001) value=qsgd"), {{d}}, 1,
           true, {});
    if (o_.gates || !o_.profiled.empty()) return;
    for (const size_t k : {size_t{1}, size_t{8}}) add_rows(g, d, scaled(256000), k);
    const auto dense = std::make_shared<place::buffer>(4 * d);
    plain(
        g, "  peer: zeros for the tensor", 4 * d, 1, [=, this](size_t) { clear(s_.raw(), dense->at(), 4 * d); }, dense);
  }

  // What is left of a merge once its frames are pairs: k kernels that add.
  void add_rows(std::vector<candidate>& g, uint64_t d, uint64_t count, size_t k) {
    struct memory {
      std::vector<place::buffer> indices, values, dense;
    };
    const auto m = std::make_shared<memory>();
    std::vector<uint32_t> at(count);
    for (size_t i = 0; i < k; ++i) {
      for (uint64_t j = 0; j < count; ++j) at[j] = static_cast<uint32_t>(index_at(i, j, count, d));
      m->indices.emplace_back(4 * count).put_bytes(at.data(), 4 * count);
      m->values.emplace_back(4 * count);
      fill_dense(s_.raw(), reinterpret_cast<float*>(m->values.back().at()), count, input_kind::laplace, i);
    }
    const size_t sets = sets_for(4 * d + 8 * count * k);
    for (size_t i = 0; i < sets; ++i) {
      m->dense.emplace_back(4 * d);
      fill_dense(s_.raw(), reinterpret_cast<float*>(m->dense.back().at()), d, input_kind::laplace, 100 + i);
    }
    s_.stream.wait();
    plain(
        g, "  peer: adds the pairs of " + std::to_string(k) + (k == 1 ? " frame" : " frames"),
        8 * count * k + std::min(128 * count * k, 8 * d), sets,
        [=, this](size_t set) {
          for (size_t i = 0; i < k; ++i)
            add_pairs(s_.raw(), reinterpret_cast<float*>(m->dense[set].at()),
                      reinterpret_cast<const uint32_t*>(m->indices[i].at()),
                      reinterpret_cast<const float*>(m->values[i].at()), count);
        },
        m);
    g.back().about.elements = d;
    g.back().about.kept = count * k;
    g.back().fits_cache = fits_cache(4 * d, sets);
  }

  void model_rows(std::vector<candidate>& g) {
    std::vector<tensor_shape> shapes;
    uint64_t total = 0;
    for (const uint64_t size : resnet50_sizes()) {
      shapes.push_back({scaled(size)});
      total += shapes.back().universe;
    }
    encode(g, one_name, topr("ratio=0.01", usual), {{total}}, {});
    encode(g, "ResNet-50: 161 tensors, 1 % of each", topr("ratio=0.01", usual), shapes, {.times = 1.3, .of = one_name});
    encode(g, "ResNet-50: one bucket, 1 %", topr("ratio=0.01", std::string(usual) + " bucket=flat"), shapes,
           {.times = 1.05, .of = one_name});
  }
  static constexpr const char* one_name = "one tensor as large as ResNet-50";

  static void judge_by_others(std::vector<candidate>& all) {
    for (candidate& c : all)
      for (const candidate& other : all)
        if (other.about.name == c.about.gate_of && other.about.graph.n) {
          c.about.gate = c.about.gate_times * other.about.graph.median;
          c.about.gate_rule = number(c.about.gate_times) + " times " + c.about.gate_of;
        }
  }

  void patch_rows(std::vector<candidate>& g) {
    patches(g, "1e9 bf16, 2 % changed", "sparsify=changed(max_ratio=0.05) index=golomb value=raw", {1350.0}, {600.0});
    patches(g, "  by ulp", "sparsify=changed(max_ratio=0.05) index=golomb value=ulp", {}, {});
  }
  void patches(std::vector<candidate>& g, const std::string& name, const std::string& text, const limits& making,
               const limits& applying) {
    const std::string made = name + ": a patch", applied = name + ": applied";
    if (!wanted(made, making.gate.has_value()) && !wanted(applied, applying.gate.has_value())) return;
    std::shared_ptr<patcher> both;  // of 8 GB: one for both
    attempt(g, made, text, making, [&] {
      both = std::make_shared<patcher>(s_, text, weight_tensors, scaled(weight_size));
      both->verify();
      return both->making(both);
    });
    attempt(g, applied, text, applying, [&] {
      if (!both) throw std::runtime_error("there is no patch");
      return both->applying(both);
    });
  }

  void small_rows(std::vector<candidate>& g) {
    const tensor_shape t{place::on_cuda ? 36864 : scaled(36864 * 100)};
    limits l{20.0};
    l.stream_gate = 30.0;
    l.launches_most = 1;
    encode(g, "36,864, 1 %", topr("ratio=0.01", usual), {t}, l);
    encode(g, "  raw both", topr("ratio=0.01", "index=raw value=raw"), {t}, {});
    decode(g, "  its frame, added", topr("ratio=0.01", usual), {t}, 1, true, {});
  }

  int finish() {
    if (!o_.profiled.empty()) {
      if (!profiled_) std::printf("no row is named \"%s\"\n", o_.profiled.c_str());
      return profiled_ ? 0 : 1;
    }
    size_t gates = 0, gates_missed = 0, failed = 0, absent = 0;
    for (const row& r : rows_) {
      failed += !r.failed.empty();
      absent += !r.missing.empty();
      gates += r.gate.has_value() && r.graph.n;
      gates_missed += missed(r, about_) && r.failed.empty();
    }
    std::printf("%zu rows, %zu with a gate, of which %zu missed; %zu failed, %zu not here\n", rows_.size(), gates,
                gates_missed, failed, absent);
    if (!save() || failed || absent) return 1;
    return gates_missed ? 3 : 0;
  }

  const options o_;
  const clock::time_point begin_ = clock::now();
  session s_;
  machine about_;
  std::vector<row> rows_;
  bool profiled_ = false;
};

int usage(int status) {
  std::printf(
      "usage: gpu_bench [--quick] [--gates] [--profile ROW] [--json FILE] [--only TEXT] [--scale N] [--list]\n"
      "  --quick      shorter, and without the largest tensor\n"
      "  --gates      only the rows with a gate, the largest tensor among them\n"
      "  --profile ROW  that row once, for a profiler that waits for cudaProfilerStart; measures nothing\n"
      "  --json FILE  the rows\n"
      "  --only TEXT  groups whose name has it\n"
      "  --scale N    tensors N times smaller: a rehearsal, no measurement\n"
      "  --list       names of the groups\n"
      "Exit codes: 0 good, 1 a row failed or is not there, 3 a gate was missed, 77 no device.\n");
  return status;
}

int main_of(int argc, char** argv) {
  options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const bool more = i + 1 < argc;
    if (a == "--quick") {
      o.how.quick = true;
      o.how.group_seconds = 0.1;
    } else if (a == "--gates") {
      o.gates = true;
    } else if (a == "--profile" && more) {
      o.profiled = argv[++i];
    } else if (a == "--json" && more) {
      o.json = argv[++i];
    } else if (a == "--only" && more) {
      o.only = argv[++i];
    } else if (a == "--scale" && more) {
      o.scale = std::max<uint64_t>(1, std::strtoull(argv[++i], nullptr, 10));
    } else if (a == "--list") {
      o.lists = true;
    } else {
      return usage(a == "--help" ? 0 : 2);
    }
  }
  if (const std::string why = place::absent(); !why.empty()) {
    std::printf("skipped: %s\n", why.c_str());
    return 77;
  }
  if (!place::on_cuda) {
    o.how.group_seconds = 0.02;
    o.how.replays_least = 3;
    o.how.replays_most = 5;
    std::printf("a rehearsal: the CPU plays the GPU, tensors are %llu times smaller, and no time means anything\n",
                static_cast<unsigned long long>(o.scale));
  }
  return bench(o).run();
}

}  // namespace
}  // namespace gpu_bench

int main(int argc, char** argv) {
  try {
    return gpu_bench::main_of(argc, argv);
  } catch (const std::exception& e) {
    std::printf("gpu_bench: %s\n", e.what());
    return 1;
  }
}
