// Patches of weights: the words that differ from a base, made and applied where the weights are.
#include "cuda/gpu_case.hpp"
#include "fuzz/fix_check.hpp"

namespace {

using namespace client;

const std::string changed = "sparsify=changed ";

// Weights of which this share has other bits than the base: small ones by many places, large ones by one or two, as steps
// of an optimizer have it; and now and then all bits.
gradient weights(dr_dtype dtype, uint64_t d, uint64_t seed, double share) {
  gradient g = make(dtype, d, seed);
  g.base = g.values;
  rng r{seed + 1};
  const uint64_t size = bytes_of(dtype);
  for (uint64_t i = 0; i < d; ++i) {
    if (r.uniform() >= share) continue;
    uint32_t bits = 0;
    std::memcpy(&bits, &g.base[size * i], size);
    const uint32_t key = bits >> (size == 4 ? 23 : 7) & 0xff;
    const uint32_t places = r.next() % 50 == 0 ? 9000 : key > 124 ? 1 : key > 120 ? 6 : 60;
    bits += 1 + static_cast<uint32_t>(r.next() % places);
    std::memcpy(&g.base[size * i], &bits, size);
  }
  return g;
}
// With other bits at these positions alone.
gradient weights_at(dr_dtype dtype, uint64_t d, const std::vector<uint64_t>& at) {
  gradient g = make(dtype, d, 5);
  g.base = g.values;
  for (const uint64_t i : at) g.base[bytes_of(dtype) * i + 1] ^= 0x40;
  return g;
}

std::vector<bytes> bases_of(const gradients& g) {
  std::vector<bytes> all;
  for (const gradient& one : g) all.push_back(one.base);
  return all;
}
std::vector<bytes> values_of(const gradients& g) {
  std::vector<bytes> all;
  for (const gradient& one : g) all.push_back(one.values);
  return all;
}

dr_decode_options applying() {
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = DR_DECODE_APPLY;
  return options;
}

decoded apply_on_cpu(const bytes& frame, const gradients& like, const std::vector<bytes>& bases) {
  context c;
  decoded d;
  d.values = bases;
  std::vector<dr_tensor_out> outs;
  uint8_t nothing = 0;
  for (size_t i = 0; i < like.size(); ++i)
    outs.push_back(out_for(like[i], false, d.values[i].empty() ? &nothing : d.values[i].data()));
  const dr_decode_options options = applying();
  d.status = dr_decode(c.handle, nullptr, frame.data(), frame.size(), &options, outs.data(), sizeof(dr_tensor_out),
                       outs.size());
  if (d.status) d.error = c.error();
  return d;
}

// Frames of any plan, whose header the host reads.
decoded apply_and_wait(const bytes& frame, const gradients& like, const std::vector<bytes>& bases) {
  context c;
  const place::stream on;
  const dr_place at = on.at();
  const place::buffer there = buffer_with(frame.data(), frame.size());
  std::vector<place::buffer> held;
  std::vector<dr_tensor_out> outs;
  for (size_t i = 0; i < like.size(); ++i) {
    held.push_back(buffer_with(bases[i].data(), bases[i].size()));
    outs.push_back(out_for(like[i], false, held[i].at()));
  }
  const dr_decode_options options = applying();
  decoded d;
  d.status =
      dr_decode(c.handle, &at, there.at(), frame.size(), &options, outs.data(), sizeof(dr_tensor_out), outs.size());
  if (d.status) {
    const dr_error& e = *dr_last_error(c.handle);
    d.error = e.message;
    d.result.tensor = e.tensor;
    d.result.what = e.what;
    CHECK((e.reason == DR_REASON_WRONG_BASE) == (d.status == DR_E_ARGUMENT && e.what != 0));
  }
  for (const place::buffer& b : held) {
    CHECK(b.intact());
    d.values.push_back(b.bytes());
  }
  return d;
}

// A receiver with the bases in its outputs.
struct engine {
  receiver at;

