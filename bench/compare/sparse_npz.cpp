#include "sparse_npz.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <numeric>

#include "number.hpp"

namespace dr::compare {

namespace {

constexpr uint64_t elements_max = uint64_t{1} << 30;  // of a dense tensor: 4 GiB of float32

using sparse_parts = std::map<std::string, sparse_part>;

uint64_t length(const sparse_part& p) { return count_elements(p.array.shape, p.where, p.array.header_at); }

// The array's elements are whole, and where they should be.
stored whole(const sparse_part& p) {
  const stored kind = stored_of(p.array, p.where);
  if (p.array.fortran_order) refuse(p.where, p.array.header_at, "is in Fortran order; save numpy.ascontiguousarray(x)");
  if (checked_multiply(length(p), width_of(kind)) != p.array.bytes.size()) {
    refuse(p.where, p.array.data_at,
           fmt::format("{} elements of {} bytes do not make the {} bytes that are here; the file is cut off or damaged",
                       length(p), width_of(kind), p.array.bytes.size()));
  }
  return kind;
}

// Whole numbers from 0; `what` names them.
std::vector<uint64_t> integers(const sparse_part& p, std::string_view what) {
  const stored kind = whole(p);
  const std::span<const std::byte> bytes = p.array.bytes;
  std::vector<uint64_t> values(length(p));
  for (uint64_t i = 0; i < values.size(); ++i) {
    int64_t value = 0;
    switch (kind) {
      case stored::i32: value = load_le<int32_t>(bytes, 4 * i); break;
      case stored::u32: value = load_le<uint32_t>(bytes, 4 * i); break;
      case stored::i64:
      case stored::u64: value = load_le<int64_t>(bytes, 8 * i); break;
      default: refuse(p.where, p.array.header_at, fmt::format("{} are {}, not int32 or int64", what, long_name(kind)));
    }
    if (value < 0) refuse(p.where, p.array.data_at + i * width_of(kind), fmt::format("{} [{}] is {}", what, i, value));
    values[i] = static_cast<uint64_t>(value);
  }
  return values;
}

void require(bool holds, const sparse_part& p, std::string_view what) {
  if (!holds) refuse(p.where, p.array.header_at, fmt::format("{}; the file is damaged", what));
}

// positions[i] = positions[i] * extent + more[i], all below the extent.
void append(std::vector<uint64_t>& positions, std::span<const uint64_t> more, uint64_t extent, const sparse_part& p) {
  require(positions.size() == more.size(), p,
          fmt::format("{} entries, but {} in the arrays beside", more.size(), positions.size()));
  for (uint64_t i = 0; i < more.size(); ++i) {
    if (more[i] >= extent) {
      refuse(p.where, p.array.data_at, fmt::format("index {} of entry {} is not below {}", more[i], i, extent));
    }
    positions[i] = positions[i] * extent + more[i];
  }
}

// The number of the row of each entry, of the first indptr[last] entries.
std::vector<uint64_t> rows_of(std::span<const uint64_t> indptr, uint64_t rows, uint64_t entries, const sparse_part& p) {
  require(indptr.size() == rows + 1 && indptr.front() == 0, p,
          fmt::format("{} offsets should begin at 0 and be {}", indptr.size(), rows + 1));
  std::vector<uint64_t> result;
  for (uint64_t row = 0; row < rows; ++row) {
    require(indptr[row] <= indptr[row + 1] && indptr[row + 1] <= entries, p,
            fmt::format("offsets {} and {} of row {} do not ascend, or pass {} entries", indptr[row], indptr[row + 1],
                        row, entries));
    result.insert(result.end(), indptr[row + 1] - indptr[row], row);
  }
  return result;
}

// A sparse tensor: of entry i the `width` values from i * width on, at element positions[i] * width.
struct coordinates {
  std::vector<uint64_t> shape;
  std::vector<uint64_t> positions;
  uint64_t width = 1;
  bool may_have_more = false;  // values than positions: SciPy lets what is behind the last offset stand
};

coordinates read_scipy(const sparse_parts& parts) {
  const sparse_part &format = parts.at("format"), &shape_part = parts.at("shape");
  const std::string name(reinterpret_cast<const char*>(format.array.bytes.data()),
                         std::min<size_t>(format.array.bytes.size(), 8));
  coordinates c{integers(shape_part, "the extents"), {}};
  require(c.shape.size() == 1 || c.shape.size() == 2, shape_part, fmt::format("{} dimensions", c.shape.size()));
  const uint64_t rows = c.shape.size() == 2 ? c.shape[0] : 1, columns = c.shape.back();
  count_elements(c.shape, shape_part.where, shape_part.array.data_at);
  if (name == "coo" && parts.contains("row") && parts.contains("col")) {
    c.positions.resize(length(parts.at("row")));
    append(c.positions, integers(parts.at("row"), "the rows"), rows, parts.at("row"));
    append(c.positions, integers(parts.at("col"), "the columns"), columns, parts.at("col"));
    return c;
  }
  if ((name != "csr" && name != "csc") || !parts.contains("indices") || !parts.contains("indptr")) {
    refuse(format.where, format.array.data_at,
           fmt::format("a sparse matrix in format '{}' is not read; save x.tocsr()", printable(name)));
  }
  const sparse_part &indptr = parts.at("indptr"), &indices = parts.at("indices");
  const bool by_row = name == "csr";
  std::vector<uint64_t> inner = integers(indices, "the indices");
  std::vector<uint64_t> outer = rows_of(integers(indptr, "the offsets"), by_row ? rows : columns, inner.size(), indptr);
  inner.resize(outer.size());
  c.may_have_more = true;
  c.positions.assign(inner.size(), 0);
  append(c.positions, by_row ? outer : inner, rows, indices);
  append(c.positions, by_row ? inner : outer, columns, indices);
  return c;
}

coordinates read_coordinates(const sparse_parts& parts) {
  const sparse_part &indices = parts.at("indices"), &shape_part = parts.at("shape");
  const sparse_part& values = parts.at("values");
  coordinates c{integers(shape_part, "the extents"), {}};
  const std::vector<uint64_t>& shape = indices.array.shape;
  require(shape.size() == 1 || shape.size() == 2, indices, fmt::format("{} dimensions, not [k, r]", shape.size()));
  const uint64_t sparse = shape.size() == 2 ? shape[0] : 1, entries = shape.back();
  require(sparse >= 1 && sparse <= c.shape.size(), indices,
          fmt::format("indices of {} dimensions in a tensor of {}", sparse, c.shape.size()));
  count_elements(c.shape, shape_part.where, shape_part.array.data_at);
  const std::vector<uint64_t> all = integers(indices, "the indices");
  c.positions.resize(entries);
  for (uint64_t k = 0; k < sparse; ++k)
    append(c.positions, std::span(all).subspan(k * entries, entries), c.shape[k], indices);
  const std::span dense = std::span(c.shape).subspan(sparse);
  c.width = count_elements(dense, shape_part.where, shape_part.array.data_at);
  require(
      std::ranges::equal(std::span(values.array.shape).subspan(std::min<size_t>(1, values.array.shape.size())), dense),
      values,
      fmt::format("values of shape ({}) do not go with a tensor of shape ({})", fmt::join(values.array.shape, ", "),
                  fmt::join(c.shape, ", ")));
  return c;
}

// Adds up the values of equal positions, and leaves one of each, ascending. Returns how many went.
uint64_t add_up(coordinates& c, stored kind, std::span<const std::byte> bytes, std::vector<double>& sums) {
  std::vector<uint64_t> order(c.positions.size()), unique;
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, {}, [&](uint64_t i) { return c.positions[i]; });
  for (const uint64_t i : order) {
    if (unique.empty() || unique.back() != c.positions[i]) {
      unique.push_back(c.positions[i]);
      sums.resize(sums.size() + c.width);
    }
    for (uint64_t k = 0; k < c.width; ++k) sums[sums.size() - c.width + k] += value_at(kind, bytes, i * c.width + k);
  }
  const uint64_t gone = c.positions.size() - unique.size();
  c.positions = std::move(unique);
  return gone;
}

bool has_duplicates(const std::vector<uint64_t>& positions) {
  if (std::ranges::adjacent_find(positions, std::greater_equal()) == positions.end()) return false;
  std::vector<uint64_t> sorted = positions;
  std::ranges::sort(sorted);
  return std::ranges::adjacent_find(sorted) != sorted.end();
}

tensor make_dense(coordinates c, const sparse_part& values, const reading& how) {
  const stored kind = whole(values);
  const std::string& where = values.where;
  const uint64_t elements = count_elements(c.shape, where, values.array.header_at);
  if (elements > elements_max) {
    refuse(where, values.array.header_at,
           fmt::format(
               "shape ({}) has {} elements; a sparse tensor is compared as the dense one that it stands for, of at "
               "most {}",
               fmt::join(c.shape, ", "), elements, elements_max));
  }
  const uint64_t entries = c.positions.size() * c.width;
  require(c.may_have_more ? length(values) >= entries : length(values) == entries, values,
          fmt::format("{} values for {} entries of {}", length(values), c.positions.size(), c.width));
  const std::optional<dtype> type = how.cast ? how.cast : type_of(kind);
  if (!type) {
    refuse<not_float>(where, values.array.header_at,
                      fmt::format("{} is not a float; --cast f32 converts it", long_name(kind)));
  }
  std::span<const std::byte> bytes = values.array.bytes.first(entries * width_of(kind));
  std::vector<double> sums;
  conversion done{kind};
  if (has_duplicates(c.positions)) {
    const uint64_t gone = add_up(c, kind, bytes, sums);
    note(how.notes, fmt::format("{}: {} entries at positions that come again, added up", where, gone));
    bytes = std::as_bytes(std::span(sums));
    done.from = stored::f64;
  }
  const bool converts = kind == stored::f64 || type != type_of(kind);
  tensor_bytes compact;
  if (converts || done.from != kind) {
    compact = convert(bytes, *type, done);
    bytes = compact;
    done.from = kind;
  }
  tensor result{"", "", *type, std::move(c.shape), tensor_bytes(elements * size_of(*type)), elements, true};
  if (converts) result.converted = done;
  const std::span<std::byte> out = result.data.writable();
  const uint64_t size = c.width * size_of(*type);
  for (uint64_t i = 0; size > 0 && i < c.positions.size(); ++i)
    std::memcpy(out.data() + c.positions[i] * size, bytes.data() + i * size, size);
  return result;
}

}  // namespace

