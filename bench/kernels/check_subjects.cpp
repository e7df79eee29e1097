// The frame's check, of a payload after a short header.
#include <memory>

#include "kernel_subjects.hpp"
#include "primitive/check.hpp"

namespace dr::bench {

void add_check(subjects& all) {
  for (const uint64_t n : {uint64_t{16384}, uint64_t{2000000}}) {
    auto bytes = std::make_shared<std::vector<uint8_t>>(n + 28);
    auto sum = std::make_shared<uint64_t>();
    for (uint64_t i = 0; i < bytes->size(); ++i) (*bytes)[i] = static_cast<uint8_t>(draw(1, i));
    all.push_back({"frame check",
                   "n=" + std::to_string(n),
                   "byte",
                   static_cast<double>(n),
                   static_cast<double>(n),
                   {cpu_level::scalar, cpu_level::avx2, cpu_level::avx512},
                   [=](cpu_level level) { *sum = check_terms.at(level)(bytes->data() + 28, n / 4, 0); },
                   [=] { return digest_of(reinterpret_cast<const uint8_t*>(sum.get()), sizeof *sum); }});
  }
}

}  // namespace dr::bench
