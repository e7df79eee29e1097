// The stages of a plan: role, name and typed parameters, so that no caller reads its text.
#include <map>

#include "client.hpp"

namespace {

std::vector<dr_stage> stages_of(const dr_plan* plan) {
  std::vector<dr_stage> list(dr_plan_stage_count(plan));
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].struct_size = sizeof(dr_stage);
    REQUIRE(dr_plan_stage(plan, i, &list[i], nullptr) == DR_OK);
  }
  return list;
}

const dr_stage& stage_of(const std::vector<dr_stage>& list, const std::string& role, uint32_t position = 0) {
  for (const dr_stage& s : list)
    if (s.role == role && s.position == position) return s;
  FAIL(role);
  return list[0];
}

const dr_stage_param& param_of(const dr_stage& stage, const std::string& name) {
  for (size_t i = 0; i < stage.param_count; ++i)
    if (name == dr_stage_param_at(&stage, i)->name) return *dr_stage_param_at(&stage, i);
  FAIL(name);
  return stage.params[0];
}

std::string text_of(const dr_plan* plan) { return dr_plan_text(plan); }

// The text of plan.with(stages), or the sentence.
std::string with(const std::string& text, const std::string& stages) {
  const client::plan p(text);
  dr_plan* made = nullptr;
  dr_error e{sizeof(dr_error)};
  if (dr_plan_with(p.handle, stages.c_str(), &made, &e) != DR_OK) return std::string("refused: ") + e.message;
  const std::string found = text_of(made);
  dr_plan_destroy(made);
  return found;
}

}  // namespace

TEST_CASE("a plan's stages are role, name and typed parameters, also those that its text leaves out") {
  const client::plan p(
      "exchange=hierarchy(inner=8) sparsify=topr(ratio=0.01) feedback=residual(gamma=0.5) index=bloom(policy=p2) "
      "value=raw+zstd");
  const std::vector<dr_stage> list = stages_of(p.handle);
  std::string roles;
  for (const dr_stage& s : list) roles += std::string(roles.empty() ? "" : " ") + s.role + '=' + s.name;
  CHECK(roles ==
        "sparsify=topr feedback=residual index=bloom value=raw value=zstd regather=on bucket=none merge=mean "
        "exchange=hierarchy transform=none");
  const dr_stage_param& ratio = param_of(stage_of(list, "sparsify"), "ratio");
  CHECK(ratio.number == 0.01);
  CHECK(std::string(ratio.text) == "0.01");
  CHECK(ratio.type == DR_PARAM_REAL);
  CHECK(ratio.is_default == 0);
  CHECK(ratio.declared->maximum == 1);
  CHECK(param_of(stage_of(list, "feedback"), "gamma").is_default == 0);
  const dr_stage_param& beta = param_of(stage_of(list, "feedback"), "beta");
  CHECK(beta.number == 1);
  CHECK(beta.is_default == 1);
  const dr_stage_param& policy = param_of(stage_of(list, "index"), "policy");
  CHECK(policy.type == DR_PARAM_CHOICE);
  CHECK(std::string(policy.text) == "p2");
  CHECK(std::string(policy.declared->choices).find("p2") != std::string::npos);
  CHECK(stage_of(list, "value").codec->role == DR_ROLE_VALUE);
  CHECK(stage_of(list, "value", 1).codec->role == DR_ROLE_BYTES);
  CHECK(std::string(stage_of(list, "value", 1).text) == "value=raw+zstd");
  const dr_stage& exchange = stage_of(list, "exchange");
  CHECK(exchange.codec == nullptr);
  CHECK(param_of(exchange, "inner").number == 8);
  CHECK(param_of(exchange, "inner").type == DR_PARAM_INT);
  CHECK(param_of(exchange, "parts").is_default == 1);
  CHECK(std::string(exchange.text) == "exchange=hierarchy(inner=8)");
}

TEST_CASE("the canonical text of a plan is that of its stages which are not the default") {
  for (const std::string text :
       {"index=raw value=raw", "sparsify=none index=auto value=auto(error=0.07)", "signsgd", "dgc", "recommended",
        "transform=lowrank(rank=3)", "SKCompress", "index=bloom(policy=naive,fpr=0.01) value=fit_poly",
        "sparsify=blocks(ratio=0.01) bucket=flat exchange=owner(parts=4) index=golomb", "patch",
        "sparsify=topr(ratio=0.1) value=fit_poly order=bitpack+zstd index=golomb exchange=gather(parts=2)"}) {
    const client::plan p(text);
    std::string left, all;
    for (const dr_stage& s : stages_of(p.handle)) {
      if (s.position) continue;
      all += s.text + std::string(" ");
      if (!s.is_default) left += (left.empty() ? "" : " ") + std::string(s.text);
    }
    CHECK(left == text_of(p.handle));
    CHECK(text_of(client::plan(all).handle) == left);  // what is left out changes nothing
  }
}

TEST_CASE("equal plans have equal stages, whatever their texts gave") {
  const client::plan a("index=golomb(block=12) value=raw exchange=gather(parts=1) feedback=none"), b("index=golomb");
  const auto x = stages_of(a.handle), y = stages_of(b.handle);
  REQUIRE(x.size() == y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    CHECK(std::string(x[i].text) == y[i].text);
    CHECK(x[i].is_default == y[i].is_default);
    for (size_t k = 0; k < x[i].param_count; ++k) CHECK(x[i].params[k].is_default == y[i].params[k].is_default);
  }
}

