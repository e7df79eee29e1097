// The tool `deepreduce`: see --help. Exit status: 0 fine, 1 a codec or a check failed, 2 usage, input or output.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>

#include "codec_list.hpp"
#include "compare.hpp"
#include "frame_text.hpp"
#include "html_report.hpp"
#include "options.hpp"
#include "output.hpp"
#include "presets.hpp"
#include "report.hpp"
#include "verify.hpp"

namespace dr::compare {
namespace {

enum status { fine = 0, failed = 1, misused = 2 };

struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

plan parse_plan(const std::string& text) {
  try {
    return plan(text);
  } catch (const error& e) {
    throw usage_error("--plan '" + text + "': " + e.detail.message);
  }
}

// A name without a slash would be looked for where the system's libraries are, and there alone.
void load_plugins(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) try {
      const bool here = path.find('/') == std::string::npos && std::filesystem::exists(path);
      load_plugin(here ? "./" + path : path);
    } catch (const error& e) {
      throw usage_error("--plugin '" + path + "': " + e.detail.message);
    }
}

// The library takes what it does not know for "all that there is": right for a library, not for who measures.
void check_environment() {
  const char* const level = std::getenv("DEEPREDUCE_CPU");
  for (const std::string_view known : {"scalar", "avx2", "avx512"})
    if (!level || level == known) return;
  throw usage_error(std::string("DEEPREDUCE_CPU='") + level + "': not scalar, avx2 or avx512");
}

std::vector<plan> parse_plans(const std::vector<std::string>& texts) {
  std::vector<plan> plans;
  for (const std::string& text : texts) plans.push_back(parse_plan(text));
  return plans;
}

std::string report(const compare_options& o, const measured& m, const run_facts& run,
                   const nlohmann::ordered_json& document) {
  switch (o.form) {
    case format::json: return json_report(document);
    case format::csv: return csv_report(m.rows);
    case format::table: break;
  }
  std::string text = table_report(m.rows, run);
  for (const std::string& name : o.presets) text += preset_notes(name);
  return text;
}

// What the command line names for a gradient; the default set if it names nothing.
std::vector<std::string> plans_for(const compare_options& o, const subject& g) {
  if (o.plans.empty() && o.presets.empty()) return default_plans(g);
  std::vector<std::string> texts = o.plans;
  for (const std::string& name : o.presets)
    for (std::string& text : preset_plans(name, default_sparsifier(g))) texts.push_back(std::move(text));
  return texts;
}

measure_settings settings_of(const compare_options& o) {
  return {o.repeat, o.seconds, o.seed, o.segment_rows, o.ranks, o.over, std::max(o.steps, 1u), o.each_step, o.presets};
}

int run(const compare_options& o) {
  if (!o.report.empty() && !has_html_report()) throw usage_error(std::string("--report: ") + no_html_report);
  load_plugins(o.plugins);
  (void)parse_plans(o.plans);  // before anything is read
  for (const std::string& name : o.presets) {
    const std::vector<std::string> texts = preset_plans(name, "sparsify=none");
    if (texts.empty()) throw usage_error("--preset '" + name + "': no such name; `deepreduce presets` lists them");
    (void)parse_plans(texts);
  }
  console console;
  context context(o.threads);
  measured all;
  const bool alone = o.steps == 0;
  std::vector<subject> subjects = read_frames(o.subjects, console);
  for (const auto& gradients : alone ? apart(std::move(subjects)) : in_steps(std::move(subjects))) {
    if (!alone && gradients.size() > o.steps)
      throw usage_error("--steps " + std::to_string(o.steps) + ": there are " + std::to_string(gradients.size()) +
                        " inputs");
    measured m = compare_plans(context, gradients, parse_plans(plans_for(o, gradients[0])), settings_of(o), console);
    std::ranges::move(m.rows, std::back_inserter(all.rows));
    all.subjects.insert(all.subjects.end(), m.subjects.begin(), m.subjects.end());
    std::ranges::move(m.failures, std::back_inserter(all.failures));
  }
  console.clear();
  const run_facts facts{o.seed, o.repeat, o.seconds, o.threads, o.ranks, o.link_text, o.over, all.failures};
  const nlohmann::ordered_json document = json_document(all.rows, all.subjects, facts);
  if (!o.report.empty()) write_output(o.report, html_report(document));
  write_output(o.output, report(o, all, facts, document));
  return all.failures.empty() ? fine : failed;
}

int run(const codecs_options& o) {
  load_plugins(o.plugins);
  write_output("", o.form == format::json ? codec_json() : codec_table());
  return fine;
}

int run(const presets_options&) {
  write_output("", preset_table());
  return fine;
}

std::string read_frame(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw input_error(path + ": cannot be opened: " + std::strerror(errno));
  try {
    return {std::istreambuf_iterator<char>(file), {}};
  } catch (const std::ios_base::failure& e) {  // a directory, say
    throw input_error(path + ": cannot be read: " + e.code().message());
  }
}

int run(const inspect_options& o) {
  load_plugins(o.plugins);
  const std::string bytes = read_frame(o.file);
  try {
    write_output("", describe_frame(std::as_bytes(std::span(bytes))));
  } catch (const error& e) {
    throw std::runtime_error(o.file + ": " + e.what());
  }
  return fine;
}

int run(const encode_options& o) {
  load_plugins(o.plugins);
  const plan method = parse_plan(o.plan);
  console console;
  std::vector<std::string> notes;
  const std::vector<tensor> tensors = read_input(o.input, &notes);
  for (const std::string& note : notes) console.line("note: " + note);
  std::vector<dr_tensor> sources;
  std::vector<std::vector<uint64_t>> states;
  for (const tensor& g : tensors) {
    dr_tensor& t = sources.emplace_back(dense(abi_dtype(g.type), g.data.data(), g.elements));
    t.state_size = state_size(method, t);
    if (t.state_size) t.state = states.emplace_back((t.state_size + 7) / 8).data();
  }
  auto call = sized<dr_call>();
  call.seed = call.private_seed = o.seed;
  call.segment_rows = o.segment_rows;
  call.flags = tensors.size() == 1 ? 0 : DR_CALL_LIST;
  context context(o.threads);
  const std::vector<std::byte> frame = context.encode(method, sources, &call);
  write_output(o.output, {reinterpret_cast<const char*>(frame.data()), frame.size()});
  return fine;
}

int run(const finished& f) { return f.status; }

}  // namespace
}  // namespace dr::compare

int main(int argc, char** argv) {
  using namespace dr::compare;
  int status = failed;
  std::string message;
  try {
    check_environment();
    return std::visit([](const auto& o) { return run(o); }, parse_options(argc, argv));
  } catch (const input_error& e) {
    status = misused, message = e.what();
  } catch (const usage_error& e) {
    status = misused, message = e.what();
  } catch (const output_error& e) {
    status = misused, message = e.what();
  } catch (const std::bad_alloc&) {
    message = "out of memory";
  } catch (const std::exception& e) {
    message = e.what();
  }
  std::fprintf(stderr, "deepreduce: %s\n", message.c_str());
  return status;
}
