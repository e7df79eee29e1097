// The stages of a plan as callers see them (dr_stage): role, name, parameters.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "plan/arguments.hpp"

namespace dr {

// A name of a stage with its bound parameters.
struct listed_call {
  std::string name;  // in a plan
  const dr_codec* codec;
  const dr_param* params;
  size_t param_count;
  const dr_value* values;
};

class listed_stages {
 public:
  listed_stages() = default;
  listed_stages(const listed_stages&) = delete;
  listed_stages& operator=(const listed_stages&) = delete;

  // is_default: the canonical text leaves the stage out.
  void add(const char* role, std::span<const listed_call> calls, bool is_default);
  // Adds a stage as it was written, without binding its names.
  void add(const plan_stage& stage);

  std::span<const dr_stage> all() const { return stages_; }
  std::string text() const;  // canonical

 private:
  void add_stage(const plan_stage& written, std::span<const listed_call> bound, bool is_default);
  const char* hold(std::string word) { return words_.emplace_back(std::move(word)).c_str(); }

  std::deque<std::string> words_;  // (a deque does not move its elements)
  std::deque<std::vector<dr_stage_param>> params_;
  std::vector<dr_stage> stages_;
};

}  // namespace dr
