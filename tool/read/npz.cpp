#include "npz.hpp"

#include <fmt/core.h>
#include <zlib.h>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "npy.hpp"
#include "sparse_npz.hpp"

namespace dr::compare {

namespace {

using bytes = std::span<const std::byte>;

constexpr uint32_t end_signature = 0x06054b50, end64_signature = 0x06064b50, locator_signature = 0x07064b50;
constexpr uint32_t entry_signature = 0x02014b50, local_signature = 0x04034b50;
constexpr uint64_t end_size = 22, end64_size = 56, locator_size = 20, entry_size = 46, local_size = 30;
constexpr uint64_t comment_size_max = 0xffff;

// A 32-bit field that holds this has its value in the zip64 extra field.
constexpr uint32_t in_zip64 = 0xffffffff;

constexpr uint16_t stored_method = 0, deflate_method = 8;

// Flags: encrypted; strongly encrypted; headers masked. With the fourth, sizes and CRC follow the data.
constexpr uint16_t secret_flags = 1 << 0 | 1 << 6 | 1 << 13, sizes_follow_flag = 1 << 3;

// A match has at most 258 bytes and costs at least two bits, for its length and its distance.
constexpr uint64_t deflate_ratio_max = 258 * 8 / 2;

constexpr std::string_view damaged = "the file is cut off or damaged";

constexpr std::string_view made_of = "deepreduce:input=";

struct directory {
  uint64_t offset, size, entries;
  bytes comment;
};

struct member {
  std::string name, where;
  uint16_t flags, method;
  uint32_t crc;
  uint64_t packed_size, size, header_offset;
  bytes packed;
};

std::string_view text(bytes data) { return {reinterpret_cast<const char*>(data.data()), data.size()}; }

bytes take_record(bytes file, uint64_t at, uint64_t size, uint32_t signature, std::string_view where,
                  std::string_view what) {
  const bytes record = take(file, at, size, where, what);
  if (load_le<uint32_t>(record, 0) != signature) {
    refuse(where, at,
           fmt::format("{} should begin here, found {:#010x}; {}", what, load_le<uint32_t>(record, 0), damaged));
  }
  return record;
}

// The end record is the last thing in the file but for its comment, whose size it knows.
uint64_t find_end(bytes file, std::string_view where) {
  for (uint64_t after = end_size; after <= std::min<uint64_t>(file.size(), end_size + comment_size_max); ++after) {
    const uint64_t at = file.size() - after;
    if (load_le<uint32_t>(file, at) == end_signature && load_le<uint16_t>(file, at + 20) == after - end_size) return at;
  }
  refuse(where, file.size(), fmt::format("no end of a zip archive here; {}, or not an .npz", damaged));
}

directory find_directory(bytes file, std::string_view where) {
  const uint64_t end_at = find_end(file, where);
  const bytes end = file.subspan(end_at, end_size);
  const directory narrow{load_le<uint32_t>(end, 16), load_le<uint32_t>(end, 12), load_le<uint16_t>(end, 10),
                         file.subspan(end_at + end_size)};
  directory result = narrow;
  uint64_t directory_end = end_at;
  bool one_disk = load_le<uint32_t>(end, 4) == 0 && load_le<uint16_t>(end, 8) == narrow.entries;

  if (end_at >= locator_size && load_le<uint32_t>(file, end_at - locator_size) == locator_signature) {
    const uint64_t locator_at = end_at - locator_size;
    directory_end = load_le<uint64_t>(file, locator_at + 8);
    const bytes end64 = take_record(file, directory_end, end64_size, end64_signature, where, "the zip64 end record");
    result = {load_le<uint64_t>(end64, 48), load_le<uint64_t>(end64, 40), load_le<uint64_t>(end64, 32), narrow.comment};
    // Its size leaves out its own first 12 bytes. It may be longer than what we know of it, but ends at the locator.
    if (load_le<uint64_t>(end64, 4) != locator_at - directory_end - 12) {
      refuse(where, directory_end + 4,
             fmt::format("the zip64 end record has the wrong size {}; {}", load_le<uint64_t>(end64, 4), damaged));
    }
    const bool agree = (narrow.offset == in_zip64 || narrow.offset == result.offset) &&
                       (narrow.size == in_zip64 || narrow.size == result.size) &&
                       (narrow.entries == 0xffff || narrow.entries == result.entries);
    if (!agree) refuse(where, end_at, fmt::format("the two end records disagree; {}", damaged));
    one_disk = load_le<uint64_t>(end64, 16) == 0 && load_le<uint64_t>(end64, 24) == result.entries;
  }
  if (!one_disk) refuse(where, end_at, "is a part of a split archive; save it again with numpy.savez");
  if (result.offset > directory_end || result.size != directory_end - result.offset) {
    refuse(where, end_at,
           fmt::format("a directory of {} bytes at {} does not end at {}; {}", result.size, result.offset,
                       directory_end, damaged));
  }
  return result;
}

// Takes from the zip64 extra field what the 32-bit fields leave to it, in their order. The extra field begins at `at`
// and ends with `head`, a beginning of the file.
void widen(bytes head, uint64_t at, std::initializer_list<uint64_t*> fields, std::string_view where) {
  const uint64_t extra_at = at;
  bytes wide;
  while (head.size() - at >= 4) {  // fewer bytes than a block's own head are padding
    const bytes block = take(head, at + 4, load_le<uint16_t>(head, at + 2), where, "an extra field");
    if (load_le<uint16_t>(head, at) == 1) wide = block;
    at += 4 + block.size();
  }
  for (uint64_t* field : fields) {
    if (*field != in_zip64) continue;
    if (wide.size() < 8) refuse(where, extra_at, fmt::format("the zip64 field of a size is missing; {}", damaged));
    *field = load_le<uint64_t>(wide, 0);
    wide = wide.subspan(8);
  }
}

std::vector<member> read_directory(bytes file, const directory& place, std::string_view where) {
  const bytes head = file.first(place.offset + place.size);
  std::vector<member> members;
  std::set<std::string_view> names;
  for (uint64_t at = place.offset; at < head.size();) {
    const bytes entry = take_record(head, at, entry_size, entry_signature, where, "an entry of the directory");
    const uint64_t name_size = load_le<uint16_t>(entry, 28), extra_size = load_le<uint16_t>(entry, 30);
    const uint64_t name_at = at + entry_size, extra_at = name_at + name_size;
    const std::string_view name = text(take(head, name_at, name_size, where, "an entry's name"));
    member m{std::string(name),
             fmt::format("{}: {}", where, printable(name)),
             load_le<uint16_t>(entry, 8),
             load_le<uint16_t>(entry, 10),
             load_le<uint32_t>(entry, 16),
             load_le<uint32_t>(entry, 20),
             load_le<uint32_t>(entry, 24),
             load_le<uint32_t>(entry, 42),
             {}};
    take(head, extra_at, extra_size, m.where, "an entry's extra field");
    widen(head.first(extra_at + extra_size), extra_at, {&m.size, &m.packed_size, &m.header_offset}, m.where);
    if (!names.insert(name).second) refuse(m.where, at, "is twice in the archive; save it again");
    if ((m.flags & secret_flags) != 0) refuse(m.where, at, "is encrypted; save it without a password");
    if (m.method != stored_method && m.method != deflate_method) {
      refuse(m.where, at, fmt::format("is packed by method {}; save it with numpy.savez_compressed", m.method));
    }
    members.push_back(std::move(m));
    at = extra_at + extra_size;
    at += take(head, at, load_le<uint16_t>(entry, 32), where, "an entry's comment").size();
  }
  if (members.size() != place.entries) {
    refuse(where, place.offset,
           fmt::format("{} entries where {} are declared; {}", members.size(), place.entries, damaged));
  }
  return members;
}

// Finds the member's bytes after its local header, which repeats the directory's entry and must agree with it.
void locate(bytes file, member& m) {
  const bytes local = take_record(file, m.header_offset, local_size, local_signature, m.where, "the member's header");
  const uint64_t name_size = load_le<uint16_t>(local, 26), extra_size = load_le<uint16_t>(local, 28);
  const uint64_t tail_at = m.header_offset + local_size;
  const bytes tail = take(file, tail_at, name_size + extra_size, m.where, "the member's name");
  uint64_t packed_size = load_le<uint32_t>(local, 18), size = load_le<uint32_t>(local, 22);
  widen(file.first(tail_at + tail.size()), tail_at + name_size, {&size, &packed_size}, m.where);
  const bool sizes_agree = packed_size == m.packed_size && size == m.size && load_le<uint32_t>(local, 14) == m.crc;
  if (load_le<uint16_t>(local, 6) != m.flags || load_le<uint16_t>(local, 8) != m.method ||
      text(tail.first(name_size)) != m.name || (!sizes_agree && (m.flags & sizes_follow_flag) == 0)) {
    refuse(m.where, m.header_offset, fmt::format("the member's header disagrees with the directory; {}", damaged));
  }
  m.packed = take(file, tail_at + tail.size(), m.packed_size, m.where, "the member");
}

// Members that share bytes are how a small archive unpacks to a huge one (D. Fifield, WOOT 2019).
void refuse_overlap(std::span<const member> members, bytes file, uint64_t directory_offset) {
  std::vector<const member*> by_offset;
  for (const member& m : members) by_offset.push_back(&m);
  std::ranges::sort(by_offset, {}, &member::header_offset);
  for (size_t i = 0; i < by_offset.size(); ++i) {
    const member& m = *by_offset[i];
    const auto end = static_cast<uint64_t>(m.packed.data() - file.data()) + m.packed.size();
    const uint64_t next = i + 1 < by_offset.size() ? by_offset[i + 1]->header_offset : directory_offset;
    if (end > next)
      refuse(m.where, m.header_offset,
             fmt::format("ends at {}, past {} where the next begins; {}", end, next, damaged));
  }
}

void check_crc(const member& m, uint32_t crc) {
  if (crc != m.crc)
    refuse(m.where, m.header_offset, fmt::format("CRC-32 is {:#010x}, declared {:#010x}; {}", crc, m.crc, damaged));
}

// Unpacks a member piece by piece.
class inflater {
 public:
  explicit inflater(const member& m) : m_(m) {
    if (m.size / deflate_ratio_max > m.packed.size()) {
      refuse(m.where, m.header_offset,
             fmt::format("{} bytes cannot unpack to {}; {}", m.packed.size(), m.size, damaged));
    }
    if (inflateInit2(&stream_, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  ~inflater() { inflateEnd(&stream_); }
  inflater(const inflater&) = delete;
  inflater& operator=(const inflater&) = delete;

  // The next bytes; refuses a member that has fewer.
  void read(std::span<std::byte> out) {
    const uint64_t begin = written_;
    while (written_ < begin + out.size() && status_ == Z_OK) step(out.subspan(written_ - begin));
    if (written_ < begin + out.size()) refuse_sizes();
    crc_ = static_cast<uint32_t>(crc32_z(crc_, reinterpret_cast<const Bytef*>(out.data()), out.size()));
  }
  // After all m.size bytes: rejects further bytes, or a wrong checksum.
  void finish() {
    std::byte nothing;
    while (status_ == Z_OK) step({&nothing, 0});
    if (status_ != Z_STREAM_END || read_ != m_.packed.size()) refuse_sizes();
    check_crc(m_, crc_);
  }

 private:
  void step(std::span<std::byte> out) {
    constexpr uint64_t max_size = 1u << 30;  // zlib counts in 32 bits
    const auto in_size = static_cast<uInt>(std::min(m_.packed.size() - read_, max_size));
    const auto out_size = static_cast<uInt>(std::min<uint64_t>(out.size(), max_size));
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(m_.packed.data() + read_));
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_in = in_size;
    stream_.avail_out = out_size;
    status_ = inflate(&stream_, Z_NO_FLUSH);  // Z_OK means progress; without any it is Z_BUF_ERROR
    read_ += in_size - stream_.avail_in;
    written_ += out_size - stream_.avail_out;
  }
  [[noreturn]] void refuse_sizes() const {
    refuse(m_.where, m_.header_offset,
           fmt::format("{} bytes unpack to {} where {} to {} are declared ({}); {}", read_, written_, m_.packed.size(),
                       m_.size, stream_.msg != nullptr ? stream_.msg : "sizes", damaged));
  }

  const member& m_;
  z_stream stream_{};
  int status_ = Z_OK;
  uint64_t read_ = 0, written_ = 0;
  uint32_t crc_ = 0;
};

// Whether the array of a member that begins with `head` is of a type with a size. Refuses one whose header describes
// other than m.size bytes: a megabyte unpacks to a gigabyte that nobody has asked for.
bool is_described(const member& m, bytes head) {
  const npy_array array = read_npy(head, m.where);
  std::optional<uint64_t> size;
  try {
    size = width_of(stored_of(array, m.where));
  } catch (const not_float&) {
    return false;
  }
  for (const uint64_t extent : array.shape)
    if (size) size = checked_multiply(*size, extent);
  if (size != m.size - array.data_at) {
    refuse(m.where, m.header_offset,
           fmt::format("unpacks to {} bytes of values, but its header describes {}; {}", m.size - array.data_at,
                       size ? std::to_string(*size) : "more than 2^64", damaged));
  }
  return true;
}

// Only the beginning of an array that its header rejects; the rest is checked and dropped.
tensor_bytes inflate_member(const member& m) {
  inflater in(m);
  tensor_bytes inflated(std::min(m.size, npy_head_max));
  in.read(inflated.writable());
  const uint64_t begun = inflated.size();
  if (begun < m.size && is_described(m, inflated)) {
    tensor_bytes all(m.size);
    std::ranges::copy(inflated, all.writable().begin());
    in.read(all.writable().subspan(begun));
    inflated = all;
  } else {
    std::vector<std::byte> rest(begun);
    for (uint64_t at = begun; at < m.size; at += rest.size())
      in.read(std::span(rest).first(std::min<uint64_t>(rest.size(), m.size - at)));
  }
  in.finish();
  return inflated;
}

// The unpacked bytes and their owner, null if none.
std::pair<bytes, std::shared_ptr<const void>> unpack(const member& m, const reading& how) {
  if (m.method == deflate_method) {
    const tensor_bytes inflated = inflate_member(m);
    return {inflated, inflated.owner()};
  }
  if (m.packed.size() != m.size) {
    refuse(m.where, m.header_offset,
           fmt::format("is stored in {} bytes, declared as {}; {}", m.packed.size(), m.size, damaged));
  }
  check_crc(m, static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(m.packed.data()), m.packed.size())));
  return {m.packed, how.owner};
}

// What a file with NAME.values and `m`, NAME.indices, lacks to be read as the sparse tensor that it may be.
std::string missing_shape(const std::vector<member>& members, const member& m) {
  constexpr std::string_view indices = "indices.npy";
  if (m.name != indices && !m.name.ends_with(fmt::format(".{}", indices))) return "";
  const std::string stem = m.name.substr(0, m.name.size() - indices.size());
  if (std::ranges::find(members, stem + "values.npy", &member::name) == members.end()) return "";
  return printable(fmt::format("; a sparse tensor has {0}shape, too: here {0}values is a tensor by itself", stem));
}

}  // namespace

std::vector<tensor> parse_npz(bytes file, std::string_view path, const reading& how) {
  const directory place = find_directory(file, path);
  const std::string_view comment = text(place.comment);
  const std::string where =
      comment.starts_with(made_of) ? printable(comment.substr(made_of.size())) : std::string(path);
  if (how.made_of) *how.made_of = where;
  std::vector<member> members = read_directory(file, place, where);
  for (member& m : members) locate(file, m);
  refuse_overlap(members, file, place.offset);

  std::vector<sparse_group> groups;
  {
    std::vector<std::string> names;
    for (const member& m : members) names.push_back(m.name);
    groups = sparse_groups(names);
  }
  std::vector<const sparse_group*> group_of(members.size());
  for (const sparse_group& g : groups)
    for (const auto& [name, i] : g.parts) group_of[i] = &g;
  const auto part = [&](size_t i) {
    auto [unpacked, owner] = unpack(members[i], how);
    return sparse_part{members[i].where, read_npy(unpacked, members[i].where), owner};
  };

  std::vector<tensor> tensors;
  for (size_t i = 0; i < members.size(); ++i) {
    const member& m = members[i];
    const sparse_group* const group = group_of[i];
    try {
      if (group) {
        if (group->first() != i) continue;
        tensors.push_back(read_sparse(*group, part, where, how));
      } else if (!m.name.ends_with(".npy")) {
        note(how.notes, m.where + ": skipped, not an .npy");
        continue;
      } else {
        reading own = how;
        bytes unpacked;
        std::tie(unpacked, own.owner) = unpack(m, how);
        tensors.push_back(parse_npy(unpacked, m.where, own));
        tensors.back().raw_name = m.name.substr(0, m.name.size() - 4);
      }
    } catch (const not_float& error) {
      note(how.notes, fmt::format("skipped: {}{}", error.what(), missing_shape(members, m)));
      continue;
    }
    tensors.back().input = where;
    tensors.back().name = printable(tensors.back().raw_name);
  }
  return tensors;
}

}  // namespace dr::compare
