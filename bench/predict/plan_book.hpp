// A plan book: which tensor has which plan (docs/PLAN_BOOK.md).
//
//   # comment
//   layer4.*: sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw
//   *.bias: dense
//
// A line is `pattern: plan`; the first pattern that matches a tensor's name counts. Patterns are those of Python's
// fnmatchcase: * ? [abc] [!abc]; no escapes. The colon is the last of the line. `dense`: as it is, exactly; so are
// tensors that no line matches.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dr::predict {

struct book_line {
  std::string pattern, plan;  // plan: canonical; "" is dense
  size_t number = 0;          // of the line in its file
};
using plan_book = std::vector<book_line>;

// Throws std::runtime_error: "book.txt: line 3: …".
plan_book parse_book(std::string_view text, const std::string& where);
plan_book read_book(const std::string& path);

// The plan of a tensor; "": dense.
const std::string& plan_in(const plan_book& book, std::string_view name);

// A sentence for each line that no tensor takes its plan from, and for a book without lines.
std::vector<std::string> idle_lines(const plan_book& book, const std::string& where,
                                    const std::vector<std::string>& tensors);

// As Python's fnmatch.fnmatchcase.
bool matches(std::string_view pattern, std::string_view name);
// The pattern that matches this name alone.
std::string pattern_of(std::string_view name);

std::string book_text(const plan_book& book, const std::string& comment = "");

}  // namespace dr::predict
