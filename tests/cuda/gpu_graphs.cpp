// Captured once, replayed often; and several streams at once. A capture forbids what a prepared call promises not to do: to allocate and to wait.

#include <thread>

#include "cuda/gpu_case.hpp"

using namespace client;

namespace {

gradients fresh(const gradients& like, uint64_t step) {
  gradients g = like;
  for (size_t i = 0; i < g.size(); ++i) g[i].values = make(g[i].dtype, g[i].universe, 1000 * step + i).values;
  return g;
}

std::vector<std::string> plans() {
  std::vector<std::string> all;
  for (const std::string& pair : pairs_of_codecs()) all.push_back("sparsify=topr(ratio=0.05) " + pair);
  all.push_back("sparsify=threshold(value=2,max_ratio=0.5) index=golomb value=qsgd");
  return all;
}

gradients few() {
  const uint64_t d = only_small() ? 4200 : 500000;
  return {make(DR_F32, d, 1), make(DR_BF16, 700, 2), make(DR_F32, 0, 3), make(DR_F16, d / 9, 4)};
}

}  // namespace

TEST_CASE("an encode is captured before it ever ran, and replays yield the CPU's frames of whatever is there by then") {
  for (const std::string& text : plans()) {
    INFO(text);
    const gradients first = few();
    const placed_batch b(text, first);
    sender s(b, first);
    const place::graph g(s.stream, [&] { s.enqueue(); });
    if (place::on_cuda) CHECK(g.kernels() <= b.info.launches);
    for (uint64_t step = 0; step < 4; ++step) {
      gradients now = fresh(first, step / 2);  // each twice
      s.put(now);
      s.forget();
      g.launch(s.stream);
      const encoded got = s.read(), want = encode_on_cpu(b.method, now);
      REQUIRE(want.status == DR_OK);
      REQUIRE(got.status == DR_OK);
      require_same(got.frame, want.frame, "frame");
    }
    s.check_guards();
    ++round_trips;
  }
  require_no_trouble();
}

TEST_CASE("replays draw the numbers of the step that is there by then, and their frames carry it") {
  for (const char* text :
       {"sparsify=topr(ratio=0.05) index=golomb value=qsgd", "sparsify=random(ratio=0.05) index=golomb value=qsgd",
        "sparsify=random(ratio=0.5) feedback=residual index=golomb value=qsgd bucket=flat"}) {
    INFO(text);
    gradients own{make(DR_F32, only_small() ? 4200 : 500000, 1), make(DR_F32, 0, 3), make(DR_F32, 700, 2)};
    const bool fed = std::string(text).find("feedback") != std::string::npos;
    for (gradient& one : own)
      if (fed) one.give_state();
    const placed_batch b(text, own);
    sender s(b, own);
    place::buffer step_word(8);
    dr_call call{};
    call.seed = 8;
    call.private_seed = 7;
    dr_call at = call;
    at.step = reinterpret_cast<uintptr_t>(step_word.at());
    at.flags = uint32_t{DR_CALL_STEP_AT} | DR_CALL_TAG | DR_CALL_STATUS_FRAME;
    at.tag = 100;
    call.flags = DR_CALL_TAG | DR_CALL_STATUS_FRAME;
    const place::graph g(s.stream, [&] { s.enqueue(at); });
    bytes last;
    for (const uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{7}, ~uint64_t{0}}) {
      step_word.put_bytes(&step, sizeof step);
      s.forget();
      g.launch(s.stream);
      call.step = step;
      call.tag = 100 + step;
      const encoded got = s.read(), want = encode_on_cpu(b.method, own, call);
      REQUIRE(want.status == DR_OK);
      REQUIRE(got.status == DR_OK);
      require_same(got.frame, want.frame, "frame");
      CHECK(got.frame != last);
      last = got.frame;
    }
    own[2].set(699, std::numeric_limits<float>::infinity());
    for (uint64_t i = 0; i < own[2].universe; ++i) own[2].set(i, std::numeric_limits<float>::infinity());
    s.put(own);
    g.launch(s.stream);
    const encoded got = s.read(), want = encode_on_cpu(b.method, own, call);
    CHECK(got.status == want.status);
    if (got.status)
      CHECK(std::equal(got.frame.begin() + 24, got.frame.begin() + 32, want.frame.begin() + 24));  // the tag
    s.check_guards();
    CHECK(step_word.intact());
  }
  require_no_trouble();
}

TEST_CASE("a step by its address: what is refused, and on the CPU") {
  const plan p("sparsify=random(ratio=0.2) index=golomb value=qsgd");
  gradients own{make(DR_F32, 3000, 1)};
  dr_call call{};
  call.step = 5;
  call.flags = DR_CALL_TAG;
  call.tag = 8;
  const encoded want = encode_on_cpu(p, own, call);
  const uint64_t step = 5;
  call.flags = uint32_t{DR_CALL_TAG} | DR_CALL_STEP_AT;
  call.tag = 3;
  call.step = reinterpret_cast<uintptr_t>(&step);
  require_same(encode_on_cpu(p, own, call).frame, want.frame, "frame");
  call.step = 0;
  CHECK(encode_on_cpu(p, own, call).status == DR_E_ARGUMENT);
  call.step = reinterpret_cast<uintptr_t>(&step) + 4;
  CHECK(encode_on_cpu(p, own, call).status == DR_E_ARGUMENT);
}

