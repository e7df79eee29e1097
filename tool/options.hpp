// The command line as structs.
#pragma once

#include <string>
#include <variant>

#include "tool/calibrate/calibrate_command.hpp"
#include "tool/compare/compare_options.hpp"
#include "tool/plugin_test/test_plugin_options.hpp"
#include "tool/predict/predict_options.hpp"

namespace dr::compare {

struct finished {
  int status;  // help was printed, or an error of usage
};

using command = std::variant<finished, compare_options, codecs_options, presets_options, inspect_options,
                             encode_options, decode_options, convert_options, calibrate::calibrate_options,
                             predict::predict_options, predict::plan_options, plugin_test::test_plugin_options>;

// Throws usage_error for a combination of options that has no meaning.
command parse_options(int argc, const char* const* argv);

}  // namespace dr::compare
