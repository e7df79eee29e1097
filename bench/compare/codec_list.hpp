// The codecs there are, with what they promise and take.
#pragma once

#include <string>

namespace dr::compare {

std::string codec_table();
std::string codec_json();

}  // namespace dr::compare
