#include "levels.hpp"

namespace dr {

TEST_CASE("a level without a function of its own has the one below's") {
  const cpu_table<const char*> full{"scalar", "avx2", "avx512", "neon"}, no_avx2{"scalar", nullptr, "avx512"},
      only_scalar{"scalar"};
  const auto named = [](const char* found, const char* name) { return !std::strcmp(found, name); };
  CHECK(named(full.at(cpu_level::scalar), "scalar"));
#if DR_NEON
  CHECK(named(full.at(cpu_level::neon), "neon"));
  CHECK(named(no_avx2.at(cpu_level::neon), "scalar"));
  CHECK(named(only_scalar.at(cpu_level::neon), "scalar"));
#else
  CHECK(named(full.at(cpu_level::avx2), "avx2"));
  CHECK(named(full.at(cpu_level::avx512), "avx512"));
  CHECK(named(no_avx2.at(cpu_level::avx2), "scalar"));
  CHECK(named(no_avx2.at(cpu_level::avx512), "avx512"));
  CHECK(named(only_scalar.at(cpu_level::avx512), "scalar"));
#endif
}

TEST_CASE("DEEPREDUCE_CPU takes levels away and adds none") {
  const char* wanted = std::getenv("DEEPREDUCE_CPU");
  CHECK(cpu() <= cpu_detected());
  if (wanted && !std::strcmp(wanted, "scalar")) CHECK(cpu() == cpu_level::scalar);
  if (!DR_NEON && wanted && !std::strcmp(wanted, "avx2")) CHECK(cpu() <= cpu_level::avx2);
  if (!wanted) CHECK(cpu() == cpu_detected());
}

}  // namespace dr
