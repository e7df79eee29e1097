#include "options.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>

#include "deepreduce/deepreduce.h"
#include "tool/compare/compare_help.hpp"
#include "tool/compare/selection.hpp"
#include "tool/read/near_name.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/read/whole_number.hpp"
#include "tool/show/format_name.hpp"
#include "tool/show/help_text.hpp"
#include "tool/show/machine.hpp"

namespace dr::compare {
namespace {

constexpr const char* about =
    "Measures how well gradients compress: size, error, time, and whether it pays.\n"
    "A plan is one line, such as 'sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=127)';\n"
    "`deepreduce codecs` lists its parts.";

const std::map<std::string, format> compare_formats{
    {"table", format::table}, {"csv", format::csv}, {"json", format::json}, {"md", format::markdown}};
constexpr std::string_view compare_suffixes[] = {"csv", "json", "md"};
const std::map<std::string, format> list_formats{{"table", format::table}, {"json", format::json}};

// `--name TEXT`, repeatable; one TEXT per option.
CLI::Option* add_list(CLI::App& app, const char* name, std::vector<std::string>& list, const char* help) {
  return app.add_option(name, list, help)->allow_extra_args(false)->type_name("TEXT");
}

void add_plugins(CLI::App& app, std::vector<std::string>& plugins) {
  add_list(app, "--plugin", plugins, "Shared object with more codecs; may be repeated")->type_name("PATH");
}

void add_list_format(CLI::App& app, format& form) {
  app.add_option_function<std::string>(
         "--format", [&](const std::string& text) { form = list_formats.at(text); },
         "Format of the result; default: table")
      ->check([](const std::string& text) {
        return list_formats.contains(text) ? std::string() : "'" + text + "' is not one of table|json";
      })
      ->type_name("table|json");
}

// CLI::Range accepts "nan".
std::string no_nan(const std::string& text) {
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? "'" + text + "' is not a number" : std::string();
}

std::string no_empty_text(const std::string& text) {
  return text.find_first_not_of(' ') == text.npos ? "must not be empty" : std::string();
}

std::string no_empty_path(const std::string& path) { return path.empty() ? "the path is empty" : std::string(); }

CLI::Option* add_output(CLI::App& app, std::string& path, const char* help) {
  return app.add_option("-o,--output", path, help)->check(no_empty_path)->type_name("FILE");
}

void add_run(CLI::App& app, uint32_t& threads, uint64_t& seed, uint64_t& segment_rows) {
  app.add_option("--threads", threads, "Threads of the library; 0 and 1 start none")
      ->check(CLI::Range(0, 256))
      ->type_name("N");
  app.add_option("--seed", seed, "Seed of codecs that draw random numbers; default: 0")
      ->check(whole_number)
      ->type_name("N");
  app.add_option("--segment-rows", segment_rows,
                 "Cut tensors into segments of N rows that are coded separately; default: one segment")
      ->check(whole_number)
      ->type_name("N");
}

void add_cast(CLI::App& app, std::optional<dtype>& cast) {
  app.add_option_function<std::string>(
         "--cast", [&](const std::string& name) { cast = type_called(name); },
         "Convert all inputs to this type, integers and booleans included; default: only float64, to f32")
      ->check([](const std::string& name) {
        return type_called(name) ? std::string() : "'" + name + "' is not one of f32, f16, bf16";
      })
      ->type_name("f32|f16|bf16");
}

void add_convert(CLI::App& app, convert_options& o) {
  app.add_option("INPUT", o.subjects.inputs, "Gradients, as for compare")->required()->type_name("");
  add_list(app, "--tensor", o.subjects.globs, "Only tensors whose name matches; may be repeated")->type_name("GLOB");
  app.add_flag("--flat", o.subjects.flat, "Join the tensors of an input; default: one by one");
  add_cast(app, o.subjects.cast);
  add_output(app, o.output, "The .safetensors file; default: stdout");
}

// Rounds, ranks and their links; whether a file is a batch.
void add_timing(CLI::App& app, compare_options& o) {
  auto* repeat = app.add_option("--repeat", o.repeat, "Timed rounds, instead of --time");
  repeat->check(CLI::Range(1, 1000000))->type_name("N");
  app.add_option("--time", o.seconds, "Seconds of timed rounds per plan; default: 0.25. At least 5 rounds, at most 200")
      ->check(no_nan)
      ->check(CLI::Range(0.0, 86400.0))
      ->type_name("SECONDS")
      ->excludes(repeat);
  app.add_option("--ranks", o.ranks, "Number of ranks for `merge`, `pays below` and --link; default: 8")
      ->check(CLI::Range(2, 65536))
      ->type_name("N");
  app.add_option_function<std::string>(
         "--link", [&](const std::string& text) { o.link_text = text, o.over = parse_link(text); },
         "Models a step of the ranks over links of this rate ('10Gb/s', '100Mbit/s,50us', '25e9b/s'), with a verdict "
         "per plan")
      ->check([](const std::string& text) {
        try {
          return (void)parse_link(text), std::string();
        } catch (const std::invalid_argument& e) {
          return std::string(e.what());
        }
      })
      ->type_name("RATE[,LATENCY]");
  app.add_flag("--batch", o.subjects.batch, "All tensors of an input in one frame, byte for byte as `encode` writes it")
      ->excludes("--per-tensor", "--flat");
}

// This program has no plotting library.
std::string known_format(const std::string& text) {
  if (text == "png" || text == "svg")
    return "'" + text +
           "' is a figure: write --output rows.json, then `python -m deepreduce figure rows.json --output x." + text +
           "`";
  if (text == "html" || text == "htm") return "a page is `--report FILE.html`";
  return compare_formats.contains(text) ? std::string() : "'" + text + "' is not one of table|csv|json|md";
}

void add_compare_output(CLI::App& app, compare_options& o) {
  app.add_option("--format", o.form_name, "Format of the result; default: by the suffix of --output, else table")
      ->check(known_format)
      ->type_name("table|csv|json|md");
  app.add_flag("--wide", o.wide,
               "All columns, and a row for every tensor; default: five columns, as wide as the terminal");
  add_output(app, o.output,
             "File to write instead of stdout, completely or not at all; X.json, X.csv and X.md choose the format");
}

void add_report(CLI::App& app, std::string& path) {
  app.add_option("--report", path, "Also write a page with charts and all rows: one HTML file that loads nothing")
      ->check([](const std::string& file) {
        const std::string suffix = suffix_of(file);
        if (file.empty()) return std::string("the path is empty");
        return suffix.empty() || suffix == "html" || suffix == "htm" ? "" : "'" + file + "': a report is HTML, X.html";
      })
      ->type_name("FILE.html");
}

void add_questions(CLI::App& app, compare_options& o) {
  app.add_option("--where", o.where, "Only rows that meet a condition, such as 'total_error < 0.02 and bytes < 1e6'")
      ->check(no_empty_text)
      ->type_name("CONDITION");
  app.add_option("--sort", o.sort, "Order of rows: 'bytes', '-total_error,encode_ns+decode_ns'; -COLUMN: descending")
      ->check(no_empty_text)
      ->type_name("COLUMNS");
  app.add_flag("--pareto{COLUMNS}", o.pareto,
               std::string("Only rows that no other row of the tensor beats; default columns: ") + usual_front);
  auto* best =
      app.add_option("--best", o.best, "The smallest plan that meets a condition, for every input and layer kind")
          ->check(no_empty_text)
          ->type_name("CONDITION")
          ->excludes("--book");
  app.add_option("--best-by", o.best_by, "Column that --best minimises, such as encode_ns+decode_ns; default: bytes")
      ->needs(best)
      ->type_name("COLUMN");
  app.add_flag("--all", o.all, "Also the tables, beside the answers of --best")->needs(best);
  app.add_option("--limit", o.limit, "Maximum number of plans of a sweep; default: 10000")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
}

void add_saved(CLI::App& app, compare_options& o) {
  add_list(app, "--from", o.from, "Show the rows of a .json, and measure only the INPUTs; may be repeated")
      ->type_name("FILE");
  app.add_option("--resume", o.resume, "Save rows to this .json, tensor by tensor, and measure only rows that it lacks")
      ->check(no_empty_path)
      ->type_name("FILE");
  auto* against =
      app.add_option("--against", o.against, "Compare with the rows of this .json: better, worse or the same")
          ->check(no_empty_path)
          ->type_name("FILE");
  app.add_flag("--fail-if-worse", o.fail_if_worse, "Exit with 1 if --against finds a worse row")->needs(against);
}

void add_compare(CLI::App& app, compare_options& o) {
  app.add_option("INPUT", o.subjects.inputs, "Gradients; see below")->type_name("");
  add_list(app, "--plan", o.plans,
           "A plan or a sweep (see below); may be repeated. Default: those of `calibrate`; for a sparse input, ways to "
           "code it")
      ->check(no_empty_text)
      ->type_name("PLAN");
  add_list(app, "--preset", o.presets,
           "Plans by name (paper, fastpfor, grace, BF-P2+QSGD, …; see `deepreduce presets`); may be repeated")
      ->type_name("NAME");
  app.add_option("--book", o.book,
                 "Compress every tensor with its plan of this plan book (`plan` writes one), and add a total")
      ->check(no_empty_path)
      ->type_name("FILE")
      ->excludes("--plan")
      ->excludes("--preset");
  add_list(app, "--tensor", o.subjects.globs,
           "Only tensors whose name matches ('layer3.*'), one row per tensor; may be repeated")
      ->type_name("GLOB");
  auto* per_tensor =
      app.add_flag("--per-tensor", o.subjects.per_tensor, "A row for every tensor of at least 1000 elements");
  app.add_flag("--flat", o.subjects.flat, "Join the tensors of an input (the default), or those that --tensor selects")
      ->excludes(per_tensor);
  add_cast(app, o.subjects.cast);
  auto* steps =
      app.add_option("--steps", o.steps, "The inputs are consecutive steps of one training, N in all; see below")
          ->check(CLI::Range(1, 1000000))
          ->type_name("N");
  app.add_flag("--each-step", o.each_step, "Show all steps, not only the last")->needs(steps);
  add_compare_output(app, o);
  add_report(app, o.report);
  add_timing(app, o);
  add_questions(app, o);
  add_saved(app, o);
  add_run(app, o.threads, o.seed, o.segment_rows);
  add_plugins(app, o.plugins);
  app.footer(compare_help());
}

void add_frequent(CLI::App& compare, CLI::App& predict, CLI::App& plan) {
  add_short_help(
      compare, "deepreduce compare [INPUT ...] [OPTIONS]",
      {{"What",
        {{"INPUT", "gradients: .npz, .npy, .safetensors, a folder; none: bundled data"},
         {"--tensor", "only tensors of such names, a row for each; 'layer3.*'"},
         {"--steps", "the inputs are consecutive steps: a residual carries over"}}},
       {"Which plans",
        {{"--plan", "a plan or a sweep: 'sparsify=topr(ratio=0.01..0.1) value=half|qsgd'"},
         {"--preset", "plans by name: paper, grace, topk; `deepreduce presets` lists them"},
         {"--book", "each tensor by its plan of a plan book"}}},
       {"Which rows",
        {{"--where", "only rows that meet it: 'total_error < 0.5 and bytes < 1e6'"},
         {"--sort", "by columns: bytes, -total_error"},
         {"--pareto", "only rows that no other row beats"},
         {"--best", "the smallest plan that meets it: 'total_error <= 0.3'"}}},
       {"Link",
        {{"--link", "models a step over links of this rate: 10Gb/s,50us"}, {"--ranks", "their number; default: 8"}}},
       {"Output",
        {{"--wide", "all columns"},
         {"--report", "a page with charts"},
         {"--output", "rows.json, rows.csv or rows.md"}}}});
  // What a prediction is of, and over which link.
  const help_group what{"What",
                        {{"PROFILE", "costs of plans; `deepreduce calibrate -o profile.json` writes it"},
                         {"--model", "tensors and times; DDPHook(plan, record=FILE) writes it"},
                         {"--sizes", "without a model: 25M,512x2048"},
                         {"--backward", "its backward: 122ms"}}};
  const help_group link{"Link",
                        {{"--link", "of a host: 10Gb/s,50us; default: the profile's"},
                         {"--ranks", "their number; default: 8 with --link"}}};
  const char* const plans = "a plan or a sweep; default: those of the profile";
  const char* const errors = "errors on your gradients: rows.json of `compare --per-tensor`";
  add_short_help(
      predict, "deepreduce predict PROFILE [OPTIONS]",
      {what,
       {"Which plans", {{"--plan", plans}, {"--book", "each tensor by its plan of a plan book"}, {"--errors", errors}}},
       {"Which rows",
        {{"--every", "rounds of an outer loop, every H steps, in place of steps"},
         {"--what-if", "curves over one of these"}}},
       link,
       {"Output", {{"--timeline", "a drawing of a step"}, {"--output", "a file instead of stdout: x.json, x.csv"}}}});
  add_short_help(plan, "deepreduce plan PROFILE [OPTIONS]",
                 {what,
                  {"Which plans",
                   {{"--plan", plans},
                    {"--errors", errors},
                    {"--error-budget", "the largest error of a tensor; default: step / (1 - error^2) decides"}}},
                  link,
                  {"Output", {{"--output", "the plan book; x.json: also the compared choices"}}}});
}

// By --format, else by the suffix of --output.
format chosen_format(const compare_options& o) {
  const std::string suffix = suffix_of(o.output);
  for (const std::string_view other : {"png", "svg", "html", "htm"})
    if (suffix == other) throw usage_error("--output " + o.output + ": " + known_format(suffix));
  if (const std::string clash = format_clash(o.form_name, o.output, compare_suffixes); !clash.empty())
    throw usage_error(clash);
  const std::string name = format_name(o.form_name, o.output, compare_suffixes);
  return name.empty() ? format::table : compare_formats.at(name);
}

// Likewise, of commands that have the formats `known` and a usual one.
std::string settled_format(const std::string& option, const std::string& output,
                           std::span<const std::string_view> known, const char* usual) {
  if (const std::string clash = format_clash(option, output, known); !clash.empty()) throw usage_error(clash);
  const std::string name = format_name(option, output, known);
  return name.empty() ? usual : name;
}

// Saved rows are shown unchanged: options of a measurement have no effect on them.
void check_measures(const CLI::App& app, const compare_options& o) {
  if (o.from.empty() || !o.subjects.inputs.empty()) return;
  for (const char* name :
       {"--plan", "--preset", "--book", "--resume", "--tensor", "--per-tensor", "--flat", "--cast", "--steps",
        "--batch", "--repeat", "--time", "--ranks", "--link", "--seed", "--segment-rows", "--threads", "--plugin"})
    if (app.count(name))
      throw usage_error(
          fmt::format("--from without INPUT measures nothing: {} requires an INPUT{}", name,
                      std::string_view(name) == "--tensor" ? "; --where 'tensor ~ \"GLOB\"' selects rows" : ""));
}

// An exchange behind backward has no buckets, no bypass, and nothing that overlaps it.
void check_hook(const CLI::App& app, const predict::case_options& o) {
  if (o.hook == "ddp") return;
  for (const char* name : {"--bucket-mb", "--dense-below", "--bypass", "--slowdown", "--hook-time"})
    if (app.count(name)) throw usage_error(fmt::format("{} is of the DDP hook, and not of --hook {}", name, o.hook));
}

void add_decode(CLI::App& app, decode_options& o) {
  app.add_option("FRAME", o.file, "File with a frame")->required()->type_name("");
  add_output(
      app, o.output,
      "X.npy or X.f32 for a frame of one tensor; X.npz holds tensor_0, tensor_1, … or the names of --like; all dense")
      ->required();
  app.add_option("--like", o.like, "The input of encode: its tensors' names and shapes, in place of tensor_0, flat")
      ->check(no_empty_path)
      ->type_name("INPUT");
  app.add_option("--threads", o.threads, "Threads of the library; 0 and 1 start none")
      ->check(CLI::Range(0, 256))
      ->type_name("N");
  app.add_option("--max-elements", o.max_elements,
                 "Refuse frames with more elements (a small file may claim any number); default: 1000000000")
      ->check(whole_number)
      ->type_name("N");
  add_plugins(app, o.plugins);
}

void add_encode(CLI::App& app, encode_options& o) {
  app.add_option("INPUT", o.input, "Gradients, as for compare; one frame holds all tensors")->required()->type_name("");
  app.add_option("--plan", o.plan, "The plan")->required()->check(no_empty_text)->type_name("PLAN");
  add_cast(app, o.cast);
  add_output(app, o.output, "The frame; default: stdout");
  add_run(app, o.threads, o.seed, o.segment_rows);
  add_plugins(app, o.plugins);
}

// `help` is --help, and `help COMMAND` is COMMAND --help. In reverse order, as CLI11 expects.
std::vector<std::string> arguments_of(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> list(argv + std::min(argc, 1), argv + argc);
  if (!list.empty() && list[0] == "help") {
    list[0] = "--help";
    if (list.size() > 1) {
      if (app.get_subcommands([&](const CLI::App* command) { return command->get_name() == list[1]; }).empty())
        throw usage_error("help " + list[1] + ": no such command" +
                          of_python(list[1], "; `deepreduce help` lists them"));
      std::swap(list[0], list[1]);
    }
  }
  std::ranges::reverse(list);
  return list;
}

std::string with_help(const std::string& sentence, const std::string& help) {
  return sentence + (sentence.ends_with('?') ? " " : "; ") + help;
}

// Adds a suggestion to CLI11's error.
std::string parse_error(const CLI::App& app, const CLI::ParseError& e) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  if (parsed.empty()) {
    const std::vector<std::string> words = app.remaining();
    if (words.empty()) return "no command; `deepreduce help` lists them";
    std::vector<std::string> commands;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
      commands.push_back(command->get_name());
    return "no command '" + words.front() + "'" +
           of_python(words.front(), with_help(suggested(words.front(), commands), "`deepreduce help` lists them"));
  }
  const std::string command = parsed.front()->get_name(), help = "`deepreduce help " + command + "` describes it";
  const std::vector<std::string> extras = parsed.front()->remaining();
  if (dynamic_cast<const CLI::ExtrasError*>(&e) == nullptr || extras.empty())
    return with_help(command + ": " + e.what(), help);
  if (!extras.front().starts_with('-'))
    return with_help(command + ": '" + extras.front() + "' is one argument too many", help);
  const std::string name = extras.front().substr(0, extras.front().find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : parsed.front()->get_options())
    for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
  return with_help(command + ": no option '" + name + "'" + suggested(name, names), help);
}

}  // namespace

