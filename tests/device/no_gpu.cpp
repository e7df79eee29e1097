// One library for machines with and without a GPU: where there is none, asking for it is an error with a sentence.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "deepreduce/deepreduce.h"

namespace {

void* library = nullptr;

template <class F>
F* function(const char* name, F*) {
  void* const found = dlsym(library, name);
  if (!found) {
    std::printf("no %s: %s\n", name, dlerror());
    std::exit(1);
  }
  return reinterpret_cast<F*>(found);
}
#define DR_CALL(name) function(#name, &name)

bool expect(bool is_so, const char* what) {
  if (!is_so) std::printf("not so: %s\n", what);
  return is_so;
}
#define EXPECT(...) good = expect((__VA_ARGS__), #__VA_ARGS__) && good

bool refuses(dr_status status, const dr_error& error) {
  return (status == DR_E_DEVICE || status == DR_E_UNSUPPORTED) && error.code == status &&
         std::strlen(error.message) > 10;
}

}  // namespace

int main(int, char** arguments) {
  library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  bool good = true;
  dr_context* context = nullptr;
  dr_plan* plan = nullptr;
  EXPECT(DR_CALL(dr_context_create)(nullptr, &context, nullptr) == DR_OK);
  EXPECT(DR_CALL(dr_plan_parse)("index=raw value=raw", &plan, nullptr) == DR_OK);

  dr_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = DR_F32;
  tensor.index_dtype = DR_U32;
  tensor.universe = 1000;
  tensor.width = 1;
  tensor.count = 10;
  for (const int32_t number : {0, 1, 1000, -1}) {
    const dr_place place{sizeof place, DR_PLACE_CUDA, number, nullptr, 0, 0};
    dr_batch* batch = nullptr;
    const dr_status status = DR_CALL(dr_batch_create)(context, plan, &place, &tensor, sizeof tensor, 1, 0, &batch);
    const dr_error& error = *DR_CALL(dr_last_error)(context);
    std::printf("device %d: %s\n", number, status ? error.message : "is there");
    const bool there = status == DR_OK && batch && number >= 0 && number < 1000;
    EXPECT(there || refuses(status, error));
    DR_CALL(dr_batch_destroy)(batch);
  }
  // The CPU is none the worse for it.
  dr_batch* batch = nullptr;
  EXPECT(DR_CALL(dr_batch_create)(context, plan, nullptr, &tensor, sizeof tensor, 1, 0, &batch) == DR_OK);
  DR_CALL(dr_batch_destroy)(batch);
  DR_CALL(dr_plan_destroy)(plan);
  DR_CALL(dr_context_destroy)(context);
  return good ? 0 : 1;
}
