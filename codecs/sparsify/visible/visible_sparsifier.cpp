// The elements that would change the receiver's weights in its type (SPEC.md).
#include "codecs/sparsifiers.hpp"
#include "codecs/sparsify/visible/visible_kernel.hpp"
#include "sparsify/source_walk.hpp"

namespace dr {
namespace {

enum param : size_t { type, rate };

selection_result keep(const keep_call& call) {
  const select_source& source = call.source;
  const visible_rule rule{static_cast<float>(param_value(call.params, rate).number),
                          param_value(call.params, type).number != 0};
  const select_kernels& k = select_at(call.crew.level, source.dtype);
  const auto visible = keep_visible.at(call.crew.level);
  const uint64_t size = value_size(source.dtype);
  source_walk walk(source, call.crew);
  // What is not kept becomes 0, and all that is not 0 is collected.
  return {keep_found(walk, call.memory, source.elements(),
                     [&](size_t piece, const void* v, uint64_t at, uint32_t n, uint32_t* positions, void* kept) {
                       alignas(64) std::byte left[4 * select_run];
                       const select_piece& p = source.pieces[piece];
                       visible(source.dtype, rule, v, static_cast<const std::byte*>(call.base) + (p.before + at) * size,
                               n, left);
                       return k.collect(left, n, 1, p.position + static_cast<uint32_t>(at), positions, kept);
                     })};
}

dr_status check(const dr_codec&, const dr_params& params, dr_error& error) {
  if (static_cast<float>(param_value(params, rate).number) > 0) return DR_OK;
  return fail(error, DR_E_ARGUMENT, "plan: visible(rate) must be above 0, in f32");
}

constexpr dr_param params[] = {param_choice("type", "in which the receiver computes with its weights", "bf16|f16", 0),
                               param_real("rate", "what the receiver multiplies a value with", 0, 1e30, 1)};

}  // namespace

constinit const sparsifier visible_sparsifier = {
    .entry = sparsifier_entry("visible", "the elements that would change the weights beside them in their type", 9,
                              params, DR_HOST_ONLY),
    .keep = keep,
    .check = check,
    .weighs = true};

}  // namespace dr