command parse_options(int argc, const char* const* argv) {
  compare_options compare;
  codecs_options codecs;
  presets_options presets;
  inspect_options inspect;
  encode_options encode;
  convert_options convert;
  decode_options decode;
  calibrate::calibrate_options calibrate;
  predict::predict_options predict;
  predict::plan_options plan;
  plugin_test::test_plugin_options test_plugin;
  CLI::App app(about, "deepreduce");
  app.formatter(std::make_shared<help_text>());
  app.require_subcommand(1);
  app.footer("`deepreduce help COMMAND` describes a command, `deepreduce help columns` the columns of compare.");
  app.set_version_flag("-V,--version", version_text());
  auto* compare_app = app.add_subcommand("compare", "Compares plans on gradients: bytes, errors, times");
  auto* codecs_app = app.add_subcommand(
      "codecs", "Lists the parts of plans: codecs with their traits and parameters, and other stages");
  auto* presets_app = app.add_subcommand("presets", "Lists the plans that have a name in the literature");
  auto* encode_app = app.add_subcommand("encode", "Writes the frame of one input");
  auto* convert_app = app.add_subcommand("convert", "Converts inputs to a .safetensors file");
  auto* decode_app = app.add_subcommand("decode", "Writes the tensors of a frame as .npy, .npz or .f32");
  auto* inspect_app = app.add_subcommand("inspect", "Describes a frame, or what is wrong with it");
  auto* calibrate_app =
      app.add_subcommand("calibrate", "Measures the cost of plans on this machine and writes a profile");
  auto* predict_app = app.add_subcommand(
      "predict", "Predicts the step time of a training for each plan, and which plan pays on a link");
  auto* plan_app = app.add_subcommand("plan", "Chooses a plan for each tensor and writes a plan book");
  auto* test_plugin_app =
      app.add_subcommand("test-plugin", "Tests the codecs of a plug-in against the promises of all codecs");
  auto* help_app = app.add_subcommand("help", "Describes a command");
  add_compare(*compare_app, compare);
  codecs_app
      ->add_option("NAME", codecs.name,
                   "A codec, a stage (index, exchange, …) or stage=name; --format json: codecs only")
      ->type_name("");
  add_list_format(*codecs_app, codecs.form);
  add_plugins(*codecs_app, codecs.plugins);
  presets_app->add_option("NAME", presets.name, "A preset or a set of presets")->type_name("");
  add_list_format(*presets_app, presets.form);
  inspect_app->add_option("FRAME", inspect.file, "File with a frame")->required()->type_name("");
  add_list_format(*inspect_app, inspect.form);
  add_plugins(*inspect_app, inspect.plugins);
  add_encode(*encode_app, encode);
  add_convert(*convert_app, convert);
  add_decode(*decode_app, decode);
  calibrate::add_calibrate(*calibrate_app, calibrate);
  predict::add_predict(*predict_app, predict);
  predict::add_plan(*plan_app, plan);
  plugin_test::add_test_plugin(*test_plugin_app, test_plugin);
  add_frequent(*compare_app, *predict_app, *plan_app);
  help_app->add_option("COMMAND", "The command, or columns: those of compare")->type_name("");
  try {
    if (argc == 3 && std::string_view(argv[1]) == "help" && std::string_view(argv[2]) == "columns") {
      write_output("", plain(column_help()));
      return finished{0};
    }
    app.parse(arguments_of(app, argc, argv));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return finished{print_answer(app, e)};  // --help, --version
    throw usage_error(parse_error(app, e));
  }
  if (compare_app->parsed()) {
    check_measures(*compare_app, compare);
    if (!compare.book.empty() && (compare.subjects.batch || compare.subjects.flat))
      throw usage_error(
          "--book gives every tensor a plan of its own; it excludes --batch and --flat, which join tensors");
    // Small tensors included.
    if (!compare.book.empty() && compare.subjects.globs.empty()) compare.subjects.globs = {"*"};
    compare.form = chosen_format(compare);
    if (compare.pareto == "COLUMNS") compare.pareto = usual_front;
    return compare;
  }
  if (codecs_app->parsed()) return codecs;
  if (presets_app->parsed()) return presets;
  if (inspect_app->parsed()) return inspect;
  if (convert_app->parsed()) return convert;
  if (decode_app->parsed()) return decode;
  if (calibrate_app->parsed()) return calibrate;
  constexpr std::string_view documents[] = {"json", "csv"};
  if (predict_app->parsed()) {
    check_hook(*predict_app, predict.what);
    predict.form = settled_format(predict.form, predict.output, documents, "table");
    return predict;
  }
  if (plan_app->parsed()) {
    check_hook(*plan_app, plan.what);
    plan.form = settled_format(plan.form, plan.output, std::span(documents).first(1), "text");
    return plan;
  }
  if (test_plugin_app->parsed()) return test_plugin;
  return encode;
}

}  // namespace dr::compare
