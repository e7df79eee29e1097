// Plan books (dr_book, docs/PLAN_BOOK.md) in files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deepreduce/deepreduce.hpp"

namespace dr::predict {

// Throws std::runtime_error: "book.txt: line 3: …".
book read_book(const std::string& path);

// The canonical plan of a tensor; "": dense.
std::string plan_in(const book& b, const std::string& name);

// A warning for every line that matches no tensor first, and for a book without lines.
std::vector<std::string> idle_lines(const book& b, const std::string& where, const std::vector<std::string>& tensors);

}  // namespace dr::predict
