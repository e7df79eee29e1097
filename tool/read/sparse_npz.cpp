#include "sparse_npz.hpp"

#include <fmt/core.h>
#include <optional>
#include <utility>

#include "number.hpp"
#include "tool/show/joined.hpp"

namespace dr::compare {

namespace {

constexpr uint64_t elements_max = uint64_t{1} << 30;  // of a dense tensor: 4 GiB of float32

using sparse_parts = std::map<std::string, sparse_part>;

uint64_t length(const sparse_part& p) { return count_elements(p.array.shape, p.where, p.array.header_at); }

// Checks that the array's elements are complete and aligned.
stored whole(const sparse_part& p) {
  const stored kind = stored_of(p.array, p.where);
  if (checked_multiply(length(p), width_of(kind)) != p.array.bytes.size()) {
    refuse(p.where, p.array.data_at,
           fmt::format("{} elements of {} bytes do not make the {} bytes that are here; the file is cut off or damaged",
                       length(p), width_of(kind), p.array.bytes.size()));
  }
  return kind;
}

// The same array, little-endian and in C order.
sparse_part in_order(sparse_part p) {
  if (p.array.in_order()) return p;
  const unsigned width = width_of(whole(p));
  tensor_bytes bytes(p.array.bytes.size());
  std::byte* to = bytes.writable().data();
  in_c_order(p.array, width, [&](std::span<const std::byte> block) { to = std::ranges::copy(block, to).out; });
  p.array.bytes = bytes;
  if (p.array.descr.starts_with('>')) p.array.descr[0] = '<';  // ("|i1" has no order)
  p.array.fortran_order = false;
  p.owner = bytes.owner();
  return p;
}

void require(bool holds, const sparse_part& p, std::string_view what) {
  if (!holds) refuse(p.where, p.array.header_at, fmt::format("{}; the file is damaged", what));
}

// Nonnegative integers, read in place; `what` names them.
class whole_numbers {
 public:
  whole_numbers(const sparse_part& p, std::string_view what)
      : part_(&p), kind_(whole(p)), count_(length(p)), what_(what) {
    const bool known = kind_ == stored::i32 || kind_ == stored::u32 || kind_ == stored::i64 || kind_ == stored::u64;
    if (count_ > 0 && !known)
      refuse(p.where, p.array.header_at, fmt::format("{} are {}, not int32 or int64", what, long_name(kind_)));
  }

  uint64_t size() const { return count_; }
  const sparse_part& part() const { return *part_; }

  uint64_t operator[](uint64_t i) const {
    const std::span<const std::byte> bytes = part_->array.bytes;
    const int64_t value = kind_ == stored::i32   ? load_le<int32_t>(bytes, 4 * i)
                          : kind_ == stored::u32 ? load_le<uint32_t>(bytes, 4 * i)
                                                 : load_le<int64_t>(bytes, 8 * i);
    if (value < 0)
      refuse(part_->where, part_->array.data_at + i * width_of(kind_), fmt::format("{} [{}] is {}", what_, i, value));
    return static_cast<uint64_t>(value);
  }

  std::vector<uint64_t> all() const {
    std::vector<uint64_t> values(count_);
    for (uint64_t i = 0; i < count_; ++i) values[i] = (*this)[i];
    return values;
  }

 private:
  const sparse_part* part_;
  stored kind_;
  uint64_t count_;
  std::string_view what_;
};

// Positions of entries in one dimension: numbers[first + entry], below the extent.
struct axis {
  whole_numbers numbers;
  uint64_t first, extent;

  uint64_t operator[](uint64_t entry) const {
    const uint64_t index = numbers[first + entry];
    if (index >= extent) {
      const sparse_part& p = numbers.part();
      refuse(p.where, p.array.data_at, fmt::format("index {} of entry {} is not below {}", index, entry, extent));
    }
    return index;
  }
};

// A sparse tensor: entry i has the `width` values from i * width on, at element position * width.
struct coordinates {
  std::vector<uint64_t> shape;
  std::vector<axis> axes;  // outermost first; of a CSR or CSC matrix only the uncompressed one
  uint64_t entries = 0, width = 1;
  std::optional<whole_numbers> offsets = {};  // CSR, CSC: offsets of the entries of a row or column
  bool by_row = false;                        // CSR
  bool may_have_more = false;                 // values than positions: SciPy ignores entries after the last offset

