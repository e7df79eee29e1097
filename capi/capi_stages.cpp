// The stages of plans, and what plans may name beside codecs.
#include "capi/handles.hpp"
#include "plan/named_plans.hpp"
#include "plan/stage_words.hpp"

using dr::fail;
using dr::reported;

struct dr_stages {
  dr::listed_stages listed;
};

namespace {

dr_status stage_at(const dr::listed_stages* from, const char* what, size_t position, dr_stage* stage, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!from || !stage) return fail(e, DR_E_ARGUMENT, "%s is NULL", from ? "stage" : what);
    dr_stage s;
    if (const dr_status status = dr::read_struct(stage, "stage", s, e)) return status;
    if (position >= from->all().size())
      return fail(e, DR_E_ARGUMENT, "position: %zu is not below the %zu stages", position, from->all().size());
    dr::write_struct(from->all()[position], stage);
    return DR_OK;
  });
}

}  // namespace

size_t dr_plan_stage_count(const dr_plan* plan) { return plan ? plan->bound->stages.all().size() : 0; }
dr_status dr_plan_stage(const dr_plan* plan, size_t position, dr_stage* stage, dr_error* error) {
  return stage_at(plan ? &plan->bound->stages : nullptr, "plan", position, stage, error);
}

dr_status dr_stages_parse(const char* text, dr_stages** stages, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!text || !stages) return fail(e, DR_E_ARGUMENT, "%s is NULL", text ? "stages" : "text");
    *stages = nullptr;
    std::vector<dr::plan_stage> parsed;
    if (const dr_status s = dr::read_plan(text, parsed, e)) return s;
    auto made = std::make_unique<dr_stages>();
    for (const dr::plan_stage& stage : parsed) made->listed.add(stage);
    *stages = made.release();
    return DR_OK;
  });
}
void dr_stages_destroy(dr_stages* stages) { delete stages; }
size_t dr_stages_count(const dr_stages* stages) { return stages ? stages->listed.all().size() : 0; }
dr_status dr_stages_at(const dr_stages* stages, size_t position, dr_stage* stage, dr_error* error) {
  return stage_at(stages ? &stages->listed : nullptr, "stages", position, stage, error);
}

size_t dr_stage_word_count(void) { return dr::stage_words().size(); }
const dr_stage_word* dr_stage_word_at(size_t position) {
  return position < dr::stage_words().size() ? &dr::stage_words()[position] : nullptr;
}
