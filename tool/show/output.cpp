#include "output.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

namespace dr::compare {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void give_up(const std::string& path) {
  throw output_error("cannot write " + path + ": " + std::strerror(errno));
}

void write_all(int file, std::string_view bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) give_up(name);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void write_in_place(const std::string& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) give_up(path);
  try {
    write_all(file, bytes, path);
  } catch (...) {
    ::close(file);
    throw;
  }
  if (::close(file) != 0) give_up(path);
}

// mkstemp's file is for its owner only; a result has the rights that any new file would have.
mode_t usual_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

void replace_file(const std::string& path, std::string_view bytes) {
  std::string temporary = fs::path(path).parent_path() / ".deepreduce-XXXXXX";  // (path may have the longest name)
  const int file = ::mkstemp(temporary.data());
  if (file < 0) give_up(path);
  try {
    write_all(file, bytes, path);
    if (::fchmod(file, usual_mode()) != 0) give_up(path);
  } catch (...) {
    ::close(file);
    ::unlink(temporary.c_str());
    throw;
  }
  if (::close(file) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(temporary.c_str());
    errno = why;
    give_up(path);
  }
}

}  // namespace

void check_output(const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) throw output_error("cannot write " + path + ": it is a directory");
  if (error == std::errc::filename_too_long) throw output_error("cannot write " + path + ": " + error.message());
  const fs::path place =
      fs::is_symlink(fs::symlink_status(path, error)) ? fs::weakly_canonical(path, error) : fs::path(path);
  // A file is replaced, so that its folder counts.
  const bool in_place = fs::exists(status) && !fs::is_regular_file(status);
  const std::string folder = place.has_parent_path() ? place.parent_path().string() : ".";
  if (::access(in_place ? path.c_str() : folder.c_str(), in_place ? W_OK : W_OK | X_OK) != 0) give_up(path);
}

void check_outputs(std::initializer_list<output_option> options,
                   std::initializer_list<std::span<const std::string>> inputs) {
  std::error_code none;
  std::set<fs::path> read;
  for (const std::span<const std::string> list : inputs)
    for (const std::string& path : list)
      if (fs::is_regular_file(path, none)) read.insert(fs::canonical(path, none));
  std::map<fs::path, const char*> files;  // by whom they are written
  for (const auto& [name, path] : options) {
    check_output(path);
    if (path.empty() || (fs::exists(path, none) && !fs::is_regular_file(path, none))) continue;
    const fs::path file = fs::weakly_canonical(path, none);
    if (read.contains(file))
      throw output_error(std::string(name) + " " + path + ": it is an input, which the output would replace");
    const auto [first, is_new] = files.emplace(file, name);
    if (!is_new) throw output_error(std::string(name) + " " + path + ": " + first->second + " writes the same file");
  }
}

void write_output(const std::string& path, std::string_view bytes) {
  if (path.empty()) return write_all(STDOUT_FILENO, bytes, "standard output");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) throw output_error("cannot write " + path + ": it is a directory");
  if (fs::exists(status) && !fs::is_regular_file(status)) return write_in_place(path, bytes);
  const fs::path place =
      fs::is_symlink(fs::symlink_status(path, error)) ? fs::weakly_canonical(path, error) : fs::path(path);
  replace_file(error ? path : place.string(), bytes);
}

}  // namespace dr::compare