TEST_CASE("plans beside others: a transform=lowrank stays, a transform=dct goes on with all coefficients") {
  const auto beside = [](const std::string& text, decltype(&dr_plan_exact) make) {
    const client::plan p(text);
    dr_plan* made = nullptr;
    REQUIRE(make(p.handle, &made, nullptr) == DR_OK);
    const std::string found = text_of(made);
    dr_plan_destroy(made);
    return found;
  };
  const std::string lowrank = "transform=lowrank(rank=2) feedback=residual",
                    dct = "transform=dct sparsify=topr(ratio=0.1) index=golomb value=half feedback=residual";
  CHECK(beside(lowrank, dr_plan_exact) == lowrank);
  CHECK(beside(lowrank, dr_plan_rows) == "index=golomb value=raw");
  CHECK(beside(dct, dr_plan_exact) == "feedback=residual index=all value=raw transform=dct");
  CHECK(beside(dct, dr_plan_rows) == "index=golomb value=half");
}

TEST_CASE("a plan is made of another by stages that replace its own") {
  const std::string top = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw";
  CHECK(with(top, "feedback=none") == "sparsify=topr(ratio=0.01) index=golomb value=raw");
  CHECK(with(top, "bucket=flat exchange=owner(parts=4)") == top + " bucket=flat exchange=owner(parts=4)");
  CHECK(with(top + " bucket=flat exchange=ring", "bucket=none exchange=gather") == top);
  CHECK(with(top, "sparsify=none index=all") == "feedback=residual index=all value=raw");
  CHECK(with("recommended", "feedback=none bucket=none exchange=gather") == "transform=lowrank(rank=4)");
  CHECK(with("recommended", "transform=none index=all") == "feedback=residual index=all value=raw");
  CHECK(with(top, "") == top);
  CHECK(with(top, "feedback=nobody").find("refused: plan: no feedback codec is called 'nobody'") == 0);
  CHECK(with("recommended", "exchange=ring").find("leave out exchange=") != std::string::npos);
  CHECK(with("recommended", "exchange=gather(parts=2)").find("leave out exchange=") != std::string::npos);
  CHECK(with(top, "dgc").find("refused: plan: '='") == 0);
}

TEST_CASE("words that are not codecs declare their parameters as codecs do, and refuse them in the same sentences") {
  std::map<std::string, const dr_stage_word*> words;
  for (size_t i = 0; i < dr_stage_word_count(); ++i) {
    const dr_stage_word* const w = dr_stage_word_at(i);
    CHECK(w->struct_size == sizeof(dr_stage_word));
    words[std::string(w->role) + '=' + w->name] = w;
  }
  CHECK(dr_stage_word_at(dr_stage_word_count()) == nullptr);
  CHECK(words.at("exchange=owner")->param_count == 1);
  CHECK(std::string(words.at("exchange=owner")->params[0].name) == "parts");
  CHECK(words.at("exchange=hierarchy")->params[0].required == 1);
  CHECK(words.at("transform=lowrank")->params[0].maximum == 4096);
  CHECK(words.at("index=auto")->param_count == 0);
  const auto said = [](const char* plan) {
    dr_plan* p = nullptr;
    dr_error e{sizeof(dr_error)};
    CHECK(dr_plan_parse(plan, &p, &e) == DR_E_ARGUMENT);
    return std::string(e.message);
  };
  CHECK(said("value=auto") == "plan: auto needs error=…, relative L2 error");
  CHECK(said("value=auto(error=1)") == "plan: auto(error=1): not in 0 … 0.9999999999999999");
  CHECK(said("value=auto(bits=1)") == "plan: auto has no parameter 'bits'; it has: error");
  CHECK(said("index=auto(error=1)") == "plan: auto has no parameter 'error'; it has: none");
  CHECK(said("index=golomb(bits=1)").find("plan: golomb has no parameter 'bits'; it has: ") == 0);
  CHECK(said("exchange=owner(parts=x)") == "plan: owner(parts=x): not a number");
  CHECK(said("bucket=flat(on=1)") == "plan: flat has no parameter 'on'; it has: none");
  CHECK(said("regather=off+zstd") == "plan: regather= requires one name");
}

TEST_CASE("a text of names that this library does not know has stages, too") {
  dr_stages* stages = nullptr;
  dr_error e{sizeof(dr_error)};
  REQUIRE(dr_stages_parse("index=mine(K=3,mode=fast)+zstd  where=ever", &stages, &e) == DR_OK);
  REQUIRE(dr_stages_count(stages) == 3);
  dr_stage s{sizeof(dr_stage)};
  REQUIRE(dr_stages_at(stages, 0, &s, &e) == DR_OK);
  CHECK(std::string(s.role) == "index");
  CHECK(std::string(s.name) == "mine");
  CHECK(s.codec == nullptr);
  CHECK(std::string(s.text) == "index=mine(K=3,mode=fast)+zstd");
  CHECK(std::string(param_of(s, "K").text) == "3");
  CHECK(param_of(s, "mode").type == 0);
  REQUIRE(dr_stages_at(stages, 1, &s, &e) == DR_OK);
  CHECK(std::string(s.name) == "zstd");
  CHECK(s.position == 1);
  CHECK(dr_stages_at(stages, 3, &s, &e) == DR_E_ARGUMENT);
  CHECK(std::string(e.message) == "position: 3 is not below the 3 stages");
  dr_stages_destroy(stages);
  CHECK(dr_stages_parse("index=mine(", &stages, &e) == DR_E_ARGUMENT);
  CHECK(stages == nullptr);
  REQUIRE(dr_stages_parse("terngrad", &stages, &e) == DR_OK);  // a preset is its stages
  CHECK(dr_stages_count(stages) == 3);
  dr_stages_destroy(stages);
}
