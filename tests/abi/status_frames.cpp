// A rank that cannot encode sends a status frame, which is an error on every rank: no rank waits for it.
#include "client.hpp"
#include "fuzz/fix_check.hpp"

namespace {

using client::bytes;
using client::floats;

floats with_nan() {
  floats g = client::laplace(50, 1);
  g[17] = NAN;
  return g;
}

// Encode of a NaN with a codec that takes none; the frame, if there is one.
bytes failing(client::context& c, uint32_t flags, size_t capacity, dr_result& result) {
  const floats g = with_nan();
  const dr_tensor t = client::dense(g);
  client::plan p("index=golomb value=qsgd");
  dr_call call{};
  call.struct_size = sizeof call;
  call.flags = flags;
  call.tag = 0x1122334455667788;
  result = {};
  result.struct_size = sizeof result;
  bytes frame(capacity, 0x33);
  CHECK(dr_encode(c.handle, p.handle, &call, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), &result) ==
        DR_E_ARGUMENT);
  return frame;
}

}  // namespace

TEST_CASE("a NaN under qsgd becomes a status frame that decodes to PEER with the sentence") {
  for (const bool tag : {false, true}) {
    CAPTURE(tag);
    client::context c;
    dr_result result;
    bytes frame = failing(c, DR_CALL_STATUS_FRAME | (tag ? uint32_t{DR_CALL_TAG} : 0u), 4096, result);
    const std::string why = c.error();
    CHECK(why.find("NaN") != std::string::npos);
    CHECK(why.find("17") != std::string::npos);
    CHECK(result.status == DR_E_ARGUMENT);
    CHECK(result.tensor == 0);
    CHECK(result.where == 17);
    CHECK(result.stream == DR_STREAM_VALUE);
    REQUIRE(result.size > 0);
    for (size_t i = result.size; i < frame.size(); ++i) REQUIRE(frame[i] == 0x33);
    frame.resize(result.size);

    dr_frame_info info{};
    client::inspect(frame, &info);
    CHECK(info.status == DR_E_ARGUMENT);
    CHECK((info.flags & DR_FRAME_STATUS) != 0);
    CHECK(((info.flags & DR_FRAME_TAG) != 0) == tag);
    CHECK(info.tag == (tag ? 0x1122334455667788 : 0));
    CHECK(info.tensors == 0);
    CHECK(info.frame_size == result.size);
    CHECK(info.message == why);

    floats room(50, 7);
    dr_tensor_out out{};
    out.struct_size = sizeof out;
    out.dtype = DR_F32;
    out.universe = room.size();
    out.values = room.data();
    client::context receiver;
    CHECK(dr_decode(receiver.handle, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == DR_E_PEER);
    CHECK(receiver.error().find(why) != std::string::npos);
    CHECK(receiver.error().find("ARGUMENT") != std::string::npos);

    const bytes good = client::encode(c, "index=raw", {client::dense(client::laplace(50, 2))});
    const dr_bytes frames[] = {{good.data(), good.size()}, {frame.data(), frame.size()}};
    CHECK(dr_merge(receiver.handle, nullptr, frames, nullptr, 2, nullptr, &out, sizeof out, 1) == DR_E_PEER);
    CHECK(receiver.error().find("frame 1") != std::string::npos);
    CHECK(room == floats(50, 7));
  }
}

TEST_CASE("control characters in a peer's message do not reach terminals and logs") {
  client::context c;
  dr_result result;
  bytes frame = failing(c, DR_CALL_STATUS_FRAME, 4096, result);
  frame.resize(result.size);
  const std::string why = c.error(), hostile = "\x1b]0;\a\r\n\x7f\xc2\x9b 2J \xc3\xa9 ",
                    shown =
                        "?]0;????"
                        "?? 2J \xc3\xa9 ";
  REQUIRE(hostile.size() == shown.size());
  std::copy(hostile.begin(), hostile.end(), frame.begin() + 24);
  REQUIRE(frame_check::fix(frame.data(), frame.size()));
  dr_frame_info info{};
  client::inspect(frame, &info);
  CHECK(info.message == shown + why.substr(shown.size()));
  floats room(50);
  dr_tensor_out out = client::dense_out(room);
  CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == DR_E_PEER);
  CHECK(c.error().find(shown) != std::string::npos);
}

TEST_CASE("without the flag, or without room, there is no status frame and the buffer stays") {
  client::context c;
  dr_result result;
  CHECK(failing(c, 0, 4096, result) == bytes(4096, 0x33));
  CHECK(result.size == 0);
  CHECK(failing(c, DR_CALL_STATUS_FRAME, 20, result) == bytes(20, 0x33));
  CHECK(result.size == 0);
  CHECK(result.status == DR_E_ARGUMENT);
}

