// One small tensor: all of a call is one launch, of one block (codecs/small_calls.hpp).
#include "cuda/gpu_case.hpp"

using namespace client;

namespace {

std::vector<uint64_t> small_sizes() {
  return only_small() ? std::vector<uint64_t>{4200} : std::vector<uint64_t>{4200, 16385, 36864, 65536};
}

const char* const streams[] = {"index=golomb value=qsgd", "index=golomb value=log_quant", "index=golomb value=raw",
                               "index=raw value=raw"};

}  // namespace

TEST_CASE("one small tensor: a captured encode carries state and step on, and is one launch") {
  for (const std::string how : streams)
    for (const std::string feedback : {"", " feedback=residual(beta=0.9,gamma=0.5)"})
      for (const dr_dtype dtype : value_types)
        for (const uint64_t d : small_sizes()) {
          const std::string text = "sparsify=topr(ratio=0.015) " + how + feedback;
          INFO(text << ", type " << dtype << ", " << d << " elements");
          gradients own{make(dtype, d, 1)};
          if (!feedback.empty()) own[0].give_state();
          const placed_batch b(text, own);
          CHECK(b.info.launches == 1);
          sender s(b, own);
          place::buffer step_word(8);
          dr_call call{};
          call.seed = 8;
          call.private_seed = 7;
          dr_call at = call;
          at.step = reinterpret_cast<uintptr_t>(step_word.at());
          at.flags = uint32_t{DR_CALL_STEP_AT} | DR_CALL_TAG;
          call.flags = DR_CALL_TAG;
          const place::graph g(s.stream, [&] { s.enqueue(at); });
          if (place::on_cuda) CHECK(g.kernels() == 1);
          for (const uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{7}}) {
            own[0].values = make(dtype, d, step + 1).values;
            s.put(own);
            step_word.put_bytes(&step, sizeof step);
            s.forget();
            g.launch(s.stream);
            call.step = call.tag = step;
            const encoded got = s.read(), want = encode_on_cpu(b.method, own, call);
            REQUIRE(want.status == DR_OK);
            REQUIRE(got.status == DR_OK);
            require_same(got.frame, want.frame, "frame");
            if (!feedback.empty()) REQUIRE(s.state(0) == own[0].state);
          }
          s.check_guards();
          CHECK(step_word.intact());
          ++round_trips;
        }
  require_no_trouble();
}

TEST_CASE("one small tensor: its frame, fresh and added") {
  for (const std::string how : streams)
    for (const dr_dtype dtype : value_types)
      for (const uint64_t d : small_sizes())
        require_same_merge("sparsify=topr(ratio=0.015) " + how, dtype, 1,
                           [&](size_t i) { return gradients{make(dtype, d, i)}; });
  require_no_trouble();
}

TEST_CASE("few pairs of one sparse tensor") {
  for (const std::string how : streams)
    for (const uint32_t width : {1u, 3u}) {
      both_ways(how, {make_sparse(DR_F32, 9000000, 300, 3, DR_I64, width)});
    }
  require_no_trouble();
}