  engine(const placed_batch& b, const gradients& g, size_t room) : at(b, g, 1, room, false) {}
  decoded apply(const bytes& frame, const std::vector<bytes>& bases) {
    at.put_frame(0, frame);
    at.forget();
    at.put_values(bases);
    at.enqueue_decode(DR_DECODE_APPLY);
    return at.read();
  }
};

void require_values(const decoded& got, const std::vector<bytes>& want) {
  REQUIRE(got.values.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) require_same(got.values[i], want[i], "weights");
}

// The CPU's frame, and the weights that it makes of the bases.
void patch_both_ways(const std::string& text, gradients g, int32_t seed = 1, size_t shift = 0) {
  INFO(text);
  ++round_trips;
  const placed_batch b(text, g, seed);
  sender s(b, g, shift);
  const encoded want = encode_on_cpu(b.method, g), got = s.encode();
  s.check_guards();
  INFO("the CPU says: " << want.error);
  REQUIRE(want.status == DR_OK);
  REQUIRE(got.status == DR_OK);
  require_same(got.frame, want.frame, "frame");
  engine e(b, g, want.frame.size());
  const decoded made = e.apply(want.frame, bases_of(g));
  e.at.check_guards();
  REQUIRE(made.status == DR_OK);
  require_values(made, values_of(g));
}

// Codecs of patches on a device: no index that replaces the support, and exact values.
std::vector<std::string> codings() {
  std::vector<std::string> values = stages(DR_ROLE_VALUE, true), all;
  values.push_back("raw");
  for (const std::string& index : stages(DR_ROLE_INDEX))
    for (const std::string& value : values)
      if (!index.starts_with("bloom") && index != "all") all.push_back(changed + "index=" + index + " value=" + value);
  return all;
}

TEST_CASE("patches are the CPU's, and make its weights, of any size, type and share") {
  std::vector<uint64_t> sizes{0, 1, 2, 7, 8, 9, 1023, 2047, 2048, 2049, 4096, 8191, 8192, 8193, 16385, 30000};
  if (!only_small()) sizes.insert(sizes.end(), {1000000, 25600000});
  for (const uint64_t d : sizes)
    for (const double share : {0.0, 0.001, 0.03, 0.4, 0.97, 1.0}) {
      INFO("d " << d << ", share " << share);
      for (const dr_dtype dtype : value_types)
        for (const char* value : {"raw", "ulp"})
          patch_both_ways(changed + "index=golomb value=" + value, {weights(dtype, d, d + 1, share)},
                          static_cast<int32_t>(d % 5), d % 4);
      patch_both_ways(changed + "index=raw value=raw",
                      {weights(DR_BF16, d, d, share), weights(DR_F32, d / 3, 1, share), weights(DR_F16, 5, 1, 0),
                       weights(DR_BF16, 0, 1, 0)},
                      2, d % 9);
    }
  require_no_trouble();
}

TEST_CASE("patches with every index and value codec, of many tensors, in one frame") {
  for (const std::string& coding : codings()) {
    gradients many;
    for (size_t i = 0; i < 43; ++i) many.push_back(weights(value_types[i % 3], 37 * i * i, i, i % 5 * 0.02));
    patch_both_ways(coding, many, 3, 1);
    patch_both_ways(coding, {weights(DR_BF16, 70001, 3, 0.02)});
    patch_both_ways(coding, {weights(DR_F32, 50001, 4, 0.9)});
  }
  require_no_trouble();
}

// Room for few changes: above it a tensor is sent dense, from where it is.
TEST_CASE("patches with room for a share of the weights are the CPU's, above it, too") {
  std::vector<uint64_t> sizes{1, 9, 2049, 8193, 30000};
  if (!only_small()) sizes.push_back(3000000);
  for (const std::string& coding : codings())
    for (const uint64_t d : sizes)
      for (const char* ratio : {"0", "0.02", "0.5"}) {
        const std::string plan =
            "sparsify=changed(max_ratio=" + std::string(ratio) + ") " + coding.substr(changed.size());
        INFO("d " << d);
        for (const double share : {0.0, 0.01, 0.05, 0.97})
          for (const dr_dtype dtype : value_types) patch_both_ways(plan, {weights(dtype, d, d, share)}, 1, d % 3);
        patch_both_ways(plan, {weights(DR_BF16, d, 1, 0.01), weights(DR_F32, 5000, 2, 0.9), weights(DR_F16, 0, 3, 0),
                               weights(DR_BF16, 3 * d, 4, 0.9), weights(DR_BF16, 9000, 5, 0.001)});
      }
  require_no_trouble();
}

TEST_CASE("a tensor is sent dense by the count of its changes, to the last one") {
  for (const dr_dtype dtype : value_types)
    for (const uint64_t changes : {99, 100, 101}) {
      std::vector<uint64_t> at;
      for (uint64_t i = 0; i < changes; ++i) at.push_back(17 * i * i % 9973);
      std::sort(at.begin(), at.end());
      const gradient g = weights_at(dtype, 10000, at);
      REQUIRE(std::adjacent_find(at.begin(), at.end()) == at.end());
      const std::string plan = changed.substr(0, changed.size() - 1) + "(max_ratio=0.01) index=golomb value=raw";
      patch_both_ways(plan, {g});
      gradients one{g};
      const bytes frame = encode_on_cpu(client::plan(plan), one).frame;
      CHECK((frame.size() > 10000 * bytes_of(dtype)) == (changes > 100));
    }
  require_no_trouble();
}

TEST_CASE("patches of changes at the ends of tiles, chunks and vectors") {
  for (const dr_dtype dtype : value_types)
    for (const uint64_t d : {uint64_t{8192}, uint64_t{20000}, uint64_t{24577}}) {
      for (const uint64_t at : {0, 1, 7, 8, 1023, 1024, 2047, 2048, 4095, 4096, 8191, 8192, 16383, 16384})
        if (at < d) patch_both_ways(changed + "index=golomb value=raw", {weights_at(dtype, d, {at})});
      patch_both_ways(changed + "index=golomb value=raw", {weights_at(dtype, d, {d - 1})});
      patch_both_ways(changed + "index=golomb value=raw", {weights_at(dtype, d, {0, 4095, 4096, 8191, d - 1})}, 2, 1);
    }
  require_no_trouble();
}

TEST_CASE("bits are compared, not numbers") {
  for (const dr_dtype dtype : value_types) {
    gradient g = make(dtype, 9000, 1);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const uint64_t i : {10, 20, 30, 5000}) g.set(i, i == 20 ? nan : 0.0f);
    g.base = g.values;
    gradient same = g;
    const size_t size = bytes_of(dtype);
    g.base[size * 10 + size - 1] ^= 0x80;  // -0
    g.base[size * 20] ^= 1;                // another NaN
    patch_both_ways(changed + "index=golomb value=raw", {g, same});
    const placed_batch b(changed + "index=raw value=raw", {same});
    sender s(b, {same});
    const encoded none = s.encode();
    CHECK(inspect(none.frame).support == 0);  // a NaN equals itself
  }
}

