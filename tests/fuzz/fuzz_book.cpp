// Plan books: any bytes give a book that is read again from its own text, or an error that names a line.
#include <stdexcept>
#include <string>

#include "bench/predict/plan_book.hpp"
#include "fuzz/script.hpp"

namespace {

using namespace dr::predict;
using fuzz::wrong;

bool same(const plan_book& a, const plan_book& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].pattern != b[i].pattern || a[i].plan != b[i].plan) return false;
  return true;
}

}  // namespace

// The first line is a tensor's name, the rest the book.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view name = all.substr(0, all.find('\n')), text = all.substr(name.size());
  if (!matches(pattern_of(name), name)) wrong("a name is not matched by its own pattern");
  plan_book book;
  try {
    book = parse_book(text, "x");
  } catch (const std::runtime_error& e) {
    if (!std::string_view(e.what()).starts_with("x: ")) wrong("an error that does not name the book");
    return 0;
  }
  const std::string& found = plan_in(book, name);
  const plan_book again = parse_book(book_text(book), "again");
  if (!same(again, book)) wrong("a book is another when it is read again");
  if (plan_in(again, name) != found) wrong("a tensor has another plan when the book is read again");
  return 0;
}
