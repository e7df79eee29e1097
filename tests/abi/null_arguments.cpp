// NULL, anywhere, is an answer and not a crash.
#include <functional>

#include "client.hpp"

TEST_CASE("every pointer that may not be NULL yields ARGUMENT where it is") {
  client::context context;
  client::plan plan("index=raw value=raw"), feedback("feedback=residual");
  dr_context* const c = context.handle;
  const client::floats values = client::laplace(10, 1);
  const dr_tensor t = client::dense(values);
  const client::bytes frame = client::encode(context, "index=raw", {t});
  client::floats room(10);
  dr_tensor_out out{};
  out.struct_size = sizeof out;
  out.dtype = DR_F32;
  out.universe = 10;
  out.values = room.data();
  client::bytes to(1000);
  size_t bytes = 0;
  dr_plan* p = nullptr;
  dr_context* made = nullptr;
  dr_batch* batch = nullptr;
  dr_batch* prepared = nullptr;
  REQUIRE(dr_batch_create(c, plan.handle, nullptr, &t, sizeof t, 1, 0, &prepared) == DR_OK);
  dr_batch_info batch_info{};
  batch_info.struct_size = sizeof batch_info;
  dr_frame_info info{};
  info.struct_size = sizeof info;
  float* residual = nullptr;
  uint64_t elements = 0;
  alignas(8) unsigned char state[16 + 40] = {};
  const dr_bytes good = {frame.data(), frame.size()}, none = {nullptr, frame.size()};
  dr_tensor no_values = t, no_indices = t, no_state = t;
  no_values.values = nullptr;
  no_indices.index_dtype = DR_I64;
  no_indices.count = 3;
  no_state.plan = feedback.handle;
  dr_tensor_out no_room = out, no_index_room = out;
  no_room.values = nullptr;
  no_index_room.index_dtype = DR_I64;
  no_index_room.capacity = 10;
  dr_stage stage{};
  stage.struct_size = sizeof stage;
  dr_stages* stages = nullptr;
  dr_book *book = nullptr, *lines = nullptr;
  REQUIRE(dr_book_parse("*: dense", 8, nullptr, &lines, nullptr) == DR_OK);
  dr_book_line line{};
  line.struct_size = sizeof line;
  const char* nobody = nullptr;
  uint32_t use = 0;
  alignas(64) static unsigned char workspace[1 << 16];
  dr_context_options half{};
  half.struct_size = sizeof half;
  half.allocate = [](void*, size_t, size_t) -> void* { return nullptr; };

  const struct {
    const char* what;
    std::function<dr_status()> call;
  } calls[] = {
      {"dr_context_create: context", [&] { return dr_context_create(nullptr, nullptr, nullptr); }},
      {"dr_context_create: release without allocate", [&] { return dr_context_create(&half, &made, nullptr); }},
      {"dr_plan_parse: text", [&] { return dr_plan_parse(nullptr, &p, nullptr); }},
      {"dr_plan_parse: plan", [&] { return dr_plan_parse("index=raw", nullptr, nullptr); }},
      {"dr_plan_exact: plan", [&] { return dr_plan_exact(nullptr, &p, nullptr); }},
      {"dr_plan_exact: exact", [&] { return dr_plan_exact(plan.handle, nullptr, nullptr); }},
      {"dr_plan_rows: plan", [&] { return dr_plan_rows(nullptr, &p, nullptr); }},
      {"dr_plan_rows: rows", [&] { return dr_plan_rows(plan.handle, nullptr, nullptr); }},
      {"dr_plan_with: plan", [&] { return dr_plan_with(nullptr, "feedback=none", &p, nullptr); }},
      {"dr_plan_with: stages", [&] { return dr_plan_with(plan.handle, nullptr, &p, nullptr); }},
      {"dr_plan_with: made", [&] { return dr_plan_with(plan.handle, "feedback=none", nullptr, nullptr); }},
      {"dr_plan_stage: plan", [&] { return dr_plan_stage(nullptr, 0, &stage, nullptr); }},
      {"dr_plan_stage: stage", [&] { return dr_plan_stage(plan.handle, 0, nullptr, nullptr); }},
      {"dr_stages_parse: text", [&] { return dr_stages_parse(nullptr, &stages, nullptr); }},
      {"dr_stages_parse: stages", [&] { return dr_stages_parse("index=raw", nullptr, nullptr); }},
      {"dr_stages_at: stages", [&] { return dr_stages_at(nullptr, 0, &stage, nullptr); }},
      {"dr_book_parse: text", [&] { return dr_book_parse(nullptr, 1, nullptr, &book, nullptr); }},
      {"dr_book_parse: book", [&] { return dr_book_parse("", 0, nullptr, nullptr, nullptr); }},
      {"dr_book_add: book", [&] { return dr_book_add(nullptr, "*", 0, nullptr, nullptr); }},
      {"dr_book_add: pattern", [&] { return dr_book_add(lines, nullptr, 0, nullptr, nullptr); }},
      {"dr_book_line_at: book", [&] { return dr_book_line_at(nullptr, 0, &line, nullptr); }},
      {"dr_book_line_at: line", [&] { return dr_book_line_at(lines, 0, nullptr, nullptr); }},
      {"dr_book_match: book", [&] { return dr_book_match(nullptr, "x", &line, nullptr); }},
      {"dr_book_match: name", [&] { return dr_book_match(lines, nullptr, &line, nullptr); }},
      {"dr_book_match: line", [&] { return dr_book_match(lines, "x", nullptr, nullptr); }},
      {"dr_book_uses: book", [&] { return dr_book_uses(nullptr, nullptr, 0, nullptr, nullptr); }},
      {"dr_book_uses: names", [&] { return dr_book_uses(lines, nullptr, 1, &use, nullptr); }},
      {"dr_book_uses: a name", [&] { return dr_book_uses(lines, &nobody, 1, &use, nullptr); }},
      {"dr_book_uses: uses", [&] { return dr_book_uses(lines, nullptr, 0, nullptr, nullptr); }},
      {"dr_codec_register: codec", [&] { return dr_codec_register(nullptr, nullptr); }},
      {"dr_plugin_load: path", [&] { return dr_plugin_load(nullptr, nullptr); }},
      {"dr_bound: context", [&] { return dr_bound(nullptr, plan.handle, nullptr, nullptr, &t, sizeof t, 1, &bytes); }},
      {"dr_bound: no plan at all", [&] { return dr_bound(c, nullptr, nullptr, nullptr, &t, sizeof t, 1, &bytes); }},
      {"dr_bound: tensors", [&] { return dr_bound(c, plan.handle, nullptr, nullptr, nullptr, sizeof t, 1, &bytes); }},
      {"dr_bound: bytes", [&] { return dr_bound(c, plan.handle, nullptr, nullptr, &t, sizeof t, 1, nullptr); }},
      {"dr_encode: context",
       [&] {
         return dr_encode(nullptr, plan.handle, nullptr, nullptr, &t, sizeof t, 1, to.data(), to.size(), nullptr);
       }},
      {"dr_encode: no plan at all",
       [&] { return dr_encode(c, nullptr, nullptr, nullptr, &t, sizeof t, 1, to.data(), to.size(), nullptr); }},
      {"dr_encode: tensors",
       [&] {
         return dr_encode(c, plan.handle, nullptr, nullptr, nullptr, sizeof t, 1, to.data(), to.size(), nullptr);
       }},
      {"dr_encode: frame",
       [&] { return dr_encode(c, plan.handle, nullptr, nullptr, &t, sizeof t, 1, nullptr, to.size(), nullptr); }},
      {"dr_encode: values",
       [&] {
         return dr_encode(c, plan.handle, nullptr, nullptr, &no_values, sizeof t, 1, to.data(), to.size(), nullptr);
       }},
      {"dr_encode: indices",
       [&] {
         return dr_encode(c, plan.handle, nullptr, nullptr, &no_indices, sizeof t, 1, to.data(), to.size(), nullptr);
       }},
      {"dr_encode: state",
       [&] { return dr_encode(c, nullptr, nullptr, nullptr, &no_state, sizeof t, 1, to.data(), to.size(), nullptr); }},
      {"dr_batch_create: context",
       [&] { return dr_batch_create(nullptr, plan.handle, nullptr, &t, sizeof t, 1, 0, &batch); }},
      {"dr_batch_create: no plan at all",
       [&] { return dr_batch_create(c, nullptr, nullptr, &t, sizeof t, 1, 0, &batch); }},
      {"dr_batch_create: tensors",
       [&] { return dr_batch_create(c, plan.handle, nullptr, nullptr, sizeof t, 1, 0, &batch); }},
      {"dr_batch_create: batch", [&] { return dr_batch_create(c, plan.handle, nullptr, &t, sizeof t, 1, 0, nullptr); }},
      {"dr_batch_describe: batch", [&] { return dr_batch_describe(nullptr, &batch_info, nullptr); }},
      {"dr_batch_describe: info", [&] { return dr_batch_describe(prepared, nullptr, nullptr); }},
      {"dr_batch_encode: context",
       [&] {
         return dr_batch_encode(nullptr, prepared, nullptr, nullptr, &t, sizeof t, 1, workspace, sizeof workspace,
                                to.data(), to.size(), nullptr);
       }},
      {"dr_batch_encode: batch",
       [&] {
         return dr_batch_encode(c, nullptr, nullptr, nullptr, &t, sizeof t, 1, workspace, sizeof workspace, to.data(),
                                to.size(), nullptr);
       }},
      {"dr_batch_encode: tensors",
       [&] {
         return dr_batch_encode(c, prepared, nullptr, nullptr, nullptr, sizeof t, 1, workspace, sizeof workspace,
                                to.data(), to.size(), nullptr);
       }},
      {"dr_batch_encode: workspace",
       [&] {
         return dr_batch_encode(c, prepared, nullptr, nullptr, &t, sizeof t, 1, nullptr, sizeof workspace, to.data(),
                                to.size(), nullptr);
       }},
      {"dr_batch_encode: frame",
       [&] {
         return dr_batch_encode(c, prepared, nullptr, nullptr, &t, sizeof t, 1, workspace, sizeof workspace, nullptr,
                                to.size(), nullptr);
       }},
      {"dr_state_size: plan", [&] { return dr_state_size(nullptr, &t, &bytes, nullptr); }},
      {"dr_state_size: tensor", [&] { return dr_state_size(plan.handle, nullptr, &bytes, nullptr); }},
      {"dr_state_size: bytes", [&] { return dr_state_size(plan.handle, &t, nullptr, nullptr); }},
      {"dr_state_residual: state",
       [&] { return dr_state_residual(nullptr, sizeof state, &residual, &elements, nullptr); }},
      {"dr_state_residual: residual",
       [&] { return dr_state_residual(state, sizeof state, nullptr, &elements, nullptr); }},
      {"dr_state_residual: elements",
       [&] { return dr_state_residual(state, sizeof state, &residual, nullptr, nullptr); }},
      {"dr_state_momentum: state",
       [&] { return dr_state_momentum(nullptr, sizeof state, &residual, &elements, nullptr); }},
      {"dr_state_momentum: momentum",
       [&] { return dr_state_momentum(state, sizeof state, nullptr, &elements, nullptr); }},
      {"dr_state_momentum: elements",
       [&] { return dr_state_momentum(state, sizeof state, &residual, nullptr, nullptr); }},
      {"dr_state_check: plan", [&] { return dr_state_check(nullptr, &t, state, sizeof state, nullptr); }},
      {"dr_state_check: tensor", [&] { return dr_state_check(plan.handle, nullptr, state, sizeof state, nullptr); }},
      {"dr_state_scale: state", [&] { return dr_state_scale(nullptr, sizeof state, 1, nullptr); }},
      {"dr_frame_header: frame", [&] { return dr_frame_header(nullptr, 9, 10, &info, nullptr, 0, 0, nullptr); }},
      {"dr_frame_header: info",
       [&] { return dr_frame_header(frame.data(), 9, frame.size(), nullptr, nullptr, 0, 0, nullptr); }},
      {"dr_frame_header: more than there is",
       [&] { return dr_frame_header(frame.data(), frame.size() + 1, frame.size(), &info, nullptr, 0, 0, nullptr); }},
      {"dr_inspect: frame", [&] { return dr_inspect(nullptr, 10, &info, nullptr, 0, 0, nullptr); }},
      {"dr_inspect: info", [&] { return dr_inspect(frame.data(), frame.size(), nullptr, nullptr, 0, 0, nullptr); }},
      {"dr_decode: context",
       [&] { return dr_decode(nullptr, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1); }},
      {"dr_decode: frame", [&] { return dr_decode(c, nullptr, nullptr, frame.size(), nullptr, &out, sizeof out, 1); }},
      {"dr_decode: outputs",
       [&] { return dr_decode(c, nullptr, frame.data(), frame.size(), nullptr, nullptr, sizeof out, 1); }},
      {"dr_decode: values",
       [&] { return dr_decode(c, nullptr, frame.data(), frame.size(), nullptr, &no_room, sizeof out, 1); }},
      {"dr_decode: indices",
       [&] { return dr_decode(c, nullptr, frame.data(), frame.size(), nullptr, &no_index_room, sizeof out, 1); }},
      {"dr_merge: context",
       [&] { return dr_merge(nullptr, nullptr, &good, nullptr, 1, nullptr, &out, sizeof out, 1); }},
      {"dr_merge: frames", [&] { return dr_merge(c, nullptr, nullptr, nullptr, 1, nullptr, &out, sizeof out, 1); }},
      {"dr_merge: a frame's data",
       [&] { return dr_merge(c, nullptr, &none, nullptr, 1, nullptr, &out, sizeof out, 1); }},
      {"dr_merge: outputs", [&] { return dr_merge(c, nullptr, &good, nullptr, 1, nullptr, nullptr, sizeof out, 1); }},
      {"dr_merge: values", [&] { return dr_merge(c, nullptr, &good, nullptr, 1, nullptr, &no_room, sizeof out, 1); }},
  };
  for (const auto& call : calls) {
    INFO(std::string(call.what));
    CHECK(call.call() == DR_E_ARGUMENT);
  }
  CHECK(p == nullptr);
  CHECK(made == nullptr);
  CHECK(batch == nullptr);
  CHECK(client::same_bits(client::decode(context, frame, 10), values));  // and the context is as good as before
  dr_batch_destroy(prepared);
  dr_book_destroy(lines);
}

