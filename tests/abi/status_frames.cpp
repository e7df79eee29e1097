// A rank that cannot encode says so in a frame, and it is an error on every rank: nobody waits for it.
#include "client.hpp"

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
