// What quantisers promise of their errors holds for every input, at every scale that a type of values has.
#include <algorithm>
#include <set>

#include "properties/harness.hpp"

namespace dr::properties {
namespace {

double after(const std::string& text, const std::string& key, double otherwise) {
  const size_t at = text.find(key + "=");
  return at == std::string::npos ? otherwise : std::stod(text.substr(at + key.size() + 1));
}

bool is(const subject& s, std::string_view name) { return s.codec().name == name; }

TEST_CASE("uniform_quant: the relative L2 error is at most what was asked for") {
  each_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (!is(s, "uniform_quant") || s.text.find("bits") != std::string::npos) return;
    const double asked = after(s.text, "error", 5e-3);
    const auto v = cases::numbers(in.dtype, in.elements);
    const auto got = cases::numbers(in.dtype, decode_one(s, fields, claim_of(s, in, e), e.payload));
    CHECK(cases::squared_error(v, got) <= asked * asked);
  });
}

// ---- Inputs at every scale -----------------------------------------------------------------------------------

// Magnitudes from 0 to 1, of the i-th of n values.
struct shape {
  const char* name;
  double (*of)(cases::random_source& random, uint64_t i, uint64_t n);
};
double normal(cases::random_source& random) {
  double sum = 0;
  for (int k = 0; k < 12; ++k) sum += random.unit() - 0.5;
  return std::fabs(sum) / 6;
}
template <int wanted>
double one_of(cases::random_source& random, uint64_t i, uint64_t) {  // so many magnitudes, uneven in number and place
  const uint64_t k = i < wanted ? i : random.below(random.below(wanted) + 1);
  return std::pow(0.83, static_cast<double>(k)) - 0.03;
}
constexpr shape shapes[] = {
    {"a constant", [](cases::random_source&, uint64_t, uint64_t) { return 1.0; }},
    {"nearly a constant", [](cases::random_source& random, uint64_t, uint64_t) { return 1 - random.unit() * 0x1p-20; }},
    {"within a thousandth", [](cases::random_source& random, uint64_t, uint64_t) { return 1 - random.unit() * 1e-3; }},
    {"one alone", [](cases::random_source&, uint64_t i, uint64_t n) { return i == n / 2 ? 1.0 : 0.0; }},
    {"one and ten", [](cases::random_source&, uint64_t i, uint64_t) { return i % 2 ? 1.0 : 0.1; }},
    {"a rare one", [](cases::random_source&, uint64_t i, uint64_t n) { return i == n / 3 ? 1.0 : 0x1.3p-12; }},
    {"a rare zero", [](cases::random_source&, uint64_t i, uint64_t n) { return i == n / 3 ? 0.0 : 0.7; }},
    {"tiny ones and one",
     [](cases::random_source&, uint64_t i, uint64_t) { return i % 4 == 0   ? 1e-30
                                                              : i % 4 == 1 ? 1.0
                                                                           : i % 4 * 2e-38; }},
    {"two", one_of<2>},
    {"three", one_of<3>},
    {"four", one_of<4>},
    {"seven", one_of<7>},
    {"sixteen", one_of<16>},
    {"seventeen", one_of<17>},
    {"uniform", [](cases::random_source& random, uint64_t, uint64_t) { return random.unit(); }},
    {"normal", [](cases::random_source& random, uint64_t, uint64_t) { return normal(random); }},
    {"normal and an outlier",
     [](cases::random_source& random, uint64_t i, uint64_t n) { return i == n / 2 ? 1.0 : 1e-6 * normal(random); }},
    {"normal and three outliers",
     [](cases::random_source& random, uint64_t i, uint64_t n) {
       return i % (n / 3 + 1) == 0 ? std::ldexp(1.0, -static_cast<int>(4 * (3 * i / n))) : 1e-3 * normal(random);
     }},
    {"half of it zeros",
     [](cases::random_source& random, uint64_t i, uint64_t) { return i % 2 ? normal(random) : 0.0; }},
    {"around the middle of two far ones",  // where steps of one bit meet
     [](cases::random_source& random, uint64_t i, uint64_t) {
       return i == 0 ? 1.0 : i == 1 ? 1.0 / 3 : 2.0 / 3 + 1e-3 * (random.unit() - 0.5);
     }},
    {"all but one at the lower end", [](cases::random_source& random, uint64_t i,
                                        uint64_t) { return i == 0 ? 1.0 : 4e-3 * (1 + 1e-3 * random.unit()); }},
    {"of many octaves",
     [](cases::random_source& random, uint64_t, uint64_t) { return std::exp2(-60 * random.unit()); }},
};
struct scale_of_type {
  uint32_t dtype;
  double most;
};
constexpr scale_of_type scales[] = {
    {DR_F32, 3e-45},  {DR_F32, 1e-42},  {DR_F32, 1e-38}, {DR_F32, 2e-30}, {DR_F32, 1e-19},    {DR_F32, 1e-5},
    {DR_F32, 10},     {DR_F32, 1e19},   {DR_F32, 1e30},  {DR_F32, 1e38},  {DR_F32, 3.3e38},   {DR_F32, 3.5e38},
    {DR_F16, 2e-7},   {DR_F16, 1e-5},   {DR_F16, 1e-3},  {DR_F16, 1},     {DR_F16, 300},      {DR_F16, 65504},
    {DR_BF16, 2e-40}, {DR_BF16, 1e-38}, {DR_BF16, 1e-9}, {DR_BF16, 3},    {DR_BF16, 3.38e38}, {DR_BF16, 3.5e38}};