TEST_CASE("replays with feedback carry the state on") {
  gradients own = few();
  for (gradient& g : own) g.give_state();
  const placed_batch b("sparsify=topr(ratio=0.05) feedback=residual(beta=0.9) index=golomb value=qsgd", own);
  sender s(b, own);
  const place::graph g(s.stream, [&] { s.enqueue(); });
  for (uint64_t step = 0; step < 5; ++step) {
    const gradients now = fresh(own, step);
    for (size_t i = 0; i < own.size(); ++i) own[i].values = now[i].values;
    s.put(own);
    g.launch(s.stream);
    const encoded got = s.read(), want = encode_on_cpu(b.method, own);
    REQUIRE(got.status == DR_OK);
    require_same(got.frame, want.frame, "frame");
    for (size_t i = 0; i < own.size(); ++i) REQUIRE(s.state(i) == own[i].state);
  }
  require_no_trouble();
}

TEST_CASE("a decode is captured before it ever ran, and replays read whatever frame is there by then") {
  for (const std::string& text : plans()) {
    INFO(text);
    const gradients first = few();
    const placed_batch b(text, first);
    std::vector<bytes> frames;
    size_t room = 0;
    for (uint64_t step = 0; step < 3; ++step) {
      gradients now = fresh(first, step);
      frames.push_back(encode_on_cpu(b.method, now).frame);
      room = std::max(room, frames.back().size());
    }
    for (bytes& f : frames) f.resize(room);  // a frame tells its own end
    receiver r(b, first, 1, room, true);
    r.put_frame(0, frames[0]);
    const place::graph g(r.stream, [&] { r.enqueue_decode(); });
    for (const size_t i : {0, 1, 1, 2, 0}) {
      r.put_frame(0, frames[i]);
      r.forget();
      g.launch(r.stream);
      const decoded got = r.read(), want = decode_on_cpu(frames[i], first, true);
      REQUIRE(got.status == DR_OK);
      for (size_t k = 0; k < first.size(); ++k) require_same(got.values[k], want.values[k], "values");
    }
    // A damaged one in the same graph, and then a sound one again.
    bytes damaged = frames[1];
    damaged[40] = static_cast<uint8_t>(damaged[40] ^ 4);
    r.put_frame(0, damaged);
    r.forget();
    g.launch(r.stream);
    const decoded refused = r.read();
    CHECK(refused.status != DR_OK);
    CHECK(all_poison(refused.values));
    r.put_frame(0, frames[2]);
    g.launch(r.stream);
    CHECK(r.read().status == DR_OK);
    r.check_guards();
  }
  require_no_trouble();
}

TEST_SUITE_BEGIN("sample");

TEST_CASE("a merge is captured before it ever ran; replays add again, in the order of the frames") {
  const std::string text = "sparsify=topr(ratio=0.05) index=golomb value=qsgd";
  const gradients first = few();
  const placed_batch b(text, first);
  for (const bool adds : {true, false}) {
    std::vector<bytes> frames;
    floats weights;
    size_t room = 0;
    for (uint64_t i = 0; i < 8; ++i) {
      gradients now = fresh(first, i);
      frames.push_back(encode_on_cpu(b.method, now).frame);
      weights.push_back(1 / static_cast<float>(i + 3));
      room = std::max(room, frames.back().size());
    }
    std::vector<bytes> sums;
    for (const gradient& g : first) sums.emplace_back(out_size(g, true));
    receiver r(b, first, frames.size(), room, true);
    for (size_t i = 0; i < frames.size(); ++i) r.put_frame(i, frames[i]);
    r.put_values(sums);
    const place::graph g(r.stream, [&] { r.enqueue_merge(weights, adds); });
    for (int replay = 0; replay < 4; ++replay) {
      g.launch(r.stream);
      const decoded got = r.read(), want = merge_on_cpu(frames, weights, adds, first, true, sums);
      REQUIRE(want.status == DR_OK);
      REQUIRE(got.status == DR_OK);
      sums = want.values;
      for (size_t k = 0; k < first.size(); ++k) require_same(got.values[k], sums[k], "sums");
    }
    r.check_guards();
  }
  require_no_trouble();
}

