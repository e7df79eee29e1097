// Options of `compare` and of the small commands around it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare.hpp"
#include "tool/read/subjects.hpp"

namespace dr::compare {

enum class format { table, csv, json, markdown };

struct compare_options {
  subject_options subjects;
  std::vector<std::string> plans, presets, plugins;
  format form = format::table;
  std::string form_name, output, report;                     // form_name: --format; report: an additional HTML page
  std::string where, sort, pareto, best, best_by = "bytes";  // "": not given
  std::vector<std::string> from;                             // saved documents
  std::string resume, against;                               // a saved document
  std::string book;                                          // a plan book, with a plan per tensor
  bool fail_if_worse = false;
  bool wide = false;                           // all columns
  bool all = false;                            // the tables, too, beside the answers of --best
  uint64_t limit = 10000;                      // on the plans of sweeps
  uint32_t threads = 0, ranks = 8, steps = 0;  // 0: every input on its own
  uint32_t repeat = 0;                         // 0: by time
  double seconds = default_seconds;
  std::string link_text;
  std::optional<link> over;
  bool each_step = false;
  uint64_t seed = 0, segment_rows = 0;
};

struct codecs_options {
  std::string name;  // NAME, ROLE or ROLE=NAME; "": all
  std::vector<std::string> plugins;
  format form = format::table;
};

struct inspect_options {
  std::string file;
  format form = format::table;
  std::vector<std::string> plugins;
};

struct encode_options {
  std::string input, plan, output;
  std::optional<dtype> cast;
  std::vector<std::string> plugins;
  uint32_t threads = 0;
  uint64_t seed = 0, segment_rows = 0;
};

struct decode_options {
  std::string file, output, like;  // like: an input that has the tensors' names and shapes; "": none
  std::vector<std::string> plugins;
  uint32_t threads = 0;
  uint64_t max_elements = 1'000'000'000;
};

struct presets_options {
  std::string name;  // of a preset or a set; "": all
  format form = format::table;
};

struct convert_options {
  subject_options subjects;
  std::string output;
};

}  // namespace dr::compare