std::vector<input> at_every_scale(const subject& s) {
  cases::random_source random("scales");
  const bool lists = s.has(DR_REORDERS);  // of width 1 only
  std::vector<input> out;
  for (const scale_of_type& scale : scales)
    for (const shape& shape : shapes)
      for (const uint64_t some : {1 + random.below(8), 9 + random.below(90), 100 + random.below(900)}) {
        const uint64_t n = out.size() % 97 == 0 ? 4500 : some, signs = random.below(3);
        const uint32_t width = lists || n % 3 ? 1 : 3;
        const std::string sign = signs == 0 ? "+" : signs == 1 ? "-" : "+-";
        char most[32];
        std::snprintf(most, sizeof most, " to %g", scale.most);
        out.push_back(cases::values(sign + shape.name + most, scale.dtype, width, n / width, [&](uint64_t i) {
          const bool negative = signs == 1 || (signs == 2 && random.below(2));
          return (negative ? -1 : 1) * scale.most * shape.of(random, i, n);
        }));
      }
  return out;
}

// ---- What holds --------------------------------------------------------------------------------------------

// The squared error of the best single magnitude that the type has, with the values' own signs.
long double error_of_one(uint32_t dtype, const std::vector<double>& v) {
  long double sum = 0;
  for (const double x : v) sum += std::fabs(x);
  const uint32_t below = cases::bits_of(dtype, static_cast<double>(sum / static_cast<long double>(v.size())));
  long double least = HUGE_VALL;
  for (const uint32_t bits : {below, std::min(below + 1, cases::format_of(dtype).largest())}) {
    long double error = 0;
    for (const double x : v)
      error += std::pow(std::fabs(x) - static_cast<long double>(cases::number_of(dtype, bits)), 2);
    least = std::min(least, error);
  }
  return least;
}

// Codecs that are worse than one magnitude by what they are; their own promises are their cases' judges.
//   qsgd       draws levels, unbiased, and pays for that with variance
//   three_lc   sends -1, 0 and 1 of the largest magnitude, and leaves the rest to error feedback
//   log_quant  keeps every magnitude within half a level of itself, small ones too, which one magnitude cannot
//   half       rounds each value by itself, to a type that may be coarser or have a smaller range than the row's
//   natural    rounds each value by itself to a power of two, by default at random
//   dynamic_tree  has the numbers of its paper, of which the largest is 0.993
//   inceptionn bounds the absolute error, whatever the values are
//   ternary    draws -1, 0 and 1, unbiased, of the largest magnitude or of a clipped one
//   sign       of scale=one and scale=level has a magnitude that does not follow from the values
bool may_be_worse_than_one(const subject& s) {
  for (const char* name : {"qsgd", "three_lc", "log_quant", "half", "natural", "dynamic_tree", "inceptionn", "ternary"})
    if (is(s, name)) return true;
  return is(s, "sign") && s.text.find("mean") == std::string::npos;
}

// fit_poly with knots=jump has coefficients in bf16: 8 bits, and no numbers below 2^-133.
bool has_short_coefficients(const subject& s, const wire_fields& fields) { return is(s, "fit_poly") && fields[1] == 2; }

// What rounding of coefficients takes, of a value of the largest magnitude: rank_fit's are logarithms up to 160, in f32.
double rounding_of(const subject& s, const wire_fields& fields) {
  if (has_short_coefficients(s, fields)) return 0x1p-8;
  return is(s, "rank_fit") ? 0x1p-16 : is(s, "fit_poly") || is(s, "fit_dexp") ? 0x1p-20 : 0;
}

