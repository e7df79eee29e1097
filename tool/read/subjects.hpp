// Which tensors are compared, and with which plans if none are given.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "inputs.hpp"
#include "tool/show/console.hpp"

namespace dr::compare {

// The tensors of one frame: one tensor, or with `batch` all tensors of an input, as a list.
using subject = std::vector<tensor>;

struct subject_options {
  std::vector<std::string> inputs;  // none: a bundled accumulator of each model
  bool all_bundled = false;         // none: all bundled accumulators and gradients
  std::vector<std::string> globs;   // tensors by name; none: all
  bool per_tensor = false;          // one subject per tensor; else the tensors of an input are joined
  bool flat = false;                // joined in spite of globs
  bool batch = false;               // the tensors of an input are one subject, not joined, as in `encode`
  std::optional<dtype> cast;        // to this type, integers included
};

// Reads the inputs; only batches may have empty tensors. Throws input_error, also if a glob matches nothing.
std::vector<tensor> read_subjects(const subject_options& options, console& console);
std::vector<subject> read_batches(const subject_options& options, console& console);

// One or the other, by options.batch; for rows, so that two tensors of a file with one name are an input_error.
std::vector<subject> read_frames(const subject_options& options, console& console);

// Concatenates tensors of one type; tensors that are adjacent in a file are not copied.
tensor concatenated(std::vector<tensor> parts);

// The tensors that were joined, without names; of another tensor itself.
std::vector<tensor> parts_of(const tensor& t);

// The name in a report: of its tensor, or "[59 tensors]" for a batch. Types: "f32", or "f16+f32".
std::string name_of(const subject& s);
std::string types_of(const subject& s);
uint64_t elements_of(const subject& s);
// CRC-32 of all bytes, so that --resume notices an overwritten file.
std::string digest_of(std::span<const subject> gradients);

// Every subject as a sequence of one step.
std::vector<std::vector<subject>> apart(std::vector<subject> subjects);

// Inputs as steps of one training: a sequence per subject, in the order of the inputs. Throws input_error if the inputs
// differ in names, types or sizes.
std::vector<std::vector<subject>> in_steps(std::vector<subject> subjects);

// "sparsify=…" for a plan without a sparsifier: topr, or none if the gradient is sparse.
std::string default_sparsifier(const subject& g);

// Plans if none are given, in `compare` and in `calibrate`: rows of the one go with profiles of the other. An exchange is named where an
// all-gather would grow with the ranks.
const std::vector<std::string>& usual_plans();

// Those for this gradient: for a sparse one its ways of coding.
std::vector<std::string> default_plans(const subject& g);

}  // namespace dr::compare
