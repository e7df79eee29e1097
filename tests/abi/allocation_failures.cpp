// Every function of the ABI with every allocation failing, one after the other: the call says MEMORY, what it was given is as it was, nothing
// leaks, and the same call then does what it does where memory never failed. Those of exchanges: exchange_allocations.cpp;
// of transforms: transform_allocations.cpp.
#include "failing_new.hpp"

#include <algorithm>
#include <fstream>
#include <set>

#include "allocation_world.hpp"

namespace {

using allocation::job;
using allocation::jobs;
using allocation::world;

// What a job's encode makes where memory does not fail, and the batch of its tensors.
struct prepared {
  client::bytes frame;
  dr_batch* batch = nullptr;
  size_t encode_room = 0, merge_room = 0;

  explicit prepared(const job& j) {
    job sound = j;  // what cannot be encoded can be decoded
    sound.encodes = DR_OK;
    world w(sound, counted(j.threads));
    const dr_status s = dr_encode(w.context, w.plan(), &w.call, &w.place, w.tensors.data(), sizeof(dr_tensor), w.n,
                                  w.frame.data(), w.frame.size(), &w.result);
    INFO(j.plan << ": " << dr_last_error(w.context)->message << w.result.status);
    REQUIRE(s == DR_OK);
    REQUIRE(w.result.status == DR_OK);
    frame.assign(w.frame.begin(), w.frame.begin() + static_cast<long>(w.result.size));
    REQUIRE(dr_batch_create(w.context, w.plan(), &w.place, w.tensors.data(), sizeof(dr_tensor), w.n, j.segment_rows,
                            &batch) == DR_OK);
    dr_batch_info info{};
    info.struct_size = sizeof info;
    REQUIRE(dr_batch_describe(batch, &info, nullptr) == DR_OK);
    encode_room = info.workspace;
    if (!j.by_host) REQUIRE(dr_batch_merge_workspace(batch, 2, &merge_room, nullptr) == DR_OK);
    REQUIRE(std::max(encode_room, merge_room) + 64 <= w.workspace.size());
  }
  ~prepared() { dr_batch_destroy(batch); }
  prepared(const prepared&) = delete;
  prepared& operator=(const prepared&) = delete;
};

const prepared& of(const job& j) {
  static std::unique_ptr<const prepared> all[std::size(jobs)];
  auto& p = all[&j - jobs];
  if (!p) p = std::make_unique<prepared>(j);
  return *p;
}

// ---- The functions, each with how it is called ------------------------------------------------------------------

enum promise {
  may_fail,  // MEMORY wherever it allocates
  never      // allocates nothing
};
struct function {
  const char* name;
  promise allocates;
  dr_status (*call)(world& w, const prepared& p);
  bool cpu_only = false, encodes = false, to_unions = false;
};

dr_status bind(world& w, const prepared& p) {
  dr_binding_destroy(std::exchange(w.binding, nullptr));
  return dr_binding_create(w.context, p.batch, &w.place, w.tensors.data(), sizeof(dr_tensor), w.outs.data(),
                           sizeof(dr_tensor_out), w.n, 2, &w.binding);
}

// Of a book with one line, that of the plan.
template <class Call>
dr_status with_book(world& w, Call&& call) {
  dr_book* book = nullptr;
  dr_status s = dr_book_parse(nullptr, 0, nullptr, &book, &w.error);
  if (s == DR_OK) s = dr_book_add(book, "a pattern of some length*", 0, w.plan(), &w.error);
  if (s == DR_OK) s = call(book);
  dr_book_destroy(book);
  return s;
}

const function functions[] = {
    {"dr_version", never, [](world&, const prepared&) { return dr_status{dr_version() == nullptr}; }},
    {"dr_abi_version", never, [](world&, const prepared&) { return dr_status{dr_abi_version() == 0}; }},
    {"dr_feature", never, [](world&, const prepared&) { return dr_status{dr_feature(DR_FEATURE_CPU) == 0}; }},
    {"dr_status_name", never,
     [](world&, const prepared&) { return dr_status{dr_status_name(DR_E_MEMORY) == nullptr}; }},
    {"dr_codec_count", never, [](world&, const prepared&) { return dr_status{dr_codec_count() == 0}; }},
    {"dr_codec_at", never, [](world&, const prepared&) { return dr_status{dr_codec_at(3) == nullptr}; }},
    {"dr_preset_count", never, [](world&, const prepared&) { return dr_status{dr_preset_count() == 0}; }},
    {"dr_preset_at", never, [](world&, const prepared&) { return dr_status{dr_preset_at(3) == nullptr}; }},
    {"dr_last_error", never, [](world& w, const prepared&) { return dr_last_error(w.context)->code; }},
    {"dr_plan_text", never, [](world& w, const prepared&) { return dr_status{*dr_plan_text(w.plan()) == 0}; }},
    {"dr_context_trim", never, [](world& w, const prepared&) { return dr_context_trim(w.context); }},
    {"dr_base_sums", never,
     [](world& w, const prepared&) {
       uint64_t sum = 0;
       return dr_base_sums("abcd", 4, &sum, 1, &w.error);
     }},
    {"dr_base_check", never, [](world&, const prepared&) { return dr_status{dr_base_check(nullptr, 0) != 0}; }},
    {"dr_plan_parse", may_fail,
     [](world& w, const prepared&) {
       dr_plan_destroy(std::exchange(w.parsed, nullptr));
       return dr_plan_parse(w.how.plan, &w.parsed, &w.error);
     }},
    {"dr_plan_exact", may_fail,
     [](world& w, const prepared&) {
       dr_plan_destroy(std::exchange(w.parsed, nullptr));
       return dr_plan_exact(w.plan(), &w.parsed, &w.error);
     }},
    {"dr_plan_rows", may_fail,
     [](world& w, const prepared&) {
       dr_plan_destroy(std::exchange(w.parsed, nullptr));
       return dr_plan_rows(w.plan(), &w.parsed, &w.error);
     }},
    {"dr_plan_stage_count", never,
     [](world& w, const prepared&) { return dr_status{dr_plan_stage_count(w.plan()) == 0}; }},
    {"dr_plan_stage", never,
     [](world& w, const prepared&) {
       dr_stage stage{.struct_size = sizeof(dr_stage)};
       return dr_plan_stage(w.plan(), 0, &stage, &w.error);
     }},
    {"dr_plan_with", may_fail,
     [](world& w, const prepared&) {
       dr_plan_destroy(std::exchange(w.parsed, nullptr));
       return dr_plan_with(w.plan(), "exchange=gather", &w.parsed, &w.error);
     }},
    {"dr_stages_parse", may_fail,
     [](world& w, const prepared&) {
       dr_stages* stages = nullptr;
       const dr_status s = dr_stages_parse(w.how.plan, &stages, &w.error);
       dr_stages_destroy(stages);
       return s;
     }},
    {"dr_stages_destroy", never,
     [](world&, const prepared&) -> dr_status { return dr_stages_destroy(nullptr), DR_OK; }},
    {"dr_stages_count", never, [](world&, const prepared&) { return dr_status{dr_stages_count(nullptr) != 0}; }},
    {"dr_stages_at", may_fail,
     [](world& w, const prepared&) {
       dr_stages* stages = nullptr;
       dr_stage stage{.struct_size = sizeof(dr_stage)};
       dr_status s = dr_stages_parse(w.how.plan, &stages, &w.error);
       if (s == DR_OK) s = dr_stages_at(stages, 0, &stage, &w.error);
       dr_stages_destroy(stages);
       return s;
     }},
    {"dr_stage_word_count", never, [](world&, const prepared&) { return dr_status{dr_stage_word_count() == 0}; }},
    {"dr_stage_word_at", never, [](world&, const prepared&) { return dr_status{dr_stage_word_at(3) == nullptr}; }},
    {"dr_book_parse", may_fail,
     [](world& w, const prepared&) {
       char text[512];
       std::snprintf(text, sizeof text, "a pattern of some length*: %s\n*: dense", w.how.plan);
       dr_book* book = nullptr;
       const dr_status s = dr_book_parse(text, std::strlen(text), "where", &book, &w.error);
       dr_book_destroy(book);
       return s;
     }},
    {"dr_book_destroy", never, [](world&, const prepared&) -> dr_status { return dr_book_destroy(nullptr), DR_OK; }},
    {"dr_book_line_count", never, [](world&, const prepared&) { return dr_status{dr_book_line_count(nullptr) != 0}; }},
    {"dr_book_text", never, [](world&, const prepared&) { return dr_status{*dr_book_text(nullptr) != 0}; }},
    {"dr_book_add", may_fail, [](world& w, const prepared&) { return with_book(w, [](dr_book*) { return DR_OK; }); }},
    {"dr_book_line_at", may_fail,
     [](world& w, const prepared&) {
       return with_book(w, [&](dr_book* book) {
         dr_book_line line{.struct_size = sizeof(dr_book_line)};
         return dr_book_line_at(book, 0, &line, &w.error);
       });
     }},
    {"dr_book_match", may_fail,
     [](world& w, const prepared&) {
       return with_book(w, [&](dr_book* book) {
         dr_book_line line{.struct_size = sizeof(dr_book_line)};
         return dr_book_match(book, "a name of some length", &line, &w.error);
       });
     }},
    {"dr_book_uses", may_fail,
     [](world& w, const prepared&) {
       return with_book(w, [&](dr_book* book) {
         const char* const name = "a name of some length";
         uint32_t use = 0;
         return dr_book_uses(book, &name, 1, &use, &w.error);
       });
     }},
    {"dr_plan_destroy", never,
     [](world& w, const prepared&) -> dr_status { return dr_plan_destroy(std::exchange(w.parsed, nullptr)), DR_OK; }},
    {"dr_plan_describe", may_fail,
     [](world& w, const prepared&) {
       dr_plan_info info{};
       info.struct_size = sizeof info;
       return dr_plan_describe(w.plan(), &info, &w.error);
     }},
    {"dr_context_create", may_fail,
     [](world& w, const prepared&) {
       const dr_context_options options = counted(w.how.threads);
       dr_context* c = nullptr;
       const dr_status s = dr_context_create(&options, &c, &w.error);
       dr_context_destroy(c);
       return s;
     }},
    {"dr_context_destroy", never,
     [](world&, const prepared&) -> dr_status { return dr_context_destroy(nullptr), DR_OK; }},
    {"dr_bound", may_fail,
     [](world& w, const prepared&) {
       return dr_bound(w.context, w.plan(), &w.call, &w.place, w.tensors.data(), sizeof(dr_tensor), w.n, &w.size);
     }},
    {"dr_encode", may_fail,
     [](world& w, const prepared&) {
       const dr_status s = dr_encode(w.context, w.plan(), &w.call, &w.place, w.tensors.data(), sizeof(dr_tensor), w.n,
                                     w.frame.data(), w.frame.size(), &w.result);
       return s ? s : w.result.status;
     },
     false, true},
    {"dr_batch_create", may_fail,
     [](world& w, const prepared&) {
       dr_batch_destroy(std::exchange(w.made, nullptr));
       return dr_batch_create(w.context, w.plan(), &w.place, w.tensors.data(), sizeof(dr_tensor), w.n,
                              w.how.segment_rows, &w.made);
     }},
    {"dr_batch_destroy", never,
     [](world& w, const prepared&) -> dr_status { return dr_batch_destroy(std::exchange(w.made, nullptr)), DR_OK; }},
    {"dr_batch_describe", never,
     [](world& w, const prepared& p) {
       dr_batch_info info{};
       info.struct_size = sizeof info;
       return dr_batch_describe(p.batch, &info, &w.error);
     }},
    {"dr_batch_merge_workspace", may_fail,
     [](world& w, const prepared& p) { return dr_batch_merge_workspace(p.batch, 2, &w.size, &w.error); }},
    {"dr_batch_encode", may_fail,
     [](world& w, const prepared& p) {
       const dr_status s =
           dr_batch_encode(w.context, p.batch, &w.call, &w.place, w.tensors.data(), sizeof(dr_tensor), w.n,
                           w.aligned(w.workspace), p.encode_room, w.frame.data(), w.frame.size(), &w.result);
       return s ? s : w.result.status;
     },
     false, true},
    {"dr_batch_decode", may_fail,
     [](world& w, const prepared& p) {
       const dr_status s =
           dr_batch_decode(w.context, p.batch, &w.place, p.frame.data(), p.frame.size(), nullptr, w.outs.data(),
                           sizeof(dr_tensor_out), w.n, w.aligned(w.workspace), p.merge_room, &w.result);
       return s ? s : w.result.status;
     },
     true},
    {"dr_batch_merge", may_fail,
     [](world& w, const prepared& p) {
       const dr_bytes two[] = {{p.frame.data(), p.frame.size()}, {p.frame.data(), p.frame.size()}};
       const dr_status s = dr_batch_merge(w.context, p.batch, &w.place, two, nullptr, 2, nullptr, w.outs.data(),
                                          sizeof(dr_tensor_out), w.n, w.aligned(w.workspace), p.merge_room, &w.result);
       return s ? s : w.result.status;
     },
     true},
    {"dr_binding_create", may_fail, bind},
    {"dr_binding_destroy", never,
     [](world& w, const prepared&) -> dr_status {
       return dr_binding_destroy(std::exchange(w.binding, nullptr)), DR_OK;
     }},
    {"dr_inspect", may_fail,
     [](world& w, const prepared& p) {
       return dr_inspect(p.frame.data(), p.frame.size(), &w.info, w.infos, sizeof(dr_tensor_info), w.n, &w.error);
     }},
    {"dr_frame_header", may_fail,
     [](world& w, const prepared& p) {
       return dr_frame_header(p.frame.data(), p.frame.size(), p.frame.size(), &w.info, w.infos, sizeof(dr_tensor_info),
                              w.n, &w.error);
     }},
    {"dr_frame_size", may_fail,
     [](world& w, const prepared& p) { return dr_frame_size(p.frame.data(), p.frame.size(), &w.size, &w.error); }},
    {"dr_decode", may_fail,
     [](world& w, const prepared& p) {
       return dr_decode(w.context, &w.place, p.frame.data(), p.frame.size(), nullptr, w.outs.data(),
                        sizeof(dr_tensor_out), w.n);
     }},
    {"dr_decode", may_fail,
     [](world& w, const prepared& p) {
       dr_decode_options one{};
       one.struct_size = sizeof one;
       one.first_tensor = w.how.plan == jobs[2].plan ? 0 : 1;  // (a flat batch is one)
       one.tensors = one.first_tensor;
       const size_t n = one.tensors ? 1 : w.n;
       return dr_decode(w.context, &w.place, p.frame.data(), p.frame.size(), &one, w.outs.data() + w.n - n,
                        sizeof(dr_tensor_out), n);
     },
     true},
    {"dr_merge", may_fail,
     [](world& w, const prepared& p) {
       const dr_bytes two[] = {{p.frame.data(), p.frame.size()}, {p.frame.data(), p.frame.size()}};
       return dr_merge(w.context, &w.place, two, nullptr, 2, nullptr, w.outs.data(), sizeof(dr_tensor_out), w.n);
     }},
    {"dr_merge", may_fail,
     [](world& w, const prepared& p) {
       const dr_bytes two[] = {{p.frame.data(), p.frame.size()}, {p.frame.data(), p.frame.size()}};
       return dr_merge(w.context, &w.place, two, nullptr, 2, nullptr, w.unions.data(), sizeof(dr_tensor_out), w.n);
     },
     true, false, true},
    {"dr_state_size", never,
     [](world& w, const prepared&) { return dr_state_size(w.plan(), w.tensors.data(), &w.size, &w.error); }},
};

// Those that want a state, a binding or an exchange to begin with; tried below.
const char* const tried_apart[] = {"dr_binding_encode", "dr_binding_decode", "dr_binding_merge", "dr_binding_rebind",
                                   "dr_state_fill",     "dr_state_residual", "dr_state_copy",    "dr_state_norm",
                                   "dr_codec_register", "dr_plugin_load",    "dr_state_check",   "dr_state_momentum",
                                   "dr_state_scale"};

// Of what the CPU does for a device there is neither a prepared decode nor a binding that decodes.
bool refuses_detours(const std::string& name) {
  return name == "dr_batch_merge_workspace" || name.starts_with("dr_binding");
}

long walk(const function& f, const job& j) {
  const prepared& p = of(j);
  const dr_status expected = f.encodes ? j.encodes : DR_OK;
  {
    world w(j, counted(j.threads));
    (void)f.call(w, p);  // what the emulated device keeps for a thread is there then
  }
  for (long k = 0; k < allocations_most; k = next_failure(k)) {
    CAPTURE(k);
    bool met = false;
    const long before = live;
    {
      world w(j, counted(j.threads));
      const dr_status status = run(
          k, [&] { return f.call(w, p); }, &met);
      INFO(dr_last_error(w.context)->message << w.error.message);
      REQUIRE(status == (met ? DR_E_MEMORY : expected));
      if (met) {
        REQUIRE((dr_last_error(w.context)->code == DR_E_MEMORY || w.error.code == DR_E_MEMORY));
        REQUIRE((dr_last_error(w.context)->message[0] || w.error.message[0]));
        REQUIRE(w.states_fresh());
        if (std::string(f.name).find("merge") != std::string::npos) REQUIRE(w.outputs_untouched());
        if (f.encodes && !(j.flags & DR_CALL_STATUS_FRAME)) {
          REQUIRE(w.result.size == 0);
          REQUIRE(w.frame == client::bytes(w.frame.size(), 0xcc));
        }
        REQUIRE(run(-1, [&] { return f.call(w, p); }) == expected);
      }
      if (f.encodes && !expected) REQUIRE(std::equal(p.frame.begin(), p.frame.end(), w.frame.begin()));
    }
    REQUIRE(live == before);
    if (!met) return k;
  }
  FAIL("it never succeeds");
  return 0;
}

}  // namespace