  // Calls f(entry, position) in order, without a list: a matrix may have as many entries as elements.
  template <class F>
  void for_each(F&& f) const {
    if (offsets) {
      const uint64_t outer_step = by_row ? axes[0].extent : 1, step = by_row ? 1 : offsets->size() - 1;
      for (uint64_t outer = 0, entry = 0; entry < entries; ++outer)
        for (const uint64_t end = (*offsets)[outer + 1]; entry < end; ++entry)
          f(entry, outer * outer_step + axes[0][entry] * step);
      return;
    }
    for (uint64_t entry = 0; entry < entries; ++entry) {
      uint64_t position = 0;
      for (const axis& a : axes) position = position * a.extent + a[entry];
      f(entry, position);
    }
  }
};

void check_offsets(const whole_numbers& offsets, uint64_t rows, uint64_t entries) {
  const sparse_part& p = offsets.part();
  require(offsets.size() == rows + 1 && offsets[0] == 0, p,
          fmt::format("{} offsets should begin at 0 and be {}", offsets.size(), rows + 1));
  uint64_t begin = 0;
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t end = offsets[row + 1];
    if (begin > end || end > entries)
      require(false, p,
              fmt::format("offsets {} and {} of row {} do not ascend, or pass {} entries", begin, end, row, entries));
    begin = end;
  }
}

// positions [k, r], of the first k dimensions of c; or [r], of its first one.
void add_axes(coordinates& c, const sparse_part& positions, std::string_view what) {
  const whole_numbers numbers(positions, what);
  const std::vector<uint64_t>& shape = positions.array.shape;
  c.entries = shape.back();
  for (uint64_t k = 0; k < (shape.size() == 2 ? shape[0] : 1); ++k)
    c.axes.push_back({numbers, k * c.entries, c.shape[k]});
}

coordinates read_scipy(const sparse_parts& parts) {
  const sparse_part &format = parts.at("format"), &shape_part = parts.at("shape");
  const std::string name(reinterpret_cast<const char*>(format.array.bytes.data()),
                         std::min<size_t>(format.array.bytes.size(), 8));
  coordinates c{whole_numbers(shape_part, "the extents").all(), {}};
  count_elements(c.shape, shape_part.where, shape_part.array.data_at);
  if (name == "coo" && parts.contains("coords")) {  // of any number of dimensions
    const std::vector<uint64_t>& coords = parts.at("coords").array.shape;
    require(coords.size() == 2 && coords[0] == c.shape.size(), parts.at("coords"),
            fmt::format("coords of shape ({}) do not go with a tensor of {} dimensions", joined(coords, ", "),
                        c.shape.size()));
    add_axes(c, parts.at("coords"), "the coords");
    return c;
  }
  require(c.shape.size() == 1 || c.shape.size() == 2, shape_part, fmt::format("{} dimensions", c.shape.size()));
  const uint64_t rows = c.shape.size() == 2 ? c.shape[0] : 1, columns = c.shape.back();
  if (name == "coo" && parts.contains("row") && parts.contains("col")) {
    const whole_numbers row(parts.at("row"), "the rows"), column(parts.at("col"), "the columns");
    require(row.size() == column.size(), column.part(),
            fmt::format("{} entries, but {} in the arrays beside", column.size(), row.size()));
    c.axes = {{row, 0, rows}, {column, 0, columns}};
    c.entries = row.size();
    return c;
  }
  if ((name != "csr" && name != "csc") || !parts.contains("indices") || !parts.contains("indptr")) {
    refuse(format.where, format.array.data_at,
           fmt::format("a sparse matrix in format '{}' is not read; save x.tocsr()", printable(name)));
  }
  c.by_row = name == "csr";
  const whole_numbers indices(parts.at("indices"), "the indices");
  c.offsets = whole_numbers(parts.at("indptr"), "the offsets");
  check_offsets(*c.offsets, c.by_row ? rows : columns, indices.size());
  c.axes = {{indices, 0, c.by_row ? columns : rows}};
  c.entries = (*c.offsets)[c.offsets->size() - 1];
  c.may_have_more = true;
  return c;
}

coordinates read_coordinates(const sparse_parts& parts) {
  const sparse_part &indices = parts.at("indices"), &shape_part = parts.at("shape");
  const sparse_part& values = parts.at("values");
  coordinates c{whole_numbers(shape_part, "the extents").all(), {}};
  const std::vector<uint64_t>& shape = indices.array.shape;
  require(shape.size() == 1 || shape.size() == 2, indices, fmt::format("{} dimensions, not [k, r]", shape.size()));
  const uint64_t sparse = shape.size() == 2 ? shape[0] : 1;
  require(sparse >= 1 && sparse <= c.shape.size(), indices,
          fmt::format("indices of {} dimensions in a tensor of {}", sparse, c.shape.size()));
  count_elements(c.shape, shape_part.where, shape_part.array.data_at);
  add_axes(c, indices, "the indices");
  const std::span dense = std::span(c.shape).subspan(sparse);
  c.width = count_elements(dense, shape_part.where, shape_part.array.data_at);
  require(
      std::ranges::equal(std::span(values.array.shape).subspan(std::min<size_t>(1, values.array.shape.size())), dense),
      values,
      fmt::format("values of shape ({}) do not go with a tensor of shape ({})", joined(values.array.shape, ", "),
                  joined(c.shape, ", ")));
  return c;
}

// A bit per position; unset pages cost no memory (tensor_bytes).
class bit_set {
 public:
  explicit bit_set(uint64_t count) : bytes_(count / 8 + 1), bits_(bytes_.writable()) {}
  bool has(uint64_t i) const { return (bits_[i / 8] & bit(i)) != std::byte{0}; }
  void set(uint64_t i) { bits_[i / 8] |= bit(i); }

