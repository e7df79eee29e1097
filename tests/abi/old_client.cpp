// Structs grow and old clients stay: what a client's struct has no room for is zero going in and not written coming out.
#include <deepreduce/sender.h>

#include "abi/client_struct.hpp"
#include "client.hpp"

namespace {

using abi::structs;
using client::bytes;
using client::floats;

constexpr const char* plan_text = "sparsify=topr(ratio=0.1) index=golomb value=qsgd";

struct fixture {
  client::context context;
  client::plan plan{plan_text};
  floats a = client::laplace(300, 1), b = client::laplace(70, 2);
  bytes frame = client::encode(context, plan_text, {client::dense(a), client::dense(b)});

  bytes encode(structs<dr_tensor>& tensors, size_t n) {
    bytes out(4096, 0);
    dr_result result{.struct_size = sizeof(dr_result)};
    const dr_status s = dr_encode(context.handle, plan.handle, nullptr, nullptr, tensors.data(), tensors.stride(), n,
                                  out.data(), out.size(), &result);
    INFO(context.error());
    CHECK(s == DR_OK);
    out.resize(result.size);
    return out;
  }
  dr_tensor_out out(floats& values) const {
    dr_tensor_out o{};
    o.dtype = DR_F32;
    o.universe = values.size();
    o.values = values.data();
    return o;
  }
};

}  // namespace

TEST_CASE("tensors of older and newer clients encode to the same bytes, and stay as they are") {
  fixture f;
  const std::vector<dr_tensor> two = {client::dense(f.a), client::dense(f.b)};
  struct {
    size_t size, stride;
  } const versions[] = {{88, 88},       // of the first header of version 1
                        {88, 88 + 40},  // the same, spread out
                        {sizeof(dr_tensor), sizeof(dr_tensor)},
                        {sizeof(dr_tensor) + 24, sizeof(dr_tensor) + 24},  // has fields that we do not know
                        {sizeof(dr_tensor) + 24, sizeof(dr_tensor) + 64}};
  for (const auto& v : versions) {
    CAPTURE(v.size);
    CAPTURE(v.stride);
    structs<dr_tensor> tensors(two, v.size, v.stride);
    CHECK(f.encode(tensors, 2) == f.frame);
    CHECK(tensors.intact());
    size_t bound = 0;
    CHECK(dr_bound(f.context.handle, f.plan.handle, nullptr, nullptr, tensors.data(), tensors.stride(), 2, &bound) ==
          DR_OK);
    CHECK(bound >= f.frame.size());
  }
}

TEST_CASE("outputs of older and newer clients are filled and nothing behind them is written") {
  fixture f;
  const floats expected_a = [&] {
    floats x(f.a.size()), y(f.b.size());
    dr_tensor_out outs[] = {f.out(x), f.out(y)};
    for (auto& o : outs) o.struct_size = sizeof o;
    REQUIRE(dr_decode(f.context.handle, nullptr, f.frame.data(), f.frame.size(), nullptr, outs, sizeof *outs, 2) ==
            DR_OK);
    CHECK(outs[0].count == 30);
    return x;
  }();
  struct {
    size_t size, stride;
  } const versions[] = {{64, 64},
                        {sizeof(dr_tensor_out), sizeof(dr_tensor_out) + 16},
                        {sizeof(dr_tensor_out) + 16, sizeof(dr_tensor_out) + 16}};
  for (const auto& v : versions) {
    CAPTURE(v.size);
    floats x(f.a.size(), 9), y(f.b.size(), 9);
    structs<dr_tensor_out> outs({f.out(x), f.out(y)}, v.size, v.stride);
    CHECK(dr_decode(f.context.handle, nullptr, f.frame.data(), f.frame.size(), nullptr, outs.data(), outs.stride(),
                    2) == DR_OK);
    CHECK(outs.intact());
    CHECK(client::same_bits(x, expected_a));
    CHECK(outs.read(0).count == 30);
    CHECK(outs.read(1).count == 7);
    const dr_bytes frames[] = {{f.frame.data(), f.frame.size()}};
    CHECK(dr_merge(f.context.handle, nullptr, frames, nullptr, 1, nullptr, outs.data(), outs.stride(), 2) == DR_OK);
    CHECK(outs.intact());
    CHECK(client::same_bits(x, expected_a));
  }
}

