// Senders: many named tensors over the collectives of a framework.
#include "capi/handles.hpp"
#include "deepreduce/sender.h"
#include "sender/rank_sender.hpp"

using dr::fail;
using dr::in_context;
using dr::read_struct;
using dr::reported;
using dr::write_struct;

struct dr_sender : dr::sender {
  using sender::sender;

  std::vector<dr_plan> plans;  // of each tensor, for callers
};

namespace {

template <class F>
dr_status in_sender(dr_sender* sender, F&& f) noexcept {
  if (!sender) return DR_E_ARGUMENT;
  return in_context(&sender->of(), [&](dr::context& c) { return f(c); });
}

dr_status check_tensor(const dr_sender& sender, size_t tensor) {
  if (tensor < sender.tensors()) return DR_OK;
  return fail(sender.of().error, DR_E_ARGUMENT, "tensor: %zu is not below the %zu tensors", tensor, sender.tensors());
}

// The plan of a tensor's line; nullptr: dense.
dr_status find_plan(const dr_book* book, const dr_named_tensor& t, dr::plan_ptr& out, dr_error& error) {
  out = dr::method_of(t.plan);
  if (out || !book) return DR_OK;
  dr_book_line line{};
  line.struct_size = sizeof line;
  error = dr::no_error();
  if (const dr_status s = dr_book_match(book, t.name, &line, &error)) return s;
  out = dr::method_of(line.plan);
  return DR_OK;
}

dr_status read_named(const dr_book* book, const dr_named_tensor* tensors, size_t stride, size_t n,
                     std::vector<dr::named_tensor>& out, dr_error& error) {
  std::vector<dr_named_tensor> read;
  if (const dr_status s = dr::read_array(tensors, stride, n, "tensors", read, error)) return s;
  out.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const dr_named_tensor& t = read[i];
    const auto refuse = [&](dr_status s) {
      error.tensor = i;
      return s;
    };
    if (!t.name || !*t.name) return refuse(fail(error, DR_E_ARGUMENT, "tensor %zu: has no name", i));
    if (t.dtype != DR_F32 && t.dtype != DR_F16 && t.dtype != DR_BF16)
      return refuse(fail(error, DR_E_UNSUPPORTED, "%.80s: type %u is not f32, f16 or bf16", t.name, t.dtype));
    if (t.flags & ~static_cast<uint32_t>(DR_NAMED_ROWS))
      return refuse(fail(error, DR_E_UNSUPPORTED, "%.80s: unknown flags 0x%x", t.name, t.flags));
    if (t.elements > dr::tensor_elements_max)
      return refuse(fail(error, DR_E_ARGUMENT, "%.80s: %llu elements; at most %llu", t.name,
                         static_cast<unsigned long long>(t.elements),
                         static_cast<unsigned long long>(dr::tensor_elements_max)));
    if (t.rows && t.elements % t.rows)
      return refuse(fail(error, DR_E_ARGUMENT, "%.80s: %llu elements are not %llu rows", t.name,
                         static_cast<unsigned long long>(t.elements), static_cast<unsigned long long>(t.rows)));
    if (reinterpret_cast<uintptr_t>(t.base) % dr::value_size(t.dtype))
      return refuse(fail(error, DR_E_ARGUMENT, "%.80s: base is not aligned to its type", t.name));
    dr::named_tensor made;
    made.name = t.name;
    made.dtype = t.dtype;
    made.is_rows = t.flags & DR_NAMED_ROWS;
    made.elements = t.elements;
    made.rows = std::max<uint64_t>(1, t.rows);
    made.base = t.base;
    if (const dr_status s = find_plan(book, t, made.method, error)) return refuse(s);
    out.push_back(std::move(made));
  }
  return DR_OK;
}

dr::sender_options options_of(const dr_sender_options& o) {
  dr::sender_options made;
  made.ranks = std::max(1u, o.ranks);
  made.rank = o.rank;
  made.flags = o.flags;
  made.rules.flat = o.flat;
  made.rules.dense_below = o.dense_below;
  made.rules.unit_bytes = o.unit_bytes;
  made.seed = o.seed;
  if (o.numbers) made.numbers.assign(o.numbers, o.numbers + made.ranks);
  return made;
}

