// pipeline_bench [--json FILE] [--rounds N] [a|b|c|d|e|f|g]: whole calls on one thread, compared with a lower bound by
// memory: a pass that only counts, one that adds a residual, a scatter. All candidates of a letter alternate in one
// run; a row has the ratio to its lower bound.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/measure.hpp"
#include "container/frame.hpp"
#include "deepreduce/deepreduce.h"
#include "feedback/residual.hpp"
#include "merge/merge.hpp"
#include "pipeline/decode.hpp"
#include "pipeline/decode_work.hpp"
#include "primitive/rng.hpp"
#include "sparsify/select.hpp"
#include "tool/show/machine.hpp"

namespace dr::bench {
namespace {

void ok(dr_status s, const dr_context* c = nullptr) {
  if (!s) return;
  std::fprintf(stderr, "failed: %s\n", c ? dr_last_error(c)->message : dr_status_name(s));
  std::exit(1);
}

std::vector<float> laplace(uint64_t d, uint64_t seed) {
  std::vector<float> v(d);
  for (uint64_t i = 0; i < d; ++i) {
    const double u = (static_cast<double>(draw(seed, i) >> 11) + 0.5) * 0x1p-53 - 0.5;
    v[i] = static_cast<float>((u < 0 ? 1e-3 : -1e-3) * std::log(1 - 2 * std::fabs(u)));
  }
  return v;
}

dr_tensor dense(const std::vector<float>& v) {
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = DR_F32;
  t.universe = v.size();
  t.values = v.data();
  return t;
}
dr_tensor_out dense_out(std::vector<float>& v) {
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = DR_F32;
  o.universe = v.size();
  o.values = v.data();
  return o;
}

// A tensor, its plan, and the time to encode it.
struct encoding {
  dr_context* context = nullptr;
  dr_plan* plan = nullptr;
  dr_tensor tensor;
  std::vector<uint64_t> state;
  std::vector<uint8_t> frame;
  uint64_t size = 0;
  double begun = 0;
  std::vector<std::pair<std::string, double>> stages;  // seconds of the last call

  encoding(const char* text, const dr_tensor& t, uint32_t threads = 1) : tensor(t) {
    dr_context_options options{};
    options.struct_size = sizeof options;
    options.threads = threads;
    ok(dr_context_create(&options, &context, nullptr));
    dr_error error{sizeof(dr_error)};
    ok(dr_plan_parse(text, &plan, &error));
    size_t bytes = 0;
    ok(dr_state_size(plan, &tensor, &bytes, &error));
    state.resize(bytes / 8 + 1);
    if (bytes) {
      tensor.state = state.data();
      tensor.state_size = bytes;
    }
    ok(dr_bound(context, plan, nullptr, nullptr, &tensor, sizeof tensor, 1, &bytes), context);
    frame.resize(bytes);
  }
  void run() {
    stages.clear();
    dr_call call{};
    call.struct_size = sizeof call;
    // A trace reads the wall clock; the thread's time since the previous stage is the time of the stage.
    begun = thread_seconds();
    call.trace = [](void* self, const dr_trace* t) {
      auto& e = *static_cast<encoding*>(self);
      const double now = thread_seconds();
      e.stages.push_back({t->stage, now - std::exchange(e.begun, now)});
    };
    call.trace_user = this;
    dr_result result{.struct_size = sizeof(dr_result)};
    ok(dr_encode(context, plan, &call, nullptr, &tensor, sizeof tensor, 1, frame.data(), frame.size(), &result),
       context);
    size = result.size;
  }
  double seconds(std::initializer_list<const char*> names) const {
    double sum = 0;
    for (const auto& [stage, time] : stages)
      for (const char* name : names) sum += stage == name ? time : 0;
    return sum;
  }
};

struct candidate {
  std::string name;
  std::function<void()> run;
};

struct report {
  int rounds;
  nlohmann::ordered_json rows = nlohmann::json::array();

