// The text of plans.
#include <doctest/doctest.h>
#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <tuple>

#include "pipeline/bind.hpp"
#include "plan/book.hpp"

namespace {

std::string canonical(const std::string& text) {
  std::shared_ptr<const dr::plan> p;
  dr_error error{sizeof(dr_error)};
  if (dr::bind_plan(text, p, error)) return std::string("error: ") + error.message;
  std::shared_ptr<const dr::plan> again;
  CHECK(dr::bind_plan(p->text, again, error) == DR_OK);
  CHECK(again->text == p->text);
  return p->text;
}

bool refused(const std::string& text, const std::string& word) {
  const std::string message = canonical(text);
  CAPTURE(text);
  CAPTURE(message);
  return message.starts_with("error: plan: ") && message.find(word) != std::string::npos;
}

std::string exact_of(const std::string& text) {
  std::shared_ptr<const dr::plan> p, exact;
  dr_error error{sizeof(dr_error)};
  REQUIRE(dr::bind_plan(text, p, error) == DR_OK);
  REQUIRE(dr::bind_exact(p, exact, error) == DR_OK);
  return exact->text;
}

std::string rows_of(const std::string& text) {
  std::shared_ptr<const dr::plan> p, rows;
  dr_error error{sizeof(dr_error)};
  REQUIRE(dr::bind_plan(text, p, error) == DR_OK);
  return dr::bind_rows(*p, rows, error) == DR_E_UNSUPPORTED ? std::string("refused: ") + error.message : rows->text;
}

}  // namespace

TEST_CASE("small tensors beside others: all of them, with the weight and the momentum of those") {
  const std::string exact = "index=all value=raw",
                    top = "sparsify=topr(ratio=0.1) index=golomb value=qsgd bucket=flat ";
  CHECK(exact_of(top) == exact);
  CHECK(exact_of(top + "exchange=owner(parts=2)") == exact);
  CHECK(exact_of(top + "feedback=residual") == "feedback=residual " + exact);
  CHECK(exact_of(top + "feedback=residual(beta=0.5,gamma=0.5)") == "feedback=residual(gamma=0.5) " + exact);
  CHECK(exact_of(top + "feedback=efsignsgd(lr=0.2)") == "feedback=efsignsgd(lr=0.2) " + exact);
  CHECK(exact_of(top + "feedback=momentum(beta=0.5)") == "feedback=momentum(beta=0.5) " + exact);
  CHECK(exact_of(top + "feedback=dgc(momentum=0.5,clip=2)") ==
        "feedback=dgc(momentum=0.5,clip=2,masking=off) " + exact);
  CHECK(exact_of(top + "feedback=dgc(masking=off)") == "feedback=dgc(masking=off) " + exact);
  // A mean beside signs would be of another scale; a transform sends small tensors as they are.
  for (const std::string text :
       {"index=all value=sign(scale=mean) merge=vote", "transform=lowrank(rank=4) feedback=residual"})
    CHECK(exact_of(text) == text);
}

TEST_CASE("rows that are selected already: the plan's codecs, and nothing that is of all elements") {
  CHECK(rows_of("sparsify=topr(ratio=0.1) feedback=residual(gamma=0.5) index=rice+deflate value=half bucket=flat "
                "exchange=owner") == "index=rice+deflate value=half");
  CHECK(rows_of("index=golomb value=fit_poly order=bitpack+deflate") ==
        "index=golomb value=fit_poly order=bitpack+deflate");
  CHECK(rows_of("index=auto value=auto(error=0.01)") == "index=auto value=auto(error=0.01)");
  CHECK(rows_of("feedback=efsignsgd index=raw value=raw") == "index=raw value=raw");
  for (const std::string index : {"all", "bloom(fpr=0.01)", "bloom(policy=naive)"})
    CHECK(rows_of("index=" + index + " value=half") == "index=golomb value=half");
  CHECK(rows_of("sparsify=random(ratio=0.1) index=seeded value=half") == "index=golomb value=half");
  CHECK(rows_of("transform=lowrank(rank=4) feedback=residual") == "index=golomb value=raw");
  CHECK(rows_of("feedback=momentum") ==
        "refused: plan: feedback=momentum keeps a momentum of all elements, not of the rows of a step");
  CHECK(rows_of("feedback=dgc") ==
        "refused: plan: feedback=dgc keeps a momentum of all elements, not of the rows of a step");
  CHECK(rows_of("index=all value=sign merge=vote") ==
        "refused: plan: merge=vote has votes of all elements, not of the rows of a step");
}