TEST_CASE(
    "each function says MEMORY wherever an allocation fails, changes and leaks nothing, and works the next time") {
  for (const function& f : functions)
    for (const job& j : jobs) {
      if ((f.cpu_only && j.kind) || (f.to_unions && &j == &jobs[2]) || (j.by_host && refuses_detours(f.name))) continue;
      INFO(std::string(f.name) << ": " << std::string(j.plan));
      const long allocations = walk(f, j);
      if (f.allocates == never) CHECK(allocations == 0);
    }
}

TEST_CASE("a binding, a state, and codecs: the same, of calls that need one") {
  for (const job& j : jobs) {
    if (j.by_host) continue;
    INFO(std::string(j.plan));
    const prepared& p = of(j);
    const dr_bytes two[] = {{p.frame.data(), p.frame.size()}, {p.frame.data(), p.frame.size()}};
    const auto tried = [&](auto&& call, dr_status expected) {
      for (long k = 0; k < allocations_most; k = next_failure(k)) {
        CAPTURE(k);
        bool met = false;
        const long before = live;
        {
          world w(j, counted(j.threads));
          REQUIRE(bind(w, p) == DR_OK);
          const dr_status s = run(
              k, [&] { return call(w); }, &met);
          INFO(dr_last_error(w.context)->message);
          REQUIRE(s == (met ? DR_E_MEMORY : expected));
          if (met) REQUIRE((w.states_fresh() && w.outputs_untouched()));
          if (met) REQUIRE(call(w) == expected);
        }
        REQUIRE(live == before);
        if (!met) break;
      }
    };
    tried(
        [&](world& w) {
          const dr_status s = dr_binding_encode(w.binding, &w.call, w.frame.data(), w.frame.size(), &w.result);
          return s ? s : w.result.status;
        },
        j.encodes);
    const auto rebind = [](world& w) {
      return dr_binding_rebind(w.binding, w.tensors.data(), sizeof(dr_tensor), w.outs.data(), sizeof(dr_tensor_out),
                               w.n);
    };
    tried(rebind, DR_OK);
    {  // Twice, since there are two of each list: then there is room for good.
      world w(j, counted(j.threads));
      REQUIRE(bind(w, p) == DR_OK);
      bool met = false;
      REQUIRE((rebind(w) == DR_OK && rebind(w) == DR_OK));
      CHECK(run(
                0, [&] { return rebind(w); }, &met) == DR_OK);
      CHECK(!met);
    }
    if (!j.kind) {
      tried([&](world& w) { return dr_binding_decode(w.binding, p.frame.data(), p.frame.size(), nullptr, &w.result); },
            DR_OK);
      tried([&](world& w) { return dr_binding_merge(w.binding, two, nullptr, 2, nullptr, &w.result); }, DR_OK);
    }
    world w(j, counted(j.threads));
    dr_tensor& t = w.tensors[0];
    if (!t.state) continue;
    bool met = false;
    float* residual = nullptr;
    uint64_t elements = 0;
    double norm = 0;
    const auto states = [&] {
      dr_status s = dr_state_fill(w.plan(), &t, nullptr, t.state, t.state_size, nullptr);
      if (!s) s = dr_state_residual(t.state, t.state_size, &residual, &elements, nullptr);
      if (!s) s = dr_state_norm(t.state, t.state_size, &norm, nullptr);
      if (!s) s = dr_state_check(w.plan(), &t, t.state, t.state_size, nullptr);
      if (!s) s = dr_state_scale(t.state, t.state_size, 0.5, nullptr);
      if (!s && dr_state_momentum(t.state, t.state_size, &residual, &elements, nullptr) != DR_E_ARGUMENT)
        s = DR_E_INTERNAL;  // a residual has none
      return s ? s : dr_state_copy(t.state, t.state_size, 0, t.state, t.state_size, 4, 4, nullptr);
    };
    CHECK(run(0, states, &met) == DR_OK);
    CHECK(!met);  // they allocate nothing
  }
}

