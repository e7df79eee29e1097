// The first size of each struct of the ABI: what is smaller is no version's, and what grows later keeps it.
#include <deepreduce/control.h>
#include <deepreduce/exchange.h>
#include <deepreduce/sender.h>
#include <deepreduce/transform.h>

#include <functional>

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

constexpr const char* plan_text = "sparsify=topr(ratio=0.1) index=golomb value=qsgd";

}  // namespace

// The numbers are those of the first header of version 1 that had the struct; a client may still have it.
TEST_CASE("a struct smaller than version 1's is refused by name, size and minimum, in every call with one") {
  client::context context;
  client::plan plan(plan_text);
  dr_context* const c = context.handle;
  dr_plan* const p = plan.handle;
  const floats gradient = client::laplace(300, 1);
  client::plan lowrank("transform=lowrank(rank=1)");
  dr_tensor t = client::dense(gradient);
  const bytes one = client::encode(context, plan_text, {t});
  floats x(gradient.size());
  dr_tensor_out o = client::dense_out(x);
  bytes room(4096);
  dr_call call{};
  dr_result result{};
  dr_place place{};
  dr_decode_options options{};
  dr_context_options made{};
  dr_plan_info plan_info{};
  dr_batch_info batch_info{};
  dr_frame_info frame_info{sizeof frame_info}, small_info{};
  dr_tensor_info tensor_info{};
  dr_fault fault{};
  dr_loopback_options net_options{};
  dr_transport transport{};
  dr_exchange_options exchange_options{};
  dr_exchange_info exchange_info{};
  dr_transform_options transform_options{};
  dr_transform_info transform_info{};
  dr_control_info control_info{};
  dr_stage stage{};
  dr_named_tensor named{sizeof named, "w", DR_F32, 0, 0, 300, p};
  dr_sender_options sender_options{};
  dr_sender_info sender_info{};
  dr_unit_info unit_info{};
  dr_sent_tensor sent_tensor{};
  dr_sent sent{};
  const int64_t row_at[] = {1};
  const float row_values[] = {2};
  dr_sent_rows sent_rows{};
  sent_rows.count = 1;
  sent_rows.indices = row_at;
  sent_rows.values = row_values;
  sent_rows.index_dtype = DR_I64;
  dr_sender* sender = nullptr;
  dr_book_line line{};
  dr_error e{sizeof e};
  dr_context* another = nullptr;
  dr_book* book = nullptr;
  REQUIRE(dr_book_parse("*: dense", 8, nullptr, &book, &e) == DR_OK);
  dr_batch* batch = nullptr;
  dr_exchange* exchange = nullptr;
  dr_transform* transform = nullptr;
  dr_loopback* net = nullptr;
  dr_control* control = nullptr;
  REQUIRE(dr_batch_create(c, p, nullptr, &t, sizeof t, 1, 0, &batch) == DR_OK);
  REQUIRE(dr_sender_create(c, nullptr, nullptr, &named, sizeof named, 1, nullptr, &sender) == DR_OK);
  const void* const in[] = {gradient.data()};
  REQUIRE(dr_sender_place(sender, 0, 1, in, nullptr, nullptr) == DR_OK);
  dr_named_tensor of_rows = named;
  of_rows.flags = DR_NAMED_ROWS;
  of_rows.rows = of_rows.elements;
  dr_sender* row_sender = nullptr;
  REQUIRE(dr_sender_create(c, nullptr, nullptr, &of_rows, sizeof of_rows, 1, nullptr, &row_sender) == DR_OK);
  const auto senders = [&](const dr_sender_options* o) {
    dr_sender* none = nullptr;
    const dr_status s = dr_sender_create(c, nullptr, nullptr, &named, sizeof named, 1, o, &none);
    dr_sender_destroy(none);
    return s;
  };
  const uint64_t rungs[] = {100, 10};
  REQUIRE(dr_control_create("aimd(target_ms=20)", rungs, 2, &control, &e) == DR_OK);
  REQUIRE(dr_transform_create(c, lowrank.handle, nullptr, &t, sizeof t, 1, &transform) == DR_OK);
  {
    dr_loopback_options ok{sizeof ok};
    ok.ranks = 1;
    REQUIRE(dr_loopback_create(&ok, &net, &e) == DR_OK);
    dr_transport whole{sizeof whole};
    REQUIRE(dr_loopback_transport(net, 0, &whole) == DR_OK);
    transport = whole;
    REQUIRE(dr_exchange_create(c, p, &whole, nullptr, &t, sizeof t, &o, sizeof o, 1, &exchange) == DR_OK);
  }
  const auto encode = [&](const dr_tensor* tensor, const dr_call* of_call, const dr_place* where, dr_result* told) {
    return dr_encode(c, p, of_call, where, tensor, sizeof *tensor, 1, room.data(), room.size(), told);
  };
  const auto exchanges = [&](const dr_transport* on, const dr_exchange_options* how) {
    dr_exchange* none = nullptr;
    const dr_status s = dr_exchange_create(c, p, on, how, &t, sizeof t, &o, sizeof o, 1, &none);
    dr_exchange_destroy(none);
    return s;
  };
  struct row {
    const char* name;
    size_t least;
    size_t* size;
    std::function<dr_status()> use;
  };
  const row rows[] = {
      {"dr_context_options", 40, &made.struct_size, [&] { return dr_context_create(&made, &another, &e); }},
      {"dr_plan_info", 16, &plan_info.struct_size, [&] { return dr_plan_describe(p, &plan_info, &e); }},
      {"dr_stage", 64, &stage.struct_size, [&] { return dr_plan_stage(p, 0, &stage, &e); }},
      {"dr_book_line", 40, &line.struct_size, [&] { return dr_book_match(book, "x", &line, &e); }},
      {"dr_tensor", 88, &t.struct_size, [&] { return encode(&t, nullptr, nullptr, nullptr); }},
      {"dr_place", 32, &place.struct_size, [&] { return encode(&t, nullptr, &place, nullptr); }},
      {"dr_call", 88, &call.struct_size, [&] { return encode(&t, &call, nullptr, nullptr); }},
      {"dr_result", 72, &result.struct_size, [&] { return encode(&t, nullptr, nullptr, &result); }},
      {"dr_fault", 40, &fault.struct_size,
       [&] {
         dr_call faults{sizeof faults};
         faults.faults = &fault;
         faults.fault_stride = sizeof fault;
         return encode(&t, &faults, nullptr, nullptr);
       }},
      {"dr_batch_info", 40, &batch_info.struct_size, [&] { return dr_batch_describe(batch, &batch_info, &e); }},
      {"dr_tensor_out", 64, &o.struct_size,
       [&] { return dr_decode(c, nullptr, one.data(), one.size(), nullptr, &o, sizeof o, 1); }},
      {"dr_decode_options", 72, &options.struct_size,
       [&] { return dr_decode(c, nullptr, one.data(), one.size(), &options, &o, sizeof o, 1); }},
      {"dr_frame_info", 312, &small_info.struct_size,
       [&] { return dr_inspect(one.data(), one.size(), &small_info, nullptr, 0, 0, &e); }},
      {"dr_tensor_info", 304, &tensor_info.struct_size,
       [&] { return dr_inspect(one.data(), one.size(), &frame_info, &tensor_info, sizeof tensor_info, 1, &e); }},
      {"dr_transport", 72, &transport.struct_size, [&] { return exchanges(&transport, nullptr); }},
      {"dr_exchange_info", 120, &exchange_info.struct_size,
       [&] { return dr_exchange_describe(exchange, &exchange_info, &e); }},
      {"dr_transform_options", 32, &transform_options.struct_size,
       [&] {
         dr_transform* none = nullptr;
         const dr_status s = dr_transform_create(c, lowrank.handle, &transform_options, &t, sizeof t, 1, &none);
         dr_transform_destroy(none);
         return s;
       }},
      {"dr_transform_info", 80, &transform_info.struct_size,
       [&] { return dr_transform_describe(transform, &transform_info, &e); }},
      {"dr_loopback_options", 56, &net_options.struct_size,
       [&] {
         net_options.ranks = 1;
         dr_loopback* none = nullptr;
         const dr_status s = dr_loopback_create(&net_options, &none, &e);
         dr_loopback_destroy(none);
         return s;
       }},
      {"dr_control_info", 112, &control_info.struct_size,
       [&] { return dr_control_describe(control, &control_info, &e); }},
      {"dr_named_tensor", 48, &named.struct_size, [&] { return senders(nullptr); }},
      {"dr_sender_options", 56, &sender_options.struct_size, [&] { return senders(&sender_options); }},
      {"dr_sender_info", 72, &sender_info.struct_size, [&] { return dr_sender_describe(sender, &sender_info, &e); }},
      {"dr_unit_info", 80, &unit_info.struct_size, [&] { return dr_sender_unit(sender, 0, &unit_info, &e); }},
      {"dr_sent_tensor", 48, &sent_tensor.struct_size, [&] { return dr_sender_tensor(sender, 0, &sent_tensor, &e); }},
      {"dr_sent_rows", 40, &sent_rows.struct_size, [&] { return dr_sender_place_rows(row_sender, 0, &sent_rows); }},
      {"dr_sent", 48, &sent.struct_size,
       [&] { return dr_sender_encode(sender, 0, nullptr, room.data(), room.size(), &sent); }},
      {"dr_exchange_options", 48, &exchange_options.struct_size,
       [&] {
         dr_transport whole{sizeof whole};
         REQUIRE(dr_loopback_transport(net, 0, &whole) == DR_OK);
         dr_exchange* none = nullptr;
         const dr_status s = dr_exchange_create(c, p, &whole, &exchange_options, &t, sizeof t, &o, sizeof o, 1, &none);
         dr_exchange_destroy(none);
         return s;
       }},
  };
  for (const row& r : rows) {
    INFO(std::string(r.name));
    const size_t before = *r.size;
    for (const size_t bad : {size_t{0}, size_t{9}, r.least - 8, r.least - 1}) {
      CAPTURE(bad);
      *r.size = bad;
      e = {sizeof e};
      CHECK(r.use() == DR_E_ARGUMENT);
      const std::string said = e.code ? e.message : context.error();
      INFO(said);
      CHECK(said.find(r.name) != std::string::npos);
      CHECK(said.find("struct_size is " + std::to_string(bad) + ", not in " + std::to_string(r.least)) !=
            std::string::npos);
    }
    *r.size = r.least;
    e = {sizeof e};
    const dr_status s = r.use();
    INFO(e.message << context.error());
    CHECK(s == DR_OK);
    if (before) *r.size = before;
  }
  dr_context_destroy(another);
  dr_exchange_destroy(exchange);
  dr_loopback_destroy(net);
  dr_transform_destroy(transform);
  dr_control_destroy(control);
  dr_book_destroy(book);
  dr_sender_destroy(sender);
  dr_sender_destroy(row_sender);
  dr_batch_destroy(batch);
}
