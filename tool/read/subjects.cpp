#include "subjects.hpp"

#include <fmt/core.h>
#include <fnmatch.h>
#include <locale.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "number.hpp"
#include "plan_text.hpp"

// Folders of the bundled data sets, separated by colons; defined by the build.
#ifndef DR_DATASETS
#define DR_DATASETS ""
#endif

namespace dr::compare {
namespace {

// Frameworks send smaller tensors (biases, normalisation) uncompressed; --tensor selects them nevertheless.
constexpr uint64_t smallest_tensor = 1000;

std::vector<std::string> npz_files(const std::filesystem::path& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".npz") files.push_back(at->path().string());
  std::sort(files.begin(), files.end());
  return files;
}

// One of each model, in the middle of a training; a package bundles these alone.
constexpr const char* usual_accumulators[] = {
    "resnet20_digits_residual_top1_step0225.npz", "lstm_docs_residual_top1_step0250.npz",
    "neumf_names_residual_top1_step1000.npz", "transformer_docs_residual_top1_step0400.npz"};

std::vector<std::string> bundled_inputs(bool all) {
  const char* set = std::getenv("DEEPREDUCE_DATASETS");
  const std::string places = set != nullptr && *set != 0 ? set : DR_DATASETS;
  std::string tried;
  for (size_t begin = 0; begin < places.size();) {
    const size_t end = std::min(places.find(':', begin), places.size());
    const std::filesystem::path place = places.substr(begin, end - begin);
    std::vector<std::string> files = npz_files(place / "accumulators");
    if (std::vector<std::string> usual; !all) {
      for (const char* name : usual_accumulators)
        if (const std::string file = (place / "accumulators" / name).string();
            std::ranges::find(files, file) != files.end())
          usual.push_back(file);
      if (!usual.empty()) return usual;
    }
    const std::vector<std::string> gradients = npz_files(place / "gradients");
    files.insert(files.end(), gradients.begin(), gradients.end());
    if (!files.empty()) return files;
    tried += (tried.empty() ? "" : ", ") + (place / "accumulators").string() + ", " + (place / "gradients").string();
    begin = end + 1;
  }
  throw input_error("no INPUT given, and no bundled data (*.npz) in " + (tried.empty() ? "any place" : tried) +
                    "; set DEEPREDUCE_DATASETS to the folder that holds accumulators/ and gradients/");
}

}  // namespace

tensor concatenated(std::vector<tensor> parts) {
  tensor all = parts.front();
  all.joined.clear();
  for (const tensor& t : parts) all.joined.push_back(t.shape);
  tensor_bytes whole = std::exchange(all.data, {});
  bool in_place = true;
  for (const tensor& t : std::span(parts).subspan(1)) {
    all.elements += t.elements;
    all.sparse = all.sparse && t.sparse;
    in_place = in_place && whole.extend(t.data);
  }
  all.shape = {all.elements};
  if (!in_place) {
    whole = tensor_bytes(all.elements * size_of(all.type));
    std::byte* to = whole.writable().data();
    for (tensor& t : parts) to = std::ranges::copy(std::exchange(t.data, {}), to).out;
  }
  all.data = std::move(whole);
  return all;
}

