// Plan books: a tensor's name has the plan of the first pattern that matches it.
#include <array>

#include "client.hpp"

namespace {

struct book {
  dr_book* handle = nullptr;
  dr_error error{sizeof(dr_error)};
  dr_status status;
  explicit book(const std::string& text, const char* where = "x.book")
      : status(dr_book_parse(text.data(), text.size(), where, &handle, &error)) {}
  ~book() { dr_book_destroy(handle); }
  book(const book&) = delete;
  book& operator=(const book&) = delete;

  dr_book_line match(const char* name) const {
    dr_book_line line{sizeof(dr_book_line)};
    REQUIRE(dr_book_match(handle, name, &line, nullptr) == DR_OK);
    return line;
  }
  std::string plan_of(const char* name) const {
    const dr_book_line line = match(name);
    return line.plan ? dr_plan_text(line.plan) : "dense";
  }
};

bool matches(const std::string& pattern, const std::string& name) {
  book b("");
  REQUIRE(dr_book_add(b.handle, pattern.c_str(), 0, nullptr, nullptr) == DR_OK);
  return b.match(name.c_str()).position == 0;
}

std::string said(const std::string& text) {
  const book b(text);
  CHECK(b.status == DR_E_ARGUMENT);
  CHECK(b.handle == nullptr);
  return b.error.message;
}

}  // namespace

TEST_CASE("the first pattern that matches a name counts, and no match is dense") {
  const book b(
      "\xef\xbb\xbf# by hand\nlayer4.*:  index=golomb exchange=owner(parts=2)   # the large ones\n*.bias: dense\r\n\n"
      "[!l]*: dgc\na:b*: index=raw\n#*: dense\nlayer#1: dense");
  REQUIRE(b.status == DR_OK);
  REQUIRE(dr_book_line_count(b.handle) == 5);
  CHECK(b.plan_of("layer4.0.bias") == "index=golomb value=raw exchange=owner(parts=2)");
  CHECK(b.plan_of("a:b") == "sparsify=dgc(ratio=0.001) feedback=dgc index=golomb value=raw");
  CHECK(b.match("layer1.bias").number == 3);
  CHECK(b.match("layer1.bias").position == 1);
  CHECK(b.plan_of("layer#1") == "dense");
  const dr_book_line none = b.match("layer1.weight");
  CHECK(none.position == DR_NO_LINE);
  CHECK(none.pattern == nullptr);
  CHECK(none.plan == nullptr);
  dr_book_line line{sizeof(dr_book_line)};
  REQUIRE(dr_book_line_at(b.handle, 4, &line, nullptr) == DR_OK);
  CHECK(std::string(line.pattern) == "layer#1");
  CHECK(line.number == 8);
  CHECK(dr_book_line_at(b.handle, 5, &line, nullptr) == DR_E_ARGUMENT);
}

TEST_CASE("a byte order mark at the head of a book is not of its first pattern") {
  const book marked("\xef\xbb\xbfx*: index=golomb"), twice("\xef\xbb\xbf\xef\xbb\xbfx*: index=golomb");
  CHECK(marked.plan_of("xy") == "index=golomb value=raw");
  CHECK(twice.plan_of("xy") == "dense");
  CHECK(twice.plan_of("\xef\xbb\xbfxy") == "index=golomb value=raw");
}

TEST_CASE("a book comes again from its text") {
  const book b("\xef\xbb\xbf\n\xef\xbb\xbfx*: index=golomb(block=12)\n*: dense");
  CHECK(std::string(dr_book_text(b.handle)) == "\n\xef\xbb\xbfx*: index=golomb value=raw\n*: dense\n");
  const book again(dr_book_text(b.handle));
  CHECK(std::string(dr_book_text(again.handle)) == dr_book_text(b.handle));
  CHECK(again.plan_of("\xef\xbb\xbfxy") == "index=golomb value=raw");
  CHECK(std::string(dr_book_text(book("").handle)).empty());
  CHECK(std::string(dr_book_text(nullptr)).empty());
}

