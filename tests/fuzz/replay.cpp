// Runs a fuzz target over files, folders and packs of inputs (pack.py):  replay_decode FILE|FOLDER|FILE.pack …
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

#include "pack.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// On memory of its own, so that a read behind it is seen.
void run(const std::vector<uint8_t>& input) { LLVMFuzzerTestOneInput(input.data(), input.size()); }

}  // namespace

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::set<fs::path> files;  // in one order everywhere
  for (int i = 1; i < argc; ++i) {
    if (!fs::exists(argv[i])) {
      std::fprintf(stderr, "replay: no %s\n", argv[i]);
      return 1;
    }
    if (!fs::is_directory(argv[i]))
      files.insert(argv[i]);
    else
      for (const auto& entry : fs::recursive_directory_iterator(argv[i]))
        if (entry.is_regular_file()) files.insert(entry.path());
  }
  size_t count = 0;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<uint8_t> data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::fprintf(stderr, "%s\n", path.c_str());  // the last one named is the one that fails
    if (path.extension() == ".pack") {
      const bool whole = each_of_pack(data, [&](const std::vector<uint8_t>& input, size_t number, size_t at) {
        std::fprintf(stderr, "input %zu, byte %zu\n", number, at);
        run(input);
        ++count;
      });
      if (!whole) {
        std::fprintf(stderr, "replay: %s ends within an input\n", path.c_str());
        return 1;
      }
    } else {
      run(data);
      ++count;
    }
  }
  std::printf("%zu inputs\n", count);
  return files.empty();
}