TEST_CASE("the bound of any batch has room for a status frame") {
  client::context c;
  client::plan p("index=golomb value=qsgd");
  const floats g = {NAN};
  const dr_tensor t = client::dense(g);
  size_t bound = 0;
  REQUIRE(dr_bound(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, &bound) == DR_OK);
  dr_result result;
  failing(c, DR_CALL_STATUS_FRAME | DR_CALL_TAG, bound, result);
  CHECK(result.size > 0);
  CHECK(result.size <= bound);
}

TEST_CASE("a long sentence is cut to what a status frame holds, and still decodes") {
  client::context c;
  const floats g = client::laplace(10, 1);
  dr_tensor t = client::dense(g);
  t.dtype = 77;
  client::plan p("index=raw");
  dr_call call{};
  call.struct_size = sizeof call;
  call.flags = DR_CALL_STATUS_FRAME;
  bytes frame(1024);
  dr_result result{.struct_size = sizeof(dr_result)};
  CHECK(dr_encode(c.handle, p.handle, &call, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), &result) ==
        DR_E_ARGUMENT);
  REQUIRE(result.size > 0);  // an argument of the call gives one, too
  frame.resize(result.size);
  dr_frame_info info{};
  client::inspect(frame, &info);
  CHECK(info.message == c.error());
}

TEST_CASE("every truncation and every flipped bit of a status frame is noticed") {
  client::context c;
  dr_result result;
  bytes frame = failing(c, DR_CALL_STATUS_FRAME | DR_CALL_TAG, 4096, result);
  frame.resize(result.size);
  dr_frame_info info{};
  info.struct_size = sizeof info;
  for (size_t n = 1; n < frame.size(); ++n) {
    const bytes cut(frame.begin(), frame.begin() + static_cast<long>(n));
    REQUIRE(dr_inspect(cut.data(), cut.size(), &info, nullptr, 0, 0, nullptr) == DR_E_CORRUPT);
  }
  for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    bytes flipped(frame);
    flipped[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    const dr_status s = dr_inspect(flipped.data(), flipped.size(), &info, nullptr, 0, 0, nullptr);
    REQUIRE((s == DR_E_CORRUPT || (bit / 8 == 2 && s == DR_E_UNSUPPORTED)));
  }
}

namespace {

// A call that asks for a status frame, and a result and a frame to write to.
struct asking {
  dr_call call{};
  dr_result result{.struct_size = sizeof(dr_result)};
  bytes frame = bytes(1024, 0x33);

  asking() {
    call.struct_size = sizeof call;
    call.flags = DR_CALL_STATUS_FRAME;
  }
  // Whether the failed call reported it in the result and in a frame.
  void check_told(dr_status status, const client::context& c) const {
    CAPTURE(c.error());
    CHECK(status != DR_OK);
    CHECK(result.status == status);
    REQUIRE(result.size > 0);
    REQUIRE(result.size <= frame.size());
    dr_frame_info info{};
    client::inspect(bytes(frame.begin(), frame.begin() + static_cast<long>(result.size)), &info);
    CHECK(info.status == status);
    CHECK(info.message == c.error());
  }
  void check_untouched(dr_status status) const {
    CHECK(status != DR_OK);
    CHECK(result.status == DR_OK);
    CHECK(frame == bytes(1024, 0x33));
  }
};

// Places that name the CPU and are refused.
std::vector<dr_place> refused_on_cpu() {
  dr_place flags{}, reserved{}, place{};
  place.struct_size = sizeof place;
  flags = reserved = place;
  flags.flags = 0x80;
  reserved.reserved = 1;
  return {flags, reserved};
}

// Places whose memory is unknown, or inaccessible to the host.
std::vector<dr_place> refused_elsewhere() {
  dr_place unread{}, unknown{}, gpu{};
  unknown.struct_size = gpu.struct_size = sizeof(dr_place);
  unknown.kind = 77;
  gpu.kind = DR_PLACE_CUDA;
  gpu.device = 1000;
  gpu.flags = 0x80;
  return {unread, unknown, gpu};
}

}  // namespace

TEST_CASE(
    "an encode whose place is refused reports it in the result where the place is the CPU, and else in its status "
    "alone") {
  client::context c;
  const client::plan p("index=golomb value=raw");
  const floats g = client::laplace(50, 1);
  const dr_tensor t = client::dense(g);
  dr_batch* batch = nullptr;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &batch) == DR_OK);
  const auto each_encode = [&](const dr_place& place, auto&& check) {
    asking a, b;
    check(a,
          dr_encode(c.handle, p.handle, &a.call, &place, &t, sizeof t, 1, a.frame.data(), a.frame.size(), &a.result));
    check(b, dr_batch_encode(c.handle, batch, &b.call, &place, &t, sizeof t, 1, nullptr, 0, b.frame.data(),
                             b.frame.size(), &b.result));
  };
  for (const dr_place& place : refused_on_cpu())
    each_encode(place, [&](const asking& a, dr_status s) { a.check_told(s, c); });
  for (const dr_place& place : refused_elsewhere())
    each_encode(place, [&](const asking& a, dr_status s) { a.check_untouched(s); });
  // The batch is of another place than the call.
  dr_place emulated{};
  emulated.struct_size = sizeof emulated;
  emulated.kind = DR_PLACE_EMULATED;
  each_encode(emulated, [&, first = true](const asking& a, dr_status s) mutable {
    if (!first) a.check_untouched(s);
    first = false;
  });
  dr_batch_destroy(batch);
}

