// The emulator sees what it is there for: kernels with a fault that a GPU might show once a month, each beside its sound twin.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "device/apart.hpp"
#include "primitive/block.hpp"
#include "tool/plugin_test/guarded_bytes.hpp"

namespace dr::device_tests {
namespace {

enum class fault { none, no_barrier, no_bound, written_uniform, read_without_get };

constexpr unsigned tile = 128;

struct compaction_args {
  const uint32_t* in;
  const uint64_t* base;  // offset of a tile's selected values in `out`: a received number
  uint32_t* out;
  uint64_t capacity;
  uint64_t* told;  // of each number: how many its tile keeps, and the last of them
};

// The odd numbers of a tile, through shared memory, so that they are written side by side.
template <fault F>
struct compaction {
  static constexpr const char* name = "compaction";
  static constexpr unsigned lanes = tile, grid_phases = 1;
  using args = compaction_args;
  struct shared {
    uint32_t list[lanes], last;
  };

  template <class Block>
  static void run(Block& b, shared& s, const args& a, unsigned) {
    typename Block::template each<uint32_t> value, place;
    b.phase([&](unsigned lane) {
      value[lane] = a.in[b.index() * tile + lane];
      place[lane] = value[lane] & 1;
    });
    const uint32_t total = b.exclusive_sum(place);
    const auto gather = [&](unsigned lane) {
      if (value[lane] & 1) s.list[place[lane]] = value[lane];
    };
    const auto store = [&](unsigned lane) {
      const uint64_t at = a.base[b.index()] + lane;
      if (lane < total && (F == fault::no_bound || at < a.capacity)) a.out[at] = s.list[lane];
    };
    if (F == fault::no_barrier) {
      b.phase([&](unsigned lane) {
        gather(lane);
        store(lane);
      });
    } else {
      b.phase(gather);
      b.phase(store);
    }
    uint32_t last = 0;
    if (F == fault::written_uniform) {
      b.phase([&](unsigned lane) {
        if (lane == 0 && total) last = s.list[total - 1];  // a register of lane 0
      });
    } else {
      b.phase([&](unsigned lane) {
        if (lane == 0) s.last = total ? s.list[total - 1] : 0;
      });
      last = F == fault::read_without_get ? s.last : b.get(s.last);
    }
    b.phase([&](unsigned lane) {
      a.told[b.index() * tile + lane] = uint64_t{total} << 32 | last;
      if (lane == 0) s.last = 0;
    });
  }
};

struct order {
  int32_t seed;
  uint32_t strands;
};
constexpr order loops[] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}};
constexpr order strands[] = {{0, 4}, {1, 4}, {2, 2}, {3, 16}, {4, 128}};

constexpr uint32_t tiles = 3, room = 220, nothing = 0xa5a5a5a5;

// Compacts three tiles, the last of them to out[base …) of 220. False if it gives something else.
template <fault F>
bool is_right(const order& how, uint64_t base, uint32_t* out) {
  std::vector<uint32_t> in(tiles * tile), expected(room, nothing);
  for (uint32_t i = 0; i < in.size(); ++i) in[i] = i * 2654435761u >> 9;
  const uint64_t bases[tiles] = {0, 70, base};
  std::vector<uint64_t> told(in.size()), expected_told;
  for (uint32_t t = 0; t < tiles; ++t) {
    uint64_t at = bases[t], total = 0, last = 0;
    for (uint32_t i = t * tile; i < (t + 1) * tile; ++i) {
      if (in[i] % 2 == 0) continue;
      if (at < room) expected[at] = in[i];
      last = in[i];
      ++at, ++total;
    }
    expected_told.insert(expected_told.end(), tile, total << 32 | last);
  }
  std::fill_n(out, room, nothing);
  device_queue queue;
  dr_error error{sizeof(dr_error)};
  if (find_device({sizeof(dr_place), DR_PLACE_EMULATED, how.seed, nullptr, 0, 0}, queue.where, error)) return false;
  emulator().strands = how.strands;
  const dr_status status = launch<compaction<F>>(queue.exec(), tiles, {in.data(), bases, out, room, told.data()});
  emulator().strands = 0;
  return status == DR_OK && told == expected_told && std::equal(out, out + room, expected.begin());
}

// In memory behind which there is a guard.
template <fault F>
bool is_right(const order& how, uint64_t base) {
  const properties::guarded_bytes out(room * sizeof(uint32_t), 16);
  bool right = false;
  return properties::stays_inside([&] { right = is_right<F>(how, base, reinterpret_cast<uint32_t*>(out.data())); }) &&
         right && out.intact();
}

// Wrong, or killed: by a sanitizer, say.
template <fault F>
bool is_wrong(const order& how, uint64_t base) {
  return !survives([&] { return is_right<F>(how, base); });
}

TEST_CASE("a sound kernel is right in any order") {
  for (const uint64_t base : {140, 180, 219, 220, 1 << 30}) {
    for (const order& how : loops) CHECK(is_right<fault::none>(how, base));
    for (const order& how : strands) CHECK(is_right<fault::none>(how, base));
  }
}

TEST_CASE("a missing barrier is seen by any order of lanes") {
  for (const order& how : loops) CHECK(is_wrong<fault::no_barrier>(how, 140));
  for (const order& how : strands) CHECK(is_wrong<fault::no_barrier>(how, 140));
}