std::string judge(const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
  const auto back = decode_one(s, fields, claim_of(s, in, e), e.payload);
  const auto got = cases::numbers(in.dtype, back);
  auto v = cases::numbers(in.dtype, in.elements);
  if (std::ranges::any_of(got, [](double x) { return !std::isfinite(x); })) return "not finite";
  if (s.described->judge)
    if (const auto wrong = s.described->judge({in, fields, e.payload, e.told, back}); !wrong.empty()) return wrong;
  if (s.has(DR_REORDERS)) {
    auto sorted = v;
    for (size_t i = 0; i < v.size(); ++i) sorted[i] = v[e.told[i]];
    v = sorted;
  }
  long double error = 0;
  double most = 0;
  std::set<double> magnitudes;
  for (size_t i = 0; i < v.size(); ++i) {
    error += std::pow(static_cast<long double>(v[i]) - got[i], 2);
    most = std::max(most, std::fabs(v[i]));
    magnitudes.insert(std::fabs(v[i]));
  }
  if (is(s, "uniform_quant") && s.text.find("bits") == std::string::npos &&
      cases::squared_error(v, got) > std::pow(after(s.text, "error", 5e-3), 2))
    return "more error than asked for";
  const bool exact = std::ranges::equal(back, in.elements);
  if (is(s, "lloyd") && static_cast<double>(magnitudes.size()) <= after(s.text, "levels", 4) && !exact)
    return "as many levels as magnitudes, and not exact";
  if ((is(s, "log_quant") || is(s, "uniform_quant") || is(s, "sketch")) && magnitudes.size() == 1 && !exact)
    return "one magnitude, and not exact";
  if (may_be_worse_than_one(s)) return "";
  const long double one = error_of_one(in.dtype, v);
  // Subnormals: half a unit a value.
  const double rounding = rounding_of(s, fields),
               unit = std::max(cases::number_of(in.dtype, 1), has_short_coefficients(s, fields) ? 0x1p-133 : 0);
  const long double slack =
      (rounding * most + (rounding > 0 ? unit : 0)) * std::sqrt(static_cast<long double>(v.size()));
  if (error <= std::pow(std::sqrt(one) * (1 + 1e-7L) + slack, 2)) return "";
  char text[128];
  std::snprintf(text, sizeof text, "squared error %.6Lg of %zu values, %.6Lg with one magnitude", error, v.size(), one);
  return text;
}

void check_at(const subject& s, std::vector<input> inputs) {
  cases::codec_case own = *s.described;
  own.inputs = std::move(inputs);
  subject of = s;
  of.described = &own;
  size_t failed = 0;
  for (const group& g : groups(of)) {
    const auto made = encode(of, g);
    for (size_t i = 0; i < made.size() && failed < 5; ++i) {
      INFO(s.text << ": " << g.inputs[i]->name);
      REQUIRE(made[i].fault.code == DR_OK);
      const auto wrong = judge(of, g.fields, *g.inputs[i], made[i]);
      if (wrong.empty()) continue;
      FAIL_CHECK(wrong);
      ++failed;
    }
  }
}

TEST_CASE("lossy values come back, with the error that is promised, and not worse than one magnitude, at every scale") {
  for (const subject& s : subjects())
    if (s.is(DR_ROLE_VALUE) && !s.has(DR_EXACT)) check_at(s, at_every_scale(s));
}

// lloyd looks at 64 of 512 values where they are many: at others than these all may be different.
TEST_CASE("lloyd: what is not looked at is not lost") {
  cases::random_source random("lloyd at large");
  const auto hidden = [](uint64_t i) { return i % 512 >= 64; };
  std::vector<input> inputs;
  for (const uint32_t dtype : {DR_F32, DR_F16}) {
    const auto add = [&](const char* name, auto&& number) {
      inputs.push_back(cases::values(name, dtype, 1, 70000, number));
    };
    add("others elsewhere", [&](uint64_t i) { return hidden(i) ? 1 + 0.1 * random.unit() : 100 + random.unit(); });
    add("larger elsewhere", [&](uint64_t i) { return hidden(i) ? 100 + random.unit() : 1 + random.unit(); });
    add("an outlier elsewhere", [&](uint64_t i) { return i == 300 ? 60000 : normal(random); });
    add("two, one of them rare", [&](uint64_t i) { return i == 300 ? 10 : 1; });
    add("normal", [&](uint64_t) { return normal(random) - 0.3; });
  }
  for (const subject& s : every_subject())
    if (is(s, "lloyd")) check_at(s, inputs);
}

// Normal values, which sixteen share a scale of, a few of them large: levels of what is usual cost more bits than they are worth.
TEST_CASE("lloyd: with a price, distortion and bits together cost less than with any number of levels without one") {
  cases::random_source random("a price");
  for (const uint64_t count : {3000, 9001, 70000}) {
    double scale = 1;
    const input in = cases::values("blocks", DR_F32, 1, count, [&](uint64_t i) {
      if (i % 16 == 0) scale = std::pow(1 - random.unit(), -0.2);
      return (random.below(2) ? 1 : -1) * scale * normal(random);
    });
    const auto v = cases::numbers(in.dtype, in.elements);
    double priced = 0, best = HUGE_VAL;
    for (const subject& s : every_subject()) {
      if (!is(s, "lloyd")) continue;
      cases::codec_case own = *s.described;
      own.inputs = {in};
      subject of = s;
      of.described = &own;
      for (const group& g : groups(of)) {
        const auto made = encode(of, g);
        const auto got = cases::numbers(in.dtype, decode_one(of, g.fields, claim_of(of, in, made[0]), made[0].payload));
        // In mean squares a value.
        const double cost =
            cases::squared_error(v, got) + 0.35 * 8 * static_cast<double>(made[0].payload.size()) / double(count);
        if (s.text == "lloyd(price=0.35)")
          priced = cost;
        else
          best = std::min(best, cost);
      }
    }
    CHECK(priced > 0.35);  // a sign a value at least
    CHECK(priced < best - 0.05);
  }
}

}  // namespace
}  // namespace dr::properties
