// States that are filled, cut again and measured, as a run does that grows, shrinks or resumes.
#include <functional>

#include "client.hpp"

namespace {

using client::floats;

constexpr const char* text = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw";

struct state {
  std::vector<uint64_t> memory;
  explicit state(uint64_t elements) : memory(2 + (elements + 1) / 2) {}
  size_t size() const { return 8 * memory.size(); }
  floats residual() {
    float* r = nullptr;
    uint64_t n = 0;
    REQUIRE(dr_state_residual(memory.data(), size(), &r, &n, nullptr) == DR_OK);
    return floats(r, r + n);
  }
};

dr_tensor shaped(uint64_t universe, uint32_t width = 1) {
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = DR_F32;
  t.universe = universe;
  t.width = width;
  return t;
}

state filled(const client::plan& p, const floats& residual) {
  state s(residual.size());
  const dr_tensor t = shaped(residual.size());
  REQUIRE(dr_state_fill(p.handle, &t, residual.data(), s.memory.data(), s.size(), nullptr) == DR_OK);
  return s;
}

}  // namespace

TEST_CASE("a state that was filled is the one that held the residual, to the last byte") {
  const floats g = client::laplace(701, 1);
  client::context c;
  client::plan p(text);
  state used(g.size());
  dr_tensor t = client::dense(g);
  t.state = used.memory.data();
  t.state_size = used.size();
  client::encode(c, text, {t});
  state made(g.size());
  std::fill(made.memory.begin(), made.memory.end(), ~uint64_t{0});  // whatever the memory held
  made.memory.back() = used.memory.back();  // (701 is odd: what is behind the last element stays)
  CHECK(dr_state_fill(p.handle, &t, used.residual().data(), made.memory.data(), made.size(), nullptr) == DR_OK);
  CHECK(made.memory == used.memory);
  // Of zeros; and of its own residual.
  CHECK(dr_state_fill(p.handle, &t, nullptr, made.memory.data(), made.size(), nullptr) == DR_OK);
  CHECK(client::same_bits(made.residual(), floats(g.size())));
  float* own = nullptr;
  uint64_t n = 0;
  REQUIRE(dr_state_residual(used.memory.data(), used.size(), &own, &n, nullptr) == DR_OK);
  const auto before = used.memory;
  CHECK(dr_state_fill(p.handle, &t, own, used.memory.data(), used.size(), nullptr) == DR_OK);
  CHECK(used.memory == before);
}

TEST_CASE("a model's states, cut again over other tensors, hold the same residuals and continue with them") {
  client::plan p(text);
  const std::vector<std::vector<uint64_t>> cuts = {{1000, 1, 499, 2500}, {4000}, {7, 993, 3000}, {1500, 2500}};
  floats model = client::laplace(4000, 3);
  model[17] = -0.0f;
  model[18] = 1e-42f;
  for (const auto& from : cuts)
    for (const auto& to : cuts) {
      std::vector<state> sources, targets;
      size_t at = 0;
      for (const uint64_t n : from) {
        sources.push_back(
            filled(p, floats(model.begin() + static_cast<long>(at), model.begin() + static_cast<long>(at + n))));
        at += n;
      }
      for (const uint64_t n : to) targets.push_back(filled(p, floats(n, 77)));
      // Element by element in runs of one piece of either.
      uint64_t source = 0, first = 0, target = 0, there = 0;
      while (source < from.size()) {
        const uint64_t n = std::min(from[source] - first, to[target] - there);
        REQUIRE(dr_state_copy(sources[source].memory.data(), sources[source].size(), first,
                              targets[target].memory.data(), targets[target].size(), there, n, nullptr) == DR_OK);
        first += n;
        there += n;
        if (first == from[source]) ++source, first = 0;
        if (there == to[target]) ++target, there = 0;
      }
      floats joined;
      for (state& s : targets) {
        const floats part = s.residual();
        joined.insert(joined.end(), part.begin(), part.end());
      }
      CHECK(client::same_bits(joined, model));
    }
}

