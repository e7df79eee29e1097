// The tool `deepreduce`: see --help. Exit status: 0 fine, 1 a codec or a check failed, 2 usage, input or output.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>

#include "options.hpp"
#include "tool/compare/codec_list.hpp"
#include "tool/compare/compare_command.hpp"
#include "tool/compare/decoded_file.hpp"
#include "tool/compare/frame_text.hpp"
#include "tool/compare/verify.hpp"
#include "tool/predict/plan_command.hpp"
#include "tool/predict/predict_command.hpp"
#include "tool/read/inputs.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/read/plan_text.hpp"
#include "tool/read/presets.hpp"
#include "tool/read/safetensors.hpp"
#include "tool/show/output.hpp"
#include "tool/show/plain_text.hpp"

namespace dr::compare {
namespace {

enum status { fine = 0, failed = 1, misused = 2 };

// The library ignores a level that its architecture has not, and uses all instructions. A measurement must not.
void check_environment() {
#ifdef __aarch64__
  constexpr const char *known[] = {"scalar", "neon"}, *names = "scalar or neon";
#else
  constexpr const char *known[] = {"scalar", "avx2", "avx512"}, *names = "scalar, avx2 or avx512";
#endif
  const char* const level = std::getenv("DEEPREDUCE_CPU");
  for (const std::string_view name : known)
    if (!level || level == name) return;
  throw usage_error(std::string("DEEPREDUCE_CPU='") + level + "': not " + names);
}

int run(const compare_options& o) { return run_compare(o); }

int run(const codecs_options& o) {
  load_plugins(o.plugins);
  const std::string text = o.form == format::json ? codec_json(o.name) : codec_table(o.name);
  if (text.empty() && !codec_table(o.name).empty())
    throw usage_error("codecs " + o.name + ": not a codec, and --format json lists codecs only");
  if (text.empty()) throw usage_error("codecs " + o.name + ": no such codec or stage; `deepreduce codecs` lists them");
  write_output("", plain(text));
  return fine;
}

int run(const presets_options& o) {
  const std::string text = o.form == format::json ? preset_json(o.name) : preset_table(o.name);
  if (text.empty()) throw usage_error("presets " + o.name + ": no such name; `deepreduce presets` lists them");
  write_output("", plain(text));
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
    const auto frame = std::as_bytes(std::span(bytes));
    write_output("", o.form == format::json ? frame_json(frame) : plain(describe_frame(frame)));
  } catch (const error& e) {
    throw std::runtime_error(o.file + ": " + e.what());
  }
  return fine;
}

// Such as a second frame, of which nothing is written.
void note_rest(const std::string& file, std::span<const std::byte> bytes, console& console) {
  const uint64_t rest = bytes.size() - inspect(bytes).info.frame_size;
  if (rest)
    console.line(fmt::format("note: {}: {} byte{} after the frame {} not decoded", file, rest, rest == 1 ? "" : "s",
                             rest == 1 ? "is" : "are"));
}

int run(const decode_options& o) {
  check_outputs({{"--output", o.output}}, {{&o.file, 1}, {&o.like, 1}, o.plugins});
  load_plugins(o.plugins);
  const std::string bytes = read_frame(o.file);
  try {
    const auto frame = std::as_bytes(std::span(bytes));
    const std::string file = decoded_file(frame, o);
    console console;
    note_rest(o.file, frame, console);
    write_output(o.output, file);
  } catch (const error& e) {
    throw std::runtime_error(o.file + ": " + e.what());
  }
  return fine;
}

void refuse_terminal(const char* command, const char* what, const std::string& output) {
  if (output.empty() && ::isatty(STDOUT_FILENO) != 0)
    throw usage_error(
        fmt::format("{}: {} is binary, and standard output is a terminal; use --output FILE or > FILE", command, what));
}

// Tensors that are sent as they are, since the plan's codecs would take more.
void note_dense(std::span<const std::byte> frame, console& console) {
  const std::vector<dr_tensor_info> tensors = inspect(frame).tensors;
  const auto dense = std::ranges::count(tensors, uint32_t{DR_FALLBACK_DENSE}, &dr_tensor_info::fallback);
  if (dense)
    console.line(
        fmt::format("note: {} of {} tensors {} dense, as in the input: by this plan indices and values take more. "
                    "A plan with index=all sends no indices",
                    dense, tensors.size(), dense == 1 ? "goes" : "go"));
}

int run(const encode_options& o) {
  check_outputs({{"--output", o.output}}, {{&o.input, 1}, o.plugins});
  load_plugins(o.plugins);
  const plan method = parse_plan(o.plan);
  console console;
  std::vector<std::string> notes;
  const std::vector<tensor> tensors = read_input(o.input, &notes, o.cast);
  for (const std::string& note : notes) console.line("note: " + note);
  if (tensors.size() > 1 && read_plan(method.text()).sparsifies && !(method.info().flags & DR_PLAN_FLAT))
    console.line(
        fmt::format("note: {} tensors in one frame, each with its own share of elements; `compare` joins them, "
                    "`compare --batch` measures this frame",
                    tensors.size()));
  std::vector<dr_tensor> sources;
  std::vector<std::vector<uint64_t>> states;
  for (const tensor& g : tensors) {
    dr_tensor& t = sources.emplace_back(source_of(g, g.data.data()));
    t.state_size = state_size(method, t);
    if (t.state_size) t.state = states.emplace_back((t.state_size + 7) / 8).data();
  }
  auto call = sized<dr_call>();
  call.seed = call.private_seed = o.seed;
  call.segment_rows = o.segment_rows;
  call.flags = tensors.size() == 1 ? 0 : DR_CALL_LIST;
  refuse_terminal("encode", "a frame", o.output);
  context context(o.threads);
  const std::vector<std::byte> frame = context.encode(method, sources, &call);
  note_dense(frame, console);
  write_output(o.output, {reinterpret_cast<const char*>(frame.data()), frame.size()});
  return fine;
}

int run(convert_options o) {
  refuse_terminal("convert", "a .safetensors file", o.output);
  if (const std::string end = std::filesystem::path(o.output).extension(); is_read(end) && end != ".safetensors")
    throw usage_error("convert: --output " + o.output + ": the name must end in .safetensors");
  console console;
  if (o.subjects.globs.empty() && !o.subjects.flat) o.subjects.globs = {"*"};  // one by one, small ones included
  const std::string file = safetensors_of(read_subjects(o.subjects, console));
  console.clear();
  write_output(o.output, file);
  return fine;
}

int run(const calibrate::calibrate_options& o) { return calibrate::run_calibrate(o); }

int run(const predict::predict_options& o) { return predict::run_predict(o); }

int run(const predict::plan_options& o) { return predict::run_plan(o); }

int run(const plugin_test::test_plugin_options& o) { return plugin_test::run_test_plugin(o); }

int run(const finished& f) { return f.status; }

}  // namespace
}  // namespace dr::compare

int main(int argc, char** argv) {
  using namespace dr::compare;
  int status = failed;
  std::string message;
  ascii_only = locale_is_ascii();
  try {
    check_environment();
    return std::visit([](const auto& o) { return run(o); }, parse_options(argc, argv));
  } catch (const input_error& e) {
    status = misused, message = e.what();
  } catch (const usage_error& e) {
    status = misused, message = e.what();
  } catch (const output_error& e) {
    status = misused, message = e.what();
  } catch (const interrupted& e) {
    return 128 + e.signal;
  } catch (const std::bad_alloc&) {
    message = "out of memory";
  } catch (const std::exception& e) {
    message = e.what();
  }
  std::fprintf(stderr, "deepreduce: %s\n", plain(without_controls(message)).c_str());
  return status;
}
