// Names of plug-ins that are a built-in's, too: the plug-in loads, plans tell the two apart, frames go by ids.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

dr_status load(const char* path, std::string& sentence) {
  dr_error error{};
  error.struct_size = sizeof error;
  const dr_status s = dr_plugin_load(path, &error);
  CHECK(error.code == s);
  sentence = error.message;
  return s;
}

void need_namesakes() {
  std::string sentence;
  REQUIRE(load(DR_NAMESAKES, sentence) == DR_OK);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string canonical(const std::string& text) { return dr_plan_text(client::plan(text).handle); }

std::string refusal(const std::string& text) {
  dr_error error{};
  error.struct_size = sizeof error;
  dr_plan* p = nullptr;
  CHECK(dr_plan_parse(text.c_str(), &p, &error) == DR_E_ARGUMENT);
  dr_plan_destroy(p);
  return error.message;
}

TEST_CASE("a plug-in with names of built-ins loads, and the note says how plans name its codecs") {
  const size_t before = dr_codec_count();
  std::string note;
  REQUIRE(load(DR_NAMESAKES, note) == DR_OK);
  CHECK(dr_codec_count() == before + 3);
  CHECK(contains(note, "index=plugin.rice, value=plugin.qsgd, bytes=plugin.zstd"));
  std::string again;  // every load reports it
  CHECK(load(DR_NAMESAKES, again) == DR_OK);
  CHECK(again == note);
  CHECK(dr_codec_count() == before + 3);
}

TEST_CASE("a plain name stays the built-in's, plugin.NAME is the plug-in's, and canonical texts keep them apart") {
  need_namesakes();
  CHECK(canonical("index=rice value=qsgd") == "index=rice value=qsgd");
  CHECK(canonical("index=plugin.rice() value=plugin.qsgd+plugin.zstd+zstd") ==
        "index=plugin.rice value=plugin.qsgd+plugin.zstd+zstd");
  CHECK(canonical("terngrad index=plugin.rice") != canonical("terngrad index=rice"));
  CHECK(refusal("value=plugin.qsgd(levels=7)").find("'levels'") != std::string::npos);  // the built-in has that one
  const floats gradient = client::laplace(300, 7);
  client::context c;
  const bytes ours = client::encode(c, "index=rice value=qsgd(levels=2)", {client::dense(gradient)});
  CHECK_FALSE(client::same_bits(client::decode(c, ours, gradient.size()), gradient));
  CHECK(contains(client::inspect(ours).plan, "qsgd(levels=2"));
  CHECK_FALSE(contains(client::inspect(ours).plan, "plugin."));
  floats few(gradient);
  for (size_t i = 0; i < few.size(); ++i)
    if (i % 5) few[i] = 0;
  const bytes theirs = client::encode(c, "index=plugin.rice+plugin.zstd value=plugin.qsgd", {client::dense(few)});
  CHECK(client::same_bits(client::decode(c, theirs, few.size()), few));
  INFO(std::string(client::inspect(theirs).plan));
  CHECK(contains(client::inspect(theirs).plan, "plugin.rice+plugin.zstd"));
  CHECK(contains(client::inspect(theirs).plan, "plugin.qsgd"));
}

TEST_CASE("plugin.NAME names a plug-in's codec whose name is free, too, so that a plan outlives later built-ins") {
  std::string sentence;
  REQUIRE(load(DR_ZIGZAG, sentence) == DR_OK);
  CHECK(sentence.empty());
  CHECK(canonical("value=plugin.zigzag(stride=2)") == "index=raw value=zigzag(stride=2)");
}

TEST_CASE("plugin. names neither a built-in nor a codec of another role, and requires a name after it") {
  need_namesakes();
  CHECK(contains(refusal("index=plugin.golomb"), "no index codec is called 'plugin.golomb'"));
  CHECK(contains(refusal("index=plugin.golomb"), "plugin.rice"));
  CHECK(contains(refusal("value=plugin.rice"), "no value codec"));
  CHECK(contains(refusal("sparsify=plugin.topr(ratio=0.1)"), "no sparsify codec"));
  CHECK(contains(refusal("index=plugin."), "a plug-in's codec expected at the end"));
  CHECK(contains(refusal("index=plugin.(k=1)"), "a plug-in's codec expected at column 14"));
  CHECK(contains(refusal("index=other.rice"), "column 12"));
  CHECK(contains(refusal("index=plugin.plugin.rice"), "column 20"));
}

TEST_CASE("of two plug-ins with one name, or one id, the second is refused whole") {
  need_namesakes();
  const size_t before = dr_codec_count();
  std::string sentence;
  CHECK(load(DR_CLASH_NAMESAKE, sentence) == DR_E_ARGUMENT);
  for (const char* part : {"value codec qsgd", "used by a codec of another plug-in"}) CHECK(contains(sentence, part));
  CHECK(dr_codec_count() == before);
}

}  // namespace