namespace {

// Joins the tensors of one input and type; the tensor of an input with one tensor is unchanged.
void join(std::vector<tensor> tensors, std::vector<tensor>& out) {
  for (const dtype type : {dtype::f32, dtype::f16, dtype::bf16}) {
    std::vector<tensor> same;
    std::copy_if(std::move_iterator(tensors.begin()), std::move_iterator(tensors.end()), std::back_inserter(same),
                 [&](const tensor& t) { return t.type == type; });
    if (same.empty()) continue;
    if (tensors.size() == 1) return out.push_back(std::move(same[0]));
    const bool only_type = same.size() == tensors.size();
    tensor all = concatenated(std::move(same));
    all.name = all.raw_name = only_type ? "*" : fmt::format("* ({})", name_of(type));
    out.push_back(std::move(all));
  }
}

// A glob matches the name as the file has it, or as it is printed, with escapes. A `?` is a character of UTF-8 in any locale.
bool matches(const std::string& glob, const tensor& t) {
  static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  const locale_t before = utf8 == nullptr ? nullptr : ::uselocale(utf8);
  const bool found = fnmatch(glob.c_str(), t.raw_name.c_str(), 0) == 0 || fnmatch(glob.c_str(), t.name.c_str(), 0) == 0;
  if (before != nullptr) ::uselocale(before);
  return found;
}

// Drops tensors that no glob matches. `matched`: globs with a match; `names`: all names.
void pick(std::vector<tensor>& tensors, const std::vector<std::string>& globs, std::vector<bool>& matched,
          std::vector<std::string>& names) {
  if (globs.empty()) return;
  for (const tensor& t : tensors) names.push_back(t.name);
  std::erase_if(tensors, [&](const tensor& t) {
    bool matches_any = false;
    for (size_t i = 0; i < globs.size(); ++i)
      if (matches(globs[i], t)) matches_any = matched[i] = true;
    return !matches_any;
  });
}

// left_out: receives a sentence where none is left.
void drop_small(std::vector<tensor>& tensors, uint64_t min_elements, const char* what, console& console,
                std::vector<std::string>& left_out) {
  if (tensors.empty()) return;
  const std::string input = tensors.front().input;
  const size_t dropped = std::erase_if(tensors, [&](const tensor& t) { return t.elements < min_elements; });
  if (dropped == 0) return;
  if (tensors.empty())
    left_out.push_back(min_elements == 1 ? input + " holds no elements"
                                         : input +
                                               " holds no tensor of at least 1000 elements (--tensor '*' takes "
                                               "smaller ones)");
  else
    console.line(fmt::format("note: {}: left out {} tensor{} {}", input, dropped, dropped == 1 ? "" : "s", what));
}

// A directory's files are adjacent in the list.
std::vector<std::vector<tensor>> by_input(std::vector<tensor> tensors) {
  std::vector<std::vector<tensor>> groups;
  for (tensor& t : tensors) {
    if (groups.empty() || groups.back().front().input != t.input) groups.emplace_back();
    groups.back().push_back(std::move(t));
  }
  return groups;
}

// The first names, for a glob without a match.
std::string listed(std::vector<std::string> names) {
  std::erase(names, "");
  if (names.empty()) return "the arrays in these files have none";
  constexpr size_t max_listed = 8;
  std::string text = "there are: " + names.front();
  for (size_t i = 1; i < std::min(names.size(), max_listed); ++i) text += ", " + names[i];
  return names.size() > max_listed ? text + fmt::format(", … ({} in all)", names.size()) : text;
}

// Passes on the tensors of every file that match the globs.
template <class F>
void for_each_file(const subject_options& options, console& console, F&& f) {
  std::vector<bool> matched(options.globs.size());
  std::vector<std::string> names;
  for (const std::string& input : options.inputs.empty() ? bundled_inputs(options.all_bundled) : options.inputs) {
    console.progress("reading " + input);
    std::vector<std::string> notes;
    std::vector<tensor> tensors = read_input(input, &notes, options.cast);
    for (const std::string& note : notes) console.line("note: " + note);
    pick(tensors, options.globs, matched, names);
    for (auto& group : by_input(std::move(tensors))) f(std::move(group));
  }
  for (size_t i = 0; i < matched.size(); ++i)
    if (!matched[i])
      throw input_error(fmt::format("--tensor '{}': no tensor has such a name; {}", options.globs[i], listed(names)));
}

// why: of the inputs.
[[noreturn]] void refuse_nothing(const std::vector<std::string>& why) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(why.size(), 4); ++i) text += why[i] + "; ";
  throw input_error(text + (why.size() > 4 ? fmt::format("… ({} in all); ", why.size()) : "") + "nothing to compare");
}

// Rows of two tensors of one name could not be told apart.
void demand_names(std::span<const tensor> of_file) {
  std::set<std::string> names;
  for (const tensor& t : of_file)
    if (!names.insert(t.name).second)
      throw input_error(fmt::format(
          "{}: two tensors have the name '{}' in rows, which cannot tell them apart: rename one, or compare them "
          "joined or with --batch",
          t.input, t.name));
}

