// Which tensors are compared, and with which plans if none are given.
#pragma once

#include <string>
#include <vector>

#include "console.hpp"
#include "inputs.hpp"

namespace dr::compare {

struct subject_options {
  std::vector<std::string> inputs;  // none: the bundled gradients
  std::vector<std::string> globs;   // tensors by name; none: all
  bool per_tensor = false;          // one subject a tensor; else the tensors of an input joined
  bool flat = false;                // joined even though there are globs
};

// Reads the inputs; none comes back empty. Throws input_error, also if a glob matches nothing.
std::vector<tensor> read_subjects(const subject_options& options, console& console);

// "sparsify=…" of a plan that names none: topr, or for what is sparse already none.
std::string default_sparsifier(const tensor& g);

// Plan texts that show the choices there are, for a tensor whose gradient is dense or already sparse.
std::vector<std::string> default_plans(const tensor& g);

}  // namespace dr::compare
