// What may stand in a plan: the codecs there are, with what they promise and take, and the words that are no codecs.
#pragma once

#include <string>

namespace dr::compare {

// `name`: a codec, a role, or role=name; "" is all of them. "" where there is none.
std::string codec_table(const std::string& name = "");
// Codecs only.
std::string codec_json(const std::string& name = "");

}  // namespace dr::compare
