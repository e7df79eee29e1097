// The kind of a layer that a tensor belongs to, from its name and shape.
//
// The first matching rule decides. A name is cut into lower-case words at all characters but letters and digits, and between a
// lower-case and an upper-case letter. "conv…": a word that starts with conv.
//   norm_bias   one dimension or none; or a word bias, b, beta, gamma, ln…, bn…, …norm…
//   embedding   emb…, wte, wpe, token…, lookup…, user, item (recommenders), or the name encoder.weight (PyTorch's word models)
//   recurrent   lstm…, gru…, rnn…, recurrent…, ih, hh
//   attention   attn…, attention…, qkv…, or q, k, v with proj…
//   conv        three dimensions or more; or conv…, downsample…, shortcut…
//   linear      two dimensions; or fc…, linear…, dense…, mlp…, ffn…, head…, classifier…, proj…, decoder…
//   other       none of these
// Joined tensors ("*") and tensors without a name have no kind.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dr::compare {

// shape: of the tensor, empty if unknown. "" for a tensor without a name, or joined.
std::string layer_kind(std::string_view name, std::span<const uint64_t> shape);

}  // namespace dr::compare
