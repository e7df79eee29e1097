#include "predict_options.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "predict_help.hpp"

namespace dr::predict {
namespace {

std::string no_empty_path(const std::string& path) { return path.empty() ? "the path is empty" : std::string(); }

std::string svg_path(const std::string& path) {
  const std::string end = std::filesystem::path(path).extension();
  return end.empty() || end == ".svg" ? no_empty_path(path) : "'" + path + "': a drawing is SVG, X.svg";
}

// CLI::Range accepts "nan".
std::string finite(const std::string& text) {
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? "'" + text + "' is not a number" : std::string();
}

template <class Parse>
auto readable(Parse parse) {
  return [parse](const std::string& text) {
    try {
      return (void)parse(text), std::string();
    } catch (const std::invalid_argument& e) {
      return std::string(e.what());
    }
  };
}

CLI::Option* add_list(CLI::App& app, const char* name, std::vector<std::string>& list, const char* help) {
  return app.add_option(name, list, help)->allow_extra_args(false)->type_name("TEXT");
}

void add_time(CLI::App& app, const char* name, std::string& text, const char* help) {
  app.add_option(name, text, help)->check(readable(parse_time))->type_name("TIME");
}

void add_model(CLI::App& app, case_options& o) {
  app.add_option("PROFILE", o.profile, "Costs of plans and speeds of links, a file that `calibrate` wrote")
      ->required()
      ->type_name("");
  auto* model =
      app.add_option("--model", o.model, "Tensors with their ready times, a file that the DDP hook or `capture` wrote");
  auto* sizes =
      app.add_option("--sizes", o.sizes, "Instead of --model: elements or shapes of the tensors, 1000,25M,512x2048");
  auto* input = app.add_option("--input", o.input, "Instead of --model: the tensors of an array file, as for compare");
  model->check(no_empty_path)->type_name("FILE")->excludes(sizes)->excludes(input);
  sizes->type_name("N[,N]")->excludes(input);
  input->type_name("FILE");
  add_time(app, "--forward", o.forward, "Forward time of a step, such as 40ms; default: the model's");
  add_time(app, "--backward", o.backward, "Backward time; with --sizes all gradients are ready at its end");
  add_time(app, "--rest", o.rest, "Time of the rest: optimizer, data");
  app.add_option("--batch", o.batch, "Samples per rank and step; default: the model's")
      ->check(finite)
      ->check(CLI::Range(1.0, 1e9))
      ->type_name("N");
}

void add_place(CLI::App& app, case_options& o) {
  app.add_option_function<std::string>(
         "--link", [&](const std::string& text) { o.link_text = text, o.over = parse_link(text); },
         "Link of a host, in either direction ('10Gb/s', '100Mbit/s,50us'); without a latency, the profile's fixed "
         "cost of a collective; default: the profile's link")
      ->check(readable(parse_link))
      ->type_name("RATE[,LATENCY]");
  app.add_option("--ranks", o.ranks, "Number of ranks; default: that of the profile's link; 8 with --link")
      ->check(CLI::Range(2, 65536))
      ->type_name("N");
  app.add_option("--ranks-per-host", o.ranks_per_host,
                 "Ranks that share a host's link; default: that of the profile's link; 1 with --link")
      ->check(CLI::Range(1, 65536))
      ->type_name("N");
  app.add_option("--hook", o.hook,
                 "ddp: the hook of torch's DistributedDataParallel, with units during backward. exchange: one exchange "
                 "after backward, as in deepreduce.mpi and exchange.h. Default: ddp")
      ->check(CLI::IsMember({"ddp", "exchange"}))
      ->type_name("ddp|exchange");
  app.add_option("--bucket-mb", o.bucket_mb, "bucket_cap_mb of DDP; default: 25")
      ->check(finite)
      ->check(CLI::Range(0.001, 1e6))
      ->type_name("MIB");
  app.add_option(
         "--dense-below", o.bypass,
         "Tensors with fewer elements are sent exactly, as by the hook's `dense_below`; default: 0 for plans that "
         "take all tensors as one (`flat`), 1000 for others")
      ->check(CLI::Range(0, 1000000000))
      ->type_name("N");
  app.add_option("--bypass", o.bypass, "--dense-below, as it was called before version 0.3")
      ->check(CLI::Range(0, 1000000000))
      ->group("");  // works, and --help does not list it
  app.add_option("--slowdown", o.slowdown, "Slowdown of computing during communication; default: the profile's")
      ->check(finite)
      ->check(CLI::Range(0.5, 100.0))
      ->type_name("X");
  add_time(app, "--skew", o.skew,
           "Delay of the slowest rank in a step, which every exchange waits for; default: the "
           "model's skew_ns, else the profile's, else 0");
  add_time(app, "--hook-time", o.hook_time,
           "Time of the hook per step beside encode and merge; default: the profile's hook_ns, else 0");
  app.add_option("--flops", o.flops, "Operations per second of PowerSGD's products; without it they are not counted")
      ->check(finite)
      ->check(CLI::Range(0.0, 1e18))
      ->type_name("X");
}

void add_plans(CLI::App& app, case_options& o) {
  add_list(app, "--plan", o.plans, "A plan or a sweep, as for compare; may be repeated; default: the profile's plans");
  add_list(app, "--preset", o.presets, "Plans by name, after topr(ratio=0.01); may be repeated");
  add_list(app, "--exchange", o.exchanges,
           "Schedules for plans without one, such as 'gather|owner(parts=1|4)|ring'; only with --hook exchange; "
           "may be repeated");
  app.add_option("--limit", o.limit, "Maximum number of plans of a sweep; default: 1000")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  add_list(app, "--error", o.errors,
           "The relative error of a plan: 'sparsify=topr(ratio=0.01) index=golomb value=raw: 0.7'; may be repeated")
      ->type_name("PLAN:E");
  app.add_option("--errors", o.error_rows,
                 "Errors per tensor: rows of `compare --per-tensor --output rows.json`; default: the profile's errors")
      ->check(no_empty_path)
      ->type_name("FILE");
  add_list(app, "--plugin", o.plugins, "Shared object with more codecs; may be repeated")->type_name("PATH");
}

}  // namespace

void add_predict(CLI::App& app, predict_options& o) {
  add_model(app, o.what);
  add_place(app, o.what);
  add_plans(app, o.what);
  add_list(app, "--book", o.books, "A plan book as another candidate; may be repeated")->type_name("FILE");
  app.add_option("--powersgd", o.powersgd,
                 "Ranks of torch's PowerSGD, by formula; default: 4, if no plan is a transform")
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 4096))
      ->type_name("RANK");
  auto* every =
      app.add_option("--every", o.every,
                     "Steps of a round of an outer loop (deepreduce.outer): predicts rounds in place of steps; "
                     "may be repeated, as 10,30,100");
  every->delimiter(',')->allow_extra_args(false)->check(CLI::Range(1, 1000000))->type_name("H[,H]");
  app.add_flag("--folder", o.folder, "With --every: the workers share a Folder, not a process group")->needs(every);
  add_list(app, "--what-if", o.what_ifs, "Curves over bandwidth, compute, ranks or ratio; may be repeated")
      ->check(CLI::IsMember({"bandwidth", "compute", "ranks", "ratio"}))
      ->type_name("bandwidth|compute|ranks|ratio");
  app.add_option("--curves", o.curves, "Draws the curves of --what-if: X.svg; for several X-bandwidth.svg, …")
      ->check(svg_path)
      ->type_name("FILE.svg");
  app.add_option("--timeline", o.timeline, "Draws the step of one candidate")->check(svg_path)->type_name("FILE.svg");
  app.add_option("--trace", o.trace, "Writes the step as Chrome's trace event JSON")
      ->check(no_empty_path)
      ->type_name("FILE.json");
  app.add_option("--show", o.show,
                 "Candidate of --timeline and --trace, by its name in the table; default: the fastest plan")
      ->type_name("NAME");
  app.add_flag("!--no-break-even", o.break_even, "Omits `pays below` and `batch`, the slowest part of the prediction");
  app.add_option("--format", o.form, "Format of the result; default: by the suffix of --output, else table")
      ->check(CLI::IsMember({"table", "csv", "json"}))
      ->type_name("table|csv|json");
  app.add_option("-o,--output", o.output, "File to write instead of stdout; X.json and X.csv choose the format")
      ->check(no_empty_path)
      ->type_name("FILE");
  app.footer(predict_footer);
}

void add_plan(CLI::App& app, plan_options& o) {
  add_model(app, o.what);
  add_place(app, o.what);
  add_plans(app, o.what);
  app.add_option(
         "--error-budget", o.error_budget,
         "Maximum relative error of a tensor in a step, |g - c| / |g|; 0: exact. Default: no limit, and the book "
         "minimises the time to transfer a whole gradient")
      ->check(finite)
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("E");
  app.add_option("-o,--output", o.output, "The plan book; default: stdout")->check(no_empty_path)->type_name("FILE");
  app.add_option("--format", o.form,
                 "text: the book. json: also the compared choices. Default: by the suffix of --output, else text")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("text|json");
  app.footer(plan_footer);
}

}  // namespace dr::predict