TEST_CASE("canonical text: fixed order, no defaults, shortest numbers") {
  CHECK(canonical("") == "index=raw value=raw");
  CHECK(canonical("value=qsgd(bucket=512,levels=127) index=golomb(block=12)") == "index=golomb value=qsgd");
  CHECK(
      canonical(
          " value=qsgd(levels=63)\tindex=rice( block = 9 ) feedback=residual(gamma=0.50)  sparsify=topr(ratio=1e-2)") ==
      "sparsify=topr(ratio=0.01) feedback=residual(gamma=0.5) index=rice(block=9) value=qsgd(levels=63)");
  CHECK(canonical("index=raw+deflate+deflate(level=9) value=raw+deflate(level=6)") ==
        "index=raw+deflate+deflate(level=9) value=raw+deflate");
  CHECK(canonical("sparsify=topr(count=1000000)") == "sparsify=topr(count=1e+06) index=raw value=raw");
  CHECK(canonical("sparsify=threshold(value=0)") == "sparsify=threshold(value=0) index=raw value=raw");
  CHECK(canonical("feedback=none sparsify=none bucket=none regather=on") == "index=raw value=raw");
  CHECK(canonical("bucket=flat") == "index=raw value=raw bucket=flat");
}

TEST_CASE("what changes nothing is not in the canonical text") {
  CHECK(canonical("index=golomb regather=off") == "index=golomb value=raw");
  CHECK(canonical("index=golomb value=fit_poly order=bitpack") == "index=golomb value=fit_poly");
  CHECK(canonical("index=bloom value=fit_poly(knots=auto)") == "index=bloom value=fit_poly");
  CHECK(canonical("index=bloom value=fit_poly(knots=fractions)") == "index=bloom value=fit_poly(knots=fractions)");
  CHECK(canonical("index=raw value=fit_poly order=bitpack+deflate") == "index=raw value=fit_poly");
  CHECK(canonical("index=golomb value=fit_poly order=bitpack+deflate") ==
        "index=golomb value=fit_poly order=bitpack+deflate");
}

TEST_CASE("canonical text of memories, votes, transforms and methods is its own canonical text") {
  for (const char* text :
       {"feedback=efsignsgd index=raw value=raw", "feedback=efsignsgd(lr=3e-05) index=raw value=raw",
        "feedback=dgc index=raw value=raw", "feedback=dgc(momentum=0,clip=2,masking=off) index=raw value=raw",
        "feedback=momentum index=raw value=raw", "feedback=momentum(beta=1) index=raw value=raw",
        "feedback=residual index=all value=sign(scale=mean) merge=vote",
        "index=all value=sign bucket=flat merge=vote exchange=owner(parts=3)", "transform=lowrank(rank=4096)",
        "transform=lowrank(rank=2) feedback=residual(beta=0.5,gamma=2)",
        "sparsify=adaq(ratio=0.01) index=raw value=sign(scale=means)",
        "sparsify=dgc(ratio=0.01,corrections=0) index=raw value=sign(scale=level,level=0.1)",
        "index=all value=ternary(clip=0)", "index=all value=natural(rounding=nearest)", "index=all value=dynamic_tree",
        "index=all value=inceptionn(error=2e-10)", "index=all value=inceptionn"})
    CHECK(canonical(text) == text);
  CHECK(canonical("transform=none merge=mean") == "index=raw value=raw");
  CHECK(canonical("feedback=none transform=lowrank( rank = 3 )") == "transform=lowrank(rank=3)");
}