// Runs a call that fills a dr_sent, however it ends.
template <class F>
dr_status with_sent(dr_sender* sender, const dr_call* call, dr_sent* result, F&& f) noexcept {
  dr_sent made{};
  const dr_status status = in_sender(sender, [&](dr::context& c) -> dr_status {
    dr_sent readable;
    if (const dr_status s = read_struct(result, "result", readable, c.error)) return s;
    dr_call read;
    if (const dr_status s = read_struct(call, "call", read, c.error)) return s;
    return f(read, made);
  });
  if (sender && result && dr::size_of_struct(result) >= dr::struct_size_min) write_struct(made, result);
  return status;
}

}  // namespace

dr_status dr_sender_create(dr_context* context, const dr_place* place, const dr_book* book,
                           const dr_named_tensor* tensors, size_t stride, size_t n, const dr_sender_options* options,
                           dr_sender** sender) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!sender) return fail(c.error, DR_E_ARGUMENT, "sender is NULL");
    *sender = nullptr;
    dr::target where;
    if (const dr_status s = dr::read_place(place, where, c.error)) return s;
    if (where.allows_host)
      return fail(c.error, DR_E_UNSUPPORTED, "place: a sender does not fall back to the CPU (DR_PLACE_ALLOW_HOST)");
    dr_sender_options o;
    if (const dr_status s = read_struct(options, "options", o, c.error)) return s;
    if (!options) o.dense_below = DR_DENSE_BELOW_BY_PLAN;
    if (o.ranks > UINT16_MAX + 1u) return fail(c.error, DR_E_ARGUMENT, "options: %u ranks, not in 1 … 65536", o.ranks);
    std::vector<dr::named_tensor> named;
    if (const dr_status s = read_named(book, tensors, stride, n, named, c.error)) return s;
    auto made = std::make_unique<dr_sender>(c, where);
    if (const dr_status s = made->create(std::move(named), options_of(o))) return s;
    for (size_t i = 0; i < n; ++i) made->plans.push_back({made->method_of(i)});
    *sender = made.release();
    return DR_OK;
  });
}

void dr_sender_destroy(dr_sender* sender) { delete sender; }

dr_status dr_sender_describe(const dr_sender* sender, dr_sender_info* info, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!sender || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", sender ? "info" : "sender");
    dr_sender_info i;
    if (const dr_status s = read_struct(info, "info", i, e)) return s;
    write_struct(sender->info(), info);
    return DR_OK;
  });
}

dr_status dr_sender_unit(const dr_sender* sender, size_t unit, dr_unit_info* info, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!sender || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", sender ? "info" : "sender");
    dr_unit_info i;
    if (const dr_status s = read_struct(info, "info", i, e)) return s;
    if (unit >= sender->units())
      return fail(e, DR_E_ARGUMENT, "unit: %zu is not below the %zu units", unit, sender->units());
    write_struct(sender->unit_info(unit), info);
    return DR_OK;
  });
}

dr_status dr_sender_tensor(const dr_sender* sender, size_t tensor, dr_sent_tensor* info, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!sender || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", sender ? "info" : "sender");
    dr_sent_tensor i;
    if (const dr_status s = read_struct(info, "info", i, e)) return s;
    if (tensor >= sender->tensors())
      return fail(e, DR_E_ARGUMENT, "tensor: %zu is not below the %zu tensors", tensor, sender->tensors());
    i = sender->tensor_info(tensor);
    i.plan = &sender->plans[tensor];
    write_struct(i, info);
    return DR_OK;
  });
}

dr_status dr_sender_place(dr_sender* sender, size_t first, size_t n, const void* const* in, void* const* out,
                          void* const* states) {
  return in_sender(sender, [&](dr::context&) -> dr_status {
    if (const dr_status s = sender->check_place(first, n, in, out, states)) return s;
    sender->place(first, {in, in ? n : 0}, {out, out ? n : 0}, {states, states ? n : 0});
    return DR_OK;
  });
}

dr_status dr_sender_place_rows(dr_sender* sender, size_t tensor, const dr_sent_rows* rows) {
  return in_sender(sender, [&](dr::context& c) -> dr_status {
    if (!rows) return fail(c.error, DR_E_ARGUMENT, "rows is NULL");
    dr_sent_rows read;
    if (const dr_status s = read_struct(rows, "rows", read, c.error)) return s;
    if (const dr_status s = check_tensor(*sender, tensor)) return s;
    if (read.reserved) return fail(c.error, DR_E_UNSUPPORTED, "rows: reserved is not 0");
    return sender->place_rows(tensor, read);
  });
}

