#include "options.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>

#include "deepreduce/deepreduce.h"
#include "tool/compare/compare_help.hpp"
#include "tool/compare/selection.hpp"
#include "tool/read/near_name.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/read/whole_number.hpp"
#include "tool/show/help_text.hpp"
#include "tool/show/machine.hpp"

namespace dr::compare {
namespace {

constexpr const char* about =
    "Compresses gradients by plans, and tells what became of them.\n"
    "A plan is one line, such as 'sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=127)';\n"
    "`deepreduce codecs` lists what may stand in it.";

const std::map<std::string, format> compare_formats{{"table", format::table},
                                                    {"csv", format::csv},
                                                    {"json", format::json},
                                                    {"md", format::markdown},
                                                    {"html", format::html}};
const std::map<std::string, format> list_formats{{"table", format::table}, {"json", format::json}};

// `--name TEXT`, as often as one likes, one TEXT each.
CLI::Option* add_list(CLI::App& app, const char* name, std::vector<std::string>& list, const char* help) {
  return app.add_option(name, list, help)->allow_extra_args(false)->type_name("TEXT");
}

void add_plugins(CLI::App& app, std::vector<std::string>& plugins) {
  add_list(app, "--plugin", plugins, "Shared object with more codecs; may be repeated")->type_name("PATH");
}

void add_list_format(CLI::App& app, format& form) {
  app.add_option_function<std::string>(
         "--format", [&](const std::string& text) { form = list_formats.at(text); },
         "How the result is printed; default: table")
      ->check([](const std::string& text) {
        return list_formats.contains(text) ? std::string() : "'" + text + "' is not one of table|json";
      })
      ->type_name("table|json");
}

// CLI::Range takes "nan" for a number within.
std::string no_nan(const std::string& text) {
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? "'" + text + "' is not a number" : std::string();
}

std::string no_empty_text(const std::string& text) {
  return text.find_first_not_of(' ') == text.npos ? "it says nothing" : std::string();
}

std::string no_empty_path(const std::string& path) { return path.empty() ? "the path is empty" : std::string(); }

CLI::Option* add_output(CLI::App& app, std::string& path, const char* help) {
  return app.add_option("--output", path, help)->check(no_empty_path)->type_name("FILE");
}

void add_run(CLI::App& app, uint32_t& threads, uint64_t& seed, uint64_t& segment_rows) {
  app.add_option("--threads", threads, "Threads of the library; 0 and 1: none are started")
      ->check(CLI::Range(0, 256))
      ->type_name("N");
  app.add_option("--seed", seed, "Of codecs that draw random numbers; default: 0")->check(whole_number)->type_name("N");
  app.add_option("--segment-rows", segment_rows,
                 "Cut tensors into segments of N rows, each coded for itself (a Bloom filter each); default: none")
      ->check(whole_number)
      ->type_name("N");
}

void add_cast(CLI::App& app, std::optional<dtype>& cast) {
  app.add_option_function<std::string>(
         "--cast", [&](const std::string& name) { cast = type_called(name); },
         "Convert all inputs to this type, integers and booleans, too; default: only float64, to f32")
      ->check([](const std::string& name) {
        return type_called(name) ? std::string() : "'" + name + "' is not one of f32, f16, bf16";
      })
      ->type_name("f32|f16|bf16");
}

void add_convert(CLI::App& app, convert_options& o) {
  app.add_option("INPUT", o.subjects.inputs, "Gradients, as for compare")->required()->type_name("");
  add_list(app, "--tensor", o.subjects.globs, "Only tensors with such a name; may be repeated")->type_name("GLOB");
  app.add_flag("--flat", o.subjects.flat, "Join the tensors of an input; default: each by itself");
  add_cast(app, o.subjects.cast);
  add_output(app, o.output, "The .safetensors file; default: stdout");
}

// Rounds, ranks and their links; whether a file is a batch.
void add_timing(CLI::App& app, compare_options& o) {
  auto* repeat = app.add_option("--repeat", o.repeat, "Timed rounds, instead of --time");
  repeat->check(CLI::Range(1, 1000000))->type_name("N");
  app.add_option("--time", o.seconds, "Seconds of rounds for each plan; default: 0.25. At least 5 rounds, at most 200")
      ->check(no_nan)
      ->check(CLI::Range(0.0, 86400.0))
      ->type_name("SECONDS")
      ->excludes(repeat);
  app.add_option("--ranks", o.ranks, "Ranks: of `merge`, `pays below` and --link; default: 8")
      ->check(CLI::Range(2, 65536))
      ->type_name("N");
  app.add_option_function<std::string>(
         "--link", [&](const std::string& text) { o.link_text = text, o.over = parse_link(text); },
         "Models a step of the ranks over links of that rate ('10Gb/s', '100Mbit/s,50us', '25e9b/s'): a verdict for "
         "each "
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

// A figure is for a plotting library, which this program has not.
std::string known_format(const std::string& text) {
  if (text == "png" || text == "svg")
    return "'" + text +
           "' is a figure: write --output rows.json, then `python -m deepreduce figure rows.json --output x." + text +
           "`";
  return compare_formats.contains(text) ? std::string() : "'" + text + "' is not one of table|csv|json|md|html";
}

void add_compare_output(CLI::App& app, compare_options& o) {
  app.add_option("--format", o.form_name, "How the result is printed; default: as --output ends, else table")
      ->check(known_format)
      ->type_name("table|csv|json|md|html");
  add_output(
      app, o.output,
      "File to write to instead of stdout, whole or not at all: X.json, X.csv, X.md and X.html in these formats");
}

void add_report(CLI::App& app, std::string& path) {
  app.add_option("--report", path, "Write a page with charts and all rows, too: one file of HTML that loads nothing")
      ->check([](const std::string& file) {
        const size_t dot = file.rfind('.'), slash = file.rfind('/');
        const std::string suffix = dot == file.npos || (slash != file.npos && dot < slash) ? "" : file.substr(dot);
        if (file.empty()) return std::string("the path is empty");
        return suffix.empty() || suffix == ".html" || suffix == ".htm" ? ""
                                                                       : "'" + file + "': a report is HTML, X.html";
      })
      ->type_name("FILE.html");
}

void add_questions(CLI::App& app, compare_options& o) {
  app.add_option("--where", o.where, "Only rows that meet this, such as 'total_error < 0.02 and bytes < 1e6'")
      ->check(no_empty_text)
      ->type_name("CONDITION");
  app.add_option("--sort", o.sort, "Order of rows: 'bytes', '-total_error,encode_ns+decode_ns'; -COLUMN: descending")
      ->check(no_empty_text)
      ->type_name("COLUMNS");
  app.add_flag("--pareto{COLUMNS}", o.pareto,
               std::string("Only rows that no other row of the tensor beats; default columns: ") + usual_front);
  auto* best = app.add_option("--best", o.best, "The smallest plan that meets this, for each input and layer kind")
                   ->check(no_empty_text)
                   ->type_name("CONDITION")
                   ->excludes("--book");
  app.add_option("--best-by", o.best_by, "What --best makes small instead of bytes, such as encode_ns+decode_ns")
      ->needs(best)
      ->type_name("COLUMN");
  app.add_option("--limit", o.limit, "Most plans that sweeps may give; default: 10000")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
}

void add_saved(CLI::App& app, compare_options& o) {
  add_list(app, "--from", o.from, "Show the rows that a .json has, and measure only what INPUT names; may be repeated")
      ->type_name("FILE");
  app.add_option("--resume", o.resume,
                 "Keep rows in this .json, subject by subject; measure only what it does not have yet")
      ->check(no_empty_path)
      ->type_name("FILE");
  auto* against =
      app.add_option("--against", o.against, "Compare with the rows of this .json: better, worse or the same")
          ->check(no_empty_path)
          ->type_name("FILE");
  app.add_flag("--fail-if-worse", o.fail_if_worse, "Exit with 1 if --against finds something worse")->needs(against);
}

void add_compare(CLI::App& app, compare_options& o) {
  app.add_option("INPUT", o.subjects.inputs, "Gradients; see below")->type_name("");
  add_list(app, "--plan", o.plans,
           "A plan, or a sweep of plans (see below); may be repeated. Default: a set that fits the input")
      ->check(no_empty_text)
      ->type_name("PLAN");
  add_list(app, "--preset", o.presets,
           "Plans by name (paper, fastpfor, grace, BF-P2+QSGD, …; see `deepreduce presets`); may be repeated")
      ->type_name("NAME");
  app.add_option("--book", o.book, "Each tensor by its plan of this plan book (`plan` writes one); a total of all")
      ->check(no_empty_path)
      ->type_name("FILE")
      ->excludes("--plan")
      ->excludes("--preset");
  add_list(app, "--tensor", o.subjects.globs, "Only tensors with such a name ('layer3.*'), a row each; may be repeated")
      ->type_name("GLOB");
  auto* each = app.add_flag("--per-tensor", o.subjects.per_tensor, "A row for every tensor of at least 1000 elements");
  app.add_flag("--flat", o.subjects.flat, "Join the tensors of an input (the default), also those that --tensor picks")
      ->excludes(each);
  add_cast(app, o.subjects.cast);
  auto* steps = app.add_option("--steps", o.steps, "The inputs are steps of one training, N in all; see below")
                    ->check(CLI::Range(1, 1000000))
                    ->type_name("N");
  app.add_flag("--each-step", o.each_step, "Show each of the steps, not only the last")->needs(steps);
  add_compare_output(app, o);
  add_report(app, o.report);
  add_timing(app, o);
  add_questions(app, o);
  add_saved(app, o);
  add_run(app, o.threads, o.seed, o.segment_rows);
  add_plugins(app, o.plugins);
  app.footer(compare_help());
}

// What --format says, else the end of the output's name.
format chosen_format(const compare_options& o) {
  if (!o.form_name.empty()) return compare_formats.at(o.form_name);
  const size_t dot = o.output.rfind('.');
  std::string suffix = dot == o.output.npos ? "" : o.output.substr(dot + 1);
  std::ranges::transform(suffix, suffix.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (const auto known = compare_formats.find(suffix); known != compare_formats.end()) return known->second;
  if (const std::string wrong = known_format(suffix); suffix == "png" || suffix == "svg")
    throw usage_error("--output " + o.output + ": " + wrong);
  return format::table;
}

// Rows that are there are shown as they are.
void check_measures(const CLI::App& app, const compare_options& o) {
  if (o.from.empty() || !o.subjects.inputs.empty()) return;
  for (const char* name :
       {"--plan", "--preset", "--book", "--resume", "--tensor", "--per-tensor", "--flat", "--cast", "--steps",
        "--batch", "--repeat", "--time", "--ranks", "--link", "--seed", "--segment-rows", "--threads", "--plugin"})
    if (app.count(name))
      throw usage_error(
          fmt::format("--from without INPUT measures nothing: {} wants an INPUT{}", name,
                      std::string_view(name) == "--tensor" ? "; --where 'tensor ~ \"GLOB\"' selects rows" : ""));
}

void add_decode(CLI::App& app, decode_options& o) {
  app.add_option("FRAME", o.file, "File with a frame")->required()->type_name("");
  add_output(app, o.output, "X.npy, X.f32: a frame of one tensor; X.npz: tensor_0, tensor_1, …; all dense")->required();
  app.add_option("--threads", o.threads, "Threads of the library; 0 and 1: none are started")
      ->check(CLI::Range(0, 256))
      ->type_name("N");
  app.add_option("--max-elements", o.most_elements,
                 "Refuse frames of more elements, which a small file may claim; default: 1000000000")
      ->check(whole_number)
      ->type_name("N");
  add_plugins(app, o.plugins);
}

void add_encode(CLI::App& app, encode_options& o) {
  app.add_option("INPUT", o.input, "Gradients, as for compare; all tensors go into one frame")
      ->required()
      ->type_name("");
  app.add_option("--plan", o.plan, "The plan")->required()->check(no_empty_text)->type_name("PLAN");
  add_cast(app, o.cast);
  add_output(app, o.output, "The frame; default: stdout");
  add_run(app, o.threads, o.seed, o.segment_rows);
  add_plugins(app, o.plugins);
}

// `help` is --help, and `help COMMAND` is COMMAND --help. Last argument first, as CLI11 takes them.
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

// CLI11's sentences name what was not expected, but not what could have been meant.
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
  app.footer("`deepreduce help COMMAND` describes a command.");
  app.set_version_flag("--version", version_text());
  auto* compare_app = app.add_subcommand("compare", "Compares plans on gradients: bytes, errors, times");
  auto* codecs_app = app.add_subcommand(
      "codecs", "Lists what may stand in a plan: the codecs with what they promise and take, and the rest");
  auto* presets_app = app.add_subcommand("presets", "Lists the plans that have a name in the literature");
  auto* encode_app = app.add_subcommand("encode", "Writes the frame of one input");
  auto* convert_app = app.add_subcommand("convert", "Writes what it reads of its inputs to a .safetensors file");
  auto* decode_app = app.add_subcommand("decode", "Writes the tensors of a frame as .npy, .npz or .f32");
  auto* inspect_app = app.add_subcommand("inspect", "Tells what is in a frame, or what is wrong with it");
  auto* calibrate_app = app.add_subcommand("calibrate", "Measures what plans cost on this machine, into a profile");
  auto* predict_app =
      app.add_subcommand("predict", "Predicts the step of a training by each plan, and what pays on a link");
  auto* plan_app = app.add_subcommand("plan", "Chooses a plan for each tensor and writes a plan book");
  auto* test_plugin_app = app.add_subcommand("test-plugin", "Tests what is promised of codecs on those of a plug-in");
  auto* help_app = app.add_subcommand("help", "Describes a command");
  add_compare(*compare_app, compare);
  codecs_app
      ->add_option("NAME", codecs.name,
                   "Only these: a codec, a stage (index, exchange, …), or stage=name; --format json: codecs only")
      ->type_name("");
  add_list_format(*codecs_app, codecs.form);
  add_plugins(*codecs_app, codecs.plugins);
  presets_app->add_option("NAME", presets.name, "Only this preset, or this set of presets")->type_name("");
  inspect_app->add_option("FRAME", inspect.file, "File with a frame")->required()->type_name("");
  add_plugins(*inspect_app, inspect.plugins);
  add_encode(*encode_app, encode);
  add_convert(*convert_app, convert);
  add_decode(*decode_app, decode);
  calibrate::add_calibrate(*calibrate_app, calibrate);
  predict::add_predict(*predict_app, predict);
  predict::add_plan(*plan_app, plan);
  plugin_test::add_test_plugin(*test_plugin_app, test_plugin);
  help_app->add_option("COMMAND", "Which one")->type_name("");
  try {
    app.parse(arguments_of(app, argc, argv));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return finished{print_answer(app, e)};  // --help, --version
    throw usage_error(parse_error(app, e));
  }
  if (compare_app->parsed()) {
    check_measures(*compare_app, compare);
    if (!compare.book.empty() && (compare.subjects.batch || compare.subjects.flat))
      throw usage_error("--book: tensors have plans of their own; --batch and --flat join them");
    // Small ones, too.
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
  if (predict_app->parsed()) return predict;
  if (plan_app->parsed()) return plan;
  if (test_plugin_app->parsed()) return test_plugin;
  return encode;
}

}  // namespace dr::compare
