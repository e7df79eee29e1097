// Prepared calls allocate nothing once they have run: neither by the context's callbacks nor by operator new, which this program replaces
// for the library too. (The emulated device keeps what it needs, so it counts as well.)
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <limits>

#include "../client.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

void* take(size_t size, size_t alignment) {
  if (counting) ++allocations;
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void give(void* memory) { std::free(memory); }
constexpr size_t head = 16;

}  // namespace

#include "replaced_new.hpp"

namespace {

using namespace client;

// Where the library has a C++ runtime of its own (static, inside it), this program's operator new is not its.
bool sees_the_library() { return dlsym(RTLD_DEFAULT, "_Znwm") != nullptr; }

// What f allocates.
template <class F>
long counted(F&& f) {
  allocations = 0;
  counting = true;
  f();
  counting = false;
  return allocations;
}

struct aligned {
  std::vector<uint64_t> words;
  explicit aligned(size_t size) : words(size / 8 + 16) {}
  uint8_t* data() {
    auto* const at = reinterpret_cast<uint8_t*>(words.data());
    return at + (64 - reinterpret_cast<uintptr_t>(at) % 64) % 64;
  }
};

dr_context* make_context(uint32_t threads = 1) {
  dr_context_options options{};
  options.struct_size = sizeof options;
  options.threads = threads;
  options.allocate = [](void*, size_t size, size_t alignment) { return take(size, alignment); };
  options.release = [](void*, void* memory, size_t) { std::free(memory); };
  dr_context* c = nullptr;
  REQUIRE(dr_context_create(&options, &c, nullptr) == DR_OK);
  return c;
}

// Two tensors, dense and of different length, and one that is sparse unless the plan keeps feedback or sparsifies.
struct workload {
  std::vector<floats> values;
  std::vector<std::vector<uint64_t>> states;
  std::vector<dr_tensor> tensors;
  plan own{"index=golomb value=qsgd"};
  std::vector<uint32_t> indices;

  explicit workload(const std::string& text, uint64_t largest = 30000) {
    for (const uint64_t d : {largest, uint64_t{700}}) {
      values.push_back(laplace(d, d));
      states.emplace_back(d / 2 + 4);
    }
    for (size_t i = 0; i < 2; ++i) {
      tensors.push_back(dense(values[i]));
      if (text.find("feedback") == std::string::npos) continue;
      tensors[i].state = states[i].data();
      tensors[i].state_size = 8 * states[i].size();
    }
    for (uint32_t i = 0; i < 50; ++i) indices.push_back(7 * i);
    values.push_back(laplace(50, 3));
    tensors.push_back(sparse(indices, values[2], 1000));
    tensors[2].plan = own.handle;
  }
};

}  // namespace

