// Bytes that are no frame of ours: a GPU answers with a status, never with an error of CUDA's that ends the process's luck; it writes nothing
// then, and takes nothing that the CPU would not take.
#include <fstream>

#include "cuda/gpu_case.hpp"
#include "fuzz/fix_check.hpp"
#include "fuzz/pack.hpp"

using namespace client;

namespace {

// Decodes damaged frames of one batch.
class victim {
 public:
  victim(const std::string& text, const gradients& g, size_t room, uint64_t segment_rows = 0)
      : like_(g), batch_(text, g, 2, segment_rows), receiver_(batch_, g, 1, room, true) {}

  // The GPU is at most as lenient as the CPU, gives the CPU's values, and nothing at all if it refuses.
  void expose(const bytes& frame, size_t readable) {
    const bytes there(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(readable));
    receiver_.put_frame(0, there);
    receiver_.forget();
    receiver_.enqueue_decode();
    const decoded got = receiver_.read();
    ++count;
    if (got.status != DR_OK) {
      ++refused;
      REQUIRE(all_poison(got.values));
      return;
    }
    const decoded want = decode_on_cpu(there, like_, true);
    INFO("the CPU says: " << want.error);
    REQUIRE(want.status == DR_OK);
    for (size_t i = 0; i < like_.size(); ++i) require_same(got.values[i], want.values[i], "values");
  }
  void expose(const bytes& frame) { expose(frame, frame.size()); }
  // As it is, and with corrected checks, so that codecs read it.
  void expose_both(bytes frame) {
    expose(frame);
    frame_check::fix(frame.data(), frame.size());
    expose(frame);
  }
  void finish() {
    receiver_.check_guards();
    require_no_trouble();
  }

  size_t count = 0, refused = 0;

 private:
  gradients like_;
  placed_batch batch_;
  receiver receiver_;
};

std::vector<std::string> plans(const std::string& sparsify) {
  std::vector<std::string> all;
  for (const std::string& pair : pairs_of_codecs()) {
    if (pair.find("levels=1") != std::string::npos || pair.find("degree=0") != std::string::npos) continue;
    all.push_back(sparsify + " " + pair);
  }
  return all;
}

bytes frame_of(const std::string& text, gradients g, uint64_t segment_rows = 0) {
  dr_call call{};
  call.segment_rows = segment_rows;
  return encode_on_cpu(plan(text), g, call).frame;
}

}  // namespace

TEST_SUITE("sample") {
  TEST_CASE("some damaged frames, for compute-sanitizer") {
    for (const std::string& text : plans("sparsify=topr(ratio=0.1)")) {
      INFO(text);
      gradients g{make(DR_F32, 3000, 3), make(DR_BF16, 300, 4)};
      const bytes frame = frame_of(text, g);
      victim v(text, g, frame.size());
      rng r{7};
      for (int round = 0; round < 12; ++round) {
        bytes damaged = frame;
        for (int i = 0; i < 3; ++i) damaged[r.next() % damaged.size()] = static_cast<uint8_t>(r.next());
        v.expose_both(damaged);
      }
      v.expose(frame, frame.size() / 2);
      v.finish();
    }
  }
}

TEST_CASE("every bit of a small frame flipped: refused, or what the CPU reads") {
  for (const std::string& codecs : plans("sparsify=topr(count=7)"))
    for (const char* shape : {"one tensor", "two tensors", "a bucket", "segments"}) {
      const std::string text = codecs + (*shape == 'a' ? " bucket=flat" : "");
      INFO(text << ", " << shape);
      gradients g{make(DR_F32, 60, 3)};
      if (*shape != 'o') g.push_back(make(DR_F32, 40, 4));
      const uint64_t segment_rows = *shape == 's' ? 32 : 0;
      const bytes frame = frame_of(text, g, segment_rows);
      victim v(text, g, frame.size(), segment_rows);
      v.expose(frame);
      REQUIRE(v.refused == 0);
      for (size_t bit = 0; bit < 8 * frame.size(); bit += only_small() ? 3 : 1) {
        bytes damaged = frame;
        damaged[bit / 8] = static_cast<uint8_t>(damaged[bit / 8] ^ 1u << bit % 8);
        INFO("bit " << bit);
        v.expose_both(damaged);
      }
      CHECK(v.refused > v.count / 2);  // every flip without corrected checks
      v.finish();
    }
}

TEST_CASE("a frame cut anywhere is refused") {
  for (const std::string& text : plans("sparsify=topr(count=9)")) {
    INFO(text);
    gradients g{make(DR_F32, 80, 3), make(DR_F32, 50, 4)};
    const bytes frame = frame_of(text, g);
    victim v(text, g, frame.size());
    for (size_t size = 0; size < frame.size(); ++size) {
      const size_t before = v.refused;
      v.expose(frame, size);
      REQUIRE(v.refused == before + 1);
    }
    v.finish();
  }
}