  // Candidate 0 is the lower bound.
  std::vector<double> compare(const char* letter, const std::vector<candidate>& all, double (*now)() = thread_seconds) {
    std::vector<std::function<void()>> runs;
    for (const candidate& c : all) runs.push_back(c.run);
    const auto times = alternate(runs, rounds, 2e-3, now);
    std::vector<double> medians;
    for (size_t i = 0; i < all.size(); ++i) {
      medians.push_back(times[i].median);
      row(letter, all[i].name, times[i].median, times[i].median / times[0].median,
          50 * (times[i].high - times[i].low) / times[i].median);
    }
    return medians;
  }
  void row(const char* letter, const std::string& name, double seconds, double ratio, double spread) {
    std::printf("%s  %-58s %9.3f ms  %6.2f x  +-%.1f%%\n", letter, name.c_str(), seconds * 1e3, ratio, spread);
    std::fflush(stdout);
    rows.push_back(
        {{"target", letter}, {"name", name}, {"seconds", seconds}, {"ratio", ratio}, {"spread_percent", spread}});
  }
};

volatile uint64_t sink;
candidate counting(const std::vector<float>& g) {
  return {"a pass that counts |v| > t",
          [&g] { sink = select_at(cpu(), DR_F32).count(g.data(), g.size(), 0x3b96feb5); }};
}

struct selecting {
  std::vector<std::byte> block;
  select_memory memory{};
  select_scratch scratch{};
  selecting(uint64_t d, uint64_t target) {
    for (const bool real : {false, true}) {
      arena a;
      if (real) a = arena(block.data() + (64 - reinterpret_cast<uintptr_t>(block.data()) % 64) % 64, block.size() - 64);
      scratch = {};
      scratch.grow(d, target, false);
      memory = select_memory::lay_out(a, DR_F32, d, target, 1);
      scratch = scratch.lay_out(a);
      if (!real) block.resize(a.used() + 64);
    }
  }
};

void topr(report& r) {
  const auto g = laplace(25000000, 1);
  std::vector<candidate> all{counting(g)};
  for (const auto& [name, target] : {std::pair{"0.1", 25000}, std::pair{"1", 250000}, std::pair{"10", 2500000}}) {
    const auto s = std::make_shared<selecting>(g.size(), target);
    all.push_back(
        {std::string("Top-") + name + " %, sorted, with its values", [s, &g, target = target] {
           const select_piece p{g.data(), g.size(), 0, 0};
           sink = keep_largest({DR_F32, {&p, 1}}, static_cast<uint64_t>(target), s->memory, {&s->scratch}).count;
         }});
  }
  r.compare("a", all);
}

void feedback(report& r) {
  const auto g = laplace(25000000, 1);
  std::vector<float> m = laplace(g.size(), 2);
  std::vector<candidate> all{{"a pass that reads g and m and writes m",
                              [&] {
                                const float* const from = g.data();
                                float* const to = m.data();
                                for (uint64_t i = 0; i < g.size(); ++i) to[i] = 0.5f * from[i] + 0.5f * to[i];
                              }},
                             counting(g)};
  encoding without("sparsify=topr(ratio=0.01) index=raw value=raw", dense(g)),
      with("sparsify=topr(ratio=0.01) feedback=residual index=raw value=raw", dense(g));
  encoding lossy_without("sparsify=topr(ratio=0.01) index=raw value=uniform_quant", dense(g)),
      lossy_with("sparsify=topr(ratio=0.01) feedback=residual index=raw value=uniform_quant", dense(g));
  all.push_back({"encode Top-1 %, raw", [&] { without.run(); }});
  all.push_back({"encode Top-1 %, raw, with feedback", [&] { with.run(); }});
  all.push_back({"encode Top-1 %, uniform_quant", [&] { lossy_without.run(); }});
  all.push_back({"encode Top-1 %, uniform_quant, with feedback", [&] { lossy_with.run(); }});
  const auto t = r.compare("b", all);
  const double over = t[3] - (t[2] - t[1]), lossy_over = t[5] - (t[4] - t[1]);
  for (const char* stage : {"sparsify", "feedback"})
    r.row("b", std::string("  ") + stage, with.seconds({stage}), with.seconds({stage}) / t[0], 0);
  r.row("b", "feedback, without what selection takes beyond counting", over, over / t[0], 0);
  // (The errors of a lossy codec are written back to the residual, one cache miss per value, and the codec decodes once
  // more.)
  r.row("b", "feedback, the same, uniform_quant", lossy_over, lossy_over / t[0], 0);
}

void encoding_frame(report& r) {
  const auto g = laplace(25600000, 1);
  std::vector<candidate> all{counting(g)};
  std::vector<std::unique_ptr<encoding>> encodings;
  for (const char* method :
       {"topr(ratio=0.01) index=golomb value=raw", "topr(ratio=0.01) index=golomb value=qsgd",
        "topr(ratio=0.01) index=golomb value=log_quant", "blocks(ratio=0.01,block=8) index=golomb value=log_quant",
        "blocks(ratio=0.01) index=golomb value=log_quant", "topr(ratio=0.01) index=golomb value=uniform_quant"}) {
    const std::string text = std::string("sparsify=") + method;
    encodings.push_back(std::make_unique<encoding>(text.c_str(), dense(g)));
    all.push_back({"encode " + text, [e = encodings.back().get()] { e->run(); }});
  }
  const auto t = r.compare("c", all);
  encoding shared("sparsify=topr(ratio=0.01) index=golomb value=uniform_quant", dense(g), 2);
  r.compare("c",
            {{all[0].name + ", wall clock", all[0].run},
             {"encode, the last of these, 2 threads, wall clock", [&] { shared.run(); }}},
            wall_seconds);
  for (size_t i = 0; i < encodings.size(); ++i) {
    std::vector<double> own, coded;
    for (int k = 0; k < r.rounds; ++k) {
      all[0].run();
      encodings[i]->run();
      own.push_back(encodings[i]->seconds({"sparsify", "container"}));
      coded.push_back(encodings[i]->seconds({"index", "value"}));
    }
    std::sort(own.begin(), own.end());
    std::sort(coded.begin(), coded.end());
    r.row("c", "  of that, selection, split and container", own[own.size() / 2], own[own.size() / 2] / t[0], 0);
    r.row("c", "  and the codecs", coded[own.size() / 2], coded[own.size() / 2] / t[0], 0);
  }
}

// Frames of one tensor to a dense tensor: decoded, decoded and scattered, and by the merge.
void merge_beside_scatter(report& r, const char* letter, const std::vector<std::vector<uint8_t>>& bytes, uint64_t d,
                          const std::string& what) {
  const size_t k = bytes.size();
  const std::string number = std::to_string(k) + " frames";
  std::vector<dr_bytes> frames;
  for (const auto& b : bytes) frames.push_back({b.data(), b.size()});
  dr_context* context = nullptr;
  ok(dr_context_create(nullptr, &context, nullptr));
  std::vector<float> out(d);
  dr_tensor_out o = dense_out(out);

  std::vector<frame_view> views(k);
  std::vector<decoded_row> rows(k);
  std::span<const decoded_frame> decoded;
  std::vector<std::byte> block;
  pool serial(1);
  const auto decode = [&] {
    dr_error error{sizeof(dr_error)};
    for (uint64_t f = 0; f < k; ++f) ok(read_frame(bytes[f].data(), bytes[f].size(), views[f], error));
    uint64_t room = 0;
    decode_work work;
    const auto lay_out = [&] {
      void* at = block.data();
      size_t size = block.size();
      const arena memory = std::align(64, 0, at, size) ? arena(at, size) : arena();
      ok(lay_out_decode(views, {&o, 1}, {}, 1, memory, work, room, error));
      return size;
    };
    if (lay_out() < room) {
      block.resize(room + 64);
      lay_out();
    }
    ok(decode_rows(views, {&o, 1}, false, serial, work, rows.data(), decoded, error));
  };
  decode();
  const auto t = r.compare(
      letter, {{"decode " + number + " and scatter their pairs",
                [&] {
                  decode();
                  for (const decoded_row& row : rows)
                    scatter(DR_F32, row.support, row.values, row.count, 1, DR_F32, out.data());
                }},
               {"decode " + number, decode},
               {"merge " + number + ", " + what, [&] {
                  ok(dr_merge(context, nullptr, frames.data(), nullptr, k, nullptr, &o, sizeof o, 1), context);
                }}});
  r.row(letter, "merge without decoding, beside the scatter alone", t[2] - t[1], (t[2] - t[1]) / (t[0] - t[1]), 0);
  dr_context_destroy(context);
}

std::vector<uint8_t> bytes_of(encoding& e) {
  e.run();
  return {e.frame.begin(), e.frame.begin() + static_cast<ptrdiff_t>(e.size)};
}

void merging(report& r) {
  constexpr uint64_t d = 25000000, n = 250000, k = 64;
  std::vector<std::vector<uint8_t>> bytes;
  for (uint64_t f = 0; f < k; ++f) {
    std::vector<uint32_t> at;
    std::vector<float> v;
    for (uint64_t i = 0; i < n; ++i) {
      at.push_back(static_cast<uint32_t>(i * 100 + draw(f, i) % 100));
      v.push_back(static_cast<float>(draw(f + 100, i) % 1000) * 1e-3f);
    }
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = DR_F32;
    t.index_dtype = DR_U32;
    t.universe = d;
    t.values = v.data();
    t.indices = at.data();
    t.count = n;
    encoding e("index=golomb value=raw", t);
    bytes.push_back(bytes_of(e));
  }
  merge_beside_scatter(r, "d", bytes, d, "r = 250e3, d = 25e6");
}

// Outer loops: contributions of 20 workers, and one of 1e8 weights.
void outer_loops(report& r) {
  constexpr uint64_t d = 25000000, k = 20;
  const char* const text = "sparsify=chunks(count=64) index=gap_huffman value=lloyd(levels=2)";  // sparseloco
  std::vector<std::vector<uint8_t>> bytes;
  for (uint64_t f = 0; f < k; ++f) {
    const auto g = laplace(d, f + 1);
    encoding e(text, dense(g));
    bytes.push_back(bytes_of(e));
  }
  merge_beside_scatter(r, "g", bytes, d, "64 of each 4096, d = 25e6");
  const auto g = laplace(100000000, 1);
  encoding many(text, dense(g)), few("sparsify=chunks(count=4) index=chunks value=sign", dense(g));
  const auto t = r.compare("g", {counting(g),
                                 {"d=1e8, encode 64 of each 4096, 2 bits", [&] { many.run(); }},
                                 {"d=1e8, encode 4 of each 4096, signs", [&] { few.run(); }}});
  for (const char* stage : {"sparsify", "index", "value", "container"})
    r.row("g", std::string("  64 of each 4096, ") + stage, many.seconds({stage}), many.seconds({stage}) / t[0], 0);
}

void ncf(report& r) {
  const auto g = laplace(31800000, 1);
  std::vector<candidate> all{counting(g)};
  std::vector<float> out(g.size());
  dr_tensor_out o = dense_out(out);
  std::vector<std::unique_ptr<encoding>> encodings;
  const char* const values[] = {"raw", "qsgd", "uniform_quant"};
  for (const char* value : values) {
    const std::string text = std::string("sparsify=topr(ratio=0.1) index=golomb value=") + value;
    encodings.push_back(std::make_unique<encoding>(text.c_str(), dense(g)));
    encoding* const e = encodings.back().get();
    e->run();
    all.push_back({"d=31.8e6, encode " + text, [e] { e->run(); }});
    all.push_back({"d=31.8e6, decode it to dense", [e, &o] {
                     ok(dr_decode(e->context, nullptr, e->frame.data(), e->size, nullptr, &o, sizeof o, 1), e->context);
                   }});
  }
  const auto t = r.compare("e", all);
  for (size_t i = 0; i < encodings.size(); ++i) {
    r.row("e", std::string("there and back, ") + values[i], t[1 + 2 * i] + t[2 + 2 * i],
          (t[1 + 2 * i] + t[2 + 2 * i]) / t[0], 0);
    for (const char* stage : {"sparsify", "index", "value", "container"})
      r.row("e", std::string("  encode, ") + stage, encodings[i]->seconds({stage}),
            encodings[i]->seconds({stage}) / t[0], 0);
  }
}

// Dense quantisers: rows show the time of the quantiser itself, so the rest is overhead.
void whole(report& r) {
  const auto g = laplace(25000000, 1);
  std::vector<float> out(g.size());
  dr_tensor_out o = dense_out(out);
  std::vector<candidate> all{counting(g)};
  std::vector<std::unique_ptr<encoding>> encodings;
  for (const char* value : {"half", "qsgd"}) {
    const std::string text = std::string("index=all value=") + value;
    encodings.push_back(std::make_unique<encoding>(text.c_str(), dense(g)));
    encoding* const e = encodings.back().get();
    e->run();
    all.push_back({"encode " + text, [e] { e->run(); }});
    all.push_back({"decode it to dense", [e, &o] {
                     ok(dr_decode(e->context, nullptr, e->frame.data(), e->size, nullptr, &o, sizeof o, 1), e->context);
                   }});
  }
  const auto t = r.compare("f", all);
  for (const auto& e : encodings)
    for (const char* stage : {"sparsify", "index", "regather", "value", "container"})
      r.row("f", std::string("  encode, ") + stage, e->seconds({stage}), e->seconds({stage}) / t[0], 0);
}

}  // namespace
}  // namespace dr::bench

