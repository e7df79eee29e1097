// The kind of a layer that a tensor belongs to, from its name and shape.
//
// The first rule that fits decides. A name is cut into words, in lower case, at everything but letters and digits and where a
// lower-case letter meets an upper-case one. "conv…": a word that begins so.
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

// shape: of the tensor, empty where it is not known. "" for a tensor without a name, or joined.
std::string layer_kind(std::string_view name, std::span<const uint64_t> shape);

}  // namespace dr::compare