// Describes how a step's tensors differ from `like`.
void demand_alike(const subject& s, const subject& like) {
  const auto differ = [](const tensor& a, const tensor& b) {
    return a.name != b.name || a.type != b.type || a.elements != b.elements;
  };
  if (s.size() != like.size())
    throw input_error(fmt::format("{}: {} tensors, but {} in {}; --steps requires steps of one model", s[0].input,
                                  s.size(), like.size(), like[0].input));
  for (size_t i = 0; i < s.size(); ++i)
    if (differ(s[i], like[i]))
      throw input_error(
          fmt::format("{}: tensor '{}', {}, {} elements; but in {} it is '{}', {}, {} elements; --steps requires "
                      "steps of one model",
                      s[i].input, s[i].name, name_of(s[i].type), s[i].elements, like[i].input, like[i].name,
                      name_of(like[i].type), like[i].elements));
}

// named: what comes of a tensor goes by its name.
std::vector<tensor> read_tensors(const subject_options& options, console& console, bool named) {
  std::vector<tensor> subjects;
  const bool joined = options.flat || (!options.per_tensor && options.globs.empty());
  std::vector<std::string> left_out;
  for_each_file(options, console, [&](std::vector<tensor> group) {
    drop_small(group, 1, "without elements", console, left_out);
    if (options.per_tensor && options.globs.empty())
      drop_small(group, smallest_tensor, "of less than 1000 elements (--tensor selects them)", console, left_out);
    if (joined) return join(std::move(group), subjects);
    if (named) demand_names(group);
    std::move(group.begin(), group.end(), std::back_inserter(subjects));
  });
  if (subjects.empty()) refuse_nothing(left_out);
  for (const std::string& input : left_out) console.line("note: " + input);
  return subjects;
}

}  // namespace

std::vector<tensor> read_subjects(const subject_options& options, console& console) {
  return read_tensors(options, console, false);
}

std::vector<subject> read_batches(const subject_options& options, console& console) {
  std::vector<subject> batches;
  std::vector<std::string> left_out;
  for_each_file(options, console, [&](subject group) {
    if (elements_of(group) > 0)
      batches.push_back(std::move(group));
    else if (!group.empty())
      left_out.push_back(group.front().input + " holds no elements");
  });
  if (batches.empty()) refuse_nothing(left_out);
  return batches;
}

std::vector<subject> read_frames(const subject_options& options, console& console) {
  if (options.batch) return read_batches(options, console);
  std::vector<subject> subjects;
  for (tensor& t : read_tensors(options, console, true)) subjects.emplace_back().push_back(std::move(t));
  return subjects;
}

std::vector<tensor> parts_of(const tensor& t) {
  if (t.joined.empty()) return {t};
  std::vector<tensor> parts;
  size_t at = 0;
  for (const std::vector<uint64_t>& shape : t.joined) {
    tensor& part = parts.emplace_back();
    part.input = t.input, part.type = t.type, part.shape = shape;
    part.elements = std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
    const size_t size = part.elements * size_of(t.type);
    part.data = tensor_bytes({t.data.data() + at, size}, t.data.owner());
    at += size;
  }
  return parts;
}

std::string name_of(const subject& s) { return s.size() == 1 ? s[0].name : fmt::format("[{} tensors]", s.size()); }

std::string types_of(const subject& s) {
  std::string text;
  for (const dtype type : {dtype::f16, dtype::bf16, dtype::f32})
    if (std::ranges::any_of(s, [&](const tensor& t) { return t.type == type; }))
      text += (text.empty() ? "" : "+") + std::string(name_of(type));
  return text;
}

std::string digest_of(std::span<const subject> gradients) {
  uLong crc = 0;
  for (const subject& s : gradients)
    for (const tensor& t : s) crc = crc32_z(crc, reinterpret_cast<const Bytef*>(t.data.data()), t.data.size());
  return fmt::format("{:08x}", crc);
}

uint64_t elements_of(const subject& s) {
  uint64_t sum = 0;
  for (const tensor& t : s) sum += t.elements;
  return sum;
}

