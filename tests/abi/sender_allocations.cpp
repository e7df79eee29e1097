// A sender with every allocation failing, one after the other: a call says MEMORY, or the slot does, and works the next time.
#include "failing_new.hpp"

#include <deepreduce/sender.h>

#include <functional>
#include <span>
#include <utility>

#include "client.hpp"

namespace {

constexpr const char* plans[] = {
    "sparsify=topr(ratio=0.1) feedback=dgc(clip=1) index=golomb value=uniform_quant",
    "index=all value=uniform_quant(bits=4) feedback=residual exchange=owner",
    "index=all value=half feedback=residual",
    "transform=lowrank(rank=2) feedback=residual",
};

// The only rank of its exchange.
class lonely {
 public:
  static constexpr uint64_t elements = 300;

  // flags: DR_NAMED_*
  lonely(const char* plan, uint32_t flags, const dr_context_options& options) : plan_(plan), sparse_(flags) {
    REQUIRE(dr_context_create(&options, &context, nullptr) == DR_OK);
    for (size_t i = 0; i < 2; ++i) {
      named[i] = {sizeof named[i], i ? "b" : "a", DR_F32, flags, 20, elements, plan_.handle};
      values[i] = client::laplace(elements, i + 1);
      in[i] = values[i].data();
      out[i] = outs[i].data();
    }
    choice.struct_size = sizeof choice;
    choice.flags = DR_SENDER_SKIP | DR_SENDER_HALVES;
    choice.unit_bytes = 1;  // two units
    error.struct_size = sizeof error;
    call.struct_size = sizeof call;
    result.struct_size = sizeof result;
  }
  ~lonely() {
    dr_sender_destroy(sender);
    dr_context_destroy(context);
  }
  lonely(const lonely&) = delete;
  lonely& operator=(const lonely&) = delete;

  dr_status create() {
    dr_sender_destroy(std::exchange(sender, nullptr));
    return dr_sender_create(context, nullptr, nullptr, named, sizeof *named, 2, &choice, &sender);
  }
  dr_status place() {
    if (!sparse_) return dr_sender_place(sender, 0, 2, in, out, nullptr);
    for (size_t i = 0; i < 2; ++i)
      if (const dr_status s = place_rows(i)) return s;
    return DR_OK;
  }
  dr_status place_rows(size_t tensor) {
    const dr_sent_rows rows{sizeof rows, 3, indices, values[tensor].data(), DR_I64, 0};
    return dr_sender_place_rows(sender, tensor, &rows);
  }
  dr_status mean_rows() {
    dr_sent_rows rows{};
    rows.struct_size = sizeof rows;
    if (const dr_status s = dr_sender_rows(sender, unit().tensors[0], &rows)) return s;
    return rows.count == 3 ? DR_OK : DR_E_INTERNAL;
  }
  dr_unit_info unit() {
    dr_unit_info info{};
    info.struct_size = sizeof info;
    REQUIRE(dr_sender_unit(sender, 0, &info, nullptr) == DR_OK);
    return info;
  }
  dr_status encode() { return dr_sender_encode(sender, 0, &call, slots.data(), slots.size(), &result); }
  dr_bytes sent() { return {slots.data(), unit().bound}; }
  dr_status sum() {
    const dr_bytes bytes = sent();
    return dr_sender_sum(sender, 0, &call, &bytes, 1, sums.data(), sums.size(), &result);
  }
  bool owns() { return unit().sum_bound != 0; }  // and factors, which have a second slot
  dr_status merge() {
    const dr_bytes bytes = owns() ? dr_bytes{sums.data(), unit().sum_bound} : sent();
    return dr_sender_merge(sender, 0, &call, &bytes, 1, &result);
  }
  // All until the call under test.
  void ready(int stage) {
    REQUIRE(create() == DR_OK);
    REQUIRE(place() == DR_OK);
    slots.resize(unit().bound);
    sums.resize(unit().sum_bound);
    state.resize(4096);
    if (stage > 0) REQUIRE(encode() == DR_OK);
    if (stage > 1 && owns()) REQUIRE(sum() == DR_OK);
    if (stage > 2) REQUIRE(merge() == DR_OK);
  }
  uint64_t state_size() {
    dr_sent_tensor info{};
    info.struct_size = sizeof info;
    REQUIRE(dr_sender_tensor(sender, 0, &info, nullptr) == DR_OK);
    return info.state;
  }

  dr_context* context = nullptr;
  dr_sender* sender = nullptr;
  dr_named_tensor named[2];
  dr_sender_options choice{};
  client::floats values[2], outs[2] = {client::floats(elements), client::floats(elements)};
  const void* in[2];
  void* out[2];
  client::bytes slots, sums;
  std::vector<uint64_t> state;
  dr_call call{};
  dr_sent result{};
  dr_error error{};

 private:
  static constexpr int64_t indices[] = {2, 5, 19};
  client::plan plan_;
  bool sparse_;
};

}  // namespace

