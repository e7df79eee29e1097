// The sizes of the structs that callers pass, in the first header of version 1 that had them (VERSIONING.md). No client
// has a smaller one. A struct that grows keeps its number here; a new one gets its own.
#pragma once

#include "deepreduce/control.h"
#include "deepreduce/deepreduce.h"
#include "deepreduce/exchange.h"
#include "deepreduce/sender.h"
#include "deepreduce/transform.h"

namespace dr {

struct first_struct {
  const char* name;
  size_t size;
};
template <class T>
struct first_version;  // not defined: the struct is missing below

// (The numbers are those of LP64.)
#define DR_FIRST_SIZE(type, bytes)                                                                 \
  template <>                                                                                      \
  struct first_version<type> {                                                                     \
    static constexpr first_struct value{#type, sizeof(void*) == 8 ? size_t{bytes} : sizeof(type)}; \
    static_assert(value.size <= sizeof(type));                                                     \
  }
DR_FIRST_SIZE(dr_context_options, 40);
DR_FIRST_SIZE(dr_plan_info, 16);
DR_FIRST_SIZE(dr_stage, 64);
DR_FIRST_SIZE(dr_book_line, 40);
DR_FIRST_SIZE(dr_tensor, 88);
DR_FIRST_SIZE(dr_place, 32);
DR_FIRST_SIZE(dr_call, 88);
DR_FIRST_SIZE(dr_fault, 40);
DR_FIRST_SIZE(dr_result, 72);
DR_FIRST_SIZE(dr_batch_info, 40);
DR_FIRST_SIZE(dr_tensor_out, 64);
DR_FIRST_SIZE(dr_decode_options, 72);
DR_FIRST_SIZE(dr_frame_info, 312);
DR_FIRST_SIZE(dr_tensor_info, 304);
DR_FIRST_SIZE(dr_transport, 72);
DR_FIRST_SIZE(dr_exchange_options, 48);
DR_FIRST_SIZE(dr_exchange_info, 120);
DR_FIRST_SIZE(dr_transform_options, 32);
DR_FIRST_SIZE(dr_transform_info, 80);
DR_FIRST_SIZE(dr_loopback_options, 56);
DR_FIRST_SIZE(dr_control_info, 112);
DR_FIRST_SIZE(dr_named_tensor, 48);
DR_FIRST_SIZE(dr_sender_options, 56);
DR_FIRST_SIZE(dr_sender_info, 72);
DR_FIRST_SIZE(dr_unit_info, 80);
DR_FIRST_SIZE(dr_sent_tensor, 48);
DR_FIRST_SIZE(dr_sent, 48);
DR_FIRST_SIZE(dr_sent_rows, 40);
#undef DR_FIRST_SIZE

template <class T>
inline constexpr first_struct first_of = first_version<T>::value;

}  // namespace dr