 private:
  static std::byte bit(uint64_t i) { return std::byte{1} << static_cast<int>(i % 8); }

  tensor_bytes bytes_;
  std::span<std::byte> bits_;
};

// Converts the values of entries to the tensor's type and writes them, in blocks.
class entry_writer {
 public:
  entry_writer(tensor& to, uint64_t width, bool converts, conversion& done)
      : type_(to.type), out_(to.data.writable()), size_(width * size_of(to.type)), converts_(converts), done_(done) {}

  void add(uint64_t position, std::span<const std::byte> values) {
    if (!converts_) {
      std::memcpy(out_.data() + position * size_, values.data(), size_);
      return;
    }
    positions_.push_back(position);
    waiting_.insert(waiting_.end(), values.begin(), values.end());
    if (waiting_.size() >= block) finish();
  }

  void finish() {
    const tensor_bytes converted = convert(waiting_, type_, done_);
    for (size_t i = 0; i < positions_.size(); ++i)
      std::memcpy(out_.data() + positions_[i] * size_, converted.data() + i * size_, size_);
    positions_.clear();
    waiting_.clear();
  }

 private:
  static constexpr size_t block = 1 << 20;  // bytes

  dtype type_;
  std::span<std::byte> out_;
  uint64_t size_;  // of an entry's values
  bool converts_;
  conversion& done_;
  std::vector<uint64_t> positions_;
  std::vector<std::byte> waiting_;
};

// Writes the sums of the values at equal positions. `entries`: position and number of duplicates.
void write_sums(std::vector<std::pair<uint64_t, uint64_t>> entries, uint64_t width, stored kind,
                std::span<const std::byte> bytes, tensor& to, conversion& done) {
  std::ranges::sort(entries);  // (sums depend on the order of their terms: that of the file)
  done.from = stored::f64;
  entry_writer writer(to, width, true, done);
  std::vector<double> sums(width);
  for (size_t i = 0; i < entries.size(); ++i) {
    for (uint64_t k = 0; k < width; ++k) sums[k] += value_at(kind, bytes, entries[i].second * width + k);
    if (i + 1 < entries.size() && entries[i + 1].first == entries[i].first) continue;
    writer.add(entries[i].first, std::as_bytes(std::span(sums)));
    std::ranges::fill(sums, 0.0);
  }
  writer.finish();
  done.from = kind;
}

// Needs memory for the dense tensor, two bits per element, and 16 bytes per duplicate entry.
tensor make_dense(coordinates c, const sparse_part& values, const reading& how) {
  const stored kind = whole(values);
  const std::string& where = values.where;
  const uint64_t elements = count_elements(c.shape, where, values.array.header_at);
  if (elements > elements_max) {
    refuse(where, values.array.header_at,
           fmt::format("shape ({}) has {} elements; a sparse tensor is compared as a dense one, of at "
                       "most {}",
                       joined(c.shape, ", "), elements, elements_max));
  }
  require(c.may_have_more ? length(values) >= c.entries * c.width : length(values) == c.entries * c.width, values,
          fmt::format("{} values for {} entries of {}", length(values), c.entries, c.width));
  const std::optional<dtype> type = how.cast ? how.cast : type_of(kind);
  if (!type) {
    refuse<not_float>(where, values.array.header_at,
                      fmt::format("{} is not a float; --cast f32 converts it", long_name(kind)));
  }
  tensor result{"", "", *type, c.shape, tensor_bytes(elements * size_of(*type)), elements, true};
  conversion done{kind};
  const bool converts = kind == stored::f64 || type != type_of(kind);
  if (c.width > 0) {
    bit_set seen(elements / c.width), again(elements / c.width);
    uint64_t gone = 0;
    c.for_each([&](uint64_t, uint64_t position) {
      if (seen.has(position)) again.set(position), ++gone;
      seen.set(position);
    });
    if (gone > 0) note(how.notes, fmt::format("{}: {} entries at positions that come again, added up", where, gone));
    const uint64_t size = c.width * width_of(kind);
    entry_writer writer(result, c.width, converts, done);
    std::vector<std::pair<uint64_t, uint64_t>> together;
    c.for_each([&](uint64_t entry, uint64_t position) {
      if (gone > 0 && again.has(position))
        together.emplace_back(position, entry);
      else
        writer.add(position, values.array.bytes.subspan(entry * size, size));
    });
    writer.finish();
    if (gone > 0) write_sums(std::move(together), c.width, kind, values.array.bytes, result, done);
  } else {
    c.for_each([](uint64_t, uint64_t) {});  // checks them
  }
  if (converts) result.converted = done;
  return result;
}

}  // namespace