TEST_CASE("a wrong line is named: the text, the line, the pattern and the stage") {
  CHECK(said("*: dense\nnonsense\n") == "x.book: line 2: 'nonsense' is not `pattern: plan`");
  CHECK(said("\n: dense") == "x.book: line 2: no pattern before the colon");
  CHECK(said("a:") == "x.book: line 1: pattern 'a': no plan after the colon; `dense` leaves a tensor as it is");
  CHECK(said("# x\n\nw*: index=nobody").find("x.book: line 3: pattern 'w*': plan: no index codec is called 'nobody'") ==
        0);
  CHECK(said("w: exchange=owner(parts=0)") == "x.book: line 1: pattern 'w': plan: owner(parts=0): not in 1 … 64");
  CHECK(said("*: dense\na\xff: dense") == "x.book: line 2: byte 2 is 0xff: a plan book is UTF-8 without NUL");
  CHECK(said(std::string("a\0b: dense", 10)) == "x.book: line 1: byte 2 is 0x00: a plan book is UTF-8 without NUL");
  CHECK(said("\xed\xa0\x80: dense").find("byte 1 is 0xed") != std::string::npos);  // a surrogate
  const book b("*: dense\n\nq: index=nobody", nullptr);
  CHECK(std::string(b.error.message).find("book: line 3: ") == 0);
  CHECK(b.error.where == 3);
}

TEST_CASE("patterns are those of fnmatchcase, of code points") {
  CHECK(matches("*", ""));
  CHECK(matches("a?c", "abc"));
  CHECK(matches("a?c",
                "a\xc3\xa4"
                "c"));
  CHECK_FALSE(matches("a??c",
                      "a\xc3\xa4"
                      "c"));
  CHECK(matches("[ab]*", "b.b.c"));
  CHECK_FALSE(matches("[!a]bc", "abc"));
  CHECK(matches("[!a]bc", "Abc"));
  CHECK(matches("a[", "a["));
  CHECK(matches("[[]x", "[x"));
  CHECK(matches("[]]x", "]x"));
  CHECK(matches("layer[34].*", "layer3.weight"));
  CHECK(matches("[a-c]", "b"));
  CHECK(matches("[c-]", "-"));
  CHECK_FALSE(matches("[a-c]", "d"));
  CHECK(matches("*b*c", "ab/c"));
  CHECK_FALSE(matches("abc", "abcd"));
  CHECK_FALSE(matches("A", "a"));
  CHECK(matches("?", "\xff"));  // of a name that is not UTF-8 each byte
}

TEST_CASE("lines are added, as patterns or as names, and the book is unchanged by one that no line can hold") {
  book b("");
  const client::plan p("sparsify=topr(ratio=0.01) index=golomb value=raw");
  REQUIRE(dr_book_add(b.handle, "w[0]*", DR_BOOK_NAME, p.handle, nullptr) == DR_OK);
  REQUIRE(dr_book_add(b.handle, "*", 0, nullptr, nullptr) == DR_OK);
  const std::string text = "w[[]0][*]: sparsify=topr(ratio=0.01) index=golomb value=raw\n*: dense\n";
  CHECK(std::string(dr_book_text(b.handle)) == text);
  CHECK(b.match("w[0]*").position == 0);
  CHECK(b.match("w0x").position == 1);
  for (const char* const wrong : {"", " a", "a\t", "a\nb", "#a", "a #b", "a\xff"}) {
    dr_error e{sizeof(dr_error)};
    CHECK(dr_book_add(b.handle, wrong, 0, nullptr, &e) == DR_E_ARGUMENT);
    CHECK(std::string(e.message).find("pattern") != std::string::npos);
  }
  CHECK(dr_book_add(b.handle, "a", 2, nullptr, nullptr) == DR_E_UNSUPPORTED);
  CHECK(std::string(dr_book_text(b.handle)) == text);
}

TEST_CASE("what names make of the lines: used, matching none, never reached") {
  const book b("b.*: dense\na.*: dense\n*.bias: dense\nc: dense\n*: dense\n");
  const std::array names{"a.weight", "a.bias", "d"};
  std::array<uint32_t, 5> uses{};
  REQUIRE(dr_book_uses(b.handle, names.data(), names.size(), uses.data(), nullptr) == DR_OK);
  CHECK(uses ==
        std::array<uint32_t, 5>{DR_LINE_UNMATCHED, DR_LINE_USED, DR_LINE_UNREACHED, DR_LINE_UNMATCHED, DR_LINE_USED});
  REQUIRE(dr_book_uses(b.handle, nullptr, 0, uses.data(), nullptr) == DR_OK);
  CHECK(uses[4] == DR_LINE_UNMATCHED);
}