TEST_CASE("a fresh state counts as zeros, and parts of one state may be copied within it") {
  client::plan p(text);
  state s = filled(p, {1, 2, 3, 4, 5, 6}), fresh(6);
  uint64_t* const memory = s.memory.data();
  CHECK(dr_state_copy(fresh.memory.data(), fresh.size(), 2, memory, s.size(), 1, 2, nullptr) == DR_OK);
  CHECK(s.residual() == floats{1, 0, 0, 4, 5, 6});
  CHECK(dr_state_copy(memory, s.size(), 4, memory, s.size(), 0, 2, nullptr) == DR_OK);
  CHECK(s.residual() == floats{5, 6, 0, 4, 5, 6});
  CHECK(dr_state_copy(memory, s.size(), 0, memory, s.size(), 3, 3, nullptr) == DR_OK);  // side by side
  CHECK(s.residual() == floats{5, 6, 0, 5, 6, 0});
  CHECK(dr_state_copy(memory, s.size(), 6, memory, s.size(), 6, 0, nullptr) == DR_OK);  // nothing, at the end
}

TEST_CASE("the norm is that of the residual, from the smallest to the largest") {
  client::plan p(text);
  for (const uint64_t n : {0, 1, 7, 8, 9, 1000, 4097})
    for (const double scale : {1e-3, 1e-40, 1e37}) {
      const floats v = client::laplace(n, 5 + n, scale);
      state s = filled(p, v);
      double sum = 0, norm = -1;
      for (const float x : v) sum += double{x} * double{x};
      CHECK(dr_state_norm(s.memory.data(), s.size(), &norm, nullptr) == DR_OK);
      CHECK(norm == doctest::Approx(std::sqrt(sum)).epsilon(1e-12));
    }
  state fresh(100);
  double norm = -1;
  CHECK(dr_state_norm(fresh.memory.data(), fresh.size(), &norm, nullptr) == DR_OK);
  CHECK(norm == 0);
  state huge = filled(p, floats(1000, 3e38f));
  CHECK(dr_state_norm(huge.memory.data(), huge.size(), &norm, nullptr) == DR_OK);
  CHECK(norm == doctest::Approx(double{3e38f} * std::sqrt(1000.0)).epsilon(1e-12));
}

