// Rows of several tensors combined into one: a plan on a whole model, or on its layers of a kind.
//
// A total has the columns of its rows:
//   sums        d, r, support, missed, false_positives, gradient_energy, kept_energy, and names that end in bytes or _ns
//   errors      weighted by energy: total_error² = Σ total_error² gradient_energy / Σ gradient_energy (contraction, energy_recall alike);
//               relative_l2_error with kept_energy; index_recall by r. null where an energy is null
//   ratios      from the sums: relative_volume, bits per nonzero
//   X_ns_spread of the sum of independent times: √Σ(spread · time)² / Σ time
//   verdict     of the summed steps, dense steps and spreads
//   pays_below  of gathers, or of rings of factors, one after another: Σ bits saved / Σ computing; of another exchange that all
//               rows share, the least rate: below it all pay. null: a row's rate is unknown, or one of that exchange is 0
//   others      the common value of all rows, else null
// and further: tensors (their number), worst_tensor and worst_error (the largest total_error).
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace dr::compare {

using json_row = nlohmann::ordered_json;

inline bool is_memcpy(const json_row& row) { return row.value("plan", "") == "memcpy"; }
// The total of a book has no plan of its own: its text is "book FILE".
inline bool is_book(const json_row& row) { return row.value("plan", "").starts_with("book "); }
inline bool has_plan(const json_row& row) { return !is_memcpy(row) && !is_book(row); }

// The subject of a row: a tensor, all tensors (of a type) joined, or all in one frame. Different cuts contain the same
// gradient.
enum class cut { tensor, joined, batch };
cut cut_of(const json_row& row);
// The saved file that a row was read from; "": of the only run, or new.
inline std::string run_of(const json_row& row) {
  const auto file = row.find("from");
  return file != row.end() && file->is_string() ? file->get<std::string>() : std::string();
}

std::optional<double> number_in(const json_row& row, const std::string& column);  // nullopt: absent, or not a number
std::string printed(const json_row& cell);                                        // as JSON; invalid UTF-8 is replaced
std::string text_of(const json_row& row, const char* column);                     // "" if absent or null

// At least one row, of one plan. ranks: of the exchange; 0: unknown, as is pays_below then where it is 0 in some rows only.
json_row combine(std::span<const json_row* const> rows, uint64_t ranks);

// Rows of tensors by plan; the last row per tensor and plan.
struct rows_by_plan {
  std::set<std::string> subjects;  // input and tensor
  std::vector<std::string> plans;  // in order of appearance

  void add(const json_row& row);
  std::vector<const json_row*> of(const std::string& plan) const;  // subject by subject

 private:
  std::map<std::string, std::map<std::string, const json_row*>> rows_;
};

struct total_list {
  std::vector<json_row> totals;         // input by input, plans in their order
  std::vector<std::string> incomplete;  // "INPUT: PLAN: 3 rows of 12 tensors": plans without a total
};

// A total per plan and input (and step and run) with several tensors, if the plan has a row for every tensor.
total_list totals_of(std::span<const json_row> all, uint64_t ranks);

// A total of a plan book per input (and step): of the rows of this run that have their tensor's plan of the book.
std::vector<json_row> book_totals(std::span<const json_row> all, const std::string& plan,
                                  const std::function<std::string(const std::string& tensor)>& plan_of, uint64_t ranks);

}  // namespace dr::compare
