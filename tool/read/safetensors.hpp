// Reads .safetensors (https://github.com/huggingface/safetensors): 8 bytes of header size, a JSON header, the data.
#pragma once

#include "inputs.hpp"

namespace dr::compare {

// The tensors of F16, BF16, F32 and F64 (becomes f32) in the order of their data, and with a cast those of integers and
// booleans; others are skipped with a note.
// Refuses repeated or unknown keys, data that overlap, leave a gap or do not end with the file, and shapes that
// disagree with them.
std::vector<tensor> parse_safetensors(std::span<const std::byte> file, std::string_view where, const reading& how = {});

// The bytes of a .safetensors file, with the tensors in order. Throws input_error for a duplicate or reserved name.
std::string safetensors_of(std::span<const tensor> tensors);

}  // namespace dr::compare