size_t sparse_group::first() const {
  size_t first = parts.begin()->second;
  for (const auto& [name, member] : parts) first = std::min(first, member);
  return first;
}

std::vector<sparse_group> sparse_groups(std::span<const std::string> members) {
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < members.size(); ++i)
    if (members[i].ends_with(".npy")) numbers[members[i].substr(0, members[i].size() - 4)] = i;
  std::vector<sparse_group> groups;
  if (numbers.contains("format") && numbers.contains("shape") && numbers.contains("data")) {
    groups.push_back({"", true, {}});
    sparse_group& g = groups.back();
    for (const char* part :
         {"format", "shape", "data", "indices", "indptr", "row", "col", "coords", "offsets", "_is_array"})
      if (const auto found = numbers.find(part); found != numbers.end()) g.parts[part] = found->second;
    return groups;
  }
  for (const auto& [name, number] : numbers) {
    if (name != "values" && !name.ends_with(".values")) continue;
    const std::string stem = name.substr(0, name.size() - std::string_view("values").size());
    const auto indices = numbers.find(stem + "indices"), shape = numbers.find(stem + "shape");
    if (indices == numbers.end() || shape == numbers.end()) continue;
    groups.push_back({stem.substr(0, stem.size() - !stem.empty()),
                      false,
                      {{"values", number}, {"indices", indices->second}, {"shape", shape->second}}});
  }
  return groups;
}

tensor read_sparse(const sparse_group& group, const std::function<sparse_part(size_t)>& read, std::string_view where,
                   const reading& how) {
  sparse_parts parts;
  for (const auto& [name, number] : group.parts) parts.emplace(name, in_order(read(number)));
  tensor result = group.scipy ? make_dense(read_scipy(parts), parts.at("data"), how)
                              : make_dense(read_coordinates(parts), parts.at("values"), how);
  result.input = where;
  result.raw_name = group.name;
  return result;
}

}  // namespace dr::compare