std::vector<std::vector<subject>> apart(std::vector<subject> subjects) {
  std::vector<std::vector<subject>> sequences;
  for (subject& s : subjects) sequences.emplace_back().push_back(std::move(s));
  return sequences;
}

std::vector<std::vector<subject>> in_steps(std::vector<subject> subjects) {
  std::vector<std::vector<subject>> sequences;
  size_t at = 0;  // position of the subject in its input
  for (subject& s : subjects) {
    // A repeated name of the first input starts a new step.
    const bool first = sequences.empty() ||
                       (sequences[0].size() == 1 && s[0].input == sequences[0][0][0].input &&
                        std::ranges::none_of(sequences, [&](const auto& q) { return q[0][0].name == s[0].name; }));
    if (first) {
      sequences.emplace_back().push_back(std::move(s));
      continue;
    }
    demand_alike(s, sequences[at % sequences.size()][0]);
    sequences[at++ % sequences.size()].push_back(std::move(s));
  }
  if (at % std::max<size_t>(sequences.size(), 1))
    throw input_error(fmt::format("{}: {} tensors, but {} in {}; --steps requires steps of one model",
                                  sequences[0].back()[0].input, at % sequences.size(), sequences.size(),
                                  sequences[0][0][0].input));
  return sequences;
}

namespace {

uint64_t count_nonzeros(const tensor& g) {
  uint64_t count = 0;
  for (uint64_t i = 0; i < g.elements; ++i) count += magnitude_of(g.type, bits_at(g.type, g.data, i)) != 0;
  return count;
}

}  // namespace

std::string default_sparsifier(const subject& g) {
  // 5 %: with fewer nonzeros the input was sparsified, or is the gradient of an embedding.
  uint64_t nonzeros = 0;
  bool stored_so = true;
  for (const tensor& t : g) nonzeros += count_nonzeros(t), stored_so = stored_so && t.sparse;
  const bool sparse = stored_so || nonzeros * 20 < elements_of(g);
  return sparse ? "sparsify=none" : "sparsify=topr(ratio=0.01)";
}

const std::vector<std::string>& usual_plans() {
  static const std::vector<std::string> plans = [] {
    std::vector<std::string> list;
    for (const char* ratio : {"0.1", "0.01", "0.001"}) {
      const std::string top = fmt::format("sparsify=topr(ratio={}) feedback=residual ", ratio);
      for (const char* streams :
           {"index=golomb value=raw", "index=golomb value=log_quant", "index=auto value=auto(error=0.07)"})
        list.push_back(top + streams);
    }
    list.emplace_back("transform=lowrank(rank=4) feedback=residual");
    list.emplace_back("feedback=residual index=all value=uniform_quant(bits=4) exchange=owner");
    list.emplace_back("feedback=residual index=all value=uniform_quant(bits=8) exchange=owner");
    list.emplace_back("index=all value=half(type=bf16)");
    return list;
  }();
  return plans;
}

std::vector<std::string> default_plans(const subject& g) {
  std::vector<std::string> plans;
  if (default_sparsifier(g) != "sparsify=none") {
    // A transform requires f32, and does something if there is a matrix.
    bool transforms = false, floats = true;
    for (const tensor& t : g) {
      floats &= t.type == dtype::f32;
      for (const tensor& part : parts_of(t)) transforms |= part.shape.size() > 1;
    }
    std::ranges::copy_if(usual_plans(), std::back_inserter(plans), [&](const std::string& plan) {
      return (transforms && floats) || read_plan(plan).transform.empty();
    });
    return plans;
  }
  for (const char* streams :
       {"index=raw value=raw", "index=golomb value=raw", "index=gap_huffman value=raw",
        "index=golomb value=raw+deflate", "index=golomb value=qsgd", "index=golomb value=uniform_quant",
        "index=golomb value=log_quant", "index=auto value=auto(error=0.07)",
        "index=bloom(policy=p0,fpr=0.001) value=qsgd", "index=bloom(policy=p2,fpr=0.001) value=qsgd"})
    plans.push_back(std::string("sparsify=none ") + streams);
  return plans;
}

}  // namespace dr::compare