TEST_CASE("the call of an older or newer client means what ours does") {
  fixture f;
  const dr_tensor t = client::dense(f.a);
  dr_call full{};
  full.step = 3;
  full.seed = 4;
  const bytes expected = client::encode(f.context, plan_text, {t}, full);
  for (const size_t size : {size_t{88}, sizeof(dr_call), sizeof(dr_call) + 32}) {
    structs<dr_call> call(full, size);
    bytes out(4096);
    dr_result result{.struct_size = sizeof(dr_result)};
    CHECK(dr_encode(f.context.handle, f.plan.handle, call.data(), nullptr, &t, sizeof t, 1, out.data(), out.size(),
                    &result) == DR_OK);
    out.resize(result.size);
    CHECK(out == expected);
    CHECK(call.intact());
  }
}

TEST_CASE("a result is written as far as the client's struct reaches") {
  fixture f;
  const dr_tensor t = client::dense(f.a);
  for (const size_t size : {size_t{72}, sizeof(dr_result), sizeof(dr_result) + 40}) {
    CAPTURE(size);
    structs<dr_result> result(dr_result{}, size);
    bytes out(4096);
    CHECK(dr_encode(f.context.handle, f.plan.handle, nullptr, nullptr, &t, sizeof t, 1, out.data(), out.size(),
                    result.data()) == DR_OK);
    CHECK(result.read().size > 30);
    CHECK(result.intact());
    CHECK(dr_encode(f.context.handle, f.plan.handle, nullptr, nullptr, &t, sizeof t, 1, out.data(), 10,
                    result.data()) == DR_E_CAPACITY);
    CHECK(result.read().size == 0);
    CHECK(result.intact());
    CHECK(result.read().status == DR_E_CAPACITY);
  }
  // One that no header ever had is refused, and still says so, as far as it reaches.
  structs<dr_result> result(dr_result{}, offsetof(dr_result, tensor));
  bytes out(4096);
  CHECK(dr_encode(f.context.handle, f.plan.handle, nullptr, nullptr, &t, sizeof t, 1, out.data(), out.size(),
                  result.data()) == DR_E_ARGUMENT);
  CHECK(result.read().status == DR_E_ARGUMENT);
  CHECK(result.intact());
}

TEST_CASE("an error is written as far as the client's struct reaches, and its message always ends") {
  for (const size_t size : {offsetof(dr_error, stream), offsetof(dr_error, message) + 8,
                            offsetof(dr_error, message) + 20, sizeof(dr_error), sizeof(dr_error) + 64}) {
    CAPTURE(size);
    structs<dr_error> error(dr_error{}, size);
    dr_plan* p = nullptr;
    CHECK(dr_plan_parse("index=nothing_of_the_kind", &p, error.data()) == DR_E_ARGUMENT);
    const dr_error e = error.read();
    CHECK(e.code == DR_E_ARGUMENT);
    if (size <= sizeof(dr_error)) CHECK(error.intact());
    if (size > offsetof(dr_error, message)) {
      const size_t room = std::min(size, sizeof(dr_error)) - offsetof(dr_error, message);
      CHECK(strnlen(e.message, room) < room);
      CHECK(std::string(e.message).substr(0, 5) == "plan:");
    }
  }
}

TEST_CASE("a newer client's error keeps what we do not know") {
  structs<dr_error> error(dr_error{}, sizeof(dr_error) + 64);
  dr_plan* p = nullptr;
  CHECK(dr_plan_parse("index=nothing_of_the_kind", &p, error.data()) == DR_E_ARGUMENT);
  CHECK(std::string(error.read().message).substr(0, 5) == "plan:");
  dr_error e{sizeof(dr_error)};
  std::memcpy(&e, error.data(), sizeof e);
  CHECK(e.struct_size <= sizeof(dr_error) + 64);
  e.struct_size = sizeof(dr_error) + 64;
  std::memcpy(static_cast<void*>(error.data()), &e, sizeof e.struct_size);
  CHECK(error.intact());
}

