#include "factors.hpp"

#include <chrono>
#include <cstring>
#include <stdexcept>

#include "tool/read/number.hpp"

namespace dr::compare {
namespace {

double clock_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

dr_tensor matrix_of(const tensor& t, const float* values) {
  dr_tensor m = dense(DR_F32, values, t.elements);
  if (t.shape.size() < 2 || t.elements == 0) return m;
  m.universe = t.shape[0], m.width = static_cast<uint32_t>(t.elements / t.shape[0]);
  return m;
}

}  // namespace

bool is_transform(const std::string& plan) {
  const parsed_stages parsed(plan);
  const dr_stage* const transform = find_stage(parsed.stages(), "transform");
  return transform && std::string_view(transform->name) != "none";
}

factors::factors(context& c, const plan& p, std::span<const tensor> tensors, uint64_t seed)
    : library_(c), keeps_((p.info().flags & DR_PLAN_FEEDBACK) != 0) {
  std::vector<dr_tensor> list;
  size_t elements = 0;
  for (const tensor& t : tensors) {
    if (t.type != dtype::f32) throw std::runtime_error(std::string("a transform requires f32, not ") + name_of(t.type));
    list.push_back(matrix_of(t, nullptr));
    elements += t.elements;
  }
  in_.resize(elements);
  auto options = sized<dr_transform_options>();
  options.seed = seed;
  dr_transform* made = nullptr;
  check(dr_transform_create(c.get(), p.get(), &options, list.data(), sizeof(dr_tensor), list.size(), &made));
  handle_.reset(made);
  auto e = sized<dr_error>();
  if (dr_transform_describe(made, &info_, &e) != DR_OK) throw error(e);
}

void factors::check(dr_status s) const {
  if (s != DR_OK && s != DR_PENDING) throw error(*dr_last_error(library_.get()));
}

factors::times factors::round(std::span<const tensor> x, std::span<float> out) {
  std::vector<dr_tensor> in;
  std::vector<dr_tensor_out> outs;
  size_t at = 0;
  for (const tensor& t : x) {
    if (!t.data.empty()) std::memcpy(in_.data() + at, t.data.data(), t.data.size());
    in.push_back(matrix_of(t, in_.data() + at));
    dr_tensor_out& o = outs.emplace_back(dense_out(DR_F32, out.data() + at, in.back().universe));
    o.width = in.back().width;
    at += t.elements;
  }
  const double begin = clock_ns();
  check(dr_transform_begin(handle_.get(), in.data(), sizeof(dr_tensor), outs.data(), sizeof(dr_tensor_out), in.size()));
  float* factor = nullptr;
  uint64_t count = 0;
  check(dr_transform_factor(handle_.get(), &factor, &count));
  const double made = clock_ns();
  dr_status s = DR_PENDING;
  while (s == DR_PENDING) check(s = dr_transform_next(handle_.get(), 1));
  return {made - begin, clock_ns() - made};
}

std::vector<tensor> factors::with_residual(std::span<const tensor> x) const {
  std::vector<tensor> sum(x.begin(), x.end());
  for (size_t i = 0; keeps_ && i < sum.size(); ++i) {
    float* residual = nullptr;
    uint64_t count = 0;
    check(dr_transform_residual(handle_.get(), i, &residual, &count));
    std::byte* const bytes = sum[i].data.writable().data();
    for (uint64_t k = 0; k < count; ++k) {
      float value = 0;
      std::memcpy(&value, bytes + 4 * k, 4);
      value += residual[k];
      std::memcpy(bytes + 4 * k, &value, 4);
    }
  }
  return sum;
}

std::vector<std::byte> factors::state() const {
  std::vector<std::byte> saved(info_.state_size);
  check(dr_transform_save(handle_.get(), saved.data(), saved.size()));
  return saved;
}

void factors::set_state(std::span<const std::byte> state) {
  check(dr_transform_load(handle_.get(), state.data(), state.size()));
}

}  // namespace dr::compare