TEST_CASE("naive is leftmost without re-gathering") {
  CHECK(canonical("index=bloom(policy=naive,fpr=0.01)") == "index=bloom(fpr=0.01) value=raw regather=off");
  CHECK(canonical("index=bloom(policy=naive) regather=on") == "index=bloom value=raw regather=off");
}

TEST_CASE("a preset's name is a plan, and stages after it replace its own") {
  CHECK(canonical("terngrad") == "index=all value=ternary");
  CHECK(canonical(" dgc\n") == canonical("sparsify=dgc(ratio=0.001) feedback=dgc(momentum=0.9) index=golomb"));
  CHECK(canonical("dgc sparsify=topr(ratio=0.01) exchange=owner") ==
        canonical("sparsify=topr(ratio=0.01) feedback=dgc(momentum=0.9) index=golomb exchange=owner"));
  CHECK(canonical("BF-P0") == canonical("sparsify=topr(ratio=0.01) index=bloom(policy=p0,fpr=0.001)"));
  CHECK(canonical("BF-P0 sparsify=none") == canonical("index=bloom(policy=p0,fpr=0.001)"));
  CHECK(canonical("powersgd") == "transform=lowrank(rank=4) feedback=residual");
  CHECK(canonical("powersgd transform=lowrank(rank=1)") == "transform=lowrank(rank=1) feedback=residual");
  CHECK(refused("terngard", "'terngard' is neither a stage (role=codec) nor a preset; is it 'terngrad'?"));
  CHECK(refused("TERNGRAD", "is it 'terngrad'?"));
  CHECK(refused("nothing", "'nothing' is neither a stage (role=codec) nor one of the "));
  CHECK(refused(std::string(32, 'x'), "neither a stage"));
  CHECK(refused(std::string(33, 'x'), "'=' expected"));
  CHECK(refused("terngrad(clip=2)", "no stage before 'terngrad' at column 1; a stage is role=name"));
  CHECK(refused("terngrad terngrad", "'=' expected at the end"));
  CHECK(refused("index=all terngrad", "'=' expected at the end"));
  CHECK(refused("dgc index=what", "what"));
}

TEST_CASE("a senseless plan is refused, and the error names the wrong word") {
  CHECK(refused("index", "'index' must be followed by '=' and a name"));
  CHECK(refused("index=", "a name"));
  CHECK(refused("index=golomb(", "a key"));
  CHECK(refused("index=golomb(block=12", "',' or ')'"));
  CHECK(refused("index=golomb)", "a space"));
  CHECK(refused("index=golomb index=rice", "given twice"));
  CHECK(refused("index=golomb(block=12,block=12)", "given twice"));
  CHECK(refused("indices=golomb", "unknown stage 'indices'"));
  CHECK(refused("index=golom", "golomb"));
  CHECK(refused("index=qsgd", "no index codec"));
  CHECK(refused("index=golomb+qsgd", "no bytes codec"));
  CHECK(refused("index=golomb(length=12)", "it has: block"));
  CHECK(refused("index=golomb(block=8)", "9 … 13"));
  CHECK(refused("index=golomb(block=9.5)", "not an integer"));
  CHECK(refused("index=golomb(block=nan)", "not a number"));
  CHECK(refused("index=golomb(block=1e999)", "not a number"));
  CHECK(refused("index=bloom(policy=left)", "leftmost|p0"));
  CHECK(refused("sparsify=topr(ratio=0.1,count=3)", "topr accepts ratio= or count=, not both"));
  CHECK(refused("sparsify=topr(ratio=0)", "above 0"));
  CHECK(refused("sparsify=random(count=0)", "random(count) must be above 0"));
  CHECK(refused("sparsify=dgc", "needs ratio"));
  CHECK(refused("sparsify=dgc(ratio=0)", "dgc(ratio) must be above 0"));
  CHECK(refused("sparsify=dgc(ratio=0.1,count=3)", "it has: ratio, sample"));
  CHECK(refused("sparsify=threshold", "needs value"));
  CHECK(refused("sparsify=topr(ratio=0.1)+deflate", "one name"));
  CHECK(refused("regather=maybe", "there are: on, off"));
  CHECK(refused("value=raw+deflate+deflate+deflate+deflate+deflate", "at most 5"));
  CHECK(refused("value=fit_poly order=bitpack+huffman+huffman+huffman", "order= has 4 codecs; at most 3"));
  CHECK(refused("index=\x01", "0x01"));
  CHECK(refused(std::string(5000, 'x'), "at most 4096"));
}

