// The codecs there are, with what they promise and take.
#pragma once

#include <string>

namespace dr::compare {

// `name`: a codec, a role, or role=name; "" is all of them. "" where there is none.
std::string codec_table(const std::string& name = "");
std::string codec_json(const std::string& name = "");

}  // namespace dr::compare