namespace {

struct tried {
  const char* name;
  int stage;  // of the step, before it
  bool allocates;
  std::function<dr_status(lonely&)> f;
};

void try_each(std::span<const tried> calls, const char* plan, uint32_t flags) {
  const dr_context_options options = counted(1);
  for (const tried& c : calls) {
    INFO(std::string(plan) << ": " << std::string(c.name));
    for (long k = 0; k < allocations_most; k = next_failure(k)) {
      CAPTURE(k);
      bool met = false;
      const long before = live;
      {
        lonely s(plan, flags, options);
        s.ready(c.stage);
        s.result.fault = DR_OK;
        const dr_status status = run(
            k, [&] { return c.f(s); }, &met);
        INFO(dr_last_error(s.context)->message);
        REQUIRE((met ? status == DR_E_MEMORY || s.result.fault == DR_E_MEMORY : status == DR_OK));
        if (met) REQUIRE(c.f(s) == DR_OK);
      }
      REQUIRE(live == before);
      if (!c.allocates) REQUIRE(!met);
      if (!met) break;
    }
  }
}

}  // namespace

TEST_CASE("a sender: wherever an allocation fails a call reports MEMORY, or its slot does, and works the next time") {
  const tried calls[] = {
      {"dr_sender_create", 0, true, [](lonely& s) { return s.create(); }},
      {"dr_sender_destroy", 0, false,
       [](lonely& s) -> dr_status { return dr_sender_destroy(std::exchange(s.sender, nullptr)), DR_OK; }},
      {"dr_sender_describe", 0, false,
       [](lonely& s) {
         dr_sender_info info{};
         info.struct_size = sizeof info;
         return dr_sender_describe(s.sender, &info, &s.error);
       }},
      {"dr_sender_unit", 0, false, [](lonely& s) -> dr_status { return s.unit().count == 1 ? DR_OK : DR_E_INTERNAL; }},
      {"dr_sender_tensor", 0, false, [](lonely& s) -> dr_status { return s.state_size() ? DR_OK : DR_E_INTERNAL; }},
      {"dr_sender_place", 0, false, [](lonely& s) { return s.place(); }},
      {"dr_sender_clip", 0, true, [](lonely& s) { return dr_sender_clip(s.sender); }},
      {"dr_sender_encode", 0, true, [](lonely& s) { return s.encode(); }},
      {"dr_sender_sum", 1, true, [](lonely& s) -> dr_status { return s.owns() ? s.sum() : dr_status{DR_OK}; }},
      {"dr_sender_merge", 2, true, [](lonely& s) { return s.merge(); }},
      {"dr_sender_take_back", 2, true, [](lonely& s) { return dr_sender_take_back(s.sender, 0); }},
      {"dr_sender_skip", 2, false, [](lonely& s) { return dr_sender_skip(s.sender, 0); }},
      {"dr_sender_behind", 0, false,
       [](lonely& s) -> dr_status { return dr_sender_behind(s.sender, nullptr, 0) ? DR_E_INTERNAL : DR_OK; }},
      {"dr_sender_read_state", 2, false,
       [](lonely& s) { return dr_sender_read_state(s.sender, 0, DR_STATE_OWN, s.state.data(), s.state_size()); }},
      {"dr_sender_write_state", 2, false,
       [](lonely& s) { return dr_sender_write_state(s.sender, 0, DR_STATE_OWN, s.state.data(), s.state_size()); }},
      {"dr_sender_scale", 2, false, [](lonely& s) { return dr_sender_scale(s.sender, 2); }},
      {"dr_sender_check", 2, false, [](lonely& s) { return dr_sender_check(s.sender, 0, &s.result); }},
      {"dr_sender_use_stream", 0, false,
       [](lonely& s) -> dr_status {  // (it is on the CPU)
         return dr_sender_use_stream(s.sender, nullptr) == DR_E_ARGUMENT ? DR_OK : DR_E_INTERNAL;
       }},
      {"dr_sender_resume", 0, false, [](lonely& s) { return dr_sender_resume(s.sender, 1, 2); }},
  };
  for (const char* const plan : plans) try_each(calls, plan, 0);
}

TEST_CASE("a sender of sparse rows: wherever an allocation fails a call reports MEMORY, and works the next time") {
  const tried calls[] = {
      {"dr_sender_create", 0, true, [](lonely& s) { return s.create(); }},
      {"dr_sender_place_rows", 0, true, [](lonely& s) { return s.place(); }},
      {"dr_sender_encode", 0, true, [](lonely& s) { return s.encode(); }},
      {"dr_sender_merge", 1, true, [](lonely& s) { return s.merge(); }},
      {"dr_sender_rows", 3, false, [](lonely& s) { return s.mean_rows(); }},
      {"dr_sender_take_back", 1, true, [](lonely& s) { return dr_sender_take_back(s.sender, 0); }},
  };
  try_each(calls, "index=all value=half", DR_NAMED_ROWS);
}
