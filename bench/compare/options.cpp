#include "options.hpp"

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>

#include "deepreduce/deepreduce.h"

namespace dr::compare {
namespace {

constexpr const char* about =
    "Compresses gradients by plans, and tells what became of them.\n"
    "A plan is one line, such as 'sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=127)';\n"
    "`deepreduce codecs` lists what may stand in it.";

constexpr const char* compare_footer =
    R"(INPUT is a .npy, .npz or .safetensors file, raw little-endian f32 (.f32, .bin, .raw), a directory of these,
or made on the spot: synth:d=25000000,support=uniform|clustered|powerlaw,values=laplace|gauss|student3,density=0.01,seed=1
Without INPUT the bundled data are taken: accumulators, which are what a sparsifier sees in training, gradients with their
residuals; then gradients by themselves (DEEPREDUCE_DATASETS may name the folder above accumulators/ and gradients/).
A file of several tensors is compared as one, its tensors joined and called '*'; --batch puts them into one frame, a list,
as `encode` and frameworks do. DEEPREDUCE_CPU=scalar|avx2|avx512 limits the instructions in use.

Each round trip is verified before anything is timed. Then all plans are run in turns, and so is a plain copy
('memcpy': one copy is its encode and its decode); the first round does not count. There are rounds until each plan has
had --time seconds, at least 5 and at most 200, or --repeat rounds. Times are medians; a spread is (75th - 25th
percentile) / median. A merge adds up a frame of each rank: the tensor's own, and up to 7 others in turn, encoded from the
tensor shifted cyclically, with another private seed. Beyond 64 ranks it is the time of 64, in proportion.

Feedback adds what it kept of the steps before. An input is a first step, with nothing kept, unless --steps N makes steps
of one training of the inputs, in their order, from the first again until there are N. What is shown is the last step, and
of plans with feedback against gradient + residual: r, bounds, coding errors, energy, cosine, contraction. The total error
is that of the sums over all steps. Gradients of the same batch again and again are no training: for real figures record
gradients of consecutive steps (datasets/README.md).

)";

constexpr const char* compare_examples = R"(

Exit status: 0 fine, 1 a plan failed on an input (the others are reported), 2 usage, input or output.

  deepreduce compare
  deepreduce compare grad.npz --plan 'sparsify=topr(ratio=0.001) index=golomb value=raw' --plan 'index=raw value=qsgd'
  deepreduce compare model.safetensors --tensor 'layer3.*' --format json --output rows.json
  deepreduce compare --preset paper --preset 'BF-P2+QSGD'
  deepreduce compare step*.npz --steps 40 --plan 'sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw'
  deepreduce compare grad.npz --ranks 8 --link 10Gb/s,50us
  deepreduce compare synth:d=36864,density=0.01 --format csv)";

const std::map<std::string, format> every_format{
    {"table", format::table}, {"csv", format::csv}, {"json", format::json}};
const std::map<std::string, format> list_formats{{"table", format::table}, {"json", format::json}};

// `--name TEXT`, as often as one likes, one TEXT each.
CLI::Option* add_list(CLI::App& app, const char* name, std::vector<std::string>& list, const char* help) {
  return app.add_option(name, list, help)->allow_extra_args(false)->type_name("TEXT");
}

void add_plugins(CLI::App& app, std::vector<std::string>& plugins) {
  add_list(app, "--plugin", plugins, "Shared object with more codecs; may be repeated")->type_name("PATH");
}

void add_format(CLI::App& app, format& form, const std::map<std::string, format>& names, const char* type_name) {
  app.add_option_function<std::string>(
         "--format", [&](const std::string& text) { form = names.at(text); },
         "How the result is printed; default: table")
      ->check([&names, type_name](const std::string& text) {
        if (text == "png" || text == "svg")
          return "'" + text + "': pictures are drawn by Python: --output rows.json --format json, then "
                 "`python -m deepreduce figure rows.json --output x." + text + "`";
        return names.contains(text) ? std::string() : "'" + text + "' is not one of " + type_name;
      })
      ->type_name(type_name);
}

// CLI11 takes -1 for an unsigned number, as strtoull does.
std::string no_sign(const std::string& text) {
  return text.starts_with('-') ? "'" + text + "' is negative" : std::string();
}

std::string no_empty_path(const std::string& path) { return path.empty() ? "the path is empty" : std::string(); }

void add_output(CLI::App& app, std::string& path, const char* help) {
  app.add_option("--output", path, help)->check(no_empty_path)->type_name("FILE");
}

void add_report(CLI::App& app, std::string& path) {
  app.add_option("--report", path, "Write a page with charts and all rows, too: one file of HTML that loads nothing")
      ->check(no_empty_path)
      ->type_name("FILE.html");
}

void add_run(CLI::App& app, uint32_t& threads, uint64_t& seed, uint64_t& segment_rows) {
  app.add_option("--threads", threads, "Threads of the library; 0 and 1: none are started")
      ->check(CLI::Range(0, 256))
      ->type_name("N");
  app.add_option("--seed", seed, "Of codecs that draw random numbers; default: 0")->check(no_sign)->type_name("N");
  app.add_option("--segment-rows", segment_rows,
                 "Cut tensors into segments of N rows, each coded for itself (a Bloom filter each); default: none")
      ->check(no_sign)
      ->type_name("N");
}