bool sparse_group::has(size_t member) const {
  return std::ranges::any_of(parts, [&](const auto& part) { return part.second == member; });
}

size_t sparse_group::first() const {
  size_t least = parts.begin()->second;
  for (const auto& [name, member] : parts) least = std::min(least, member);
  return least;
}

std::vector<sparse_group> sparse_groups(std::span<const std::string> members) {
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < members.size(); ++i)
    if (members[i].ends_with(".npy")) numbers[members[i].substr(0, members[i].size() - 4)] = i;
  std::vector<sparse_group> groups;
  if (numbers.contains("format") && numbers.contains("shape") && numbers.contains("data")) {
    sparse_group& g = groups.emplace_back("", true);
    for (const char* part : {"format", "shape", "data", "indices", "indptr", "row", "col", "offsets", "_is_array"})
      if (const auto found = numbers.find(part); found != numbers.end()) g.parts[part] = found->second;
    return groups;
  }
  for (const auto& [name, number] : numbers) {
    if (name != "values" && !name.ends_with(".values")) continue;
    const std::string stem = name.substr(0, name.size() - std::string_view("values").size());
    const auto indices = numbers.find(stem + "indices"), shape = numbers.find(stem + "shape");
    if (indices == numbers.end() || shape == numbers.end()) continue;
    groups.push_back({printable(stem.substr(0, stem.size() - !stem.empty())),
                      false,
                      {{"values", number}, {"indices", indices->second}, {"shape", shape->second}}});
  }
  return groups;
}

tensor read_sparse(const sparse_group& group, const std::function<sparse_part(size_t)>& read, std::string_view where,
                   const reading& how) {
  sparse_parts parts;
  for (const auto& [name, number] : group.parts) parts.emplace(name, read(number));
  tensor result = group.scipy ? make_dense(read_scipy(parts), parts.at("data"), how)
                              : make_dense(read_coordinates(parts), parts.at("values"), how);
  result.input = where;
  result.name = group.name;
  return result;
}

}  // namespace dr::compare
