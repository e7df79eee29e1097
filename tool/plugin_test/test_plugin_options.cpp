#include "test_plugin_options.hpp"

#include <CLI/CLI.hpp>

#include "tool/read/whole_number.hpp"

namespace dr::plugin_test {
namespace {

constexpr const char* footer =
    R"(Runs every codec of the plug-in with its default parameters, with every parameter at its limits, and with all choices, on
inputs of every kind that its role and types allow: one to 100,003 elements, all densities, rows, zeros of both signs,
subnormals, and NaN and infinity unless it has DR_NEEDS_FINITE. A check has a name and tests a promise of codec.h:

  bounds, round trip, exact, tell, any order, fixed size, total, cost, repeatable, spare bounds, threads, batches,
  addresses, randomness, faults
                             the codec's operations on such inputs, in memory between guard pages
  truncated, flipped bits, any bytes, wire fields, counts, ends
                             hostile payloads, passed to decode directly, since the checksum of a frame would reject
                             them first
  frames, empty, feedback    whole frames through the library: densities, empty tensors, threads, merges, residuals

Every check of a parameterisation runs in its own process: a codec that crashes, hangs (10 s of CPU in one call) or prints
becomes a line of the report. A failure names the codec with its parameters, the check, the input and the seed: the same
--seed reproduces it in the first round. The first round always completes; further rounds with the next seeds follow while
time is left.

Not tested: CUDA operations, and that nothing is allocated.

  deepreduce test-plugin ./libmine.so
  deepreduce test-plugin ./libmine.so --seconds 600 --seed 77

Exit status: 0 all promises hold, 1 a promise is broken, 2 an error of usage, or no plug-in.
)";

std::string seconds_text(const std::string& text) {
  const double s = std::strtod(text.c_str(), nullptr);
  return s >= 0 && s <= 1e6 ? std::string() : "'" + text + "' is not in 0 … 1000000";
}

}  // namespace

void add_test_plugin(CLI::App& app, test_plugin_options& o) {
  app.add_option("PLUGIN", o.path, "Shared object with codecs")->required()->type_name("");
  app.add_option("--seed", o.seed, "Seed of the first round's random inputs; default: 1")
      ->check(compare::whole_number)
      ->type_name("N");
  app.add_option("--seconds", o.seconds, "Starts rounds within this time; 0: one round; default: 10")
      ->check(seconds_text)
      ->type_name("SECONDS");
  app.footer(footer);
}

}  // namespace dr::plugin_test
