// A plan book: which tensor has which plan, by its name (docs/PLAN_BOOK.md).
//   book = line*      line = [ pattern ":" ( plan | "dense" ) ] [ comment ]
// The last colon separates pattern and plan; `#` begins a comment at the beginning of a line or after a blank. Patterns
// are those of Python's fnmatchcase. The first pattern that matches counts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace dr {

struct book_line {
  std::string pattern;
  uint64_t number = 0;  // of the line in its text, from 1; 0: it was added
};

// Called for every line of a book with its plan, nullopt for `dense`; it may refuse the plan.
using line_handler = std::function<dr_status(book_line, const std::optional<std::string>& plan, dr_error&)>;

// ARGUMENT "WHERE: line 3: …", the line in `error.where`.
dr_status parse_book(std::string_view text, const std::string& where, const line_handler& handle, dr_error& error);

// ARGUMENT: a pattern that cannot be written in a line.
dr_status check_pattern(std::string_view pattern, dr_error& error);

// As Python's fnmatch.fnmatchcase; a byte that is not UTF-8 stands for itself.
bool matches_pattern(std::string_view pattern, std::string_view name);
// The pattern that matches this name alone.
std::string pattern_of(std::string_view name);

// A line of a book's text. first: of the text.
std::string line_text(std::string_view pattern, std::string_view plan, bool first);

}  // namespace dr