TEST_CASE("from gradient to sum in two graphs, without a look by the host: encode, then merge that frame") {
  const std::string text = "sparsify=topr(ratio=0.05) index=golomb value=qsgd";
  const gradients first = few();
  const placed_batch b(text, first);
  sender s(b, first);
  receiver r(b, first, 2, 16, true);
  // Frames tell their own end, so their size need not be known.
  r.adopt_frame(0, s.frame().at(), b.info.bound);
  r.adopt_frame(1, s.frame().at(), b.info.bound);
  std::vector<bytes> sums;
  for (const gradient& g : first) sums.emplace_back(out_size(g, true));
  r.put_values(sums);
  const place::graph encode(s.stream, [&] { s.enqueue(); });
  const place::graph merge(r.stream, [&] { r.enqueue_merge({0.5f, 2.0f}, true); });
  for (uint64_t step = 0; step < 3; ++step) {
    gradients now = fresh(first, step);
    s.put(now);
    encode.launch(s.stream);
    merge.launch(s.stream);  // on the sender's stream, so behind the encode
    s.stream.wait();
    const decoded got = r.read();
    REQUIRE(got.status == DR_OK);
    const bytes frame = encode_on_cpu(b.method, now).frame;
    sums = merge_on_cpu({frame, frame}, {0.5f, 2.0f}, true, first, true, sums).values;
    for (size_t k = 0; k < first.size(); ++k) require_same(got.values[k], sums[k], "sums");
  }
  require_no_trouble();
}

TEST_SUITE_END();

TEST_CASE("one batch on two streams at once, each with its own workspace") {
  for (const std::string& text : {std::string("sparsify=topr(ratio=0.05) index=golomb value=qsgd"),
                                  std::string("sparsify=topr(ratio=0.02) index=bloom(policy=p0,fpr=0.01) value=raw"),
                                  std::string("sparsify=topr(ratio=0.05) index=raw value=fit_poly")}) {
    INFO(text);
    const gradients first = few();
    const placed_batch b(text, first);
    gradients left = fresh(first, 1), right = fresh(first, 2);
    const bytes left_frame = encode_on_cpu(b.method, left).frame, right_frame = encode_on_cpu(b.method, right).frame;
    const decoded left_values = decode_on_cpu(left_frame, first, true),
                  right_values = decode_on_cpu(right_frame, first, true);
    sender x(b, left), y(b, right);
    receiver u(b, first, 1, left_frame.size(), true), v(b, first, 1, right_frame.size(), true);
    u.put_frame(0, left_frame);
    v.put_frame(0, right_frame);
    const place::graph gx(x.stream, [&] { x.enqueue(); }), gy(y.stream, [&] { y.enqueue(); });
    const place::graph gu(u.stream, [&] { u.enqueue_decode(); }), gv(v.stream, [&] { v.enqueue_decode(); });
    for (int round = 0; round < (only_small() ? 3 : 50); ++round) {
      gx.launch(x.stream);
      gy.launch(y.stream);
      gu.launch(u.stream);
      gv.launch(v.stream);
      x.enqueue();
      y.enqueue();
    }
    require_same(x.read().frame, left_frame, "the left frame");
    require_same(y.read().frame, right_frame, "the right frame");
    const decoded a = u.read(), c = v.read();
    for (size_t k = 0; k < first.size(); ++k) {
      require_same(a.values[k], left_values.values[k], "the left values");
      require_same(c.values[k], right_values.values[k], "the right values");
    }
    for (const sender* s : {&x, &y}) s->check_guards();
    for (const receiver* r : {&u, &v}) r->check_guards();
  }
  require_no_trouble();
}

TEST_CASE("one batch from four threads of the host, each with its own context and stream") {
  const std::string text = "sparsify=topr(ratio=0.05) index=golomb value=qsgd";
  const gradients first = few();
  const placed_batch b(text, first);
  struct work {
    gradients g;
    bytes want;
    std::unique_ptr<sender> at;
    std::string error;
  };
  std::vector<work> all(4);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].g = fresh(first, i);
    all[i].want = encode_on_cpu(b.method, all[i].g).frame;
    all[i].at = std::make_unique<sender>(b, all[i].g);
  }
  std::vector<std::thread> threads;
  for (work& w : all)
    threads.emplace_back([&w] {
      try {
        for (int round = 0; round < (only_small() ? 2 : 30); ++round) w.at->enqueue();
      } catch (const std::exception& e) {
        w.error = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  for (work& w : all) {
    CHECK(w.error == "");
    require_same(w.at->read().frame, w.want, "frame");
  }
  require_no_trouble();
}

TEST_CASE("the same input yields the same frame a hundred times, however blocks are scheduled") {
  for (const std::string& text : plans()) {
    INFO(text);
    const gradients g = few();
    const placed_batch b(text, g, 5);
    sender s(b, g);
    const bytes first = s.encode().frame;
    for (int i = 0; i < (only_small() ? 3 : 100); ++i) {
      s.forget();
      const encoded again = s.encode();
      REQUIRE(again.status == DR_OK);
      require_same(again.frame, first, "frame");
    }
  }
  require_no_trouble();
}