TEST_CASE("registering codecs: MEMORY, and then they are not there") {
  const size_t before = dr_codec_count();
  size_t value = 0;
  while (dr_codec_at(value)->role != DR_ROLE_VALUE) ++value;
  static dr_codec codec = *dr_codec_at(value);
  codec.name = "of_a_test";
  codec.id = 0xfff0;
  for (const bool plugin : {false, true})
    for (long k = 0; k < allocations_most; ++k) {
      CAPTURE(k);
      bool met = false;
      dr_error error{};
      error.struct_size = sizeof error;
      const size_t count = dr_codec_count();
      const dr_status s = run(
          k, [&] { return plugin ? dr_plugin_load(DR_ZIGZAG, &error) : dr_codec_register(&codec, &error); }, &met);
      INFO(error.message);
      REQUIRE(s == (met ? DR_E_MEMORY : DR_OK));
      if (!met) break;
      REQUIRE(dr_codec_count() == count);
      REQUIRE(error.code == DR_E_MEMORY);
    }
  CHECK(dr_codec_count() > before + 1);
}

TEST_CASE("every exported function is tried, here, or in exchange_, sender_ or transform_allocations.cpp") {
  std::set<std::string> tried(std::begin(tried_apart), std::end(tried_apart));
  for (const function& f : functions) tried.insert(f.name);
  for (const char* const name : {"create", "destroy", "rebind", "start", "advance", "cancel", "read_residual",
                                 "write_residual", "describe", "trace"})
    tried.insert(std::string("dr_exchange_") + name);
  for (const char* const name : {"create", "destroy", "transport", "run", "now"})
    tried.insert(std::string("dr_loopback_") + name);
  for (const char* const name : {"create", "decide", "describe", "destroy", "log", "observe", "reason", "report"})
    tried.insert(std::string("dr_control_") + name);
  tried.insert("dr_step_name");
  for (const char* const name : {"create",      "destroy", "describe", "unit",       "tensor", "place",  "clip",
                                 "encode",      "sum",     "merge",    "take_back",  "skip",   "behind", "read_state",
                                 "write_state", "scale",   "resume",   "place_rows", "rows",   "check",  "use_stream"})
    tried.insert(std::string("dr_sender_") + name);
  for (const char* const name :
       {"create", "destroy", "begin", "factor", "next", "cancel", "residual", "save", "load", "reset", "describe"})
    tried.insert(std::string("dr_transform_") + name);
  std::ifstream list(DR_SYMBOLS);
  std::set<std::string> exported;
  for (std::string name; std::getline(list, name);) exported.insert(name);
  CHECK(exported.size() > 50);
  for (const std::string& name : exported) {
    INFO(name);
    CHECK(tried.count(name) == 1);
  }
}