TEST_CASE("a patch is for its base alone, and applied once") {
  for (const dr_dtype dtype : value_types) {
    gradients g{weights(dtype, 700, 1, 0.1), weights(dtype, 20001, 2, 0.03), weights(dtype, 9, 3, 0)};
    const placed_batch b(changed + "index=golomb value=raw", g);
    const bytes frame = encode_on_cpu(b.method, g).frame;
    engine e(b, g, frame.size());
    // Another word anywhere: of a tensor that changes, and of one that does not.
    for (const auto& [tensor, at] : {std::pair<size_t, size_t>{0, 3}, {1, 20000}, {1, 0}, {2, 8}}) {
      auto bases = bases_of(g);
      bases[tensor][at * bytes_of(dtype)] ^= 4;
      const decoded want = apply_on_cpu(frame, g, bases), got = e.apply(frame, bases);
      INFO("tensor " << tensor << ", word " << at);
      CHECK(want.status == DR_E_ARGUMENT);
      CHECK(got.status == DR_E_ARGUMENT);
      CHECK(got.result.tensor == tensor);
      require_values(got, bases);
      // Who asks and waits is told as the CPU tells it.
      const decoded told = apply_and_wait(frame, g, bases);
      CHECK(told.status == DR_E_ARGUMENT);
      CHECK(told.error == want.error);
      CHECK(told.result.tensor == tensor);
      CHECK(told.result.what == got.result.what);
      require_values(told, bases);
    }
    CHECK(e.apply(frame, bases_of(g)).status == DR_OK);
    const decoded again = e.apply(frame, values_of(g));
    CHECK(again.status == DR_E_ARGUMENT);
    require_values(again, values_of(g));
    e.at.check_guards();
  }
  require_no_trouble();
}

