// Where a frame lies makes no difference: payloads of codecs that cannot fail are written to it wherever that is.
#include <algorithm>
#include <cmath>

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

constexpr const char* plans[] = {
    "index=all value=raw", "index=all value=half", "index=all value=half(type=bf16)", "index=all value=qsgd",
    "index=all value=qsgd(levels=5,bucket=7)", "index=all value=sign", "index=all value=sign(scale=mean)",
    "index=all value=sign(scale=means)", "index=all value=ternary", "index=all value=natural",
    "index=all value=dynamic_tree", "index=all value=rank_fit",
    // Of varying size: rows move down to where those before them end.
    "index=all value=planes", "sparsify=changed index=all value=raw", "sparsify=changed index=all value=planes"};
constexpr size_t margin = 64;

// One too short for some payloads, which is sent dense; one of zeros alone, which sends none.
struct tensors {
  std::vector<floats> data, bases;
  std::vector<dr_tensor> list;

  tensors(std::initializer_list<uint64_t> sizes, bool patches) {
    for (const uint64_t n : sizes) data.push_back(client::laplace(n, n + 1));
    data[1].assign(data[1].size(), 0.0f);
    for (const floats& each : data) list.push_back(client::dense(each));
    for (const floats& each : data) bases.emplace_back(each.size());
    for (size_t i = 0; patches && i < list.size(); ++i) list[i].base = bases[i].data();
  }
};
bool patches(const std::string& plan) { return plan.starts_with("sparsify=changed"); }

struct encoder {
  client::context c;
  client::plan plan;

  encoder(const char* text, uint32_t threads) : c(threads), plan(text) {}
  dr_status operator()(const std::vector<dr_tensor>& list, void* frame, size_t capacity, size_t& size) {
    dr_result result{};
    result.struct_size = sizeof result;
    const dr_status s = dr_encode(c.handle, plan.handle, nullptr, nullptr, list.data(), sizeof(dr_tensor), list.size(),
                                  frame, capacity, &result);
    size = result.size;
    return s;
  }
  size_t bound(const std::vector<dr_tensor>& list) {
    size_t n = 0;
    REQUIRE(dr_bound(c.handle, plan.handle, nullptr, nullptr, list.data(), sizeof(dr_tensor), list.size(), &n) ==
            DR_OK);
    return n;
  }
};

}  // namespace

TEST_CASE("a frame at any address has the bytes of one elsewhere, and none are written beside it") {
  for (const char* text : plans)
    for (const uint32_t threads : {1u, 3u}) {
      CAPTURE(text);
      const tensors t({1000, 40, 1, 3, 2049, 40000}, patches(text));
      encoder encode(text, threads);
      const size_t bound = encode.bound(t.list);
      // Before all tensors: the frame overlaps the first one, so it cannot be written while that is read.
      std::vector<float> shared(bound / 4 + 2 * margin + t.data[0].size());
      std::copy(t.data[0].begin(), t.data[0].end(), shared.begin());
      std::vector<dr_tensor> overlapping = t.list;
      overlapping[0].values = shared.data();
      size_t size = 0;
      REQUIRE(encode(overlapping, shared.data(), bound, size) == DR_OK);
      const auto* const begin = reinterpret_cast<const uint8_t*>(shared.data());
      const bytes expected(begin, begin + size);
      for (size_t at = 0; at <= 17; ++at) {
        CAPTURE(at);
        bytes room(margin + bound + margin, 0xa5);
        REQUIRE(encode(t.list, room.data() + margin + at, bound, size) == DR_OK);
        const auto found = room.begin() + static_cast<ptrdiff_t>(margin + at);
        CHECK(std::equal(expected.begin(), expected.end(), found, found + static_cast<ptrdiff_t>(size)));
        const auto beside = [](uint8_t b) { return b == 0xa5; };
        CHECK(std::all_of(room.begin(), found, beside));
        // (What is not of fixed size may be longer while it is made.)
        const size_t written = std::string(text).find("planes") == std::string::npos ? size : bound;
        CHECK(std::all_of(found + static_cast<ptrdiff_t>(written), room.end(), beside));
      }
    }
}

TEST_CASE("a frame that has room for its bytes alone has those of a larger room") {
  for (const char* text : plans)
    for (const uint32_t threads : {1u, 3u}) {
      CAPTURE(text);
      const tensors t({300000, 40, 1, 3, 2049, 40000}, patches(text));
      encoder encode(text, threads);
      size_t size = 0, again = 0;
      bytes roomy(encode.bound(t.list) + 100), tight;
      REQUIRE(encode(t.list, roomy.data(), roomy.size(), size) == DR_OK);
      roomy.resize(size);
      tight.resize(size);
      REQUIRE(encode(t.list, tight.data(), size, again) == DR_OK);
      CHECK(again == size);
      CHECK(tight == roomy);
    }
}

TEST_CASE("a frame is untouched where the last of its tensors cannot be encoded") {
  for (const char* text : plans) {
    if (std::string(text).find("raw") != std::string::npos || std::string(text).find("planes") != std::string::npos)
      continue;  // they take a NaN
    CAPTURE(text);
    tensors t({1000, 40, 2049}, false);
    t.data[2][2048] = NAN;
    encoder encode(text, 1);
    bytes room(encode.bound(t.list), 0xa5);
    size_t size = 0;
    CHECK(encode(t.list, room.data(), room.size(), size) == DR_E_ARGUMENT);
    CHECK(std::all_of(room.begin(), room.end(), [](uint8_t b) { return b == 0xa5; }));
  }
}
