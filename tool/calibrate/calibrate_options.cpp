#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>

#include "calibrate_command.hpp"
#include "tool/read/whole_number.hpp"

namespace dr::calibrate {
namespace {

constexpr uint64_t size_least = 16, size_most = uint64_t{1} << 31;

constexpr const char* calibrate_footer =
    "Writes what encode, merge and decode of plans cost on this machine, and the bytes of their frames: at sizes from\n"
    "2^10 to 2^22 elements, each fitted by max(floor, base + per_element n). `deepreduce predict` and `deepreduce "
    "plan`\n"
    "read the profile. Under `mpiexec -n N` or torchrun the Python package's command measures the link, too:\n"
    "calibrate --link. docs/CALIBRATE.md says what is in a profile.";

}  // namespace

void add_calibrate(CLI::App& app, calibrate_options& o) {
  const auto no_empty_path = [](const std::string& path) { return path.empty() ? "the path is empty" : std::string(); };
  app.add_option("-o,--output", o.output, "The profile; default: stdout")->check(no_empty_path)->type_name("FILE");
  const auto list = [&](const char* name, std::vector<std::string>& into, const char* help, const char* type) {
    app.add_option(name, into, help)->allow_extra_args(false)->type_name(type);
  };
  list("--plan", o.plans, "A plan, or a sweep of plans; may be repeated. Default: those that people use", "PLAN");
  list("--preset", o.presets, "Plans by name; see `deepreduce presets`; may be repeated", "NAME");
  list("--data", o.data,
       "Gradients, as for compare; may be repeated. Default: the bundled ones. Files of equal sizes are taken for the "
       "ranks' gradients of one step",
       "INPUT");
  app.add_option("--sizes", o.sizes, "Elements of the tensors; default: 2^10, 2^12, … 2^22")
      ->delimiter(',')
      ->check(CLI::Range(size_least, size_most))
      ->type_name("N,N,…");
  app.add_option("--time", o.seconds,
                 "Seconds of rounds for each plan and size; default: 0.15. At least 5 rounds, at most 200")
      ->check([](const std::string& text) {  // (CLI::Range takes "nan" for a number within.)
        return std::isnan(std::strtod(text.c_str(), nullptr)) ? "'" + text + "' is not a number" : std::string();
      })
      ->check(CLI::Range(0.0, 3600.0))
      ->type_name("SECONDS");
  app.add_option("--threads", o.threads, "Threads of the library; 0 and 1: none are started")
      ->check(CLI::Range(0, 256))
      ->type_name("N");
  app.add_option("--seed", o.seed, "Of codecs that draw random numbers; default: 0")
      ->check(compare::whole_number)
      ->type_name("N");
  app.add_option(
         "--evict", o.evicted_mib,
         "MiB that are gone through before each call; default: 8. Twice the last cache where a step works on more")
      ->check(CLI::Range(0, 65536))
      ->type_name("MIB");
  app.add_option("--ranks", o.ranks, "States how many ranks run this at the same time; default: 1")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  list("--plugin", o.plugins, "Shared object with more codecs; may be repeated", "PATH");
  app.footer(calibrate_footer);
}

}  // namespace dr::calibrate
