// Sparsifiers beside Top-r and thresholds: positions by chance, the largest of every chunk, and blocks of most energy.
#include "cuda/gpu_case.hpp"

namespace {

using namespace client;

constexpr dr_dtype value_types[] = {DR_F32, DR_F16, DR_BF16};

dr_call call_at(uint64_t step) {
  dr_call call{};
  call.step = step;
  call.seed = 12;
  call.private_seed = 3;
  return call;
}

std::vector<uint64_t> sizes() {
  std::vector<uint64_t> all{1, 2, 31, 64, 257, 4097, 8191, 8192, 8193, 20000};
  if (!only_small()) all.insert(all.end(), {1000000, 25600000});
  return all;
}

TEST_CASE("positions by chance are the CPU's, for any share of any size") {
  for (const uint64_t d : sizes())
    for (const char* share :
         {"ratio=0.01", "ratio=0.1", "ratio=0.37", "ratio=0.5", "ratio=0.51", "ratio=0.97", "ratio=1", "count=1"}) {
      INFO("d " << d << ", " << share);
      const std::string random = "sparsify=random(" + std::string(share) + ") ";
      for (uint64_t step = 0; step < 3; ++step)
        both_ways(random + "index=golomb value=qsgd", {make(DR_F32, d, d)}, call_at(step), static_cast<int32_t>(step),
                  step);
      both_ways(random + "index=raw value=raw", {make(DR_BF16, d, d, 0.5), make(DR_F16, d / 3, 1), make(DR_F16, 0, 1)},
                call_at(d), 1, 3);
    }
  require_no_trouble();
}

TEST_CASE("of a threshold more than max_ratio: dense rows and states are the CPU's, beside rows that are not dense") {
  const std::string most = "sparsify=threshold(value=0.7,max_ratio=";
  for (const uint64_t d : sizes()) {
    if (d > 1000000) continue;  // (states of three steps, on the CPU, too)
    for (const char* ratio : {"0", "0.05", "0.4", "0.6"}) {
      INFO("d " << d << ", max_ratio " << ratio);
      for (const dr_dtype dtype : value_types) {
        both_ways(most + ratio + ") index=golomb value=qsgd", {make(dtype, d, d), make(dtype, d / 3 + 1, 4, 0.98)}, {},
                  static_cast<int32_t>(d % 5), d % 3);
        steps_with_states(most + ratio + ") feedback=residual(beta=0.9,gamma=0.5) index=golomb value=ternary",
                          {make(dtype, d, d), make(dtype, 700, 1), make(dtype, 0, 1)}, d % 3, call_at(0));
      }
      steps_with_states(most + ratio + ") bucket=flat feedback=residual index=raw value=raw",
                        {make(DR_BF16, d, d), make(DR_BF16, 0, 1), make(DR_BF16, 3, 1), make(DR_BF16, 500, 2, 0.99)}, 1,
                        call_at(0));
    }
  }
  require_no_trouble();
}

TEST_CASE("chunks are the CPU's, of any size, with any target") {
  for (const uint64_t d : sizes())
    for (const char* chunk :
         {"count=1,size=1", "count=2,size=7", "ratio=0.1,size=64", "count=200,size=256", "count=3,size=257", "count=64",
          "ratio=0.5,size=3000", "count=100,size=8192", "ratio=0.01,size=8193", "ratio=0.3,size=32768"}) {
      if (d > 1000000 && std::string(chunk).find("size") != std::string::npos) continue;
      INFO("d " << d << ", " << chunk);
      const std::string chunks = "sparsify=chunks(" + std::string(chunk) + ") ";
      both_ways(chunks + "index=golomb value=qsgd", {make(DR_F32, d, d), make(DR_F32, d / 2, 1, 0.95)}, {},
                static_cast<int32_t>(d % 4), d % 3);
      both_ways(chunks + "index=raw value=raw", {make(DR_F16, d, d), make(DR_BF16, 33, 1), make(DR_BF16, 0, 1)});
    }
  for (const dr_dtype dtype : value_types)
    for (const named_gradient& n : awkward(dtype, 9000)) {
      INFO(n.name << ", type " << dtype);
      for (const char* chunk : {"count=5,size=100", "count=100,size=1000", "ratio=0.2,size=20000"})
        both_ways("sparsify=chunks(" + std::string(chunk) + ") index=golomb value=raw", {n.g});
    }
  require_no_trouble();
}

TEST_CASE("chance and chunks in buckets, with feedback, and beside one another in a frame") {
  for (const dr_dtype dtype : value_types)
    for (const char* s : {"random(ratio=0.03)", "random(ratio=0.7)", "chunks(count=3,size=50)",
                          "chunks(count=40,size=1024)", "chunks(count=40,size=10000)"})
      for (const char* bucket : {"", " bucket=flat"})
        for (const char* p : {" index=golomb value=qsgd", " index=bloom(policy=p0,fpr=0.01) value=raw"}) {
          const gradients some{make(dtype, 5000, 1), make(dtype, 0, 1), make(dtype, 1, 1), make(dtype, 9001, 2),
                               make(dtype, 77, 3)};
          const std::string plan = std::string("sparsify=") + s + p + bucket;
          both_ways(plan, some, call_at(4), 2, 1);
          steps_with_states(plan + " feedback=residual(beta=0.9,gamma=0.5)", some, 1, call_at(0));
        }
  require_no_trouble();
}

TEST_CASE("of chance and chunks a value that is not finite is the CPU's fault, and a bad state changes nothing") {
  for (const dr_dtype dtype : value_types)
    for (const named_gradient& n : not_finite(dtype, 5000))
      for (const char* s : {"random(ratio=0.5)", "chunks(count=500,size=1000)", "chunks(count=20,size=50)"}) {
        INFO(n.name << ", " << s);
        both_ways(std::string("sparsify=") + s + " index=golomb value=qsgd", {make(dtype, 700, 1), n.g});
        gradients fed{make(dtype, 700, 1), n.g};
        for (gradient& g : fed) g.give_state();
        both_ways(std::string("sparsify=") + s + " feedback=residual index=golomb value=raw", fed);
      }
  for (const char* s : {"random(ratio=0.5)", "chunks(count=500,size=1000)"}) {
    gradients own{make(DR_F32, 3000, 1), make(DR_F32, 9000, 2)};
    for (gradient& g : own) g.give_state();
    const placed_batch b(std::string("sparsify=") + s + " feedback=residual index=golomb value=qsgd", own);
    own[1].state[0] = 6;
    own[1].state[5] = 0x7fc000007fc00000;
    sender at(b, own);
    const encoded got = at.encode();
    CHECK(got.status == DR_E_ARGUMENT);
    CHECK(got.result.tensor == 1);
    CHECK(at.state(1) == own[1].state);
  }
  require_no_trouble();
}

TEST_CASE("launches of chance and chunks do not grow with the number of tensors") {
  for (const char* s : {"random(ratio=0.01)", "random(ratio=0.5)", "chunks(count=64)"}) {
    const std::string text = std::string("sparsify=") + s + " index=golomb value=qsgd";
    const auto launches = [&](size_t n) {
      gradients all;
      for (size_t i = 0; i < n; ++i) all.push_back(make(DR_F32, 1000, i));
      return placed_batch(text, all).info.launches;
    };
    CHECK(launches(161) == launches(1));
    CHECK(launches(1) <= 8);
  }
}

constexpr const char* block_texts[] = {"1", "2", "4", "8", "16", "32"};
std::string by_blocks(const std::string& share, const char* block) {
  return "sparsify=blocks(" + share + ",block=" + block + ") ";
}

TEST_CASE("blocks of most energy are the CPU's, of any size, with any target") {
  for (const uint64_t d : sizes())
    for (const char* block : block_texts)
      for (const char* share : {"ratio=0.01", "ratio=0.1", "ratio=0.6", "ratio=1", "count=1", "count=33"}) {
        if (d > 1000000 && *share != 'r') continue;
        INFO("d " << d << ", block " << block << ", " << share);
        const std::string blocks = by_blocks(share, block);
        both_ways(blocks + "index=golomb value=qsgd", {make(DR_F32, d, d), make(DR_F32, d / 2, 1, 0.95)}, {},
                  static_cast<int32_t>(d % 4), d % 3);
        both_ways(blocks + "index=raw value=raw", {make(DR_F16, d, d), make(DR_BF16, 33, 1), make(DR_BF16, 0, 1)}, {},
                  1, 1);
        both_ways(blocks + "index=rice value=half", {make(DR_F32, d, d, 0.9)});
        both_ways(blocks + "index=all value=raw", {make(DR_F32, d, d + 1), make(DR_F16, 5, 1)});
      }
  for (const dr_dtype dtype : value_types)
    for (const uint64_t d : {uint64_t{9000}, uint64_t{40007}})
      for (const named_gradient& n : awkward(dtype, d)) {
        INFO(n.name << ", type " << dtype << ", d " << d);
        for (const char* block : {"1", "4", "32"})
          both_ways(by_blocks("ratio=0.1", block) + "index=golomb value=raw", {n.g});
      }
  require_no_trouble();
}

TEST_CASE("blocks lie in several tensors of a bucket, with feedback, and beside one another in a frame") {
  for (const dr_dtype dtype : value_types)
    for (const char* block : block_texts)
      for (const char* bucket : {"", " bucket=flat"})
        for (const char* p : {"index=golomb value=qsgd", "index=raw value=raw", "index=all value=sign"}) {
          const gradients some{make(dtype, 20000, 1), make(dtype, 0, 1), make(dtype, 1, 1), make(dtype, 9001, 2),
                               make(dtype, 77, 3)};
          const std::string plan = by_blocks("ratio=0.05", block) + p + bucket;
          both_ways(plan, some, call_at(4), 2, 1);
          steps_with_states(plan + " feedback=residual(beta=0.9,gamma=0.5)", some, 1);
        }
  require_no_trouble();
}

TEST_CASE("of blocks a value that is not finite is the CPU's fault, and a bad state changes nothing") {
  for (const dr_dtype dtype : value_types)
    for (const named_gradient& n : not_finite(dtype, 5003))
      for (const char* block : {"1", "8", "32"}) {
        INFO(n.name << ", block " << block);
        const std::string blocks = by_blocks("ratio=0.2", block);
        for (const char* bucket : {"", " bucket=flat"}) {
          both_ways(blocks + "index=golomb value=qsgd" + bucket, {make(dtype, 700, 1), n.g});
          gradients fed{make(dtype, 700, 1), n.g};
          for (gradient& g : fed) g.give_state();
          both_ways(blocks + "feedback=residual index=golomb value=raw" + bucket, fed);
        }
      }
  gradients own{make(DR_F32, 3000, 1), make(DR_F32, 9000, 2)};
  for (gradient& g : own) g.give_state();
  const placed_batch b(by_blocks("ratio=0.2", "8") + "feedback=residual index=golomb value=qsgd", own);
  own[1].state[0] = 6;
  own[1].state[5] = 0x7fc000007fc00000;
  sender at(b, own);
  const encoded got = at.encode();
  CHECK(got.status == DR_E_ARGUMENT);
  CHECK(got.result.tensor == 1);
  CHECK(at.state(1) == own[1].state);
  require_no_trouble();
}

TEST_CASE("of blocks the launches do not grow with the number of tensors; what has no path is refused by name") {
  const auto launches = [&](const std::string& text, size_t n) {
    gradients all;
    for (size_t i = 0; i < n; ++i) all.push_back(make(DR_F32, 1000, i));
    return placed_batch(text, all).info.launches;
  };
  const std::string text = by_blocks("ratio=0.1", "8") + "index=golomb value=qsgd";
  CHECK(launches(text, 161) == launches(text, 1));
  CHECK(launches(text, 2) == launches("sparsify=topr(ratio=0.1) index=golomb value=qsgd", 2) + 2);

  const place::stream on;
  const dr_place at = on.at();
  context c;
  const auto refusal = [&](const std::string& what, uint64_t segment_rows = 0) {
    const plan p(what);
    gradient g = make(DR_F32, 100, 1);
    const dr_tensor t = g.tensor();
    dr_batch* batch = nullptr;
    CHECK(dr_batch_create(c.handle, p.handle, &at, &t, sizeof t, 1, segment_rows, &batch) == DR_E_UNSUPPORTED);
    dr_batch_destroy(batch);
    return c.error();
  };
  for (const char* index : {"golomb", "all"})
    CHECK(refusal("sparsify=blocks(ratio=0.1) value=raw index=" + std::string(index)) ==
          "tensor 0: blocks(block=auto) runs on the CPU only, block=1 to 32 on CUDA, too; DR_PLACE_ALLOW_HOST "
          "runs it there, with copies and a wait");
  CHECK(refusal(by_blocks("ratio=0.1", "8") + "index=bloom(fpr=0.01) value=raw") ==
        "tensor 0: bloom of blocks runs on the CPU only; DR_PLACE_ALLOW_HOST runs it there, with copies and a wait");
  CHECK(
      refusal(by_blocks("ratio=0.1", "8") + "index=golomb(adaptive=1) value=raw") ==
      "tensor 0: golomb with these parameters runs on the CPU only; DR_PLACE_ALLOW_HOST runs it there, with copies and "
      "a wait");
  CHECK(refusal(by_blocks("ratio=0.1", "8") + "index=golomb value=raw", 50) ==
        "tensor 0: blocks of a tensor in segments have no CUDA path");
  both_ways(by_blocks("ratio=0.1", "1") + "index=bloom(fpr=0.01) value=raw", {make(DR_F32, 5000, 1)});
}

}  // namespace
