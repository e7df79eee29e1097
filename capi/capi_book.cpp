// Plan books: plan/book.hpp has the grammar and the matching, and here are the plans.
#include "capi/handles.hpp"
#include "plan/book.hpp"

using dr::fail;
using dr::reported;

struct dr_book {
  std::vector<dr::book_line> lines;
  std::vector<std::unique_ptr<dr_plan>> plans;  // [line]; nullptr: dense
  std::string text;

  // All of it or, if memory runs out, nothing.
  void add(dr::book_line line, std::unique_ptr<dr_plan> plan) {
    const std::string more = dr::line_text(line.pattern, plan ? plan->bound->text : "dense", lines.empty());
    text.reserve(text.size() + more.size());
    if (lines.size() == lines.capacity()) lines.reserve(2 * lines.size() + 4);
    plans.push_back(std::move(plan));
    lines.push_back(std::move(line));
    text += more;
  }
  size_t find(std::string_view name) const {
    size_t i = 0;
    while (i < lines.size() && !dr::matches_pattern(lines[i].pattern, name)) ++i;
    return i;
  }
  dr_book_line line_at(size_t i) const {
    if (i >= lines.size()) return {sizeof(dr_book_line), DR_NO_LINE, 0, nullptr, nullptr};
    return {sizeof(dr_book_line), i, lines[i].number, lines[i].pattern.c_str(), plans[i].get()};
  }
};

dr_status dr_book_parse(const char* text, size_t size, const char* where, dr_book** book, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if ((!text && size) || !book) return fail(e, DR_E_ARGUMENT, "%s is NULL", book ? "text" : "book");
    *book = nullptr;
    auto made = std::make_unique<dr_book>();
    const auto add_line = [&](dr::book_line line, const std::optional<std::string>& plan, dr_error& why) {
      std::unique_ptr<dr_plan> bound;
      if (plan) {
        bound = std::make_unique<dr_plan>();
        if (const dr_status s = dr::bind_plan(*plan, bound->bound, why)) return s;
      }
      made->add(std::move(line), std::move(bound));
      return dr_status{DR_OK};
    };
    if (const dr_status s = dr::parse_book({text ? text : "", size}, where ? where : "book", add_line, e)) return s;
    *book = made.release();
    return DR_OK;
  });
}

void dr_book_destroy(dr_book* book) { delete book; }

dr_status dr_book_add(dr_book* book, const char* pattern, uint32_t flags, const dr_plan* plan, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!book || !pattern) return fail(e, DR_E_ARGUMENT, "%s is NULL", book ? "pattern" : "book");
    if (flags & ~static_cast<uint32_t>(DR_BOOK_NAME))
      return fail(e, DR_E_UNSUPPORTED, "flags: unknown bits in 0x%x", flags);
    dr::book_line line{flags & DR_BOOK_NAME ? dr::pattern_of(pattern) : pattern, 0};
    if (const dr_status s = dr::check_pattern(line.pattern, e)) return s;
    book->add(std::move(line), plan ? std::make_unique<dr_plan>(*plan) : nullptr);
    return DR_OK;
  });
}

size_t dr_book_line_count(const dr_book* book) { return book ? book->lines.size() : 0; }

dr_status dr_book_line_at(const dr_book* book, size_t position, dr_book_line* line, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!book || !line) return fail(e, DR_E_ARGUMENT, "%s is NULL", book ? "line" : "book");
    dr_book_line l;
    if (const dr_status s = dr::read_struct(line, "line", l, e)) return s;
    if (position >= book->lines.size())
      return fail(e, DR_E_ARGUMENT, "position: %zu is not below the %zu lines", position, book->lines.size());
    dr::write_struct(book->line_at(position), line);
    return DR_OK;
  });
}

dr_status dr_book_match(const dr_book* book, const char* name, dr_book_line* line, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!book || !name || !line) return fail(e, DR_E_ARGUMENT, "%s is NULL", !book ? "book" : name ? "line" : "name");
    dr_book_line l;
    if (const dr_status s = dr::read_struct(line, "line", l, e)) return s;
    dr::write_struct(book->line_at(book->find(name)), line);
    return DR_OK;
  });
}

dr_status dr_book_uses(const dr_book* book, const char* const* names, size_t n, uint32_t* uses, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!book || (!names && n) || (!uses && !book->lines.empty()))
      return fail(e, DR_E_ARGUMENT, "%s is NULL", !book ? "book" : uses ? "names" : "uses");
    for (size_t t = 0; t < n; ++t)
      if (!names[t]) return fail(e, DR_E_ARGUMENT, "names: name %zu is NULL", t);
    for (size_t i = 0; i < book->lines.size(); ++i) {
      uses[i] = DR_LINE_UNMATCHED;
      for (size_t t = 0; t < n && uses[i] == DR_LINE_UNMATCHED; ++t)
        if (dr::matches_pattern(book->lines[i].pattern, names[t])) uses[i] = DR_LINE_UNREACHED;
    }
    for (size_t t = 0; t < n; ++t)
      if (const size_t i = book->find(names[t]); i < book->lines.size()) uses[i] = DR_LINE_USED;
    return DR_OK;
  });
}

const char* dr_book_text(const dr_book* book) { return book ? book->text.c_str() : ""; }
