#include "render.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "against.hpp"
#include "best.hpp"
#include "columns.hpp"
#include "document.hpp"
#include "rows_table.hpp"
#include "tool/read/plan_text.hpp"
#include "tool/read/presets.hpp"
#include "tool/show/console.hpp"
#include "tool/show/text_table.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> column_names() {
  std::vector<std::string> names;
  for (const column& c : columns()) names.emplace_back(c.name);
  return names;
}

std::string failures_text(const ordered_json& failures) {
  std::string text;
  for (const ordered_json& f : failures) {
    const std::string tensor = text_of(f, "tensor");
    text += fmt::format("failed: {}{}: {}: {}\n", text_of(f, "input"), tensor.empty() ? "" : " " + tensor,
                        text_of(f, "plan"), text_of(f, "error"));
  }
  return text;
}

// Of the document, unless the command line has it.
link_facts net_of(const ordered_json& document, const link_facts& given) {
  if (given.ranks != 0) return given;
  const ordered_json ranks = document.value("ranks", ordered_json()), link = document.value("link", ordered_json());
  return {ranks.is_number_unsigned() ? ranks.get<uint64_t>() : 0,
          link.is_object() ? link_words(text_of(link, "text"), number_in(link, "bits_per_second").value_or(0)) : ""};
}

std::string preset_legend(std::span<const json_row> rows, size_t width) {
  std::vector<std::pair<std::string, std::string>> known;
  for (const json_row& row : rows)
    if (const std::string name = text_of(row, "preset");
        !name.empty() && std::ranges::find(known, name, &std::pair<std::string, std::string>::first) == known.end())
      known.emplace_back(
          name, selects_itself(name) ? text_of(row, "plan") : read_plan(text_of(row, "plan")).without_sparsify);
  std::string text;
  for (const auto& [name, plan] : known)
    for (const std::string& line : wrapped(name + ": " + plan, width)) text += line + '\n';
  return text;
}

// Where several plans have one preset, puts the sparsifier of each behind the preset's name.
void name_apart(std::span<json_row> rows) {
  std::map<std::string, std::set<std::string>> plans;
  for (const json_row& row : rows) plans[text_of(row, "preset")].insert(text_of(row, "plan"));
  for (json_row& row : rows)
    if (const std::string name = text_of(row, "preset"); !name.empty() && plans.at(name).size() > 1)
      row["preset"] = name + ' ' + read_plan(text_of(row, "plan")).sparsify;
}

// The rows of inputs without totals, and the totals of the others.
std::vector<json_row> of_inputs(std::span<const json_row> rows, std::span<const json_row> totals) {
  std::vector<json_row> all(totals.begin(), totals.end());
  const auto has_total = [&](const json_row& row) {
    return std::ranges::any_of(totals, [&](const json_row& total) {
      return text_of(total, "input") == text_of(row, "input") && run_of(total) == run_of(row);
    });
  };
  std::ranges::copy_if(rows, std::back_inserter(all), [&](const json_row& row) { return !has_total(row); });
  return all;
}

constexpr size_t few_rows = 24;

class readable_document {
 public:
  readable_document(const ordered_json& document, const render_request& request)
      : document_(document),
        request_(request),
        net_(net_of(document, request.net)),
        rows_(rows_of(document)),
        totals_(document.at("totals").begin(), document.at("totals").end()) {
    name_apart(rows_);
    name_apart(totals_);
    style_ = {is_markdown() ? table_style::markdown : table_style::text, request.wide, request.sorted, request.width,
              nullptr};
  }

  std::string text() {
    std::string text;
    if (document_.contains("best")) {
      text += (is_markdown() ? title("Best plans") : "") + best_text(document_.at("best"));
      if (request_.answers) return text + failures();
      text += '\n';
    }
    if (document_.contains("against")) return text + against_text(document_.at("against"), is_markdown());
    text += tables() + (is_markdown() ? "\n" : "") + failures();
    if (!rows_.empty()) text += table_legend(rows_, !totals_.empty(), net_, style_);
    text += preset_legend(rows_of(document_), request_.width) + request_.notes;
    return text + answer();
  }

 private:
  bool is_markdown() const { return request_.form == format::markdown; }
  std::string title(const char* text) const {
    return fmt::format(fmt::runtime(is_markdown() ? "## {}\n\n" : "{}\n"), text);
  }
  std::string failures() const { return failures_text(document_.at("failures")); }

  // Totals first. Many rows of many tensors are left out if nobody asked for them.
  std::string tables() {
    sums_ = together(of_inputs(rows_, totals_), net_.ranks);
    if (request_.together && !request_.wide && !request_.asked) {
      for (json_row& row : sums_) row["input"] = input_names(), row["tensor"] = nullptr;  // (of several files)
      style_.winner = winner_of(sums_);
      return rows_table(sums_, style_);
    }
    const size_t shown =
        static_cast<size_t>(std::ranges::count_if(rows_, [](const json_row& r) { return !is_memcpy(r); }));
    if (totals_.empty()) {
      if (const json_row* best = winner_of(sums_); best && shown == sums_.size()) style_.winner = row_like(*best);
      return rows_table(rows_, style_);
    }
    std::string text = title("Totals over all tensors") + totals_table(totals_, style_);
    if (!request_.wide && !request_.asked && shown > few_rows)
      return text + fmt::format("{} rows of tensors are left out: --wide, --sort or --where shows them.\n", shown);
    return text + '\n' + title("Tensor by tensor") + rows_table(rows_, style_);
  }

  const json_row* row_like(const json_row& sum) const {
    const auto at = std::ranges::find_if(rows_, [&](const json_row& row) { return row.at("plan") == sum.at("plan"); });
    return at == rows_.end() ? nullptr : &*at;
  }

  // "4 inputs together"
  std::string input_names() const {
    std::set<std::string> inputs;
    for (const json_row& row : rows_) inputs.insert(text_of(row, "input"));
    return inputs.size() == 1 ? *inputs.begin() : fmt::format("{} bundled inputs, summed", inputs.size());
  }

  // The summary, for rows that nobody selected.
  std::string answer() const {
    if (is_markdown() || request_.asked || request_.wide) return {};
    const std::string text = summary_text(sums_, net_, request_.width);
    return text.empty() ? text : '\n' + text;
  }

  const ordered_json& document_;
  const render_request& request_;
  link_facts net_;
  std::vector<json_row> rows_, totals_, sums_;
  table_request style_;
};

// In bold, or without its marks.
std::string with_bold(const std::string& text, bool bold) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool marked = text[begin] == bold_mark;
    const std::string line = without_controls(text.substr(begin + marked, end - begin - marked));
    out += marked && bold ? "\x1b[1m" + line + "\x1b[0m" : line;
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

}  // namespace

std::string render(const ordered_json& document, const render_request& request) {
  switch (request.form) {
    case format::json: return json_text(document);
    case format::csv: return csv_text(rows_with_origin(document), column_names());
    case format::table:
    case format::markdown: break;
  }
  return plain(with_bold(readable_document(document, request).text(), request.bold));
}

}  // namespace dr::compare
