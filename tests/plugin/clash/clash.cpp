// Plug-ins that must be refused, one a build: CLASH says why. The first codec of each is sound and must not stay behind.
#include <deepreduce/codec.hpp>

#define EXPORTED extern "C" __attribute__((visibility("default")))

#if CLASH == 5  // exports something else
EXPORTED const int another_symbol = 0;
#else

enum { clash_name = 1, clash_id = 2, clash_version = 3, clash_builtin_id = 4, clash_namesake = 6 };

namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 4 * job.count_max * job.width;
  return true;
}
void nothing(const dr_params&, const dr_job&, std::byte*) {}

constexpr dr_ops cpu{.struct_size = sizeof(dr_ops),
                     .resolve = nullptr,
                     .need = dr::each_need<need>,
                     .cost = nullptr,
                     .encode = dr::each_job<nothing>,
                     .decode = dr::each_job<nothing>,
                     .launches = {}};

dr_codec codec(const char* name, uint32_t id) {
  dr_codec c{};
  c.struct_size = sizeof c;
  c.name = name;
  c.summary = "";
  c.id = id;
  c.role = DR_ROLE_VALUE;
  c.traits = DR_EXACT;
  c.dtypes = dr::all_value_dtypes;
  c.cpu = &cpu;
  return c;
}

}  // namespace

EXPORTED const dr_codec* const* dr_plugin_v2(const dr_host*, size_t* count) {
  static const dr_codec sound = codec("sound_but_unlucky", dr_private_id("org.example.sound"));
  static const dr_codec other = CLASH == clash_name       ? codec("zigzag", dr_private_id("org.example.another"))
                                : CLASH == clash_id       ? codec("zagzig", dr_private_id("org.example.zigzag"))
                                : CLASH == clash_namesake ? codec("qsgd", dr_private_id("org.example.second_qsgd"))
                                                          : codec("intruder", 17);
  static const dr_codec* const all[] = {&sound, &other};
  *count = 2;
  return CLASH == clash_version ? nullptr : all;
}
#endif