TEST_CASE("what people mistype first is answered with what they meant") {
  const auto answered = [](const std::string& text, const std::string& sentence) {
    const std::string message = canonical(text);
    CAPTURE(text);
    CHECK(message == "error: plan: " + sentence);
  };
  // Arguments without a name.
  answered("sparsify=topr(0.01)", "topr(0.01): '0.01' at column 15 has no name; is it topr(ratio=0.01)?");
  answered("sparsify=topr( 1% )", "topr(1%): '1%' at column 16 has no name; is it topr(ratio=0.01)?");
  answered("sparsify=topr(100)", "topr(100): '100' at column 15 has no name; is it topr(count=100)?");
  answered("value=half(bf16)", "half(bf16): 'bf16' at column 12 has no name; is it half(type=bf16)?");
  answered("transform=lowrank(4)", "lowrank(4): '4' at column 19 has no name; is it lowrank(rank=4)?");
  answered("index=nobody(3)", "nobody(3): '3' at column 14 has no name; arguments are key=value");
  answered("index=golomb(12)", "golomb(12): '12' at column 14 has no name; is it golomb(block=12)?");
  answered("index=golomb(4)", "golomb(4): '4' at column 14 has no name; arguments are key=value");
  // Numbers.
  answered("sparsify=topr(ratio=1%)", "topr(ratio=1%): '%' at column 22 is not part of a number; is it ratio=0.01?");
  answered("sparsify=topr(ratio=1/200)",
           "topr(ratio=1/200): '/' at column 22 is not part of a number; is it ratio=0.005?");
  answered("sparsify=topr(ratio=1/0)", "',' or ')' expected at column 22, not '/'");
  answered("sparsify=topr(ratio=0,01)", "topr(ratio=0,01): a number has a point, not a comma; is it ratio=0.01?");
  answered("sparsify=topr", "topr needs ratio= or count=, e.g. topr(ratio=0.01)");
  answered("sparsify=random", "random needs ratio= or count=, e.g. random(ratio=0.01)");
  // Stages.
  answered("topr(0.01)", "no stage before 'topr' at column 1; is it 'sparsify=topr(ratio=0.01)'?");
  answered("topr(ratio=0.01) index=golomb", "no stage before 'topr' at column 1; is it 'sparsify=topr(ratio=0.01)'?");
  answered("index=golomb topk(1%)", "no stage before 'topk' at column 14; is it 'sparsify=topr(…)'?");
  answered("topr=0.01", "no stage before 'topr' at column 1; is it 'sparsify=topr(ratio=0.01)'?");
  answered("topr", "'topr' is neither a stage (role=codec) nor a preset; is it 'sparsify=topr'?");
  answered("golom", "'golom' is neither a stage (role=codec) nor a preset; is it 'index=golomb'?");
  answered("spasify=topr(ratio=0.01)", "unknown stage 'spasify'; is it 'sparsify'?");
  answered("sparsify = topr(ratio=0.01)", "'sparsify' must be followed by '=' and a name, without spaces");
  answered("index=golomb, value=half", "stages are separated by spaces, not by ',' (column 13)");
  // Names.
  answered("index=golom", "no index codec is called 'golom'; is it 'golomb'?");
  answered("sparsify=topk(ratio=0.01)", "no sparsify codec is called 'topk'; is it 'topr'?");
  answered("sparsify=TopR(ratio=0.01)", "no sparsify codec is called 'TopR'; is it 'topr'?");
  answered("index=qsgd", "no index codec is called 'qsgd'; is it 'value=qsgd'?");
  answered("value=raw+deflat", "no bytes codec is called 'deflat'; is it 'deflate'?");
  answered("exchange=ownr", "no exchange is called 'ownr'; is it 'owner'?");
  answered("sparsify=topr(ratoi=0.01)", "topr has no parameter 'ratoi'; is it 'ratio'?");
}

