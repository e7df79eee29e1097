// The parts of plans: codecs with their traits and parameters, and the words that are not codecs.
#pragma once

#include <string>

namespace dr::compare {

// `name`: a codec, a role, or role=name; "": all. Returns "" if there is none.
std::string codec_table(const std::string& name = "");
// Codecs only.
std::string codec_json(const std::string& name = "");

}  // namespace dr::compare
