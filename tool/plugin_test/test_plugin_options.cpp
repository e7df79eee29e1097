#include "test_plugin_options.hpp"

#include "tool/read/whole_number.hpp"

namespace dr::plugin_test {
namespace {

constexpr const char* footer =
    R"(Each codec of the plug-in runs with its default parameters, and with each parameter at its ends and each of its choices, on
inputs of every kind that its role and types allow: one to 100,003 elements, every density, rows, zeros of both signs,
subnormals, NaN and infinity unless it has DR_NEEDS_FINITE. A check has a name and a promise of codec.h:

  bounds, round trip, exact, tell, any order, fixed size, total, cost, repeatable, spare bounds, threads, batches,
  addresses, randomness, faults
                             the codec's operations on such inputs, in memory between guard pages
  truncated, flipped bits, any bytes, wire fields, counts, ends
                             what arrives from a hostile peer reaches its decode directly: the check of a frame would
                             refuse it first
  frames, empty, feedback    whole frames through the library: densities, empty tensors, threads, merges, residuals

Each check of each parameterisation runs in a process of its own, so a codec that crashes, hangs (10 s of CPU in one call)
or prints is a line of the report. A failure names the codec with its parameters, the check, the input and the seed: the
same --seed meets it in its first round. The first round always runs to its end; more follow, each with the next seed,
while there is time.

Not tested: CUDA operations, and that nothing is allocated.

  deepreduce test-plugin ./libmine.so
  deepreduce test-plugin ./libmine.so --seconds 600 --seed 77

Exit status: 0 all promises were kept, 1 one was not, 2 usage, or no plug-in.
)";

std::string seconds_text(const std::string& text) {
  const double s = std::strtod(text.c_str(), nullptr);
  return s >= 0 && s <= 1e6 ? std::string() : "'" + text + "' is not in 0 … 1000000";
}

}  // namespace

void add_test_plugin(CLI::App& app, test_plugin_options& o) {
  app.add_option("PLUGIN", o.path, "Shared object with codecs")->required()->type_name("");
  app.add_option("--seed", o.seed, "Of the first round's random inputs; default: 1")
      ->check(compare::whole_number)
      ->type_name("N");
  app.add_option("--seconds", o.seconds, "Rounds begin within this time; 0: one round; default: 10")
      ->check(seconds_text)
      ->type_name("SECONDS");
  app.footer(footer);
}

}  // namespace dr::plugin_test
