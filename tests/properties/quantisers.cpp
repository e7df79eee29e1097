// What quantisers promise of their errors holds for every input.
#include "properties/harness.hpp"

namespace dr::properties {
namespace {

double after(const std::string& text, const std::string& key, double otherwise) {
  const size_t at = text.find(key + "=");
  return at == std::string::npos ? otherwise : std::stod(text.substr(at + key.size() + 1));
}

TEST_CASE("uniform_quant: the relative L2 error is at most what was asked for") {
  each_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (std::string(s.codec().name) != "uniform_quant" || s.text.find("bits") != std::string::npos) return;
    const double asked = after(s.text, "error", 5e-3);
    const auto v = cases::numbers(in.dtype, in.elements);
    const auto got = cases::numbers(in.dtype, decode_one(s, fields, claim_of(s, in, e), e.payload));
    CHECK(cases::squared_error(v, got) <= asked * asked);
  });
}

}  // namespace
}  // namespace dr::properties
