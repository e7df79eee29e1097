// What the commands around `compare` take from the command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare.hpp"
#include "tool/read/subjects.hpp"

namespace dr::compare {

enum class format { table, csv, json, markdown, html };

struct compare_options {
  subject_options subjects;
  std::vector<std::string> plans, presets, plugins;
  format form = format::table;
  std::string form_name, output, report;  // form_name: as --format says; report: a page of HTML beside it
  std::string where, sort, pareto, best, best_by = "bytes";  // "": not asked for
  std::vector<std::string> from;                             // saved documents
  std::string resume, against;                               // likewise, one each
  std::string book;                                          // a plan book: each tensor has its plan from it
  bool fail_if_worse = false;
  uint64_t limit = 10000;                      // of plans that sweeps give
  uint32_t threads = 0, ranks = 8, steps = 0;  // 0: each input by itself
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
  std::string file, output;
  std::vector<std::string> plugins;
  uint32_t threads = 0;
  uint64_t most_elements = 1'000'000'000;
};

struct presets_options {
  std::string name;  // of a preset or a set; "": all
};

struct convert_options {
  subject_options subjects;
  std::string output;
};

}  // namespace dr::compare
