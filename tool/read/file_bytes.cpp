#include "file_bytes.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <utility>
#include <vector>

#include "inputs.hpp"

namespace dr::compare {

namespace {

// Below it a file is read: that costs nothing, and a change meanwhile is noticed.
constexpr uint64_t mapped_from = uint64_t{1} << 24;

class descriptor {
 public:
  explicit descriptor(const std::string& path) : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (number_ < 0) refuse(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  ~descriptor() { ::close(number_); }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  operator int() const { return number_; }

 private:
  int number_;
};

// If a mapped file is truncated later, reading past its new end raises SIGBUS.
void on_bus_error(int) {
  static constexpr char sentence[] = "deepreduce: an input was cut off while it was read; wait until it is written\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, sentence, sizeof sentence - 1);
  ::_exit(2);
}

file_bytes map(int file, uint64_t size, const std::string& path) {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_handler = on_bus_error;
    ::sigaction(SIGBUS, &action, nullptr);
  });
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (memory == MAP_FAILED) refuse(path, fmt::format("cannot be mapped: {}", std::strerror(errno)));
  ::madvise(memory, size, MADV_SEQUENTIAL);
  return {{static_cast<const std::byte*>(memory), size}, {memory, [size](void* m) { ::munmap(m, size); }}};
}

file_bytes read(int file, uint64_t size, const std::string& path) {
  tensor_bytes memory(size + 1);  // one more than there should be
  const std::span<std::byte> room = memory.writable();
  uint64_t got = 0;
  while (got < room.size()) {
    const ssize_t n = ::read(file, room.data() + got, room.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(path, got, fmt::format("cannot be read: {}", std::strerror(errno)));
    if (n == 0) break;
    got += static_cast<uint64_t>(n);
  }
  if (got != size) {
    refuse(path, std::min(got, size),
           fmt::format("is not the {} bytes that it was when opened; wait until it is written", size));
  }
  return {room.first(size), memory.owner()};
}

}  // namespace

file_bytes open_file(const std::string& path) {
  const descriptor file(path);
  struct stat status {};
  if (::fstat(file, &status) != 0) refuse(path, fmt::format("cannot be looked at: {}", std::strerror(errno)));
  const auto size = static_cast<uint64_t>(status.st_size);
  return size < mapped_from ? read(file, size, path) : map(file, size, path);
}

}  // namespace dr::compare