// Rounds, ranks and their links; whether a file is a batch.
void add_timing(CLI::App& app, compare_options& o) {
  auto* repeat = app.add_option("--repeat", o.repeat, "Timed rounds, instead of --time");
  repeat->check(CLI::Range(1, 1000000))->type_name("N");
  app.add_option("--time", o.seconds, "Seconds of rounds for each plan; default: 0.25. At least 5 rounds, at most 200")
      ->check(CLI::Range(0.0, 86400.0))
      ->type_name("SECONDS")
      ->excludes(repeat);
  app.add_option("--ranks", o.ranks, "Ranks: of `merge`, `pays below` and --link; default: 8")
      ->check(CLI::Range(2, 1000000))
      ->type_name("N");
  app.add_option_function<std::string>(
         "--link", [&](const std::string& text) { o.link_text = text, o.over = parse_link(text); },
         "Models a step of the ranks over links of that rate ('10Gb/s', '100Mbit/s,50us', '25e9'): a verdict for each "
         "plan")
      ->check([](const std::string& text) {
        try {
          return (void)parse_link(text), std::string();
        } catch (const std::invalid_argument& e) {
          return std::string(e.what());
        }
      })
      ->type_name("RATE[,LATENCY]");
  app.add_flag("--batch", o.subjects.batch, "All tensors of an input in one frame, byte for byte that of `encode`")
      ->excludes("--per-tensor", "--flat");
}

void add_compare(CLI::App& app, compare_options& o) {
  app.add_option("INPUT", o.subjects.inputs, "Gradients; see below")->type_name("");
  add_list(app, "--plan", o.plans, "A plan; may be repeated. Default: a set that fits the input")->type_name("PLAN");
  add_list(app, "--preset", o.presets,
           "Plans by name (paper, fastpfor, grace, BF-P2+QSGD, …; see `deepreduce presets`); may be repeated")
      ->type_name("NAME");
  add_list(app, "--tensor", o.subjects.globs, "Only tensors with such a name ('layer3.*'), a row each; may be repeated")
      ->type_name("GLOB");
  auto* each = app.add_flag("--per-tensor", o.subjects.per_tensor, "A row for every tensor of at least 1000 elements");
  app.add_flag("--flat", o.subjects.flat, "Join the tensors of an input (the default), also those that --tensor picks")
      ->excludes(each);
  auto* steps = app.add_option("--steps", o.steps, "The inputs are steps of one training, N in all; see below")
                    ->check(CLI::Range(1, 1000000))
                    ->type_name("N");
  app.add_flag("--each-step", o.each_step, "Show each of the steps, not only the last")->needs(steps);
  add_format(app, o.form, every_format, "table|csv|json");
  add_report(app, o.report);
  add_output(app, o.output, "File to write to instead of stdout; whole or not at all");
  add_timing(app, o);
  add_run(app, o.threads, o.seed, o.segment_rows);
  add_plugins(app, o.plugins);
  app.footer(std::string(compare_footer) + model_help + "\n" + column_help + compare_examples);
}

void add_encode(CLI::App& app, encode_options& o) {
  app.add_option("INPUT", o.input, "Gradients, as for compare; all tensors go into one frame")
      ->required()
      ->type_name("");
  app.add_option("--plan", o.plan, "The plan")->required()->type_name("PLAN");
  add_output(app, o.output, "The frame; default: stdout");
  add_run(app, o.threads, o.seed, o.segment_rows);
  add_plugins(app, o.plugins);
}

}  // namespace

command parse_options(int argc, const char* const* argv) {
  compare_options compare;
  codecs_options codecs;
  inspect_options inspect;
  encode_options encode;
  CLI::App app(about, "deepreduce");
  app.require_subcommand(1);
  app.footer("Each command has its own --help.");
  app.set_version_flag("--version", dr_version());
  auto* compare_app = app.add_subcommand("compare", "Compares plans on gradients: bytes, errors, times");
  auto* codecs_app = app.add_subcommand("codecs", "Lists the codecs with what they promise and take");
  auto* presets_app = app.add_subcommand("presets", "Lists the plans that have a name in the literature");
  auto* inspect_app = app.add_subcommand("inspect", "Tells what is in a frame, or what is wrong with it");
  auto* encode_app = app.add_subcommand("encode", "Writes the frame of one input");
  add_compare(*compare_app, compare);
  add_format(*codecs_app, codecs.form, list_formats, "table|json");
  add_plugins(*codecs_app, codecs.plugins);
  inspect_app->add_option("FRAME", inspect.file, "File with a frame")->required()->type_name("");
  add_plugins(*inspect_app, inspect.plugins);
  add_encode(*encode_app, encode);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (app.get_subcommands().empty() && !app.remaining().empty())  // CLI11 would ask for a subcommand only
      std::cerr << "no command '" << app.remaining().front() << "'\n";
    return finished{app.exit(e, std::cout, std::cerr) == 0 ? 0 : 2};
  }
  if (compare_app->parsed()) return compare;
  if (codecs_app->parsed()) return codecs;
  if (presets_app->parsed()) return presets_options{};
  if (inspect_app->parsed()) return inspect;
  return encode;
}

}  // namespace dr::compare