int main(int argc, char** argv) {
  using namespace dr;
  using namespace dr::bench;
  std::string json_path, letters;
  report r{9};
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--json") && i + 1 < argc)
      json_path = argv[++i];
    else if (!std::strcmp(argv[i], "--rounds") && i + 1 < argc)
      r.rounds = std::max(1, std::atoi(argv[++i]));
    else if (argv[i][0] == '-')
      return std::fprintf(stderr, "usage: pipeline_bench [--json FILE] [--rounds N] [abcdefg]\n"), 2;
    else
      letters += argv[i];
  }
  const std::pair<char, void (*)(report&)> all[] = {{'a', topr}, {'b', feedback}, {'c', encoding_frame}, {'d', merging},
                                                    {'e', ncf},  {'f', whole},    {'g', outer_loops}};
  for (const auto& [letter, run] : all)
    if (letters.empty() || letters.find(letter) != std::string::npos) run(r);
  if (!json_path.empty())
    std::ofstream(json_path) << nlohmann::ordered_json{{"machine", compare::machine_facts()},
                                                       {"build", compare::build_facts()},
                                                       {"commit", compare::commit()},
                                                       {"clock", clock_name},
                                                       {"rounds", r.rounds},
                                                       {"rows", r.rows}}
                                    .dump(1)
                             << '\n';
}