TEST_CASE("words of larger frames overwritten with anything, their checks put right") {
  const int rounds = only_small() ? 40 : 400;
  for (const std::string& codecs : plans("sparsify=topr(ratio=0.1)"))
    for (const char* shape : {"one tensor", "many tensors", "a bucket", "segments"}) {
      const std::string text = codecs + (*shape == 'a' ? " bucket=flat" : "");
      INFO(text << ", " << shape);
      gradients g{make(DR_F32, only_small() ? 4000 : 40000, 3)};
      if (*shape == 'm') g.insert(g.end(), {make(DR_BF16, 300, 4), make(DR_F16, 9000, 5), make(DR_F32, 0, 5)});
      if (*shape == 'a') g.insert(g.end(), {make(DR_F32, 300, 4), make(DR_F32, 0, 5), make(DR_F32, 9000, 5)});
      const uint64_t segment_rows = *shape == 's' ? 1024 : 0;
      const bytes frame = frame_of(text, g, segment_rows);
      victim v(text, g, frame.size(), segment_rows);
      rng r{99};
      for (int round = 0; round < rounds; ++round) {
        bytes damaged = frame;
        const uint64_t changes = 1 + r.next() % 4;
        for (uint64_t i = 0; i < changes; ++i) {
          // Headers and the beginnings of streams more often than their share.
          const uint64_t at = r.next() % (r.next() % 2 ? std::min<size_t>(160, frame.size()) : frame.size());
          const uint64_t what = r.next() % 4, size = std::min<uint64_t>(1 + r.next() % 8, frame.size() - at);
          for (uint64_t k = 0; k < size; ++k)
            damaged[at + k] = static_cast<uint8_t>(what == 0 ? 0 : what == 1 ? 255 : r.next());
        }
        INFO("round " << round);
        v.expose_both(damaged);
      }
      v.finish();
    }
}

TEST_CASE("random bytes, and random bytes behind a sound header") {
  for (const std::string& text : plans("sparsify=topr(ratio=0.1)")) {
    INFO(text);
    gradients g{make(DR_F32, 5000, 3)};
    const bytes frame = frame_of(text, g);
    victim v(text, g, frame.size());
    rng r{5};
    for (int round = 0; round < (only_small() ? 20 : 200); ++round) {
      bytes damaged = frame;
      const size_t from = round % 3 == 0 ? 0 : round % 3 == 1 ? 3 : std::min<size_t>(32, frame.size());
      const bool ones = round % 5 == 4, zeros = round % 7 == 6;
      for (size_t i = from; i < damaged.size(); ++i)
        damaged[i] = static_cast<uint8_t>(ones ? 255 : zeros ? 0 : r.next());
      INFO("round " << round);
      v.expose_both(damaged);
    }
    v.finish();
  }
}

TEST_CASE("frames of other batches: sound, but not what was agreed") {
  const std::vector<std::string> all = plans("sparsify=topr(ratio=0.1)");
  gradients g{make(DR_F32, 5000, 3)};
  std::vector<bytes> foreign{
      frame_of("sparsify=topr(ratio=0.1) index=golomb+deflate value=raw+deflate", g),
      frame_of("sparsify=topr(ratio=0.9) index=golomb value=qsgd", g),
      frame_of("sparsify=topr(ratio=0.1) index=golomb value=qsgd", {make(DR_F32, 5001, 3)}),
      frame_of("sparsify=topr(ratio=0.1) index=golomb value=qsgd", {make(DR_BF16, 5000, 3)}),
      frame_of("sparsify=topr(ratio=0.1) index=golomb", {make(DR_F32, 5000, 3), make(DR_F32, 9, 3)}),
      frame_of("index=golomb", {}),
      frame_of("sparsify=threshold(value=0.01,max_ratio=0.1)", g)};
  for (const std::string& text : all) foreign.push_back(frame_of(text, g));
  size_t room = 0;
  for (const bytes& f : foreign) room = std::max(room, f.size());
  for (const std::string& text : all) {
    INFO(text);
    victim v(text, g, room);
    for (const bytes& f : foreign) v.expose(f);
    v.finish();
  }
}

