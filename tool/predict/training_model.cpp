#include "training_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>

#include "profile.hpp"
#include "tool/read/count_text.hpp"

namespace dr::predict {
namespace {

using nlohmann::json;

constexpr double max_elements = 1e15;
constexpr size_t max_tensors = 1'000'000;

// The first dimension: rows of the matrix that PowerSGD makes of a tensor (Vogels et al. 2019).
// (elements_of_shape has checked it.)
void read_shape(tensor_spec& t, const json& object) {
  if (!object.contains("shape") || !object.at("shape").is_array() || object.at("shape").empty()) return;
  const json& shape = object.at("shape");
  t.rows = shape.size() > 1 ? shape[0].get<double>() : t.elements;
}

// For a tensor with a shape but no count.
std::optional<double> elements_of_shape(const json& object, const std::string& where) {
  if (!object.is_object() || !object.contains("shape") || !object.at("shape").is_array()) return std::nullopt;
  double elements = 1;
  for (const json& tensor : object.at("shape")) {
    if (!tensor.is_number() || tensor.get<double>() < 0)
      throw std::runtime_error(fmt::format("{}: shape has {}, not a count", where, tensor.dump()));
    elements *= tensor.get<double>();
    if (elements > max_elements) break;  // (infinity times 0 would be no number)
  }
  return elements;
}

}  // namespace

double training::elements() const {
  double sum = 0;
  for (const tensor_spec& t : tensors) sum += t.elements;
  return sum;
}

training training::scaled(double factor) const {
  training t = *this;
  t.forward_ns *= factor, t.backward_ns *= factor, t.rest_ns *= factor;
  if (t.skew_ns) *t.skew_ns *= factor;
  for (tensor_spec& tensor : t.tensors) tensor.ready_ns *= factor;
  return t;
}

training read_training(const std::string& path) { return parse_training(read_json(path, "model"), path); }

training parse_training(const json& text, const std::string& path) {
  if (const std::string schema = text_at(text, "schema"); schema != "deepreduce-model-1")
    throw std::runtime_error(
        fmt::format("{}: schema '{}' is not deepreduce-model-1; `deepreduce capture` writes one", path, schema));
  training t;
  t.name = text_at(text, "name", path);
  t.batch = number_at(text, "batch", path, 0, 0);
  t.forward_ns = number_at(text, "forward_ns", path, 0, 0);
  t.backward_ns = number_at(text, "backward_ns", path, 0, 0);
  t.rest_ns = number_at(text, "rest_ns", path, 0, 0);
  if (text.contains("skew_ns") && !text.at("skew_ns").is_null()) {
    t.skew_ns = number_at(text, "skew_ns", path, 0);
    t.skew_ranks = number_at(text, "ranks", path, 0, 0);
  }
  t.times_known = text.contains("backward_ns") && !text.at("backward_ns").is_null();
  if (!text.contains("tensors") || !text.at("tensors").is_array() || text.at("tensors").empty())
    throw std::runtime_error(path + ": no list 'tensors', or an empty one");
  if (text.at("tensors").size() > max_tensors)
    throw std::runtime_error(
        fmt::format("{}: {} tensors; at most {} are read", path, text.at("tensors").size(), max_tensors));
  t.ready_known = t.times_known;
  size_t i = 0;
  for (const json& object : text.at("tensors")) {
    const std::string where = fmt::format("{}: tensors[{}]", path, i++);
    tensor_spec tensor;
    tensor.elements = number_at(object, "elements", where, 0, elements_of_shape(object, where));
    if (tensor.elements > max_elements)
      throw std::runtime_error(fmt::format("{}: {:g} elements; at most {:g}", where, tensor.elements, max_elements));
    tensor.name = text_at(object, "name", fmt::format("t{}", i - 1));
    tensor.energy = number_at(object, "energy", where, 0, 0);
    const bool ready = object.contains("ready_ns") && !object.at("ready_ns").is_null();
    t.ready_known &= ready;
    // Clocks are read after the last gradient, so a tensor may seem slightly later than the end.
    tensor.ready_ns = ready ? std::min(number_at(object, "ready_ns", where, 0), t.backward_ns) : t.backward_ns;
    if (!object.contains("dtype") || text_at(object, "dtype") == "f32") {
      read_shape(tensor, object);
      t.tensors.push_back(std::move(tensor));
      continue;
    }
    throw std::runtime_error(
        fmt::format("{}: dtype {}: unsupported, the model of a step knows f32 only", where, object.at("dtype").dump()));
  }
  return t;
}

training sized_training(const std::string& text) {
  training t;
  t.name = "sizes";
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    tensor_spec tensor;
    tensor.name = fmt::format("t{}", t.tensors.size());
    tensor.elements = 1;
    for (size_t from = at; from <= comma;) {
      const size_t end = std::min({text.find('x', from), comma});
      uint64_t count = 0;
      if (!compare::read_count(std::string_view(text).substr(from, end - from), count) ||
          static_cast<double>(count) > max_elements)
        throw std::invalid_argument(
            fmt::format("'{}' is neither a number of elements nor a shape", text.substr(at, comma - at)));
      if (end < comma && from == at) tensor.rows = static_cast<double>(count);
      tensor.elements *= static_cast<double>(count);
      if (tensor.elements > max_elements) break;  // (infinity times 0 would be no number)
      from = end + 1;
    }
    if (tensor.elements > max_elements)
      throw std::invalid_argument(
          fmt::format("'{}': more than {:g} elements", text.substr(at, comma - at), max_elements));
    t.tensors.push_back(std::move(tensor));
    if (t.tensors.size() > max_tensors) throw std::invalid_argument("too many tensors");
    at = comma + 1;
  }
  return t;
}

}  // namespace dr::predict