TEST_CASE("what may be NULL may be NULL") {
  client::context context;
  client::plan plan("index=raw");
  dr_context_destroy(nullptr);
  dr_plan_destroy(nullptr);
  dr_stages_destroy(nullptr);
  dr_book_destroy(nullptr);
  dr_batch_destroy(nullptr);
  CHECK(std::string(dr_plan_text(nullptr)) == "");
  REQUIRE(dr_last_error(nullptr) != nullptr);
  CHECK(dr_last_error(nullptr)->code == DR_E_ARGUMENT);
  CHECK(dr_last_error(nullptr)->message[0]);
  CHECK(dr_last_error(context.handle)->code == DR_OK);

  dr_context* made = nullptr;
  CHECK(dr_context_create(nullptr, &made, nullptr) == DR_OK);
  dr_context_destroy(made);

  // No tensor at all is a frame, and decodes.
  unsigned char frame[64];
  dr_result result{.struct_size = sizeof(dr_result)};
  CHECK(dr_encode(context.handle, nullptr, nullptr, nullptr, nullptr, 0, 0, frame, sizeof frame, &result) == DR_OK);
  CHECK(dr_decode(context.handle, nullptr, frame, result.size, nullptr, nullptr, 0, 0) == DR_OK);
  CHECK(dr_merge(context.handle, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0, 0) == DR_OK);

  // Neither does an empty tensor have to point anywhere.
  dr_tensor empty{};
  empty.struct_size = sizeof empty;
  empty.dtype = DR_F32;
  dr_tensor_out out{};
  out.struct_size = sizeof out;
  out.dtype = DR_F32;
  CHECK(dr_encode(context.handle, plan.handle, nullptr, nullptr, &empty, sizeof empty, 1, frame, sizeof frame,
                  &result) == DR_OK);
  CHECK(dr_decode(context.handle, nullptr, frame, result.size, nullptr, &out, sizeof out, 1) == DR_OK);
}