TEST_CASE("of frames to merge one is damaged: nothing is added, and the result names it") {
  const std::string text = "sparsify=topr(ratio=0.1) index=golomb value=qsgd";
  const plan p(text);
  gradients g{make(DR_F32, 4000, 3), make(DR_F32, 70, 4)};
  for (const size_t k : {size_t{1}, size_t{3}, size_t{8}})
    for (size_t bad = 0; bad < k; ++bad) {
      std::vector<bytes> frames;
      size_t room = 0;
      for (size_t i = 0; i < k; ++i) {
        gradients own{make(DR_F32, 4000, i), make(DR_F32, 70, 9 + i)};
        frames.push_back(encode_on_cpu(p, own).frame);
        room = std::max(room, frames.back().size());
      }
      const placed_batch b(text, g);
      receiver r(b, g, k, room, true);
      for (const size_t at : {size_t{1}, size_t{13}, frames[bad].size() / 2, frames[bad].size() - 5}) {
        bytes damaged = frames[bad];
        damaged[at] = static_cast<uint8_t>(damaged[at] ^ 0x41);
        for (size_t i = 0; i < k; ++i) r.put_frame(i, i == bad ? damaged : frames[i]);
        for (const bool adds : {true, false}) {
          INFO(k << " frames, " << bad << " damaged at " << at << ", adds " << adds);
          r.forget();
          r.enqueue_merge({}, adds);
          const decoded d = r.read();
          REQUIRE(d.status != DR_OK);
          CHECK(d.result.frame == bad);
          REQUIRE(all_poison(d.values));
        }
      }
      r.check_guards();
    }
  require_no_trouble();
}

TEST_CASE("status frames of a GPU decode to the sender's trouble everywhere") {
  const std::string text = "sparsify=topr(ratio=0.1) index=golomb value=qsgd";
  gradients g{make(DR_F32, 4000, 3)};
  g[0].set(11, std::numeric_limits<float>::quiet_NaN());
  const placed_batch b(text, g);
  sender s(b, g);
  dr_call call{};
  call.flags = DR_CALL_STATUS_FRAME;
  const encoded e = s.encode(call);
  REQUIRE(e.status == DR_E_ARGUMENT);
  REQUIRE(e.result.size > 0);
  CHECK(decode_on_cpu(e.frame, g, true).status == DR_E_PEER);
  receiver r(b, g, 1, e.frame.size(), true);
  const decoded d = r.decode(e.frame);
  CHECK(d.status != DR_OK);
  CHECK(all_poison(d.values));
  require_no_trouble();
}

TEST_CASE("the corpus of the fuzzer, without a prepared batch: the CPU's answers") {
  size_t files = 0, decoded_frames = 0;
  std::ifstream file(DR_CORPUS, std::ios::binary);
  const bytes pack((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const bool whole = each_of_pack(pack, [&](bytes frame, size_t number, size_t) {
    for (const bool fixed : {false, true}) {
      if (fixed) frame_check::fix(frame.data(), frame.size());
      INFO("seed " << number << ", fixed " << fixed);
      ++files;
      dr_frame_info head{};
      head.struct_size = sizeof head;
      std::vector<dr_tensor_info> infos(8);
      for (dr_tensor_info& t : infos) t.struct_size = sizeof t;
      const bool sound = dr_inspect(frame.data(), frame.size(), &head, infos.data(), sizeof(dr_tensor_info),
                                    infos.size(), nullptr) == DR_OK;
      gradients like;
      uint64_t elements = 0;
      for (uint32_t i = 0; i < (sound ? std::min<uint32_t>(head.tensors, 8) : 1); ++i) {
        gradient one;
        one.dtype = sound ? infos[i].dtype : dr_dtype{DR_F32};
        one.universe = sound ? infos[i].universe : 100;
        one.width = sound ? infos[i].width : 1;
        elements += std::min<uint64_t>(one.universe, 1u << 20) * std::min<uint64_t>(one.width, 1u << 20);
        like.push_back(one);
      }
      if ((sound && head.tensors > 8) || elements > 1u << 16) continue;
      const place::stream stream(2);
      const dr_place at = stream.at();
      context c;
      const place::buffer placed = buffer_with(frame.data(), frame.size());
      std::vector<place::buffer> values;
      std::vector<dr_tensor_out> outs;
      for (const gradient& g : like) {
        values.emplace_back(out_size(g, true));
        outs.push_back(out_for(g, true, values.back().at()));
      }
      const decoded want = decode_on_cpu(frame, like, true);
      const dr_status s = dr_decode(c.handle, &at, placed.at(), placed.size(), nullptr, outs.data(),
                                    sizeof(dr_tensor_out), outs.size());
      stream.wait();
      INFO("the CPU says: " << want.error << "; the GPU: " << c.error());
      if (want.status != DR_OK) CHECK(s != DR_OK);
      if (s == DR_OK) {
        ++decoded_frames;
        for (size_t i = 0; i < like.size(); ++i) require_same(values[i].bytes(), want.values[i], "values");
      }
      for (const place::buffer& v : values) CHECK(v.intact());
    }
  });
  CHECK(whole);
  CHECK(files > 100);
  CHECK(decoded_frames > 10);
  require_no_trouble();
}