dr_status dr_sender_rows(dr_sender* sender, size_t tensor, dr_sent_rows* rows) {
  return in_sender(sender, [&](dr::context& c) -> dr_status {
    if (!rows) return fail(c.error, DR_E_ARGUMENT, "rows is NULL");
    dr_sent_rows made;
    if (const dr_status s = read_struct(rows, "rows", made, c.error)) return s;
    if (const dr_status s = check_tensor(*sender, tensor)) return s;
    if (const dr_status s = sender->rows_of(tensor, made)) return s;
    write_struct(made, rows);
    return DR_OK;
  });
}

dr_status dr_sender_clip(dr_sender* sender) {
  return in_sender(sender, [&](dr::context&) { return sender->clip(); });
}

dr_status dr_sender_encode(dr_sender* sender, size_t unit, const dr_call* call, void* slots, size_t capacity,
                           dr_sent* result) {
  return with_sent(sender, call, result, [&](const dr_call& read, dr_sent& made) {
    return sender->encode(unit, read, slots, capacity, made);
  });
}

dr_status dr_sender_sum(dr_sender* sender, size_t unit, const dr_call* call, const dr_bytes* slots, size_t ranks,
                        void* slot, size_t capacity, dr_sent* result) {
  return with_sent(sender, call, result, [&](const dr_call& read, dr_sent& made) -> dr_status {
    if (!slots && ranks) return fail(sender->of().error, DR_E_ARGUMENT, "slots is NULL");
    return sender->sum(unit, read, {slots, ranks}, slot, capacity, made);
  });
}

dr_status dr_sender_merge(dr_sender* sender, size_t unit, const dr_call* call, const dr_bytes* slots, size_t ranks,
                          dr_sent* result) {
  return with_sent(sender, call, result, [&](const dr_call& read, dr_sent& made) -> dr_status {
    if (!slots && ranks) return fail(sender->of().error, DR_E_ARGUMENT, "slots is NULL");
    return sender->merge(unit, read, {slots, ranks}, made);
  });
}

dr_status dr_sender_check(dr_sender* sender, uint64_t step, dr_sent* result) {
  dr_sent made{};
  const dr_status status = in_sender(sender, [&](dr::context& c) -> dr_status {
    dr_sent readable;
    if (const dr_status s = read_struct(result, "result", readable, c.error)) return s;
    return sender->check(step, made);
  });
  if (sender && result && dr::size_of_struct(result) >= dr::struct_size_min) write_struct(made, result);
  return status;
}

dr_status dr_sender_use_stream(dr_sender* sender, void* stream) {
  return in_sender(sender, [&](dr::context&) { return sender->use_stream(stream); });
}

dr_status dr_sender_take_back(dr_sender* sender, uint64_t step) {
  return in_sender(sender, [&](dr::context&) { return sender->take_back(step); });
}

dr_status dr_sender_skip(dr_sender* sender, uint64_t step) {
  return in_sender(sender, [&](dr::context&) {
    sender->skip(step);
    return dr_status{DR_OK};
  });
}

size_t dr_sender_behind(const dr_sender* sender, uint32_t* ranks, size_t capacity) {
  if (!sender) return 0;
  const std::span<const uint32_t> behind = sender->behind();
  if (ranks) std::copy_n(behind.begin(), std::min(capacity, behind.size()), ranks);
  return behind.size();
}

dr_status dr_sender_read_state(dr_sender* sender, size_t tensor, uint32_t which, void* state, size_t size) {
  return in_sender(sender, [&](dr::context&) -> dr_status {
    if (const dr_status s = check_tensor(*sender, tensor)) return s;
    return sender->read_state(tensor, which, state, size);
  });
}

dr_status dr_sender_write_state(dr_sender* sender, size_t tensor, uint32_t which, const void* state, size_t size) {
  return in_sender(sender, [&](dr::context&) -> dr_status {
    if (const dr_status s = check_tensor(*sender, tensor)) return s;
    return sender->write_state(tensor, which, state, size);
  });
}

dr_status dr_sender_scale(dr_sender* sender, double factor) {
  return in_sender(sender, [&](dr::context&) { return sender->scale(factor); });
}

dr_status dr_sender_resume(dr_sender* sender, uint64_t failures, uint64_t failed) {
  return in_sender(sender, [&](dr::context&) { return sender->resume(failures, failed); });
}