TEST_CASE("a copy of a context's error, size and all, is no longer than the dr_error of the first header") {
  constexpr size_t first = offsetof(dr_error, reason);
  fixture f;
  dr_tensor t = client::dense(f.a);
  t.dtype = 99;
  size_t bound = 0;
  CHECK(dr_bound(f.context.handle, f.plan.handle, nullptr, nullptr, &t, sizeof t, 1, &bound) == DR_E_ARGUMENT);
  dr_named_tensor named{sizeof named, "w", DR_F32, 0, 0, 300, nullptr};
  dr_book* book = nullptr;
  dr_sender* sender = nullptr;
  REQUIRE(dr_book_parse("x: dense", 8, nullptr, &book, nullptr) == DR_OK);
  client::context other;
  CHECK(dr_sender_create(other.handle, nullptr, book, &named, sizeof named, 1, nullptr, &sender) == DR_OK);
  dr_sender_destroy(sender);
  dr_book_destroy(book);
  for (const dr_error* const last :
       {dr_last_error(f.context.handle), dr_last_error(other.handle), dr_last_error(nullptr)}) {
    structs<dr_error> copy(dr_error{}, first);
    std::memcpy(static_cast<void*>(copy.data()), last, first);
    dr_plan* p = nullptr;
    CHECK(dr_plan_parse("index=nothing_of_the_kind", &p, copy.data()) == DR_E_ARGUMENT);
    CHECK(copy.intact());
  }
}

TEST_CASE("a zeroed error is one of our version") {
  dr_error error{sizeof(dr_error)};
  dr_plan* p = nullptr;
  CHECK(dr_plan_parse("=", &p, &error) == DR_E_ARGUMENT);
  CHECK(error.struct_size == sizeof error);
  CHECK(error.message[0]);
}

TEST_CASE("inspection fills older and newer structs, one a tensor, and nothing between them") {
  fixture f;
  for (const size_t size : {size_t{312}, sizeof(dr_frame_info), sizeof(dr_frame_info) + 8}) {
    structs<dr_frame_info> info(dr_frame_info{}, size);
    CHECK(dr_inspect(f.frame.data(), f.frame.size(), info.data(), nullptr, 0, 0, nullptr) == DR_OK);
    CHECK(info.intact());
    CHECK(info.read().frame_size == f.frame.size());
  }
  struct {
    size_t size, stride;
  } const versions[] = {{304, 304},
                        {304, 304 + 48},
                        {sizeof(dr_tensor_info), sizeof(dr_tensor_info)},
                        {sizeof(dr_tensor_info) + 24, sizeof(dr_tensor_info) + 24}};
  for (const auto& v : versions) {
    CAPTURE(v.size);
    structs<dr_tensor_info> infos({dr_tensor_info{}, dr_tensor_info{}}, v.size, v.stride);
    structs<dr_frame_info> info(dr_frame_info{}, sizeof(dr_frame_info));
    CHECK(dr_inspect(f.frame.data(), f.frame.size(), info.data(), infos.data(), infos.stride(), 2, nullptr) == DR_OK);
    CHECK(infos.intact());
    CHECK(infos.read(0).universe == f.a.size());
    CHECK(infos.read(1).universe == f.b.size());
  }
  // Room for one of two: the other is not written.
  structs<dr_tensor_info> infos({dr_tensor_info{}, dr_tensor_info{}}, sizeof(dr_tensor_info), sizeof(dr_tensor_info));
  structs<dr_frame_info> info(dr_frame_info{}, sizeof(dr_frame_info));
  CHECK(dr_inspect(f.frame.data(), f.frame.size(), info.data(), infos.data(), infos.stride(), 1, nullptr) == DR_OK);
  CHECK(info.read().tensors == 2);
  CHECK(infos.read(0).universe == f.a.size());
  CHECK(infos.read(1).universe == 0);
}

