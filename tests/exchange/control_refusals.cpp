// Options and ladders that are refused, and their errors.
#include <deepreduce/control.h>

#include <string>
#include <vector>

#include "client.hpp"

namespace {

std::string refusal(const std::string& options, const std::vector<uint64_t>& bytes = {5, 4, 3, 2, 1}) {
  dr_control* c = nullptr;
  dr_error error{};
  error.struct_size = sizeof error;
  REQUIRE(dr_control_create(options.c_str(), bytes.data(), bytes.size(), &c, &error) == DR_E_ARGUMENT);
  REQUIRE(c == nullptr);
  return error.message;
}

}  // namespace

TEST_CASE("options that make no sense are refused in words") {
  CHECK(refusal("") == "control: 'control=': plan: a name expected at the end");
  CHECK(refusal("aimd") == "control: aimd(target_ms=…) is missing: how long may transfers of a step take?");
  CHECK(refusal("dc2(target_ms=1)") == "control: no law 'dc2'; there are aimd, fit and steps");
  CHECK(refusal("control=aimd(target_ms=0)") == "control: aimd(target_ms=0) is not above 0, up to 1e+09");
  CHECK(refusal("aimd(target_ms=nan)") == "control: aimd(target_ms=nan): a number expected");
  CHECK(refusal("aimd(target_ms=-1)") == "control: aimd(target_ms=-1) is not above 0, up to 1e+09");
  CHECK(refusal("aimd(target_ms=1,interval=1.5)") == "control: aimd(interval=1.5): a whole number expected");
  CHECK(refusal("aimd(target_ms=1,window=300)") == "control: aimd(window=300) is not in 1 … 256");
  CHECK(refusal("aimd(target_ms=1,samples=9)") == "control: aimd has no option 'samples'");
  CHECK(refusal("steps") == "control: steps(each=…) is missing: after how many steps comes the next rung?");
  CHECK(refusal("steps(each=0)") == "control: steps(each=0) is not in 1 … 1e+09");
  CHECK(refusal("steps(each=9,target_ms=1)") == "control: steps has no option 'target_ms'");
  CHECK(refusal("aimd(target_ms=1,each=9)") == "control: aimd has no option 'each'");
  CHECK(refusal("fit(target_ms=1,increase=0.1)") == "control: fit has no option 'increase'");
  CHECK(refusal("fit(target_ms=1,start=5)") == "control: fit(start=5) is not in 0 … 4");
  CHECK(refusal("fit(target_ms=1,start=0,densest=1)") == "control: start=0 is not in densest=1 … smallest=4");
  CHECK(refusal("fit(target_ms=1,densest=3,smallest=2)") == "control: densest=3 exceeds smallest=2");
  CHECK(refusal("fit(target_ms=1,agree=median)") == "control: fit(agree=median): min, mean or max expected");
  CHECK(refusal("fit(target_ms=1,target_ms=2)").starts_with("control: 'control=fit(target_ms=1,target_ms=2)': plan: "));
  CHECK(refusal("fit(target_ms=1,target_ms=2)").find("given twice") != std::string::npos);
  CHECK(refusal("fit(target_ms=1)+aimd(target_ms=1)").find("is not one law") != std::string::npos);
  CHECK(refusal("fit(target_ms=1) value=raw").find("is not one law") != std::string::npos);
  CHECK(refusal("fit(target_ms=1\x01)").find("byte 0x01") != std::string::npos);
  CHECK(refusal(std::string(5000, 'a')).find("5008 characters") != std::string::npos);
  CHECK(refusal("fit(target_ms=1)", {10, 20}) ==
        "control: rung 1 has 20 bytes, not fewer than the 10 before it: a ladder goes from dense to small");
  CHECK(refusal("fit(target_ms=1)", {}) == "control: a ladder of 0 rungs, not of 1 … 64");
  CHECK(refusal("fit(target_ms=1)", std::vector<uint64_t>(65)) == "control: a ladder of 65 rungs, not of 1 … 64");
}
