// Plan books: any bytes give a book that is read again from its own text, or an error that names a line.
#include <deepreduce/deepreduce.hpp>

#include <string>

#include "fuzz/script.hpp"

namespace {

using fuzz::wrong;

// A name as callers have it: of C, and of a line.
void check_name(const std::string& name) try {
  dr::book own;
  own.add(name, nullptr, true);
  if (own.match(name).position != 0) wrong("a name is not matched by its own pattern");
  if (own.match(name + "x").position != DR_NO_LINE) wrong("a name's pattern matches another");
} catch (const dr::error& e) {
  if (e.code() != DR_E_ARGUMENT) wrong("an error that is not about the name");
}

std::string plan_of(const dr::book& book, const std::string& name) {
  const dr_book_line line = book.match(name);
  return line.plan ? dr_plan_text(line.plan) : "";
}

}  // namespace

// The first line is a tensor's name, the rest the book.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string name(all.substr(0, std::min(all.find('\n'), all.find('\0'))));
  const std::string_view text = all.substr(name.size());
  check_name(name);
  try {
    const dr::book book(text, "x");
    const dr::book again(book.text(), "again");
    if (again.text() != book.text()) wrong("a book is another when it is read again");
    if (plan_of(again, name) != plan_of(book, name)) wrong("a tensor has another plan when the book is read again");
    const auto uses = book.uses(std::span(&name, 1));
    const dr_book_line line = book.match(name);
    for (size_t i = 0; i < uses.size(); ++i)
      if ((uses[i] == DR_LINE_USED) != (i == line.position)) wrong("a line is used that does not match first");
  } catch (const dr::error& e) {
    const std::string_view said = e.detail.message;
    if (e.code() != DR_E_ARGUMENT && e.code() != DR_E_UNSUPPORTED) wrong("another error than of a line");
    if (!said.starts_with("x: line ")) wrong("an error that does not name the line");
  }
  return 0;
}
