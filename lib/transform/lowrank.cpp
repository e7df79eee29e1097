#include "transform/lowrank.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "primitive/rng.hpp"
#include "transform/orthonormal.hpp"

namespace dr {
namespace {

// The minimum of elements, or columns, of a task; the maximum number of tasks of a tensor.
constexpr uint64_t task_elements = uint64_t{1} << 16, task_columns = 2048, tasks_max = 1024;

// P's row has a norm of at most 1, so its product with a column of Q below this limit is below half a unit in the last
// place of FLT_MAX: neither an output nor a residual overflows f32, whatever another rank sent.
constexpr float second_max = 0x1p90f;

// Whether no magnitude of x, times `by`, exceeds `limit`; NaN does. The bits of magnitudes have the same order (and
// compilers vectorise sums of integer differences, but not of comparisons of floats).
bool all_within(const float* x, uint64_t n, float by = 1, float limit = FLT_MAX) {
  const auto bits_max = std::bit_cast<int32_t>(limit);
  int32_t signs = 0;
  for (uint64_t i = 0; i < n; ++i) signs |= bits_max - (std::bit_cast<int32_t>(by * x[i]) & INT32_MAX);
  return signs >= 0;
}

}  // namespace

// ---- Layout -----------------------------------------------------------------------------------------------

dr_status lowrank::create(const lowrank_options& how, std::span<const lowrank_shape> shapes, uint32_t workers,
                          dr_error& error) {
  how_ = how;
  workers_ = workers;
  kernels_ = &lowrank_at(cpu());
  items_.reserve(shapes.size());
  for (const lowrank_shape& s : shapes) {
    lowrank_item item{s.rows, s.columns, true, elements_, first_size_, second_size_};
    const uint64_t elements = item.elements();  // (below 2^57)
    if (elements_ + elements > UINT64_MAX >> 8)
      return fail(error, DR_E_ARGUMENT, "tensors: more than 2^56 elements in all");
    elements_ += elements;
    const uint64_t longer = std::max(s.rows, s.columns), shorter = std::min(s.rows, s.columns);
    // (The rank is below both, so its products are below the number of elements.)
    const bool is_marks = how.marks && items_.size() + 1 == shapes.size();
    item.dense =
        is_marks || elements < how.dense_below || shorter <= how.rank || how.rank * (longer + shorter) >= elements;
    first_size_ += item.dense ? elements : s.rows * how.rank;
    second_size_ += item.dense ? 0 : s.columns * how.rank;
    if (!item.dense) scratch_size_ = std::max(scratch_size_, orthonormal_scratch(longer, how.rank));
    (item.dense ? dense_ : low_).push_back(static_cast<uint32_t>(items_.size()));
    items_.push_back(item);
  }
  list_tasks(workers);
  gradients_.resize(items_.size());
  outs_.resize(items_.size());
  arena measure;
  memory_size_ = lay_out(measure);
  return DR_OK;
}

uint64_t lowrank::lay_out(arena& memory) {
  residual_ = memory.allocate<float>(how_.keeps ? elements_ : 0);
  q_ = memory.allocate<float>(second_size_);
  first_ = {memory.allocate<float>(first_size_), first_size_};
  second_ = {memory.allocate<float>(second_size_), second_size_};
  scratch_ = memory.allocate<double>(workers_ * scratch_size_);
  return memory.used();
}

void lowrank::place(std::byte* memory) {
  arena scratch(memory, memory_size_);
  lay_out(scratch);
  reset();
}

// Tasks are cut for the number of threads; no bit depends on the cut.
void lowrank::list_tasks(uint32_t workers) {
  for (const uint32_t i : low_) {
    const lowrank_item& item = items_[i];
    const uint64_t rows = std::max<uint64_t>(task_elements / item.columns, item.rows / tasks_max + 1);
    for (uint64_t at = 0; at < item.rows; at += rows) row_tasks_.push_back({i, at, std::min(item.rows, at + rows)});
    const uint64_t columns = workers > 1 ? std::max(task_columns, item.columns / tasks_max + 1) : item.columns;
    for (uint64_t at = 0; at < item.columns; at += columns)
      column_tasks_.push_back({i, at, std::min(item.columns, at + columns)});
  }
}

template <class F>
void lowrank::run(pool& workers, size_t n, F&& f) {
  workers.run(
      n, [](void* arg, size_t item, size_t worker) { (*static_cast<std::remove_reference_t<F>*>(arg))(item, worker); },
      &f);
}

lowrank_matrix lowrank::matrix(size_t item) const {
  const lowrank_item& i = items_[item];
  return {gradients_[item], how_.keeps ? residual_ + i.first : nullptr, how_.beta, how_.gamma, i.columns, how_.rank};
}

std::span<float> lowrank::residual(size_t tensor) const {
  if (!how_.keeps) return {};
  return {residual_ + items_[tensor].first, items_[tensor].elements()};
}

std::span<float> lowrank::warm_start(size_t tensor) const {
  const lowrank_item& item = items_[tensor];
  return {q_ + item.q, item.dense ? 0 : item.columns * how_.rank};
}

// ---- Q ----------------------------------------------------------------------------------------------------

// A column of approximately normal numbers, sums of four uniform integers: the same bits everywhere.
void lowrank::draw_column(size_t item, uint32_t column) {
  const uint64_t key = combine(combine(how_.seed, item), column);
  const uint64_t n = items_[item].columns;
  float* const q = q_ + items_[item].q + column * n;
  for (uint64_t j = 0; j < n; ++j) {
    const uint64_t drawn = draw(key, j);
    int64_t sum = -2 * 65535;
    for (uint32_t k = 0; k < 4; ++k) sum += static_cast<int64_t>(drawn >> 16 * k & 65535);
    q[j] = static_cast<float>(sum);
  }
}

// The span of M Q's columns does not depend on Q's basis; an orthonormal basis neither underflows nor loses the small
// directions to the large ones. A column of zeros would stay zero for ever, so it is drawn again.
void lowrank::orthonormalise_q(size_t item, double* scratch) {
  const uint64_t n = items_[item].columns;
  float* const q = q_ + items_[item].q;
  for (uint32_t c = 0; c < how_.rank; ++c)
    if (std::all_of(q + c * n, q + (c + 1) * n, [](float x) { return x == 0; })) draw_column(item, c);
  orthonormalise({q, n, 1, n, how_.rank}, scratch);
}

void lowrank::reset() {
  phase_ = 0;
  rounds_ = 0;
  if (how_.keeps) std::fill_n(residual_, elements_, 0.0f);
  std::fill_n(q_, second_size_, 0.0f);
  for (const uint32_t i : low_) orthonormalise_q(i, scratch_);
}

void lowrank::settle_warm_start(size_t tensor) {
  const std::span<const float> q = warm_start(tensor);
  const uint64_t n = items_[tensor].columns;
  const auto is_unit = [&](uint32_t column) {
    double squares = 0;
    for (const float x : q.subspan(column * n, n)) squares += double{x} * double{x};
    return std::abs(squares - 1) < 1e-3;
  };
  for (uint32_t c = 0; c < how_.rank && !q.empty(); ++c)
    if (!is_unit(c)) return orthonormalise_q(tensor, scratch_);
}

// ---- A round ----------------------------------------------------------------------------------------------

// Copies all of a tensor's M.
void lowrank::copy_input(size_t item, float* to) const {
  const uint64_t n = items_[item].elements();
  if (n && !how_.keeps) std::copy_n(gradients_[item], n, to);
  if (!how_.keeps) return;
  const float *const g = gradients_[item], *const e = residual_ + items_[item].first;
  for (uint64_t k = 0; k < n; ++k) to[k] = how_.gamma * g[k] + how_.beta * e[k];
}

float lowrank::value(size_t item, uint64_t element) const {
  const float g = gradients_[item][element];
  return how_.keeps ? how_.gamma * g + how_.beta * residual_[items_[item].first + element] : g;
}

dr_status lowrank::begin(std::span<const float* const> gradients, std::span<float* const> outs, pool& workers,
                         dr_error& error) {
  std::copy(gradients.begin(), gradients.end(), gradients_.begin());
  std::copy(outs.begin(), outs.end(), outs_.begin());
  run(workers, row_tasks_.size(), [&](size_t i, size_t) {
    const task& t = row_tasks_[i];
    const lowrank_item& item = items_[t.item];
    kernels_->project(matrix(t.item), q_ + item.q, first_.data() + item.p, t.first, t.last);
  });
  run(workers, dense_.size(), [&](size_t i, size_t) {
    const lowrank_item& item = items_[dense_[i]];
    copy_input(dense_[i], first_.data() + item.p);
  });
  // A value that is not finite makes its row's sums not finite, because all its products are.
  for (size_t i = 0; i < items_.size(); ++i) {
    const lowrank_item& item = items_[i];
    if (!all_within(first_.data() + item.p, item.dense ? item.elements() : item.rows * how_.rank))
      return find_fault(i, error);
  }
  phase_ = 1;
  return DR_OK;
}

dr_status lowrank::find_fault(size_t item, dr_error& error) const {
  error = no_error();
  const uint64_t n = items_[item].elements();
  uint64_t at = 0;
  while (at < n && std::isfinite(value(item, at))) ++at;
  if (at == n) {
    fail(error, DR_E_ARGUMENT, "tensor %zu: a sum of its elements times the start vectors exceeds f32", item);
  } else if (const float g = gradients_[item][at]; std::isfinite(g)) {
    fail(error, DR_E_ARGUMENT, "tensor %zu: element %" PRIu64 " is %g, which with its residual exceeds f32", item, at,
         static_cast<double>(g));
    error.where = at;
  } else {
    fail(error, DR_E_ARGUMENT, "tensor %zu: element %" PRIu64 " of the gradient is %g; lowrank requires finite values",
         item, at, static_cast<double>(g));
    error.where = at;
  }
  error.tensor = item;
  return DR_E_ARGUMENT;
}

dr_status lowrank::check_factor(std::span<const float> factor, const char* name, float mean, float limit,
                                dr_error& error) const {
  // (A mean below 1 hides nothing: infinities stay infinite.)
  if (all_within(factor.data(), factor.size(), mean, limit)) return DR_OK;
  const auto at = std::find_if(factor.begin(), factor.end(), [=](float x) { return !(std::abs(mean * x) <= limit); });
  const auto where = static_cast<uint64_t>(at - factor.begin());
  const double found = *at;
  if (!std::isfinite(found))
    fail(error, DR_E_ARGUMENT,
         "%s factor: element %" PRIu64 " is %g after the all-reduce; a rank sent it, or the sum exceeds f32", name,
         where, found);
  else if (!std::isfinite(mean * *at))
    fail(error, DR_E_ARGUMENT, "%s factor: element %" PRIu64 " is %g, which times the mean's %g exceeds f32", name,
         where, found, static_cast<double>(mean));
  else
    fail(error, DR_E_ARGUMENT,
         "%s factor: element %" PRIu64
         " is %g after the all-reduce; its mean is above %g, and a residual could exceed f32",
         name, where, found, static_cast<double>(limit));
  error.where = where;
  return DR_E_ARGUMENT;
}

dr_status lowrank::advance(float mean, float scale, pool& workers, dr_error& error) {
  if (phase_ == 2) return finish(mean, scale, workers, error);
  if (const dr_status s = check_factor(first_, "first", mean, FLT_MAX, error)) return s;
  dense_mean_ = mean;
  if (low_.empty()) return finish(mean, scale, workers, error);
  run(workers, low_.size(), [&](size_t i, size_t worker) {
    const lowrank_item& item = items_[low_[i]];
    orthonormalise({first_.data() + item.p, item.rows, how_.rank, 1, how_.rank}, scratch_ + worker * scratch_size_);
  });
  run(workers, column_tasks_.size(), [&](size_t i, size_t) {
    const task& t = column_tasks_[i];
    const lowrank_item& item = items_[t.item];
    kernels_->gather(matrix(t.item), first_.data() + item.p, item.rows, second_.data() + item.q, t.first, t.last);
  });
  phase_ = 2;
  return DR_PENDING;
}

dr_status lowrank::finish(float mean, float scale, pool& workers, dr_error& error) {
  if (const dr_status s = check_factor(second_, "second", mean, second_max, error)) return s;
  for (float& x : second_) x *= mean;
  run(workers, row_tasks_.size(), [&](size_t i, size_t) {
    const task& t = row_tasks_[i];
    const lowrank_item& item = items_[t.item];
    kernels_->expand(matrix(t.item), first_.data() + item.p, second_.data() + item.q, scale, outs_[t.item], t.first,
                     t.last);
  });
  // A dense tensor was sent completely.
  run(workers, dense_.size(), [&](size_t i, size_t) {
    const lowrank_item& item = items_[dense_[i]];
    float* const out = outs_[dense_[i]];
    for (uint64_t k = 0; k < item.elements(); ++k) out[k] = scale * (dense_mean_ * first_[item.p + k]);
    if (how_.keeps) std::fill_n(residual_ + item.first, item.elements(), 0.0f);
  });
  std::copy(second_.begin(), second_.end(), q_);
  phase_ = 0;
  ++rounds_;
  run(workers, low_.size(),
      [&](size_t i, size_t worker) { orthonormalise_q(low_[i], scratch_ + worker * scratch_size_); });
  return DR_OK;
}

void lowrank::cancel(bool keep) {
  if (keep && phase_ && how_.keeps)
    for (size_t i = 0; i < saved_items(); ++i) copy_input(i, residual_ + items_[i].first);
  phase_ = 0;
}

// ---- State ------------------------------------------------------------------------------------------------

namespace {

constexpr uint64_t state_magic = 0x316b6e61'72776f6c;  // "lowrank1"

struct state_head {
  uint64_t magic, fingerprint, rounds, reserved;
};

}  // namespace

// marks: elements of a last tensor that a state includes besides the saved items; 0: none.
uint64_t lowrank::fingerprint(uint64_t marks) const {
  uint64_t sum = combine(combine(how_.rank, how_.keeps), saved_items() + (marks != 0));
  const auto add = [&](uint64_t rows, uint64_t columns, bool dense) {
    sum = combine(combine(combine(sum, rows), columns), dense);
  };
  for (size_t i = 0; i < saved_items(); ++i) add(items_[i].rows, items_[i].columns, items_[i].dense);
  if (marks) add(marks, 1, true);
  return sum;
}

uint64_t lowrank::state_size() const {
  return sizeof(state_head) + sizeof(float) * ((how_.keeps ? saved_elements() : 0) + second_size_);
}

void lowrank::save(std::byte* state) const {
  const state_head head{state_magic, fingerprint(0), rounds_, 0};
  std::memcpy(state, &head, sizeof head);
  state += sizeof head;
  const uint64_t residual_size = sizeof(float) * (how_.keeps ? saved_elements() : 0);
  if (residual_size) std::memcpy(state, residual_, residual_size);
  if (second_size_) std::memcpy(state + residual_size, q_, sizeof(float) * second_size_);
}

dr_status lowrank::load(const std::byte* state, uint64_t size, dr_error& error) {
  state_head head;
  // If a state includes marks, their number follows from its size; without residuals it is this transform's number.
  const uint64_t own = state_size(), more = how_.marks && how_.keeps && size > own ? size - own : 0;
  uint64_t marks = more / sizeof(float);
  if (how_.marks && !how_.keeps) marks = items_.back().elements();
  if (size < sizeof head || size - more != own || more % sizeof(float))
    return fail(error, DR_E_ARGUMENT, "state: %" PRIu64 " bytes, %" PRIu64 " expected", size, state_size());
  std::memcpy(&head, state, sizeof head);
  if (head.magic != state_magic || head.reserved) return fail(error, DR_E_ARGUMENT, "state: not one of a transform");
  const bool without = !more && head.fingerprint == fingerprint(0);
  if (!without && !(marks && head.fingerprint == fingerprint(marks)))
    return fail(error, DR_E_ARGUMENT, "state: of other shapes, another rank of the factors or another feedback");
  state += sizeof head;
  const uint64_t values = (size - sizeof head) / sizeof(float);
  for (uint64_t i = 0; i < values; ++i) {
    float x;
    std::memcpy(&x, state + i * sizeof x, sizeof x);
    if (std::isfinite(x)) continue;
    fail(error, DR_E_ARGUMENT, "state: value %" PRIu64 " is %g", i, static_cast<double>(x));
    error.where = i;
    return DR_E_ARGUMENT;
  }
  const uint64_t residual_size = sizeof(float) * (how_.keeps ? saved_elements() : 0);
  if (residual_size) std::memcpy(residual_, state, residual_size);
  if (second_size_) std::memcpy(q_, state + residual_size + more, sizeof(float) * second_size_);
  rounds_ = head.rounds;
  phase_ = 0;
  for (const uint32_t i : low_) settle_warm_start(i);
  return DR_OK;
}

}  // namespace dr