namespace {

// Whether there is a locale with a decimal comma now: one of the machine, or one that localedef makes in `folder`.
bool set_comma_locale(const std::filesystem::path& folder) {
  constexpr const char* name = "de_DE.UTF-8";
  if (std::setlocale(LC_NUMERIC, name)) return true;
  std::filesystem::create_directories(folder);
  const std::string made = "localedef -i de_DE -f UTF-8 '" + (folder / name).string() + "' > /dev/null 2>&1";
  if (std::system(made.c_str()) != 0) return false;
  setenv("LOCPATH", folder.c_str(), 1);
  const bool found = std::setlocale(LC_NUMERIC, name);
  unsetenv("LOCPATH");
  return found;
}

}  // namespace

TEST_CASE("numbers do not depend on the locale") {
  const auto folder = std::filesystem::temp_directory_path() / ("deepreduce_locale_" + std::to_string(getpid()));
  if (!set_comma_locale(folder)) MESSAGE("no locale with a decimal comma here: only the default one was tried");
  CHECK(canonical("sparsify=topr(ratio=0.01)") == "sparsify=topr(ratio=0.01) index=raw value=raw");
  CHECK(refused("sparsify=topr(1%)", "is it topr(ratio=0.01)?"));
  CHECK(refused("sparsify=topr(ratio=1/3)", "is it ratio=0.333333?"));
  dr_error error;
  dr::fail(error, DR_E_ARGUMENT, "clip=%g", 0.25);
  CHECK(dr::prefix(error, "gamma=%g, ", 0.5) == DR_E_ARGUMENT);
  CHECK(std::string(error.message) == "gamma=0.5, clip=0.25");
  std::setlocale(LC_NUMERIC, "C");
  std::filesystem::remove_all(folder);
}

// ---- Books -----------------------------------------------------------------------------------------------------

TEST_CASE("patterns are those of Python's fnmatchcase") {
  for (const auto& one : {std::tuple{"*", "", true},  {"*", "a/b.c", true},
                          {"a*c", "abcbc", true},     {"a*c", "abcb", false},
                          {"?", "", false},           {"?", "a", true},
                          {"?", "ä", true},           {"[abc]x", "bx", true},
                          {"[!abc]x", "bx", false},   {"[!abc]x", "dx", true},
                          {"[a-c]", "b", true},       {"[a-c]", "d", false},
                          {"[]]", "]", true},         {"[", "[", true},
                          {"a[", "a[", true},         {"[[]0]", "[0]", true},
                          {"\\*", "\\b", true},       {"\\*", "*", false},
                          {"A", "a", false},          {"layer?.*.weight", "layer4.0.conv1.weight", true},
                          {"**a", "ba", true},        {"[!]]", "]", false},
                          {"[^a]", "^", true},        {"[äö]", "ö", true},
                          {"[!ä]", "ä", false},       {"[à-ü]x", "öx", true},
                          {"\xff?", "\xff\xc3", true}}) {
    const std::string pattern = std::get<0>(one), name = std::get<1>(one);
    CAPTURE(pattern);
    CAPTURE(name);
    CHECK(dr::matches_pattern(pattern, name) == std::get<2>(one));
  }
}

TEST_CASE("a name's own pattern matches it and no other") {
  for (const std::string name : {"\xc1\x9b*", "\xff\xbf*", "plain", "a[0].w*?", "[!x]", "]"}) {
    CHECK(dr::matches_pattern(dr::pattern_of(name), name));
    CHECK(!dr::matches_pattern(dr::pattern_of(name), name + "x"));
    CHECK(!dr::matches_pattern(dr::pattern_of(name), "p" + name));
  }
}