TEST_CASE("of a patch with any byte changed the device thinks as the CPU does, and writes nothing that it refuses") {
  size_t refused = 0, taken = 0;
  std::vector<std::string> all = codings();
  all.push_back("sparsify=changed(max_ratio=0.3) index=golomb value=raw");
  for (const std::string& coding : all)
    for (const gradients& g : {gradients{weights(DR_BF16, 300, 1, 0.1)},
                               gradients{weights(DR_F32, 50, 2, 0.9), weights(DR_F16, 40, 3, 0.2)}}) {
      const placed_batch b(coding, g);
      gradients own = g;
      const bytes frame = encode_on_cpu(b.method, own).frame;
      engine e(b, g, frame.size());
      const auto bases = bases_of(g);
      for (size_t at = 0; at < frame.size(); ++at)
        for (const uint8_t flip : {1, 0x80, 0xff})
          for (const bool fixed : {false, true}) {
            bytes other = frame;
            other[at] ^= flip;
            if (fixed) frame_check::fix(other.data(), other.size());
            const decoded want = apply_on_cpu(other, g, bases), got = e.apply(other, bases);
            INFO("byte " << at << ", flip " << int{flip} << ", fixed " << fixed << ", the CPU says: " << want.error);
            // (A batch takes its own plan's frames only.)
            if (got.status == DR_OK) REQUIRE(want.status == DR_OK);
            require_values(got, got.status ? bases : want.values);
            ++(got.status ? refused : taken);
            if (at % 3 || !fixed) continue;  // (a host reads a header before a device has seen its check)
            const decoded read = apply_and_wait(other, g, bases);
            if (read.status == DR_E_UNSUPPORTED) continue;
            INFO("who waits is told: " << read.error);
            REQUIRE(read.status == want.status);
            require_values(read, want.status ? bases : want.values);
          }
      e.at.check_guards();
    }
  MESSAGE(refused << " patches refused, " << taken << " taken");
  require_no_trouble();
}

TEST_CASE("the check of the result is compared, too") {
  gradients g{weights(DR_BF16, 5000, 1, 0.05)};
  const placed_batch b(changed + "index=raw value=raw", g);
  bytes frame = encode_on_cpu(b.method, g).frame;
  dr_frame_info info{};
  inspect(frame, &info);
  frame[info.header_size + 16] ^= 1;  // a value
  frame_check::fix(frame.data(), frame.size());
  engine e(b, g, frame.size());
  const decoded got = e.apply(frame, bases_of(g));
  CHECK(got.status == DR_E_CORRUPT);
  CHECK(apply_on_cpu(frame, g, bases_of(g)).status == DR_E_CORRUPT);
  require_values(got, bases_of(g));
}

TEST_CASE("the changes of a patch as pairs, beside the base") {
  gradients g{weights(DR_BF16, 20000, 1, 0.02), weights(DR_BF16, 100, 2, 1)};
  const plan p(changed + "index=golomb value=raw");
  const bytes frame = encode_on_cpu(p, g).frame;
  const place::stream on;
  const dr_place at = on.at();
  context c;
  const place::buffer there = buffer_with(frame.data(), frame.size());
  std::vector<place::buffer> bases, indices, values;
  std::vector<dr_tensor_out> outs;
  for (const gradient& one : g) {
    bases.push_back(buffer_with(one.base.data(), one.base.size()));
    indices.emplace_back(4 * one.universe);
    values.emplace_back(2 * one.universe);
    dr_tensor_out o = out_for(one, false, values.back().at());
    o.index_dtype = DR_U32;
    o.indices = indices.back().at();
    o.capacity = one.universe;
    o.base = bases.back().at();
    outs.push_back(o);
  }
  const dr_decode_options options = applying();
  REQUIRE(dr_decode(c.handle, &at, there.at(), frame.size(), &options, outs.data(), sizeof(dr_tensor_out),
                    outs.size()) == DR_OK);
  for (size_t i = 0; i < g.size(); ++i) {
    CHECK(bases[i].bytes() == g[i].base);
    bytes made = g[i].base;
    const bytes places = indices[i].bytes(4 * outs[i].count), now = values[i].bytes(2 * outs[i].count);
    for (size_t k = 0; k < outs[i].count; ++k) {
      uint32_t place = 0;
      std::memcpy(&place, &places[4 * k], 4);
      std::memcpy(&made[2 * place], &now[2 * k], 2);
    }
    require_same(made, g[i].values, "weights");
  }
}

