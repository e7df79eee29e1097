// Expands a text with alternatives to a list of texts.
//
//   sweep       = piece, piece… between the separators space , = ( )
//   piece       = alternative ("|" alternative)*        one text for each: index=rice|elias_fano|bloom(fpr=1e-3|1e-2)
//   alternative = any text, with parentheses of its own, in which the same holds again; or a range
//   range       = 3..6                 integers, every one: 3, 4, 5, 6
//               | 0.001..0.1           numbers of which one has a point or an exponent: both ends, and between them
//                                      1, 2 and 5 times every power of ten: 0.001 0.002 0.005 0.01 0.02 0.05 0.1
//               | 0.001..0.1/5         n values with equal ratios, both ends among them, rounded to three digits, or of two
//                                      integers to integers: 0.001 0.00316 0.01 0.0316 0.1
// "|" binds less than "+": value=raw+deflate|qsgd is value=raw+deflate and value=qsgd. Parentheses without a name group:
// value=raw+(deflate|zstd). The last piece varies fastest. The same text may come twice.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dr::compare {

struct sweep_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws sweep_error: parentheses that do not match, an empty alternative, an invalid range, or more than `limit` texts.
std::vector<std::string> expand(std::string_view text, size_t limit);

}  // namespace dr::compare
