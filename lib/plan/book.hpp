// A plan book: which tensor has which plan, by its name (docs/PLAN_BOOK.md).
//   book = line*      line = [ pattern ":" ( plan | "dense" ) ] [ comment ]
// A line is cut at its last colon; `#` begins a comment at the beginning of a line or behind a blank. Patterns are those of
// Python's fnmatchcase. The first pattern that matches counts.
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

// Called with each line of a book and its plan, nullopt for `dense`, which it may refuse.
using take_line = std::function<dr_status(book_line, const std::optional<std::string>& plan, dr_error&)>;

// ARGUMENT "WHERE: line 3: …", the line in `error.where`.
dr_status parse_book(std::string_view text, const std::string& where, const take_line& take, dr_error& error);

// ARGUMENT: no line can hold this pattern.
dr_status check_pattern(std::string_view pattern, dr_error& error);

// As Python's fnmatch.fnmatchcase; a byte that is not UTF-8 stands for itself.
bool matches_pattern(std::string_view pattern, std::string_view name);
// The pattern that matches this name alone.
std::string pattern_of(std::string_view name);

// A line of a book's text. first: of the text.
std::string line_text(std::string_view pattern, std::string_view plan, bool first);

}  // namespace dr