TEST_CASE("options, limits, places and batch infos of older and newer clients are accepted") {
  fixture f;
  dr_context_options options{};
  options.threads = 2;
  for (const size_t size : {size_t{40}, sizeof(dr_context_options), sizeof(dr_context_options) + 16}) {
    structs<dr_context_options> s(options, size);
    dr_context* c = nullptr;
    CHECK(dr_context_create(s.data(), &c, nullptr) == DR_OK);
    CHECK(s.intact());
    dr_context_destroy(c);
  }
  dr_decode_options limits{};
  limits.max_elements = 1000;
  limits.max_workspace = 1;  // refuses anything
  floats x(f.a.size()), y(f.b.size());
  structs<dr_tensor_out> outs({f.out(x), f.out(y)}, sizeof(dr_tensor_out), sizeof(dr_tensor_out));
  for (const size_t size : {size_t{72}, sizeof(dr_decode_options), sizeof(dr_decode_options) + 16}) {
    structs<dr_decode_options> s(limits, size);
    CHECK(dr_decode(f.context.handle, nullptr, f.frame.data(), f.frame.size(), s.data(), outs.data(), outs.stride(),
                    2) == DR_E_CAPACITY);
  }
  dr_place place{};
  place.kind = DR_PLACE_CPU;
  for (const size_t size : {size_t{32}, sizeof(dr_place), sizeof(dr_place) + 16}) {
    structs<dr_place> s(place, size);
    CHECK(dr_decode(f.context.handle, s.data(), f.frame.data(), f.frame.size(), nullptr, outs.data(), outs.stride(),
                    2) == DR_OK);
  }
  dr_decode_options add{};
  add.flags = DR_DECODE_ADD;
  const dr_bytes frames[] = {{f.frame.data(), f.frame.size()}};
  const floats once = x;
  for (const size_t size : {size_t{72}, sizeof(dr_decode_options), sizeof(dr_decode_options) + 16}) {
    structs<dr_decode_options> s(add, size);
    CHECK(dr_decode(f.context.handle, nullptr, f.frame.data(), f.frame.size(), nullptr, outs.data(), outs.stride(),
                    2) == DR_OK);
    CHECK(dr_merge(f.context.handle, nullptr, frames, nullptr, 1, s.data(), outs.data(), outs.stride(), 2) == DR_OK);
    floats twice(once);
    for (float& v : twice) v += v;
    CHECK(client::same_bits(x, twice));
  }
  const dr_tensor t = client::dense(f.a);
  dr_batch* batch = nullptr;
  REQUIRE(dr_batch_create(f.context.handle, f.plan.handle, nullptr, &t, sizeof t, 1, 0, &batch) == DR_OK);
  for (const size_t size : {size_t{40}, sizeof(dr_batch_info), sizeof(dr_batch_info) + 16}) {
    structs<dr_batch_info> s(dr_batch_info{}, size);
    CHECK(dr_batch_describe(batch, s.data(), nullptr) == DR_OK);
    CHECK(s.intact());
    CHECK(s.read().bound > 0);
  }
  dr_batch_destroy(batch);
}

TEST_CASE("arrays whose struct_size is zero, too small or beyond the stride are refused, by number") {
  fixture f;
  std::vector<dr_tensor> tensors = {client::dense(f.a), client::dense(f.b)};
  floats x(f.a.size(), 5), y(f.b.size(), 5);
  std::vector<dr_tensor_out> outs = {f.out(x), f.out(y)};
  for (const size_t bad :
       {size_t{0}, size_t{1}, size_t{7}, sizeof(size_t), size_t{12}, size_t{63}, sizeof(dr_tensor) + 1, SIZE_MAX}) {
    CAPTURE(bad);
    tensors[1].struct_size = bad;
    bytes out(4096);
    CHECK(dr_encode(f.context.handle, f.plan.handle, nullptr, nullptr, tensors.data(), sizeof(dr_tensor), 2, out.data(),
                    out.size(), nullptr) == DR_E_ARGUMENT);
    CHECK(f.context.error().find("tensors 1") != std::string::npos);
    outs[0].struct_size = sizeof(dr_tensor_out);
    outs[1].struct_size = bad == sizeof(dr_tensor) + 1 ? sizeof(dr_tensor_out) + 1 : bad;
    CHECK(dr_decode(f.context.handle, nullptr, f.frame.data(), f.frame.size(), nullptr, outs.data(),
                    sizeof(dr_tensor_out), 2) == DR_E_ARGUMENT);
    CHECK(f.context.error().find("outputs 1") != std::string::npos);
    CHECK(x == floats(x.size(), 5));
  }
  for (const size_t stride : {size_t{0}, size_t{4}, size_t{56}}) {
    CHECK(dr_decode(f.context.handle, nullptr, f.frame.data(), f.frame.size(), nullptr, outs.data(), stride, 2) ==
          DR_E_ARGUMENT);
    CHECK(dr_encode(f.context.handle, f.plan.handle, nullptr, nullptr, tensors.data(), stride, 2, x.data(), 4,
                    nullptr) == DR_E_ARGUMENT);
  }
}

