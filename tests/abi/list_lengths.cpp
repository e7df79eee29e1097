// How long the lists of a plan may be: as long as a frame has room to say (FORMAT.md), and what is taken can be read again.
#include "client.hpp"

namespace {

std::string list(const char* first, int length) {
  std::string text = first;
  for (int i = 1; i < length; ++i) text += i % 2 ? "+huffman" : "+deflate";
  return text;
}

struct role {
  const char *name, *first;
  int room;
};
// Counts of three bits, of which 1 to 5 are used, and of two.
constexpr role roles[] = {{"value", "fit_poly", 5}, {"index", "golomb", 5}, {"order", "bitpack", 3}};

}  // namespace

TEST_CASE("a list of codecs is taken up to the length that a frame can say, and then read again") {
  client::context c;
  const client::floats g = client::laplace(500, 1);
  for (int value = 1; value <= 7; ++value)
    for (int index = 1; index <= 7; ++index)
      for (int order = 1; order <= 7; ++order) {
        const int lengths[] = {value, index, order};
        std::string text = "sparsify=topr(ratio=0.1)";
        bool fits = true;
        for (size_t r = 0; r < 3; ++r) {
          text += ' ' + std::string(roles[r].name) + '=' + list(roles[r].first, lengths[r]);
          fits = fits && lengths[r] <= roles[r].room;
        }
        INFO(text);
        dr_plan* plan = nullptr;
        dr_error error{.struct_size = sizeof(dr_error)};
        const dr_status s = dr_plan_parse(text.c_str(), &plan, &error);
        dr_plan_destroy(plan);
        REQUIRE(s == (fits ? DR_OK : DR_E_ARGUMENT));
        if (!fits) {
          CHECK(std::string(error.message).find("at most") != std::string::npos);
          continue;
        }
        const client::bytes frame = client::encode(c, text, {client::dense(g)});
        CHECK(client::inspect(frame).support == 50);
        CHECK(client::decode(c, frame, g.size()).size() == g.size());
      }
}
