#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>

#include "calibrate_command.hpp"
#include "tool/read/count_text.hpp"
#include "tool/read/whole_number.hpp"

namespace dr::calibrate {
namespace {

constexpr uint64_t min_size = 16, max_size = uint64_t{1} << 31;

constexpr const char* calibrate_footer =
    "Measures the time of encode, merge and decode on this machine, and the bytes of frames, at sizes from 2^10 to\n"
    "2^22 elements, and fits each with max(floor, base + per_element n). `deepreduce predict` and `deepreduce "
    "plan`\n"
    "read the profile. Under `mpiexec -n N` or torchrun the Python package's command also measures the link:\n"
    "calibrate --link. docs/CALIBRATE.md describes a profile.";

}  // namespace

void add_calibrate(CLI::App& app, calibrate_options& o) {
  const auto no_empty_path = [](const std::string& path) { return path.empty() ? "the path is empty" : std::string(); };
  app.add_option("-o,--output", o.output, "The profile; default: stdout")->check(no_empty_path)->type_name("FILE");
  const auto list = [&](const char* name, std::vector<std::string>& into, const char* help, const char* type) {
    app.add_option(name, into, help)->allow_extra_args(false)->type_name(type);
  };
  list("--plan", o.plans, "A plan or a sweep; may be repeated. Default: those of `compare`", "PLAN");
  list("--preset", o.presets, "Plans by name; see `deepreduce presets`; may be repeated", "NAME");
  list("--data", o.data,
       "Gradients, as for compare; may be repeated. Default: the bundled ones. Files of equal sizes count as "
       "the ranks' gradients of one step",
       "INPUT");
  app.add_option("--sizes", o.sizes, "Elements of the tensors; default: 2^10, 2^12, … 2^22")
      ->delimiter(',')
      ->check(CLI::Range(min_size, max_size))
      ->transform([](const std::string& text) {  // 1M, 1e6
        uint64_t n = 0;
        return compare::read_count(text, n) ? std::to_string(n) : text;
      })
      ->type_name("N[,N]");
  app.add_option("--time", o.seconds,
                 "Seconds of timed rounds per plan and size; default: 0.15. At least 5 rounds, at most 200")
      ->check([](const std::string& text) {  // CLI::Range accepts "nan"
        return std::isnan(std::strtod(text.c_str(), nullptr)) ? "'" + text + "' is not a number" : std::string();
      })
      ->check(CLI::Range(0.0, 3600.0))
      ->type_name("SECONDS");
  app.add_option("--threads", o.threads, "Threads of the library; 0 and 1 start none")
      ->check(CLI::Range(0, 256))
      ->type_name("N");
  app.add_option("--seed", o.seed, "Seed of codecs that draw random numbers; default: 0")
      ->check(compare::whole_number)
      ->type_name("N");
  app.add_option(
         "--evict", o.evicted_mib,
         "MiB to read before every call, to evict caches; default: 8. Use twice the last cache if a step touches more")
      ->check(CLI::Range(0, 65536))
      ->type_name("MIB");
  app.add_option("--ranks", o.ranks, "Number of ranks that run this at the same time; default: 1")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  list("--plugin", o.plugins, "Shared object with more codecs; may be repeated", "PATH");
  app.footer(calibrate_footer);
}

}  // namespace dr::calibrate
