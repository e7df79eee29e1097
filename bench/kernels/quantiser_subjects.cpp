// The quantisers' kernels, and whole codecs with the instruction set in use (DEEPREDUCE_CPU), on the Top-1 % of Laplace
// values.
#include <cmath>
#include <memory>

#include "codecs/builtin.hpp"
#include "codecs/family/huffman/code_lengths.hpp"
#include "codecs/family/levels/level_blocks.hpp"
#include "codecs/family/levels/table_levels.hpp"
#include "codecs/value/uniform_quant/uniform_quant_kernel.hpp"
#include "deepreduce/codec.hpp"
#include "kernel_subjects.hpp"
#include "primitive/rng.hpp"

namespace dr::bench {
namespace {

constexpr uint64_t count = 250000;
constexpr const char* input = "Top-1 % of Laplace, 250e3";

std::vector<float> tail() {
  std::vector<float> v(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t d = draw(1, i);
    const double u = (static_cast<double>(d >> 11) + 1) * 0x1p-53, m = 1e-3 * (std::log(100.0) - std::log(u));
    v[i] = static_cast<float>(d & 1 ? -m : m);
  }
  return v;
}

// Blocks of 16 normal values, whose scales have a short tail, like selected blocks of a sum of gradients.
std::vector<float> blocks() {
  std::vector<float> v(count);
  double scale = 1;
  for (uint64_t i = 0; i < count; ++i) {
    if (i % 16 == 0) scale = 1e-3 * std::pow((static_cast<double>(draw(2, i) >> 11) + 1) * 0x1p-53, -0.2);
    double sum = 0;
    for (uint64_t k = 0; k < 3; ++k) {
      const uint64_t d = draw(3 + k, i);
      for (int at = 0; at < 64; at += 16) sum += static_cast<double>(d >> at & 0xffff) * 0x1p-16 - 0.5;
    }
    v[i] = static_cast<float>(scale * sum);
  }
  return v;
}

struct exec_serial {
  std::vector<std::byte> scratch;
  dr_exec exec{};
  explicit exec_serial(uint64_t size) : scratch(size + 64) {
    exec.struct_size = sizeof exec;
    const auto at = reinterpret_cast<uintptr_t>(scratch.data());
    exec.scratch = scratch.data() + (64 - at % 64) % 64;
    exec.scratch_size = size;
    exec.workers = 1;
    exec.parallel = [](void*, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
      for (size_t i = 0; i < n; ++i) f(arg, i, 0);
    };
  }
};

// Adds a codec's operations: values to payload, payload to values.
void add_codec(subjects& all, const dr_codec& codec, const std::string& text, std::vector<dr_value> values,
               const std::vector<float>& in = tail()) {
  struct state {
    std::vector<float> in, back = std::vector<float>(count);
    std::vector<dr_value> params;
    std::vector<uint64_t> fields = std::vector<uint64_t>(DR_FIELDS_MAX);
    std::vector<uint8_t> payload;
    uint64_t size = 0, decoded = 0;
    dr_fault fault{.struct_size = sizeof(dr_fault)};
    std::unique_ptr<exec_serial> exec;
    dr_params p() { return {sizeof(dr_params), params.data(), fields.data()}; }
    dr_job job() {
      dr_job j{};
      j.struct_size = sizeof j;
      j.universe = 100 * count;
      j.count_max = count;
      j.dtype = DR_F32;
      j.width = 1;
      j.fault = &fault;
      return j;
    }
  };
  auto s = std::make_shared<state>();
  s->in = in;
  s->params = std::move(values);
  dr_job shape = s->job();
  const dr_params p = s->p();
  if (codec.cpu->resolve) codec.cpu->resolve(&p, &shape, s->fields.data(), &s->fault);
  dr_need need{.struct_size = sizeof(dr_need)};
  codec.cpu->need(&p, &shape, 1, &need);
  s->payload.resize(need.payload + 16);
  s->exec = std::make_unique<exec_serial>(std::max(need.encode_scratch, need.decode_scratch));
  const auto encode = [s, &codec](cpu_level) {
    dr_job j = s->job();
    j.in = s->in.data();
    j.in_max = 4 * count;
    j.out = s->payload.data();
    j.out_capacity = s->payload.size();
    j.out_size = &s->size;
    const dr_params p = s->p();
    codec.cpu->encode(&s->exec->exec, &p, &j, 1);
  };
  encode(cpu());
  double error = 0, norm = 0;
  const auto decode = [s, &codec](cpu_level) {
    dr_job j = s->job();
    j.in = s->payload.data();
    j.in_max = s->size;
    j.out = s->back.data();
    j.out_capacity = 4 * count;
    j.out_size = &s->decoded;
    const dr_params p = s->p();
    codec.cpu->decode(&s->exec->exec, &p, &j, 1);
  };
  decode(cpu());
  for (uint64_t i = 0; i < count; ++i) {
    error += std::pow(double{s->in[i]} - s->back[i], 2);
    norm += std::pow(s->in[i], 2);
  }
  char note[96];
  std::snprintf(note, sizeof note, "%.3f bits, squared error %.3g", 8.0 * static_cast<double>(s->size) / count,
                error / norm);
  const double bytes = 4.0 * count + static_cast<double>(s->size);
  all.push_back({text + " encode", note, "value", count, bytes, {cpu()}, encode, [s] {
                   return digest_of(s->payload.data(), s->size);
                 }});
  all.push_back({text + " decode", note, "value", count, bytes, {cpu()}, decode, [s] {
                   return digest_of(s->back.data(), 4 * count);
                 }});
}

}  // namespace

void add_quantisers(subjects& all) {
  const std::vector<cpu_level> levels{cpu_level::scalar, cpu_level::avx2, cpu_level::avx512};
  struct state {
    std::vector<float> values = tail();
    std::vector<uint32_t> back = std::vector<uint32_t>(count);
    std::vector<uint16_t> levels = std::vector<uint16_t>(count + 2 * level_block), again = levels;
    std::vector<uint8_t> signs = std::vector<uint8_t>(count / 8 + 64), body = std::vector<uint8_t>(16 * level_body_max);
    std::vector<size_t> ends;
    double sum = 0;
    const uint32_t* bits() const { return reinterpret_cast<const uint32_t*>(values.data()); }
    void each(const std::function<void(size_t, size_t)>& f) {
      for (size_t i = 0; i < count; i += level_block) f(i, std::min<size_t>(level_block, count - i));
    }
  };
  auto s = std::make_shared<state>();
  const float least = std::bit_cast<float>(range_of.scalar(s->bits(), count).least);
  const uniform_step step{least, 1e-4f, 1 / 1e-4f};
  const double floats = 4.0 * count, plane = count / 8.0;
  all.push_back({"uniform survey", input, "value", count, floats, levels,
                 [s](cpu_level l) {
                   const magnitude_range r = range_of.at(l)(s->bits(), count);
                   s->sum = r.largest;
                   s->each([&](size_t i, size_t n) { s->sum += uniform_squares.at(l)(s->bits() + i, n, 256); });
                 },
                 [s] { return digest_of(&s->sum, 8); }});
  all.push_back({"uniform quantise", input, "value", count, floats + 2.0 * count + plane, levels,
                 [s, step](cpu_level l) {
                   s->each([&](size_t i, size_t n) {
                     uniform_quantise.at(l)(s->bits() + i, n, step, s->levels.data() + i, s->signs.data() + i / 8);
                   });
                 },
                 [s] { return digest_of(s->levels.data(), 2 * count) ^ digest_of(s->signs.data(), count / 8); }});
  uniform_quantise.scalar(s->bits(), level_block, step, s->levels.data(), s->signs.data());
  s->each([&](size_t i, size_t n) {
    uniform_quantise.scalar(s->bits() + i, n, step, s->levels.data() + i, s->signs.data() + i / 8);
  });
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += s->levels[i];
  const level_code code = level_code::of(level_divisor(sum, count));
  s->body.resize(count * 4);
  const auto encode = [s, code](cpu_level l) {
    uint8_t made[level_body_max + level_slack];
    uint8_t* to = s->body.data();
    s->ends.clear();
    s->each([&](size_t i, size_t n) {
      const uint8_t* const end = split_levels_encode.at(l)(s->levels.data() + i, n, code, made);
      std::memcpy(to, made, static_cast<size_t>(end - made));
      to += end - made;
      s->ends.push_back(static_cast<size_t>(to - s->body.data()));
    });
  };
  encode(cpu_level::scalar);
  const double coded = static_cast<double>(s->ends.back());
  all.push_back({"split levels encode", input, "level", count, 2.0 * count + coded, levels, encode,
                 [s] { return digest_of(s->body.data(), s->ends.back()); }});
  all.push_back({"split levels decode", input, "level", count, 2.0 * count + coded, levels,
                 [s, code](cpu_level l) {
                   size_t from = 0, b = 0;
                   uint8_t padded[level_body_max + level_slack];
                   s->each([&](size_t i, size_t n) {
                     const size_t size = s->ends[b] - from;
                     std::memcpy(padded, s->body.data() + from, size);
                     std::memset(padded + size, 0, level_slack);
                     split_levels_decode.at(l)(padded, size, n, code, s->again.data() + i);
                     from = s->ends[b++];
                   });
                 },
                 [s] { return digest_of(s->again.data(), 2 * count); }});
  all.push_back({"uniform restore", input, "value", count, floats + 2.0 * count + plane, levels,
                 [s](cpu_level l) {
                   s->each([&](size_t i, size_t n) {
                     uniform_restore.at(l)(s->levels.data() + i, n, s->signs.data() + i / 8, 5e-3f, 1e-4f,
                                           s->back.data() + i);
                   });
                 },
                 [s] { return digest_of(s->back.data(), 4 * count); }});
  // Tables of 16 levels, and Huffman.
  struct table_state {
    std::vector<float> values = tail();
    std::vector<uint8_t> levels = std::vector<uint8_t>(count), signs = std::vector<uint8_t>(count / 8 + 64),
                         body = std::vector<uint8_t>(2 * count);
    std::vector<uint8_t> apart = std::vector<uint8_t>(level_huffman_strings_max * level_huffman_stride);
    std::vector<uint32_t> back = std::vector<uint32_t>(count);
    std::vector<size_t> ends;
    level_bounds bounds;
    level_table table;
    level_huffman_code code;
    level_huffman_table lookup;
    uint64_t sum = 0;
    const uint32_t* bits() const { return reinterpret_cast<const uint32_t*>(values.data()); }
    void each(const std::function<void(size_t, size_t)>& f) {
      for (size_t i = 0; i < count; i += level_block) f(i, std::min<size_t>(level_block, count - i));
    }
  };
  auto t = std::make_shared<table_state>();
  t->bounds.count = t->table.count = 16;
  for (unsigned i = 0; i < table_levels_max; ++i) {
    t->bounds.of[i] = i < 15 ? std::bit_cast<uint32_t>(4.6e-3f + 4e-4f * static_cast<float>(i + 1)) : ~0u;
    t->table.of[i] = std::bit_cast<uint32_t>(4.8e-3f + 4e-4f * static_cast<float>(i));
  }
  const auto quantise = [t](cpu_level l) {
    t->each([&](size_t i, size_t n) {
      table_quantise.at(l)(t->bits() + i, n, t->bounds, t->levels.data() + i, t->signs.data() + i / 8);
    });
  };
  quantise(cpu_level::scalar);
  uint32_t counts[level_huffman_alphabet] = {};
  for (const uint8_t l : t->levels) ++counts[l];
  uint8_t lengths[level_huffman_alphabet];
  huffman_code_lengths<level_huffman_alphabet>(counts, 16, level_huffman_bits_max, lengths);
  t->code.set(lengths, 16);
  t->lookup.set(t->code, count);
  const auto encode_huffman = [t](cpu_level l) {
    uint8_t* to = t->body.data();
    t->ends.clear();
    t->each([&](size_t i, size_t n) {
      to = level_huffman_encode.at(l)(t->levels.data() + i, n, t->code, to);
      t->ends.push_back(static_cast<size_t>(to - t->body.data()));
    });
  };
  encode_huffman(cpu_level::scalar);
  const double huffman = static_cast<double>(t->ends.back());
  const std::vector<cpu_level> ends{cpu_level::scalar, cpu_level::avx2, cpu_level::avx512};
  all.push_back({"table quantise", "16 levels", "value", count, floats + count + plane, ends, quantise,
                 [t] { return digest_of(t->levels.data(), count) ^ digest_of(t->signs.data(), count / 8); }});
  all.push_back({"table restore", "16 levels", "value", count, floats + count + plane, ends,
                 [t](cpu_level l) {
                   t->each([&](size_t i, size_t n) {
                     table_restore.at(l)(t->levels.data() + i, n, t->signs.data() + i / 8, t->table,
                                         t->back.data() + i);
                   });
                 },
                 [t] { return digest_of(t->back.data(), 4 * count); }});
  all.push_back({"level huffman encode", "16 levels", "level", count, count + huffman, ends, encode_huffman,
                 [t] { return digest_of(t->body.data(), t->ends.back()); }});
  all.push_back({"level huffman decode",
                 "16 levels",
                 "level",
                 count,
                 count + huffman,
                 {cpu_level::scalar, cpu_level::avx2},
                 [t](cpu_level l) {
                   size_t from = 0, b = 0;
                   uint8_t padded[level_body_max + level_slack];
                   t->sum = 0;
                   t->each([&](size_t, size_t n) {
                     const size_t size = t->ends[b] - from;
                     std::memcpy(padded, t->body.data() + from, size);
                     level_huffman_decode.at(l)(padded, size, n, t->lookup, t->apart.data());
                     t->sum = t->sum * 31 + t->apart[n % 512];
                     from = t->ends[b++];
                   });
                 },
                 [t] { return t->sum; }});
  add_codec(all, uniform_quant_codec, "uniform_quant",
            {{sizeof(dr_value), 0, 0, 5.07e-3}, {sizeof(dr_value), 0, 0, 0}});
  add_codec(all, log_quant_codec, "log_quant(bits=4)", {{sizeof(dr_value), 0, 0, 4}, {sizeof(dr_value), 0, 0, 8}});
  add_codec(all, lloyd_codec, "lloyd(levels=2)", {{sizeof(dr_value), 0, 0, 2}, {sizeof(dr_value), 0, 0, 0}});
  add_codec(all, lloyd_codec, "lloyd(levels=8)", {{sizeof(dr_value), 0, 0, 8}, {sizeof(dr_value), 0, 0, 0}});
  add_codec(all, lloyd_codec, "lloyd(price=0.35)", {{sizeof(dr_value), 0, 0, 4}, {sizeof(dr_value), 0, 0, 0.35}},
            blocks());
}

}  // namespace dr::bench