TEST_CASE("prepared calls allocate nothing, on the CPU or on a device, whether the data are good or not") {
  if (!sees_the_library()) {
    MESSAGE("skipped: the library was linked with a static C++ runtime, so its allocations are not seen");
    return;
  }
  for (const bool device : {true, false})
    for (const char* text :
         {"sparsify=topr(ratio=0.01) index=golomb value=qsgd", "sparsify=topr(ratio=0.2) index=raw value=fit_poly",
          "sparsify=threshold(value=0.002,max_ratio=0.5) index=rice value=fit_poly",
          "sparsify=topr(ratio=0.05) index=bloom(policy=p0,fpr=0.01) value=qsgd", "index=bloom(fpr=0.1) value=raw",
          "sparsify=blocks(ratio=0.05,block=8) feedback=residual index=golomb value=qsgd",
          "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant",
          "sparsify=topr(ratio=0.05) index=golomb value=half",
          "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=lloyd",
          "sparsify=topr(ratio=0.05) index=golomb value=uniform_quant",
          "sparsify=topr(ratio=0.05) index=golomb value=sign(scale=mean)",
          "sparsify=topr(ratio=0.05) index=golomb value=sign(scale=means)",
          "sparsify=threshold(value=0.1,max_ratio=0.05) feedback=residual index=golomb value=ternary",
          "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=fit_poly", "index=all value=qsgd",
          "feedback=residual index=all value=uniform_quant(bits=4)"}) {
      INFO(text << (device ? ", on a device" : ", on the CPU"));
      workload w(text);
      dr_place place{};
      place.struct_size = sizeof place;
      place.kind = device ? DR_PLACE_EMULATED : DR_PLACE_CPU;
      place.device = 1;
      dr_context* const c = make_context();
      const plan p(text);
      dr_batch* batch = nullptr;
      dr_status status = DR_OK;
      // (To see that it is counted.)
      CHECK(counted([&] {
              status = dr_batch_create(c, p.handle, &place, w.tensors.data(), sizeof(dr_tensor), 3, 0, &batch);
            }) > 10);
      REQUIRE(status == DR_OK);
      dr_batch_info info{};
      info.struct_size = sizeof info;
      REQUIRE(dr_batch_describe(batch, &info, nullptr) == DR_OK);
      aligned workspace(info.workspace), frame(info.bound);
      dr_result result{.struct_size = sizeof(dr_result)};
      const auto encode = [&](uint64_t step, uint32_t flags) {
        dr_call call{};
        call.struct_size = sizeof call;
        call.step = step;
        call.flags = flags;
        status = dr_batch_encode(c, batch, &call, &place, w.tensors.data(), sizeof(dr_tensor), 3, workspace.data(),
                                 info.workspace, frame.data(), info.bound, &result);
      };
      // The second call may still grow what the first could not know.
      for (uint64_t step = 0; step < 2; ++step) encode(step, DR_CALL_TAG | DR_CALL_LIST);
      REQUIRE(status == DR_OK);
      CHECK(counted([&] { encode(2, DR_CALL_TAG); }) == 0);
      CHECK(counted([&] { encode(3, 0); }) == 0);
      REQUIRE(status == DR_OK);
      REQUIRE(result.status == DR_OK);
      const uint64_t size = result.size;
      constexpr size_t k = 5;
      size_t room = 0;
      REQUIRE(dr_batch_merge_workspace(batch, k, &room, nullptr) == DR_OK);
      aligned memory(room);
      std::vector<floats> out{floats(30000), floats(700), floats(1000)};
      std::vector<dr_tensor_out> outs;
      for (floats& o : out) outs.push_back(dense_out(o));
      std::vector<dr_bytes> frames(k, dr_bytes{frame.data(), size});
      dr_binding* bound = nullptr;
      REQUIRE(dr_binding_create(c, batch, &place, w.tensors.data(), sizeof(dr_tensor), outs.data(),
                                sizeof(dr_tensor_out), 3, k, &bound) == DR_OK);
      const auto decode = [&] {
        status = dr_batch_decode(c, batch, &place, frame.data(), size, nullptr, outs.data(), sizeof(dr_tensor_out), 3,
                                 memory.data(), room, &result);
      };
      const auto merge = [&] {
        status = dr_batch_merge(c, batch, &place, frames.data(), nullptr, k, nullptr, outs.data(),
                                sizeof(dr_tensor_out), 3, memory.data(), room, &result);
      };
      const auto bound_encode = [&] { status = dr_binding_encode(bound, nullptr, frame.data(), info.bound, &result); };
      const auto bound_decode = [&] { status = dr_binding_decode(bound, frame.data(), size, nullptr, &result); };
      const auto bound_merge = [&] { status = dr_binding_merge(bound, frames.data(), nullptr, k, nullptr, &result); };
      decode();
      merge();
      REQUIRE(status == DR_OK);
      CHECK(counted(decode) == 0);
      CHECK(result.status == DR_OK);
      CHECK(counted(merge) == 0);
      CHECK(result.status == DR_OK);
      CHECK(counted(bound_decode) == 0);
      CHECK(result.status == DR_OK);
      CHECK(counted(bound_merge) == 0);
      CHECK(result.status == DR_OK);
      frame.data()[size - 1] ^= 1;
      CHECK(counted(decode) == 0);
      CHECK(result.status == DR_E_CORRUPT);
      CHECK(counted(bound_merge) == 0);
      CHECK(result.status == DR_E_CORRUPT);
      CHECK(counted(bound_encode) == 0);
      CHECK(result.status == DR_OK);
      dr_binding_destroy(bound);
      w.values[0][17] = std::numeric_limits<float>::quiet_NaN();
      CHECK(counted([&] { encode(4, DR_CALL_STATUS_FRAME); }) == 0);
      if (std::string(text).find("value=raw") == std::string::npos) CHECK(result.status == DR_E_ARGUMENT);
      dr_batch_destroy(batch);
      dr_context_destroy(c);
    }
}

