#include "synth.hpp"

#include <fmt/core.h>
#include <charconv>
#include <cmath>
#include <limits>
#include <new>
#include <numbers>

#include "count_text.hpp"

namespace dr::compare {

namespace {

enum class support_law { uniform, clustered, powerlaw };
enum class value_law { laplace, gauss, student3 };

struct options {
  uint64_t d = 1'000'000;
  double density = 1;
  support_law support = support_law::uniform;
  value_law values = value_law::laplace;
  uint64_t seed = 1;
};

constexpr uint64_t d_max = uint64_t{1} << 40;  // 4 TiB of float32; far below where 4 * d wraps
constexpr double scale = 1e-3;
constexpr uint64_t block_size = 4096;

constexpr std::string_view allowed =
    "synth: accepts d=1..2^40 (also 1M, 1e6), density in (0, 1], support=uniform|clustered|powerlaw, "
    "values=laplace|gauss|student3 and "
    "seed=0..2^64-1, separated by commas";

// ---- Random numbers: draw i depends only on (seed, stream, i) ---------------------------------------------------

enum stream : uint64_t { value_stream, support_stream, density_stream, start_stream, rank_stream };

constexpr uint64_t mix64(uint64_t x) {  // splitmix64's finaliser (Steele, Lea, Flood 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t golden = 0x9e3779b97f4a7c15;

class draws {
 public:
  draws(uint64_t seed, stream which) : key_(mix64(mix64(seed + golden) + which)) {}
  uint64_t operator()(uint64_t i) const { return mix64(key_ + (i + 1) * golden); }

 private:
  uint64_t key_;
};

// Uniform in (0, 1], from the upper 53 bits; the lowest bit is the sign.
double unit(uint64_t draw) { return static_cast<double>((draw >> 11) + 1) * 0x1p-53; }

// Uniform in [0, n): floor(draw / 2^64 * n).
uint64_t below(uint64_t draw, uint64_t n) {
  __extension__ using wide = unsigned __int128;
  return static_cast<uint64_t>((wide{draw} * n) >> 64);
}

// ---- Functions whose last bit must not depend on the C library --------------------------------------------------

// x is positive and normal. With m in [sqrt(1/2), sqrt(2)) and s = (m - 1) / (m + 1), log m = 2 atanh s, and s^2 is
// below 0.0295: ten terms leave less than 1e-16.
double log_of(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1023);
  auto m = std::bit_cast<double>((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
  const bool high = m > std::numbers::sqrt2;
  m = high ? m * 0.5 : m;
  exponent += high ? 1 : 0;
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double sum = 0;
  for (int k = 19; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return exponent * std::numbers::ln2 + 2 * s * sum;
}

// |x| < 700. The series runs over |f| <= ln(2) / 2: fourteen terms leave less than 1e-16.
double exp_of(double x) {
  const double k = std::floor(x / std::numbers::ln2 + 0.5), f = x - k * std::numbers::ln2;
  double sum = 1;
  for (int i = 14; i >= 1; --i) sum = 1 + sum * f / i;
  return std::ldexp(sum, static_cast<int>(k));
}

// x is positive and normal. Dividing the bits by three is within 4 %, and Halley's step cubes that: 1e-5, 1e-15, done.
double cbrt_of(double x) {
  auto y = std::bit_cast<double>(std::bit_cast<uint64_t>(x) / 3 + 0x2a9f7893782da1ce);
  for (int i = 0; i < 3; ++i) y = y * (y * y * y + 2 * x) / (2 * y * y * y + x);
  return y;
}

template <size_t n>
double polynomial(const double (&coefficients)[n], double x) {
  double sum = 0;
  for (size_t i = n; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

// ---- Magnitudes: the |v| that is exceeded with probability p, for p in (0, 1] -----------------------------------

double laplace(double p) { return -log_of(p); }

// Algorithm AS 241, PPND16 (Wichura 1988), at 1 - p / 2; 1e-16 relative.
double gauss(double p) {
  static constexpr double a[] = {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                                 1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                                 3.3430575583588128105e4, 2.5090809287301226727e3};
  static constexpr double b[] = {1.0,
                                 4.2313330701600911252e1,
                                 6.8718700749205790830e2,
                                 5.3941960214247511077e3,
                                 2.1213794301586595867e4,
                                 3.9307895800092710610e4,
                                 2.8729085735721942674e4,
                                 5.2264952788528545610e3};
  static constexpr double c[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                 3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                 2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double d[] = {1.0,
                                 2.05319162663775882187e0,
                                 1.67638483018380384940e0,
                                 6.89767334985100004550e-1,
                                 1.48103976427480074590e-1,
                                 1.51986665636164571966e-2,
                                 5.47593808499534494600e-4,
                                 1.05075007164441684324e-9};
  static constexpr double e[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                                 2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                 2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double f[] = {1.0,
                                 5.99832206555887937690e-1,
                                 1.36929880922735805310e-1,
                                 1.48753612908506148525e-2,
                                 7.86869131145613259100e-4,
                                 1.84631831751005468180e-5,
                                 1.42151175831644588870e-7,
                                 2.04426310338993978564e-15};
  const double tail = 0.5 * p, q = 0.5 - tail;
  if (q <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(a, r) / polynomial(b, r);
  }
  const double r = std::sqrt(-log_of(tail));
  return r <= 5 ? polynomial(c, r - 1.6) / polynomial(d, r - 1.6) : polynomial(e, r - 5) / polynomial(f, r - 5);
}

// Student's t with 3 degrees of freedom. With |t| = sqrt(3) cot(phi / 2) the distribution function turns into Kepler's
// equation at eccentricity 1, phi - sin(phi) = pi p with phi in (0, pi].
double student3(double p) {
  const double target = std::numbers::pi * p, y = cbrt_of(6 * target), y2 = y * y;
  double phi = y * (1 + y2 * (1.0 / 60 + y2 * (1.0 / 1400 + y2 / 25200)));  // within 0.035 of the root
  double value = 0, slope = 0;
  const auto evaluate = [&] {  // Taylor's series: they neither cancel for small phi nor need more than 15 terms
    const double x = phi * phi;
    value = slope = 1;
    for (int k = 30; k >= 4; k -= 2) {
      value = 1 - x * value * (1.0 / (k * (k + 1)));
      slope = 1 - x * slope * (1.0 / (k * (k - 1)));
    }
    value *= phi * x / 6;  // phi - sin(phi)
    slope *= x / 2;        // 1 - cos(phi)
  };
  for (int i = 0; i < 2; ++i) {  // Halley: 4e-5, then below 1e-13
    evaluate();
    const double error = value - target, curvature = phi - value;
    phi -= 2 * error * slope / (2 * slope * slope - error * curvature);
  }
  evaluate();
  return std::numbers::sqrt3 * (phi - target) / slope;
}

// ---- Supports: calls put(position) once per nonzero --------------------------------------------------

// `count` of the positions [first, first + size), all subsets equally likely (Knuth, 3.4.2, algorithm S).
template <class Put>
void choose(const draws& draw, uint64_t first, uint64_t size, uint64_t count, Put put) {
  for (uint64_t i = first; count > 0; ++i, --size) {
    if (below(draw(i), size) < count) {
      put(i);
      --count;
    }
  }
}

// Shares `total` among n bins in proportion to weight(bin), none above cap(bin); calls take(bin, count). The caps sum
// up to `capacity`. First the factor s with sum(min(cap, s * weight)) = total, by Newton's steps, which climb to it
// because the sum is concave in s. Then systematic rounding (Madow 1949): every bin within one of its share.
template <class Weight, class Cap, class Take>
void share(uint64_t total, uint64_t capacity, uint64_t n, double start, Weight weight, Cap cap, Take take) {
  double s = 0;
  for (double next = 0;; s = next) {
    double full = 0, open = 0;
    for (uint64_t bin = 0; bin < n; ++bin) {
      const auto room = static_cast<double>(cap(bin));
      const double w = weight(bin);
      s* w >= room ? full += room : open += w;
    }
    next = (static_cast<double>(total) - full) / open;
    if (!(next > s)) break;  // also if no bin is open
  }
  double credit = start;
  for (uint64_t bin = 0; bin < n && total > 0; ++bin) {
    const uint64_t room = cap(bin);
    credit += std::min(static_cast<double>(room), s * weight(bin));
    capacity -= room;
    uint64_t count = std::min({static_cast<uint64_t>(std::max(credit, 0.0)), room, total});
    if (total - count > capacity) count = total - capacity;  // rounding must not leave a rest
    take(bin, count);
    credit -= static_cast<double>(count);
    total -= count;
  }
}

// A bijection on [0, d): four rounds of an odd factor and a xorshift, bijections on the next power of two, repeated
// until the result is below d: fewer than two tries on average.
class permutation {
 public:
  permutation(const draws& draw, uint64_t d) : d_(d), mask_(std::bit_ceil(d) - 1) {
    shift_ = static_cast<unsigned>(std::bit_width(mask_)) / 2 + 1;
    for (uint64_t i = 0; i < keys_.size(); ++i) keys_[i] = draw(i);
  }

  uint64_t operator()(uint64_t x) const {
    do {
      for (const uint64_t key : keys_) {
        x = (x * (key | 1) + (key >> 32)) & mask_;
        x ^= x >> shift_;
      }
    } while (x >= d_);
    return x;
  }

 private:
  uint64_t d_;
  uint64_t mask_;
  unsigned shift_;
  std::array<uint64_t, 4> keys_;
};

template <class Put>
void choose_support(const options& o, uint64_t count, Put put) {
  const draws draw(o.seed, support_stream);
  const double start = unit(draws(o.seed, start_stream)(0)) - 0x1p-53;  // in [0, 1)
  switch (o.support) {
    case support_law::uniform: return choose(draw, 0, o.d, count, put);
    case support_law::clustered: {
      const draws density(o.seed, density_stream);
      const auto size = [&](uint64_t block) { return std::min(block_size, o.d - block * block_size); };
      const auto weight = [&](uint64_t block) {
        const uint64_t h = density(block);
        const double z = gauss(unit(h));
        return exp_of((h & 1) != 0 ? z : -z) * static_cast<double>(size(block));
      };
      return share(count, o.d, (o.d + block_size - 1) / block_size, start, weight, size,
                   [&](uint64_t block, uint64_t n) { choose(draw, block * block_size, size(block), n, put); });
    }
    case support_law::powerlaw: {
      const permutation position(draws(o.seed, rank_stream), o.d);
      return share(
          count, o.d, o.d, start, [](uint64_t rank) { return 1.0 / static_cast<double>(rank + 1); },
          [](uint64_t) { return uint64_t{1}; },
          [&](uint64_t rank, uint64_t n) {
            if (n > 0) put(position(rank));
          });
    }
  }
}

template <class Magnitude>
void fill(const options& o, std::span<std::byte> out, Magnitude magnitude) {
  const draws draw(o.seed, value_stream);
  const auto put = [&](uint64_t i) {
    const uint64_t h = draw(i);
    // A nonzero stays one, even in the one draw of 2^53 whose magnitude is 0.
    const auto v =
        std::max(static_cast<float>(scale * magnitude(o.density * unit(h))), std::numeric_limits<float>::min());
    store_le(out, i * sizeof(float), (h & 1) != 0 ? -v : v);
  };
  const uint64_t count = std::max<uint64_t>(1, static_cast<uint64_t>(std::round(o.density * static_cast<double>(o.d))));
  if (count == o.d) {
    for (uint64_t i = 0; i < o.d; ++i) put(i);
  } else {
    choose_support(o, count, put);
  }
}

// ---- The text ---------------------------------------------------------------------------------------------------

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

template <class Law, size_t n>
bool parse_word(std::string_view text, const std::string_view (&words)[n], Law& law) {
  const auto* found = std::ranges::find(words, text);
  law = static_cast<Law>(found - words);
  return found != std::end(words);
}

bool parse_item(std::string_view key, std::string_view value, options& o) {
  static constexpr std::string_view supports[] = {"uniform", "clustered", "powerlaw"};
  static constexpr std::string_view laws[] = {"laplace", "gauss", "student3"};
  if (key == "d") return read_count(value, o.d) && o.d >= 1 && o.d <= d_max;
  if (key == "density") return parse_number(value, o.density) && o.density > 0 && o.density <= 1;
  if (key == "support") return parse_word(value, supports, o.support);
  if (key == "values") return parse_word(value, laws, o.values);
  if (key == "seed") return parse_number(value, o.seed);
  return false;
}

options parse_options(std::string_view text) {
  const std::string where = printable(text);
  options o;
  std::vector<std::string_view> keys;
  for (size_t at = synth_prefix.size(); at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, end - at), key = item.substr(0, item.find('='));
    if (std::ranges::count(keys, key) > 0)
      refuse(where, at, fmt::format("'{}' occurs twice; {}", printable(key), allowed));
    if (key.size() == item.size() || !parse_item(key, item.substr(key.size() + 1), o)) {
      refuse(where, at, fmt::format("'{}' is not understood; {}", printable(item), allowed));
    }
    keys.push_back(key);
    if (end + 1 == text.size()) refuse(where, end, fmt::format("ends with a comma; {}", allowed));
    at = end + 1;
  }
  return o;
}

}  // namespace

tensor make_synth(std::string_view text) {
  if (!text.starts_with(synth_prefix)) refuse(printable(text), 0, allowed);
  const options o = parse_options(text);
  tensor result{std::string(text), "", dtype::f32, {o.d}, {}, o.d};
  try {
    result.data = tensor_bytes(o.d * sizeof(float));
  } catch (const std::bad_alloc&) {
    refuse(text, synth_prefix.size(), fmt::format("{} elements need more memory than there is; lower d", o.d));
  }
  switch (o.values) {
    case value_law::laplace: fill(o, result.data.writable(), laplace); break;
    case value_law::gauss: fill(o, result.data.writable(), gauss); break;
    case value_law::student3: fill(o, result.data.writable(), student3); break;
  }
  return result;
}

}  // namespace dr::compare