TEST_CASE("what has no path on a device is refused by name") {
  const place::stream on;
  const dr_place at = on.at();
  context c;
  const auto refuses = [&](const std::string& text, dr_dtype dtype, uint32_t width, const char* says) {
    const plan p(text);
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = dtype;
    t.universe = 10;
    t.width = width;
    dr_batch* batch = nullptr;
    CHECK(dr_batch_create(c.handle, p.handle, &at, &t, sizeof t, 1, 0, &batch) == DR_E_UNSUPPORTED);
    CHECK(c.error().find(says) != std::string::npos);
    dr_batch_destroy(batch);
  };
  refuses(changed + "index=golomb value=raw", DR_U8, 1, "u8: patches of this type run on the CPU only");
  refuses(changed + "index=golomb value=raw", DR_F32, 2, "patches of rows of several values run on the CPU only");
  refuses(changed + "index=magnitude value=raw", DR_BF16, 1, "magnitude runs on the CPU only");
  refuses(changed + "index=all value=raw", DR_BF16, 1, "all: patches of all elements run on the CPU only");
  refuses(changed + "index=golomb value=xor", DR_BF16, 1, "xor runs on the CPU only");
  refuses("patch", DR_BF16, 1, "auto runs on the CPU only");

  gradients g{weights(DR_BF16, 100, 1, 0.1)};
  const placed_batch b(changed + "index=golomb value=raw", g);
  const bytes frame = encode_on_cpu(b.method, g).frame;
  engine e(b, g, frame.size());
  e.at.put_frame(0, frame);
  const auto says = [&](auto&& call, const char* what) {
    std::string said;
    try {
      call();
    } catch (const std::runtime_error& error) {
      said = error.what();
    }
    INFO(said);
    CHECK(said.find(what) != std::string::npos);
  };
  says([&] { e.at.enqueue_decode(); }, "decode it with DR_DECODE_APPLY");
  says([&] { e.at.enqueue_merge({}, false); }, "decode it with DR_DECODE_APPLY");
  std::vector<uint64_t> sums(1);
  std::vector<uint8_t> history(100);
  dr_tensor t = g[0].tensor();
  const plan p(changed + "index=golomb value=raw");
  const place::buffer room(4096), result(sizeof(dr_result));
  for (const bool sum : {true, false}) {
    place::start_result(result);
    t.sums = sum ? sums.data() : nullptr;
    t.history = sum ? nullptr : history.data();
    const dr_call call{.struct_size = sizeof(dr_call)};
    CHECK(dr_encode(c.handle, p.handle, &call, &at, &t, sizeof t, 1, room.at(), room.size(),
                    reinterpret_cast<dr_result*>(result.at())) == DR_E_UNSUPPORTED);
    CHECK(c.error().find(sum ? "has sums" : "has a history") != std::string::npos);
  }
}

TEST_CASE("launches of patches do not grow with the number of tensors") {
  const auto launches = [&](const std::string& codecs, size_t n) {
    gradients all;
    for (size_t i = 0; i < n; ++i) all.push_back(weights(DR_BF16, 1000, i, 0.1));
    return placed_batch(changed + codecs, all).info.launches;
  };
  for (const std::string codecs : {"index=golomb value=raw", "index=golomb value=ulp"}) {
    CHECK(launches(codecs, 161) == launches(codecs, 1));
    CHECK(launches(codecs, 1) == (codecs.ends_with("raw") ? 5 : 9));  // begin, find_changes, value, index, pack
  }
}

TEST_CASE("a graph of a patch is replayed with other weights") {
  gradients g{weights(DR_BF16, 30000, 1, 0.05), weights(DR_F32, 3000, 2, 0.3)};
  const placed_batch b(changed + "index=golomb value=raw", g);
  sender s(b, g);
  engine e(b, g, b.info.bound);
  (void)s.encode();
  const place::graph steps(s.stream, [&] { s.enqueue(); });
  for (uint64_t step = 0; step < 3; ++step) {
    g = {weights(DR_BF16, 30000, 10 + step, 0.05), weights(DR_F32, 3000, 20 + step, 0.3)};
    s.put(g);
    s.forget();
    steps.launch(s.stream);
    const encoded got = s.read();
    REQUIRE(got.status == DR_OK);
    require_same(got.frame, encode_on_cpu(b.method, g).frame, "frame");
    const decoded made = e.apply(got.frame, bases_of(g));
    REQUIRE(made.status == DR_OK);
    require_values(made, values_of(g));
  }
  require_no_trouble();
}

}  // namespace