TEST_CASE("a prepared decode or merge whose place is refused sets its result where the place is the CPU") {
  client::context c;
  const client::plan p("index=golomb value=raw");
  floats g = client::laplace(50, 1);
  const dr_tensor t = client::dense(g);
  dr_batch* batch = nullptr;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &batch) == DR_OK);
  const bytes frame = client::encode(c, "index=golomb value=raw", {t});
  const dr_bytes frames{frame.data(), frame.size()};
  floats room(50);
  dr_tensor_out out = client::dense_out(room);
  const auto each_decode = [&](const dr_place& place, bool told) {
    dr_result a{.struct_size = sizeof(dr_result)}, b(a);
    const dr_status x = dr_batch_decode(c.handle, batch, &place, frame.data(), frame.size(), nullptr, &out, sizeof out,
                                        1, nullptr, 0, &a);
    CHECK(x != DR_OK);
    CHECK(a.status == (told ? x : dr_status{DR_OK}));
    const dr_status y =
        dr_batch_merge(c.handle, batch, &place, &frames, nullptr, 1, nullptr, &out, sizeof out, 1, nullptr, 0, &b);
    CHECK(y != DR_OK);
    CHECK(b.status == (told ? y : dr_status{DR_OK}));
  };
  for (const dr_place& place : refused_on_cpu()) each_decode(place, true);
  for (const dr_place& place : refused_elsewhere()) each_decode(place, false);
  dr_batch_destroy(batch);
}

TEST_CASE("a binding reports a direction that is not bound, and too many frames, in result and status frame") {
  client::context c;
  const client::plan p("index=golomb value=raw");
  const floats g = client::laplace(50, 1);
  const dr_tensor t = client::dense(g);
  const bytes frame = client::encode(c, "index=golomb value=raw", {t});
  const std::vector<dr_bytes> frames(3, dr_bytes{frame.data(), frame.size()});
  floats room(50);
  dr_tensor_out out = client::dense_out(room);
  dr_batch* batch = nullptr;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &batch) == DR_OK);
  dr_binding *encodes = nullptr, *decodes = nullptr;
  REQUIRE(dr_binding_create(c.handle, batch, nullptr, &t, sizeof t, nullptr, 0, 1, 1, &encodes) == DR_OK);
  REQUIRE(dr_binding_create(c.handle, batch, nullptr, nullptr, 0, &out, sizeof out, 1, 2, &decodes) == DR_OK);
  asking a;
  dr_fault fault{.struct_size = sizeof(dr_fault)};
  a.call.faults = &fault;
  a.call.fault_stride = sizeof fault;
  a.check_told(dr_binding_encode(decodes, &a.call, a.frame.data(), a.frame.size(), &a.result), c);
  CHECK(c.error().find("created without tensors") != std::string::npos);
  const auto told = [&](auto&& call, const char* part) {
    dr_result result{.struct_size = sizeof(dr_result)};
    CHECK(call(&result) == DR_E_ARGUMENT);
    CHECK(result.status == DR_E_ARGUMENT);
    CHECK(c.error().find(part) != std::string::npos);
  };
  told([&](dr_result* r) { return dr_binding_decode(encodes, frame.data(), frame.size(), nullptr, r); },
       "created without outputs, so it cannot decode");
  told([&](dr_result* r) { return dr_binding_merge(encodes, frames.data(), nullptr, 1, nullptr, r); },
       "created without outputs, so it cannot merge");
  told([&](dr_result* r) { return dr_binding_merge(decodes, frames.data(), nullptr, 3, nullptr, r); }, "at most 2");
  dr_binding_destroy(encodes);
  dr_binding_destroy(decodes);
  dr_batch_destroy(batch);
}

TEST_CASE("a result that is refused does not keep the status frame from being written") {
  client::context c;
  const client::plan p("index=golomb value=raw");
  const floats g = client::laplace(50, 1);
  const dr_tensor t = client::dense(g);
  asking a;
  dr_result unset{};
  CHECK(dr_encode(c.handle, p.handle, &a.call, nullptr, &t, sizeof t, 1, a.frame.data(), a.frame.size(), &unset) ==
        DR_E_ARGUMENT);
  dr_frame_info info{};
  client::inspect(a.frame, &info);
  CHECK(info.message == c.error());
}