TEST_CASE("names of statuses are known, and of others unknown") {
  CHECK(std::string(dr_status_name(DR_OK)) == "OK");
  CHECK(std::string(dr_status_name(DR_E_ARGUMENT)) == "ARGUMENT");
  CHECK(std::string(dr_status_name(DR_E_CAPACITY)) == "CAPACITY");
  CHECK(std::string(dr_status_name(DR_E_CORRUPT)) == "CORRUPT");
  CHECK(std::string(dr_status_name(DR_E_UNSUPPORTED)) == "UNSUPPORTED");
  CHECK(std::string(dr_status_name(DR_E_MEMORY)) == "MEMORY");
  CHECK(std::string(dr_status_name(DR_E_DEVICE)) == "DEVICE");
  CHECK(std::string(dr_status_name(DR_E_INTERNAL)) == "INTERNAL");
  CHECK(std::string(dr_status_name(DR_E_PEER)) == "PEER");
  CHECK(std::string(dr_status_name(-1)) == "?");
  CHECK(std::string(dr_status_name(DR_E_TIMEOUT)) == "TIMEOUT");
  CHECK(std::string(dr_status_name(DR_PENDING)) == "PENDING");
  CHECK(std::string(dr_status_name(11)) == "?");
}

TEST_CASE("the library that was loaded is the one of these headers") {
  CHECK(std::string(dr_version()) == DR_VERSION_STRING);
  CHECK(dr_abi_version() == DR_ABI_VERSION);
}

TEST_CASE("a struct to fill that does not say its size is refused, and nothing is written to it") {
  client::context c;
  const client::floats g{1, 2, 3};
  const client::bytes frame = client::encode(c, "index=golomb", {client::dense(g)});
  dr_frame_info info{};
  dr_error error{sizeof(dr_error)};
  CHECK(dr_inspect(frame.data(), frame.size(), &info, nullptr, 0, 0, &error) == DR_E_ARGUMENT);
  CHECK(info.frame_size == 0);
  const client::plan p("index=golomb");
  const dr_tensor t = client::dense(g);
  client::bytes out(1000);
  dr_result result{};
  CHECK(dr_encode(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, out.data(), out.size(), &result) ==
        DR_E_ARGUMENT);
  CHECK(result.size == 0);
  dr_batch* batch = nullptr;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &batch) == DR_OK);
  dr_batch_info batch_info{};
  CHECK(dr_batch_describe(batch, &batch_info, nullptr) == DR_E_ARGUMENT);
  dr_batch_destroy(batch);
}