TEST_CASE("encode, decode and merge on the CPU allocate nothing once they have run, with one thread or several") {
  for (const uint32_t threads : {1u, 3u})
    for (const char* text :
         {"sparsify=topr(ratio=0.01) index=golomb value=qsgd", "sparsify=topr(ratio=0.1) index=raw value=fit_poly",
          "sparsify=threshold(value=0.002,max_ratio=0.5) index=rice value=raw",
          "sparsify=topr(ratio=0.05) index=bloom(policy=p0,fpr=0.01) value=qsgd", "index=golomb value=raw",
          "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=fit_poly",
          "sparsify=topr(ratio=0.05) feedback=residual index=bloom(fpr=0.01) value=raw",
          "sparsify=topr(ratio=0.05) index=auto value=auto(error=0.05)",
          "sparsify=topr(ratio=0.05) feedback=residual index=auto value=raw",
          "sparsify=random(ratio=0.05) index=golomb(adaptive=1) value=uniform_quant",
          "sparsify=dgc(ratio=0.05) index=elias_fano value=log_quant(bits=4)",
          "sparsify=topr(ratio=0.05) index=delta_varint+huffman value=lloyd(levels=4)",
          "sparsify=topr(ratio=0.05) index=delta_bitpack value=rank_fit",
          "sparsify=topr(ratio=0.05) index=bitmap value=fit_dexp",
          "sparsify=topr(ratio=0.05) index=rle value=sketch+huffman",
          "sparsify=topr(ratio=0.05) index=bloom(policy=p2,fpr=0.01) value=half",
          "sparsify=topr(ratio=0.05) index=bloom(policy=p1,layout=split_block,fpr=0.01) value=three_lc",
          "index=all value=qsgd", "index=seeded(ratio=0.1) value=raw"}) {
      INFO(text << ", threads: " << threads);
      workload w(text, 300000);  // the first is shared by the threads
      dr_context* const c = make_context(threads);
      const plan p(text);
      size_t bound = 0;
      REQUIRE(dr_bound(c, p.handle, nullptr, nullptr, w.tensors.data(), sizeof(dr_tensor), 3, &bound) == DR_OK);
      std::vector<std::vector<uint8_t>> made(5, std::vector<uint8_t>(bound));
      std::vector<dr_bytes> frames;
      dr_status status = DR_OK;
      dr_result result{.struct_size = sizeof(dr_result)};
      const auto encode = [&](size_t k) {
        dr_call call{};
        call.struct_size = sizeof call;
        call.step = k;
        status = dr_encode(c, p.handle, &call, nullptr, w.tensors.data(), sizeof(dr_tensor), 3, made[k].data(), bound,
                           &result);
      };
      std::vector<floats> out{floats(300000), floats(700), floats(1000)};
      std::vector<dr_tensor_out> outs;
      for (floats& o : out) outs.push_back(dense_out(o));
      const auto decode = [&] {
        status = dr_decode(c, nullptr, frames[0].data, frames[0].size, nullptr, outs.data(), sizeof(dr_tensor_out), 3);
      };
      const auto merge = [&] {
        status =
            dr_merge(c, nullptr, frames.data(), nullptr, frames.size(), nullptr, outs.data(), sizeof(dr_tensor_out), 3);
      };
      for (size_t k = 0; k < made.size(); ++k) {
        encode(k);
        REQUIRE(status == DR_OK);
        frames.push_back({made[k].data(), result.size});
      }
      decode();
      REQUIRE(status == DR_OK);
      merge();
      REQUIRE(status == DR_OK);
      for (int round = 0; round < 2; ++round) {
        CHECK(counted([&] { encode(4); }) == 0);
        CHECK(status == DR_OK);
        frames[4].size = result.size;
        CHECK(counted(decode) == 0);
        CHECK(status == DR_OK);
        CHECK(counted(merge) == 0);
        CHECK(status == DR_OK);
      }
      made[4][frames[4].size - 1] ^= 1;
      CHECK(counted(merge) == 0);
      CHECK(status == DR_E_CORRUPT);
      dr_context_destroy(c);
    }
}