TEST_CASE("a store without its bound is seen by the guard behind the memory") {
  CHECK(is_right<fault::no_bound>({0, 0}, 140));  // while the data are good
  for (const order& how : loops)
    for (const uint64_t base : {180, 220, 300}) CHECK(is_wrong<fault::no_bound>(how, base));
}

TEST_CASE("a store without its bound is seen by AddressSanitizer" * doctest::skip(!sanitizes)) {
  const auto on_heap = []<fault F>(uint64_t base) {
    const std::unique_ptr<uint32_t[]> out(new uint32_t[room]);
    return is_right<F>({1, 0}, base, out.get());
  };
  CHECK(survives([&] { return on_heap.operator()<fault::none>(180); }));
  CHECK_FALSE(survives([&] { return on_heap.operator()<fault::no_bound>(180); }));
}

TEST_CASE("code between phases that is not uniform is seen by strands, and only by them") {
  CHECK(is_right<fault::written_uniform>({0, 0}, 140));
  CHECK(is_right<fault::read_without_get>({0, 0}, 140));
  for (const order& how : strands) {
    CHECK(is_wrong<fault::written_uniform>(how, 140));
    CHECK(is_wrong<fault::read_without_get>(how, 140));
  }
}

TEST_CASE("a barrier that strands omit on purpose is missed") {
  std::vector<std::pair<unsigned, phase_then>> phases;
  const char* file = nullptr;
  emulator().phase_seen = [&](const dr_kernel&, const char* where, unsigned line, phase_then then) {
    file = where;
    phases.emplace_back(line, then);
  };
  CHECK(is_right<fault::none>({0, 1}, 140));
  emulator().phase_seen = nullptr;
  phases.resize(phases.size() / tiles);  // every tile has the same
  REQUIRE(phases.size() == 5);
  emulator().planted_kernel = "compaction";
  emulator().planted_file = file;
  for (size_t i = 0; i < phases.size(); ++i) {
    emulator().planted_line = phases[i].first;
    const bool needed = phases[i].second != phase_then::barrier;
    CHECK(needed == (i != 0 && i != 4));  // a sum stands behind the first, and nothing behind the last
    const bool noticed = std::ranges::any_of(strands, [](const order& how) { return is_wrong<fault::none>(how, 140); });
    INFO("phase " << i);
    CHECK(noticed == (needed && i != 2));  // the output of the third is not read
  }
  emulator().planted_kernel = nullptr;
}

// Lanes read what the lane before them wrote, without a barrier: right in a loop over lanes.
template <bool Sound>
struct neighbours {
  static constexpr const char* name = "neighbours";
  static constexpr unsigned lanes = 32, grid_phases = 1;
  struct args {
    uint32_t* out;
  };
  struct shared {
    uint32_t list[lanes];
  };
  template <class Block>
  static void run(Block& b, shared& s, const args& a, unsigned) {
    const auto write = [&](unsigned lane) { s.list[lane] = 7 * lane; };
    const auto read = [&](unsigned lane) { a.out[lane] = lane ? s.list[lane - 1] : 0; };
    if constexpr (Sound) {
      b.phase(write);
      b.phase(read);
    } else {
      b.phase([&](unsigned lane) {
        write(lane);
        read(lane);
      });
    }
  }
};

template <bool Sound>
bool neighbours_are_right() {
  uint32_t out[32] = {};
  device_queue queue;
  dr_error error{sizeof(dr_error)};
  if (find_device({sizeof(dr_place), DR_PLACE_EMULATED, 0, nullptr, 0, 0}, queue.where, error)) return false;
  if (launch<neighbours<Sound>>(queue.exec(), 1, {out})) return false;
  for (uint32_t lane = 0; lane < 32; ++lane)
    if (out[lane] != (lane ? 7 * (lane - 1) : 0)) return false;
  return true;
}

TEST_CASE("jitter runs strands in orders in which a race shows, and leaves what is sound alone") {
  emulator().strands = 32;
  int seen = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulator().jitter = seed;
    CHECK(neighbours_are_right<true>());
    seen += !neighbours_are_right<false>();
  }
  emulator().jitter = 0;
  emulator().strands = 0;
  CHECK(seen == 20);
}

// Its lanes do not agree on how many phases there are.
struct parting {
  static constexpr const char* name = "parting";
  static constexpr unsigned lanes = 32, grid_phases = 1;
  struct args {
    uint32_t* out;
  };
  struct shared {};
  template <class Block>
  static void run(Block& b, shared&, const args& a, unsigned) {
    bool first = false;
    b.phase([&](unsigned lane) { first = first || lane == 0; });
    if (first) b.phase([&](unsigned lane) { a.out[lane] = lane; });
  }
};

TEST_CASE("lanes that part are an error of the launch, not a hang") {
  uint32_t out[32];
  device_queue queue;
  dr_error error{sizeof(dr_error)};
  REQUIRE(find_device({sizeof(dr_place), DR_PLACE_EMULATED, 0, nullptr, 0, 0}, queue.where, error) == DR_OK);
  CHECK(launch<parting>(queue.exec(), 1, {out}) == DR_OK);
  emulator().strands = 2;
  CHECK(launch<parting>(queue.exec(), 1, {out}) == DR_E_INTERNAL);
  emulator().strands = 0;
}

}  // namespace
}  // namespace dr::device_tests
