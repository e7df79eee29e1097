// A sparsifier: selects the elements of a gradient that are sent. Its entry is for the registry; the rest is its
// interface to the pipeline, which has no sparsifier's name. One folder of codecs/sparsify (codecs/README.md).
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "deepreduce/codec.hpp"
#include "sparsify/select.hpp"

namespace dr {

struct device_select_job;

// The source of a selection, and its output.
struct keep_call {
  const dr_params& params;
  const select_source& source;
  uint64_t universe;        // elements of the tensor; of a dense source, its values
  const uint64_t* indices;  // of a sparse source: the positions of its values, ascending; else nullptr
  uint64_t key;             // of draws: shared by all ranks (FORMAT.md, Random numbers)
  const void* base;         // of the tensor, if the sparsifier compares with it; else nullptr
  void* scratch;
  const select_memory& memory;  // for selected_max pairs
  const select_crew& crew;
};

// The selected pairs are written to call.memory. A source that computes its values must be read completely
// (source_walk.hpp does).
struct sparsifier {
  dr_codec entry;  // name, summary, id, parameters, traits. First, so that its address is the sparsifier's.

  selection_result (*keep)(const keep_call&);
  // Target number of elements. nullptr: all that qualify.
  uint64_t (*target)(const dr_params&, uint64_t universe) = nullptr;
  // The maximum number of selected elements. nullptr: the target.
  uint64_t (*selected_max)(const dr_params&, uint64_t universe) = nullptr;
  // The elements of a block: contiguous elements of a range, from its first on, that are selected together; a power of
  // two up to block_max. 0: `keep` returns it. nullptr: 1. Sparse tensors have no blocks.
  uint32_t (*block)(const dr_params&) = nullptr;
  // A tensor with more selected elements is sent dense. nullptr: none is.
  uint64_t (*dense_above)(const dr_params&, uint64_t universe) = nullptr;
  // Bytes of scratch for `present` values.
  uint64_t (*scratch)(const dr_params&, uint64_t universe, uint64_t present) = nullptr;
  // ARGUMENT: parameters that cannot be combined.
  dr_status (*check)(const dr_codec& entry, const dr_params&, dr_error&) = nullptr;
  // The maximum number of values of a tensor, for sparsifiers that number values in 32 bits.
  uint64_t elements_max = UINT64_MAX;
  // Whether it selects all that is not zero. nullptr: no.
  bool (*keeps_all)(const dr_params&) = nullptr;
  // Sets the kind of selection on a GPU, and its parameters. nullptr: it runs on the CPU only (DR_HOST_ONLY).
  void (*on_device)(const dr_params&, uint64_t universe, device_select_job&) = nullptr;
  // Sparse tensors, and rows of any width, pass unchanged; other sparsifiers refuse them.
  bool passes_on = false;
  // Positions follow from the key and the universe alone: all ranks select the same.
  bool blind = false;
  // Selects the rows that differ from a base: a patch (lib/patch). The pipeline does it, on a GPU, too; `keep` and
  // `on_device` are nullptr.
  bool patches = false;
  // Compares with a tensor's base, the weights beside the gradient; the frame is as any other.
  bool weighs = false;
};

// The sparsifier of an entry of role DR_ROLE_SPARSIFY: only built-ins have that role.
inline const sparsifier& sparsifier_of(const dr_codec& entry) { return reinterpret_cast<const sparsifier&>(entry); }

// The name, for errors, of the first sparsifier with a trait; "?" if there is none.
const char* sparsifier_with(bool sparsifier::*trait);

inline constexpr uint32_t block_max = 32;

// The id of the sparsifier of a plan that names none.
inline constexpr uint32_t default_sparsifier = 0;

// A sparsifier with the parameters of a plan.
struct bound_sparsifier {
  const sparsifier& how;
  dr_params params;

  uint64_t target(uint64_t universe) const { return how.target ? how.target(params, universe) : universe; }
  uint64_t selected_max(uint64_t universe) const {
    return how.selected_max ? how.selected_max(params, universe) : target(universe);
  }
  uint32_t block() const { return how.block ? how.block(params) : 1; }
  uint64_t dense_above(uint64_t universe) const {
    return how.dense_above ? how.dense_above(params, universe) : universe;
  }
  uint64_t scratch(uint64_t universe, uint64_t present) const {
    return how.scratch ? how.scratch(params, universe, present) : 0;
  }
  bool selects_by_magnitude() const { return !how.blind && !how.block; }
  bool keeps_all() const { return how.keeps_all && how.keeps_all(params); }
};

// floor(ratio·d), of a parameter that is a ratio.
uint64_t share_of(const dr_params& params, size_t ratio, uint64_t d);

// ---- For sparsifiers that select a ratio or a count of the elements ---------------------------------------

enum share_param : size_t { share_ratio, share_count };

// min(d, max(1, floor(ratio·d + 1e-9))), or `count` if it is set.
uint64_t share_target(double ratio, double count, uint64_t d);
uint64_t share_target(const dr_params& params, uint64_t universe);
// ARGUMENT unless exactly one of ratio and count is set, and above 0.
dr_status check_share(const dr_codec& entry, const dr_params& params, dr_error& error);
inline bool whole_share(const dr_params& params) { return param_value(params, share_ratio).number == 1; }

inline constexpr dr_param share_params[] = {
    param_real("ratio", "share of the elements to keep (or give count)", 0, 1, 0),
    param_int("count", "number of elements to keep", 0, 9007199254740992.0, 0)};  // 2^53

constexpr dr_codec sparsifier_entry(const char* name, const char* summary, uint32_t id,
                                    std::span<const dr_param> params, uint32_t traits = 0) {
  return make_codec(name, summary, id, DR_ROLE_SPARSIFY, traits, nullptr,
                    {.dtypes = all_value_dtypes, .params = params});
}

}  // namespace dr