TEST_CASE(
    "states: what is short, misaligned, foreign or out of range is refused with a sentence, and nothing is written") {
  client::plan p(text), without("index=golomb");
  state s = filled(p, floats(10, 1)), other = filled(p, floats(20, 2)), fresh(10), foreign(10);
  foreign.memory[0] = 0x1234;
  state lying(10);  // it states more than there is
  lying.memory = s.memory;
  lying.memory[1] = uint64_t{1} << 62;
  const auto all = [&] { return std::vector{s.memory, other.memory, fresh.memory, foreign.memory, lying.memory}; };
  const auto before = all();
  char* const odd = reinterpret_cast<char*>(s.memory.data()) + 4;
  dr_tensor t = shaped(10);
  dr_tensor most = shaped(UINT64_MAX, UINT32_MAX), own = shaped(10), unset = shaped(10);
  own.plan = without.handle;
  unset.struct_size = 0;
  const floats r(10, 3);
  double norm = 0;
  dr_error error{};
  error.struct_size = sizeof error;
  const auto copy = [&](state& from, uint64_t first, state& to, uint64_t at, uint64_t n) {
    return dr_state_copy(from.memory.data(), from.size(), first, to.memory.data(), to.size(), at, n, &error);
  };
  const auto fill = [&](const client::plan& plan, const dr_tensor& tensor, void* to, size_t size) {
    return dr_state_fill(plan.handle, &tensor, r.data(), to, size, &error);
  };
  const struct {
    const char* word;
    std::function<dr_status()> call;
  } calls[] = {
      {"exceed", [&] { return copy(s, 0, other, 0, 11); }},
      {"exceed", [&] { return copy(s, 10, other, 0, 1); }},
      {"exceed", [&] { return copy(s, 11, other, 0, 0); }},
      {"exceed", [&] { return copy(s, UINT64_MAX, other, 0, 2); }},
      {"exceed", [&] { return copy(s, 1, other, 0, UINT64_MAX); }},
      {"to:", [&] { return copy(s, 0, other, 20, 1); }},
      {"to:", [&] { return copy(s, 0, other, UINT64_MAX - 1, 4); }},
      {"exceed", [&] { return copy(fresh, 10, other, 0, 1); }},
      {"fresh", [&] { return copy(s, 0, fresh, 0, 1); }},
      {"overlap", [&] { return copy(s, 0, s, 1, 2); }},
      {"overlap", [&] { return copy(s, 3, s, 1, 3); }},
      {"overlap", [&] { return copy(s, 3, s, 3, 1); }},
      {"from: state: not a residual", [&] { return copy(foreign, 0, other, 0, 1); }},
      {"to: state: not a residual", [&] { return copy(s, 0, foreign, 0, 1); }},
      {"too few for its", [&] { return copy(lying, 0, other, 0, 1); }},
      {"too few for its", [&] { return copy(s, 0, lying, 0, 1); }},
      {"NULL", [&] { return dr_state_copy(nullptr, 56, 0, s.memory.data(), s.size(), 0, 1, &error); }},
      {"NULL", [&] { return dr_state_copy(s.memory.data(), s.size(), 0, nullptr, 56, 0, 1, &error); }},
      {"15 bytes",
       [&] { return dr_state_copy(s.memory.data(), 15, 0, other.memory.data(), other.size(), 0, 1, &error); }},
      {"aligned", [&] { return dr_state_copy(odd, 40, 0, other.memory.data(), other.size(), 0, 1, &error); }},
      {"no feedback", [&] { return fill(without, t, fresh.memory.data(), fresh.size()); }},
      {"no feedback", [&] { return fill(p, own, fresh.memory.data(), fresh.size()); }},
      {"needed", [&] { return fill(p, t, fresh.memory.data(), 55); }},
      {"aligned", [&] { return fill(p, t, odd, 100); }},
      {"state", [&] { return fill(p, t, nullptr, 56); }},
      {"rows", [&] { return fill(p, most, fresh.memory.data(), fresh.size()); }},
      {"struct_size", [&] { return fill(p, unset, fresh.memory.data(), fresh.size()); }},
      {"plan", [&] { return dr_state_fill(nullptr, &t, nullptr, fresh.memory.data(), fresh.size(), &error); }},
      {"tensor", [&] { return dr_state_fill(p.handle, nullptr, nullptr, fresh.memory.data(), fresh.size(), &error); }},
      {"norm", [&] { return dr_state_norm(s.memory.data(), s.size(), nullptr, &error); }},
      {"NULL", [&] { return dr_state_norm(nullptr, 56, &norm, &error); }},
      {"15 bytes", [&] { return dr_state_norm(s.memory.data(), 15, &norm, &error); }},
      {"aligned", [&] { return dr_state_norm(odd, 40, &norm, &error); }},
      {"not a residual", [&] { return dr_state_norm(foreign.memory.data(), foreign.size(), &norm, &error); }},
      {"too few for its", [&] { return dr_state_norm(lying.memory.data(), lying.size(), &norm, &error); }},
  };
  size_t k = 0;
  for (const auto& each : calls) {
    CAPTURE(k++);
    error.code = DR_OK;
    CHECK(each.call() == DR_E_ARGUMENT);
    INFO(std::string(error.message) << " | " << each.word);
    CHECK(error.code == DR_E_ARGUMENT);
    CHECK(std::string(error.message).find(each.word) != std::string::npos);
    CHECK(all() == before);
  }
}
