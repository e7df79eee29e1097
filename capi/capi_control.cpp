// Ranks: which plan to send. The controller, and the ladder that it climbs.
#include <algorithm>
#include <cstring>
#include <memory>

#include "capi/guard.hpp"
#include "control/controller.hpp"
#include "core/versioned.hpp"
#include "deepreduce/control.h"

using dr::fail;
using dr::reported;

struct dr_control : dr::controller {};

dr_status dr_control_create(const char* options, const uint64_t* bytes, size_t rungs, dr_control** control,
                            dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!control || !options) return fail(e, DR_E_ARGUMENT, "%s is NULL", options ? "control" : "options");
    *control = nullptr;
    auto c = std::make_unique<dr_control>();
    if (const dr_status s = c->create(options, bytes, rungs, e)) return s;
    *control = c.release();
    return DR_OK;
  });
}

void dr_control_destroy(dr_control* control) { delete control; }

dr_status dr_control_observe(dr_control* control, uint64_t bytes, uint64_t transfer_ns) {
  if (!control) return DR_E_ARGUMENT;
  control->observe(bytes, transfer_ns);
  return DR_OK;
}

dr_status dr_control_report(const dr_control* control, uint64_t* words) {
  if (!control || !words) return DR_E_ARGUMENT;
  const dr::controller::words own = control->report();
  std::copy(own.begin(), own.end(), words);
  return DR_OK;
}

dr_status dr_control_decide(dr_control* control, uint64_t step, const uint64_t* words, size_t ranks, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!control || !words) return fail(e, DR_E_ARGUMENT, "%s is NULL", control ? "words" : "control");
    if (ranks == 0) return fail(e, DR_E_ARGUMENT, "control: words of 0 ranks");
    return control->decide(step, words, ranks, e);
  });
}

dr_status dr_control_describe(const dr_control* control, dr_control_info* info, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!control || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", control ? "info" : "control");
    dr_control_info i;
    if (const dr_status s = dr::read_struct(info, "info", i, e)) return s;
    dr::write_struct(control->info(), info);
    return DR_OK;
  });
}

dr_status dr_control_log(const dr_control* control, char* json, size_t capacity, size_t* size) {
  if (!control || !size || (!json && capacity)) return DR_E_ARGUMENT;
  char line[1024];
  *size = control->write_log(line, sizeof line);
  if (*size > capacity) return DR_E_CAPACITY;
  std::memcpy(json, line, *size);
  return DR_OK;
}

const char* dr_control_reason(uint32_t reason) { return dr::control_reason(reason); }