TEST_CASE("a field that this library does not know must be zero, or the call is unsupported") {
  fixture f;
  const dr_tensor t = client::dense(f.a);
  struct newer_call {
    dr_call known;
    uint64_t unknown;
  } call{};
  call.known.struct_size = sizeof call;
  bytes out(4096);
  CHECK(dr_encode(f.context.handle, f.plan.handle, &call.known, nullptr, &t, sizeof t, 1, out.data(), out.size(),
                  nullptr) == DR_OK);
  call.unknown = 1;
  CHECK(dr_encode(f.context.handle, f.plan.handle, &call.known, nullptr, &t, sizeof t, 1, out.data(), out.size(),
                  nullptr) == DR_E_UNSUPPORTED);
  CHECK(f.context.error().find("call: byte " + std::to_string(sizeof(dr_call))) != std::string::npos);
  dr_call plain{.struct_size = sizeof plain};
  plain.reserved = 1;
  CHECK(dr_encode(f.context.handle, f.plan.handle, &plain, nullptr, &t, sizeof t, 1, out.data(), out.size(), nullptr) ==
        DR_E_UNSUPPORTED);
  plain = {.struct_size = sizeof plain, .flags = 1u << 30};
  CHECK(dr_encode(f.context.handle, f.plan.handle, &plain, nullptr, &t, sizeof t, 1, out.data(), out.size(), nullptr) ==
        DR_E_UNSUPPORTED);
}

TEST_CASE("a struct whose size is not set is refused in every call with one") {
  fixture f;
  const dr_tensor t = client::dense(f.a);
  floats x(f.a.size());
  dr_tensor_out o = f.out(x);
  o.struct_size = sizeof o;
  bytes out(4096);
  const bytes one = client::encode(f.context, plan_text, {t});
  const dr_bytes frames[] = {{one.data(), one.size()}};
  dr_context* const c = f.context.handle;
  dr_call call{};
  dr_result result{};
  dr_place place{};
  dr_decode_options options{};
  dr_context_options made{};
  dr_frame_info info{};
  dr_context* another = nullptr;
  size_t bytes_wanted = 0;
  CHECK(dr_encode(c, f.plan.handle, &call, nullptr, &t, sizeof t, 1, out.data(), out.size(), nullptr) == DR_E_ARGUMENT);
  CHECK(f.context.error().find("call: struct_size is 0") != std::string::npos);
  CHECK(dr_encode(c, f.plan.handle, nullptr, nullptr, &t, sizeof t, 1, out.data(), out.size(), &result) ==
        DR_E_ARGUMENT);
  CHECK(dr_encode(c, f.plan.handle, nullptr, &place, &t, sizeof t, 1, out.data(), out.size(), nullptr) ==
        DR_E_ARGUMENT);
  CHECK(dr_bound(c, f.plan.handle, &call, nullptr, &t, sizeof t, 1, &bytes_wanted) == DR_E_ARGUMENT);
  CHECK(dr_decode(c, nullptr, one.data(), one.size(), &options, &o, sizeof o, 1) == DR_E_ARGUMENT);
  CHECK(dr_decode(c, &place, one.data(), one.size(), nullptr, &o, sizeof o, 1) == DR_E_ARGUMENT);
  CHECK(dr_merge(c, nullptr, frames, nullptr, 1, &options, &o, sizeof o, 1) == DR_E_ARGUMENT);
  CHECK(dr_context_create(&made, &another, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_inspect(one.data(), one.size(), &info, nullptr, 0, 0, nullptr) == DR_E_ARGUMENT);
}

TEST_CASE("an error whose size is not set stays as it is, and the status is returned") {
  std::vector<uint8_t> memory(sizeof(dr_error) + 32, 0);
  dr_plan* plan = nullptr;
  CHECK(dr_plan_parse("index=gollumb", &plan, reinterpret_cast<dr_error*>(memory.data())) == DR_E_ARGUMENT);
  for (const uint8_t byte : memory) CHECK(byte == 0);
}

TEST_CASE("inspection refuses infos whose struct_size is zero or beyond the stride, and writes into none") {
  fixture f;
  for (const size_t bad : {size_t{0}, sizeof(size_t), offsetof(dr_tensor_info, plan), sizeof(dr_tensor_info) + 9}) {
    CAPTURE(bad);
    const size_t stride = sizeof(dr_tensor_info) + 8;
    std::vector<uint8_t> memory(2 * stride + sizeof(dr_tensor_info), abi::canary);
    for (size_t i = 0; i < 2; ++i) std::memcpy(memory.data() + i * stride, &bad, sizeof bad);
    const std::vector<uint8_t> before(memory);
    dr_frame_info info{};
    info.struct_size = sizeof info;
    CHECK(dr_inspect(f.frame.data(), f.frame.size(), &info, reinterpret_cast<dr_tensor_info*>(memory.data()), stride, 2,
                     nullptr) == DR_E_ARGUMENT);
    CHECK(memory == before);
  }
}
