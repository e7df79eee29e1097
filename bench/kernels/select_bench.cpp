// Selection: Top-r, chunks and blocks, compared with a pass that only counts.
#include <cmath>
#include <memory>
#include <vector>

#include "codecs/sparsifiers.hpp"
#include "kernel_bench.hpp"
#include "primitive/rng.hpp"
#include "sparsify/block_size.hpp"
#include "sparsify/keep_blocks.hpp"
#include "sparsify/select.hpp"
#include "sparsify/select_kernel.hpp"

namespace dr::bench {
namespace {

constexpr uint64_t d = 25000000;

struct work {
  uint32_t dtype;
  std::vector<uint32_t> f32;
  std::vector<uint16_t> f16;
  std::vector<std::byte> block;
  uint64_t kept = 0;
  select_memory memory{};
  select_scratch scratch{};
  void* blocks = nullptr;  // scratch for blocks

  explicit work(uint32_t type) : dtype(type) {
    for (uint64_t i = 0; i < d; ++i) {
      const double u = (static_cast<double>(draw(1, i) >> 11) + 0.5) * 0x1p-53 - 0.5;
      const double v = (u < 0 ? 1e-3 : -1e-3) * std::log(1 - 2 * std::fabs(u));
      if (dtype == DR_F32)
        f32.push_back(std::bit_cast<uint32_t>(static_cast<float>(v)));
      else
        f16.push_back(dtype == DR_F16 ? f64_to_f16(v) : f64_to_bf16(v));
    }
  }
  const void* values() const { return dtype == DR_F32 ? static_cast<const void*>(f32.data()) : f16.data(); }
  void prepare(uint64_t target, uint64_t blocks_scratch = 0) {
    arena measuring;
    (void)select_memory::lay_out(measuring, dtype, d, target, 1);
    scratch = {};
    scratch.grow(d, target, false);
    (void)scratch.lay_out(measuring);
    (void)measuring.allocate<std::byte>(blocks_scratch);
    if (block.size() < measuring.used() + 64) block.resize(measuring.used() + 64);
    arena real(block.data() + (64 - reinterpret_cast<uintptr_t>(block.data()) % 64) % 64, measuring.used());
    memory = select_memory::lay_out(real, dtype, d, target, 1);
    scratch = scratch.lay_out(real);
    blocks = real.allocate<std::byte>(blocks_scratch);
  }
  select_crew crew(cpu_level level) const { return {&scratch, nullptr, level}; }
  void keep_blocks_of(uint32_t block, uint64_t target, cpu_level level) {
    prepare(target * block, std::max(keep_blocks_scratch(d, block, target), block_size_scratch(d)));
    const select_piece piece{values(), d, 0, 0};
    kept = keep_blocks({dtype, {&piece, 1}}, d, block, target, memory, crew(level), blocks).count;
  }
  // The `count` largest of every chunk.
  void keep_chunks(uint64_t size, uint64_t count, cpu_level level) {
    dr_value given[3] = {};
    for (dr_value& value : given) value.struct_size = sizeof value;
    given[share_count] = {sizeof(dr_value), 1, 0, static_cast<double>(count)};
    given[2].number = static_cast<double>(size);
    dr_params params{};
    params.struct_size = sizeof params;
    params.values = given;
    prepare(chunks_sparsifier.target(params, d), chunks_sparsifier.scratch(params, d, d));
    const select_piece piece{values(), d, 0, 0, 0};
    const select_source source{dtype, {&piece, 1}};
    kept = chunks_sparsifier.keep({params, source, d, nullptr, 0, nullptr, blocks, memory, crew(level)}).count;
  }
  // Chooses a block size; `kept` becomes the size.
  void choose(uint64_t single, cpu_level level) {
    uint64_t targets[block_choices];
    for (uint32_t k = 0; k < block_choices; ++k) targets[k] = blocks_worth(d, single, 2, 1u << k);
    prepare(single, block_size_scratch(d));
    const select_piece piece{values(), d, 0, 0};
    kept = choose_block({dtype, {&piece, 1}}, d, targets, crew(level), memory.ends, blocks);
  }
};

}  // namespace

void add_selection(subjects& all) {
  const std::vector<cpu_level> levels{cpu_level::scalar, cpu_level::avx2, cpu_level::avx512};
  for (const auto& [dtype, type] : {std::pair{uint32_t{DR_F32}, "f32"}, std::pair{uint32_t{DR_BF16}, "bf16"}}) {
    const auto w = std::make_shared<std::unique_ptr<work>>();
    const auto ready = [w, dtype = dtype]() -> work& {
      if (!*w) *w = std::make_unique<work>(dtype);
      return **w;
    };
    const std::string input = std::string("d=25e6 ") + type + " Laplace";
    const double bytes = static_cast<double>(d) * value_size(dtype);
    all.push_back({"select count", input, "element", d, bytes, levels,
                   [ready, dtype = dtype](cpu_level l) {
                     work& x = ready();
                     x.kept = select_at(l, dtype).count(x.values(), d, dtype == DR_F32 ? 0x3b96feb5 : 0x3b96);
                   },
                   [ready] { return ready().kept; }});
    for (const auto& [name, target] : {std::pair{"0.1%", d / 1000}, std::pair{"1%", d / 100}, std::pair{"10%", d / 10}})
      all.push_back({"select topr " + std::string(name), input, "element", d, bytes, levels,
                     [ready, dtype = dtype, target = target](cpu_level l) {
                       work& x = ready();
                       x.prepare(target);
                       const select_piece piece{x.values(), d, 0, 0};
                       x.kept = keep_largest({dtype, {&piece, 1}}, target, x.memory, x.crew(l)).count;
                     },
                     [ready, dtype = dtype] {
                       work& x = ready();
                       return digest_of(x.memory.positions, x.kept * 4) ^
                              digest_of(x.memory.values, x.kept * value_size(dtype));
                     }});
    for (const uint64_t count : {4, 64, 410})
      all.push_back({"select chunks", input + " " + std::to_string(count) + " of 4096", "element", d, bytes, levels,
                     [ready, count](cpu_level l) { ready().keep_chunks(4096, count, l); },
                     [ready, dtype = dtype] {
                       work& x = ready();
                       return digest_of(x.memory.positions, x.kept * 4) ^
                              digest_of(x.memory.values, x.kept * value_size(dtype));
                     }});
    for (const auto& [name, part] : {std::pair{"1%", 100}, std::pair{"10%", 10}})
      for (uint32_t block = 1; block <= 32; block *= 2)
        all.push_back({"select blocks " + std::string(name), input + " s=" + std::to_string(block), "element", d, bytes,
                       levels,
                       [ready, block, target = d / block / static_cast<uint64_t>(part)](cpu_level l) {
                         ready().keep_blocks_of(block, target, l);
                       },
                       [ready, dtype = dtype] {
                         work& x = ready();
                         return digest_of(x.memory.positions, x.kept * 4) ^
                                digest_of(x.memory.values, x.kept * value_size(dtype));
                       }});
    all.push_back({"select auto block 1%", input, "element", d, bytes, levels,
                   [ready](cpu_level l) { ready().choose(d / 100, l); }, [ready] { return ready().kept; }});
  }
}

}  // namespace dr::bench
