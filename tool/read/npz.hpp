// Reads NumPy's .npz: a ZIP archive of .npy members, stored or deflated (PKWARE APPNOTE 6.3, with zip64).
#pragma once

#include "inputs.hpp"

namespace dr::compare {

// The float arrays in the order of the archive's directory, named as in numpy.load, and tensors stored as sparse
// (sparse_npz.hpp). Members that are not .npy or not float are skipped with a note. An archive whose comment is
// `deepreduce:input=NAME` was made of the file NAME, which its tensors, notes and errors name. Refuses encrypted, overlapping
// or repeated members, other methods than stored and deflate, and any size or CRC-32 that differs from the declared one. Of a deflated member
// no more is unpacked, and held, than its header has values for.
std::vector<tensor> parse_npz(std::span<const std::byte> file, std::string_view path, const reading& how = {});

}  // namespace dr::compare
