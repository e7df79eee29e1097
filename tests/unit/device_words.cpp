// Kernels' reads of uninitialised memory, which compute-sanitizer's initcheck would find; and the errors without a
// device.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>

#include "container/frame_tile.hpp"
#include "cuda/device.hpp"
#include "tool/plugin_test/guarded_bytes.hpp"

namespace {

using namespace dr;

// The bytes of a row whose sections have these sizes, each in memory that ends with it. (On the heap a sanitizer sees the byte behind.)
void check_payload(const uint64_t (&sizes)[3], bool on_heap) {
  device_row r{};
  pack_row d{};
  d.flags = 7;
  std::vector<properties::guarded_bytes> guarded;
  std::vector<std::unique_ptr<uint8_t[]>> heap;
  std::vector<uint8_t> want;
  row_columns p{};
  for (unsigned s = 0; s < 3; ++s) {
    uint8_t* at = nullptr;
    if (on_heap)
      at = heap.emplace_back(new uint8_t[sizes[s]]).get();
    else
      at = guarded.emplace_back(sizes[s], 16).data();
    for (uint64_t i = 0; i < sizes[s]; ++i) want.push_back(at[i] = static_cast<uint8_t>(17 * s + 31 * i + 1));
    d.slot[s] = at;
    p.size[s] = sizes[s];
  }
  want.resize((want.size() + 3) / 4 * 4);
  for (uint64_t at = 0; at < want.size(); at += 4) {
    uint32_t expected = 0;
    std::memcpy(&expected, want.data() + at, 4);
    CAPTURE(sizes[0]);
    CAPTURE(sizes[1]);
    CAPTURE(sizes[2]);
    CAPTURE(at);
    REQUIRE(payload_word(r, d, p, at, false) == expected);
  }
}

}  // namespace

TEST_CASE("packing reads no byte behind a section, wherever sections begin and end") {
  for (const bool on_heap : {false, true})
    for (uint64_t a = 0; a <= 20; ++a)
      for (uint64_t b = 0; b <= 20; ++b)
        for (const uint64_t c : {0, 1, 3, 4, 15, 16, 31, 32}) check_payload({a, b, c}, on_heap);
}

TEST_CASE("lanes copy a string from where it is, and read no word that has none of its bytes") {
  for (uint32_t before = 0; before < 8; ++before)
    for (uint32_t size = 0; size <= 70; ++size)
      for (const unsigned lanes : {1u, 3u}) {
        CAPTURE(before);
        CAPTURE(size);
        const uint32_t words = (before + size + 3) / 4;
        const std::unique_ptr<uint32_t[]> frame(new uint32_t[words]);  // (behind it a sanitizer sees any access)
        for (uint32_t i = 0; i < words; ++i) frame[i] = 0x01010101 * (i + 1) + 0x00020304;
        alignas(16) uint32_t to[24];
        std::memset(to, 0xa5, sizeof to);
        const uint8_t* const from = reinterpret_cast<const uint8_t*>(frame.get()) + before;
        for (unsigned lane = 0; lane < lanes; ++lane) load_string(from, size, to, lane, lanes);
        CHECK(std::memcmp(to, from, size) == 0);
        // Behind the last word come zeros, up to a multiple of four.
        for (uint32_t i = (before % 4 + size + 3) / 4; i < (size + 15) / 16 * 4; ++i) CHECK(to[i] == 0);
        CHECK(to[(size + 15) / 16 * 4] == 0xa5a5a5a5);
      }
}

TEST_CASE("without a device the error names the required driver and the present one") {
  const auto said = [](int runtime, int driver) {
    dr_error e{};
    CHECK(fail_without_device(runtime, driver, "initialization error", e) == DR_E_DEVICE);
    return std::string(e.message);
  };
  CHECK(said(13000, 0) ==
        "place: this library needs a driver of CUDA 13.0 or newer (on Linux 580 or newer); here there is none");
  CHECK(said(13000, 12080) ==
        "place: this library needs a driver of CUDA 13.0 or newer (on Linux 580 or newer); here it is of CUDA 12.8");
  CHECK(said(12040, 11080).find("CUDA 12.1 or newer (on Linux 530 or newer)") != std::string::npos);
  CHECK(said(14010, 13020).find("CUDA 14.0 or newer; here it is of CUDA 13.2") != std::string::npos);
  // A driver that will do: then it is something else.
  for (const int driver : {13000, 13010, 14000})
    CHECK(said(13000, driver) == "place: no CUDA device here (initialization error)");
  CHECK(said(12080, 12040) == "place: no CUDA device here (initialization error)");
  // Of the same major version, and too old for arguments of kernels above 4 KB.
  CHECK(said(12080, 12000).find("CUDA 12.1 or newer (on Linux 530 or newer); here it is of CUDA 12.0") !=
        std::string::npos);
  CHECK(!is_driver_of(12080, 12000));
  CHECK(is_driver_of(12080, 12010));
}
