// Which tensors are compared, and with which plans if none are given.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "inputs.hpp"
#include "tool/show/console.hpp"

namespace dr::compare {

// The tensors of one frame: one tensor, or with `batch` all of an input, which go into a list frame.
using subject = std::vector<tensor>;

struct subject_options {
  std::vector<std::string> inputs;  // none: the bundled accumulators and gradients
  std::vector<std::string> globs;   // tensors by name; none: all
  bool per_tensor = false;          // one subject a tensor; else the tensors of an input joined
  bool flat = false;                // joined even though there are globs
  bool batch = false;               // not joined: the tensors of an input are one subject, as `encode` has them
  std::optional<dtype> cast;        // to this type, integers too
};

// Reads the inputs; but for a batch none comes back empty. Throws input_error, also if a glob matches nothing.
std::vector<tensor> read_subjects(const subject_options& options, console& console);
std::vector<subject> read_batches(const subject_options& options, console& console);

// Either, as options.batch says.
std::vector<subject> read_frames(const subject_options& options, console& console);

// Tensors of one type, one behind the other; those that lie so in a file stay there.
tensor concatenated(std::vector<tensor> parts);

// "NAME" of its tensor in a report; "[59 tensors]" of a batch. Types: "f32", or "f16+f32".
std::string name_of(const subject& s);
std::string types_of(const subject& s);
uint64_t elements_of(const subject& s);
// CRC-32 of all bytes: whether a file that --resume knows was overwritten.
std::string digest_of(std::span<const subject> gradients);

// Each subject by itself, one step of it.
std::vector<std::vector<subject>> apart(std::vector<subject> subjects);

// Inputs as steps of one training: of each subject its steps, in the order of the inputs. Throws input_error if the inputs
// differ in names, types or sizes.
std::vector<std::vector<subject>> in_steps(std::vector<subject> subjects);

// "sparsify=…" of a plan that names none: topr, or for what is sparse already none.
std::string default_sparsifier(const subject& g);

// Plan texts that show the choices there are, for tensors whose gradient is dense or already sparse.
std::vector<std::string> default_plans(const subject& g);

}  // namespace dr::compare
