// Ranks: exchanges, and the loopback.
#include <algorithm>
#include <deque>

#include "capi/handles.hpp"
#include "deepreduce/exchange.h"
#include "exchange/loopback.hpp"
#include "exchange/rank_exchange.hpp"
#include "exchange/trace_json.hpp"

using dr::fail;
using dr::in_context;
using dr::read_struct;
using dr::reported;
using dr::write_struct;

struct dr_exchange : dr::exchange {
  using exchange::exchange;

  // The caller's outputs, which get the counts.
  dr_tensor_out* callers_outs = nullptr;
  size_t callers_stride = 0;

  void write_counts() {
    const std::span<const uint64_t> rows = count_rows();
    for (size_t i = 0; i < rows.size(); ++i) {
      auto* const to = reinterpret_cast<dr_tensor_out*>(reinterpret_cast<char*>(callers_outs) + i * callers_stride);
      const uint64_t count = rows[i];
      if (dr::size_of_struct(to) >= offsetof(dr_tensor_out, count) + sizeof count)
        std::memcpy(&to->count, &count, sizeof count);
    }
  }
};

struct dr_loopback : dr::loopback {};

namespace {

struct exchange_arrays {
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs;
};
dr_status read_arrays(const dr_tensor* tensors, size_t stride, const dr_tensor_out* outs, size_t out_stride, size_t n,
                      exchange_arrays& to, dr_error& error) {
  if (const dr_status s = dr::read_array(tensors, stride, n, "tensors", to.tensors, error)) return s;
  return dr::read_array(outs, out_stride, n, "outputs", to.outs, error);
}

template <class F>
dr_status in_exchange(dr_exchange* x, F&& f) noexcept {
  if (!x) return DR_E_ARGUMENT;
  return in_context(&x->of(), [&](dr::context& c) { return f(c); });
}

}  // namespace

dr_status dr_exchange_create(dr_context* context, const dr_plan* plan, const dr_transport* transport,
                             const dr_exchange_options* options, const dr_tensor* tensors, size_t stride,
                             dr_tensor_out* outs, size_t out_stride, size_t n, dr_exchange** exchange) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!exchange) return fail(c.error, DR_E_ARGUMENT, "exchange is NULL");
    *exchange = nullptr;
    if (!transport) return fail(c.error, DR_E_ARGUMENT, "transport is NULL");
    dr::exchange_request request;
    if (const dr_status s = read_struct(transport, "transport", request.transport, c.error)) return s;
    if (const dr_status s = read_struct(options, "options", request.options, c.error)) return s;
    if (const dr_status s = dr::read_place(request.options.place, request.where, c.error)) return s;
    request.options.place = nullptr;
    if (request.where.allows_host)
      return fail(c.error, DR_E_UNSUPPORTED, "place: an exchange does not fall back to the CPU (DR_PLACE_ALLOW_HOST)");
    request.method = dr::method_of(plan);
    exchange_arrays arrays;
    if (const dr_status s = read_arrays(tensors, stride, outs, out_stride, n, arrays, c.error)) return s;
    auto x = std::make_unique<dr_exchange>(c);
    if (const dr_status s = x->create(request, std::move(arrays.tensors), std::move(arrays.outs))) return s;
    x->callers_outs = outs;
    x->callers_stride = out_stride;
    *exchange = x.release();
    return DR_OK;
  });
}

void dr_exchange_destroy(dr_exchange* exchange) { delete exchange; }

dr_status dr_exchange_rebind(dr_exchange* exchange, const dr_tensor* tensors, size_t stride, dr_tensor_out* outs,
                             size_t out_stride, size_t n) {
  return in_exchange(exchange, [&](dr::context& c) -> dr_status {
    exchange_arrays arrays;
    if (const dr_status s = read_arrays(tensors, stride, outs, out_stride, n, arrays, c.error)) return s;
    if (const dr_status s = exchange->rebind(std::move(arrays.tensors), std::move(arrays.outs))) return s;
    exchange->callers_outs = outs;
    exchange->callers_stride = out_stride;
    return DR_OK;
  });
}

dr_status dr_exchange_start(dr_exchange* exchange, const dr_call* call) {
  return in_exchange(exchange, [&](dr::context& c) -> dr_status {
    dr_call read;
    if (const dr_status s = read_struct(call, "call", read, c.error)) return s;
    if (read.flags || read.reserved || read.segment_rows || read.faults || read.tag)
      return fail(c.error, DR_E_UNSUPPORTED, "call: an exchange uses step, seeds and trace only; the rest must be 0");
    if (!call) read.step = exchange->info().calls;
    if (const dr_status s = exchange->start(read)) return s;
    exchange->begin();
    return DR_OK;
  });
}

dr_status dr_exchange_advance(dr_exchange* exchange) {
  return in_exchange(exchange, [&](dr::context&) -> dr_status {
    const dr_status status = exchange->advance();
    if (status == DR_OK) exchange->write_counts();
    return status;
  });
}

dr_status dr_exchange_cancel(dr_exchange* exchange) {
  return in_exchange(exchange, [&](dr::context&) { return exchange->cancel(); });
}

dr_status dr_exchange_read_residual(dr_exchange* exchange, uint32_t which, size_t tensor, float* residual,
                                    uint64_t elements) {
  return in_exchange(exchange,
                     [&](dr::context&) { return exchange->read_residual(which, tensor, residual, elements); });
}

dr_status dr_exchange_write_residual(dr_exchange* exchange, uint32_t which, size_t tensor, const float* residual,
                                     uint64_t elements) {
  return in_exchange(exchange,
                     [&](dr::context&) { return exchange->write_residual(which, tensor, residual, elements); });
}

dr_status dr_exchange_describe(const dr_exchange* exchange, dr_exchange_info* info, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!exchange || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", exchange ? "info" : "exchange");
    dr_exchange_info i;
    if (const dr_status s = read_struct(info, "info", i, e)) return s;
    write_struct(exchange->info(), info);
    return DR_OK;
  });
}

const char* dr_step_name(uint32_t step) { return dr::step_name(step); }

dr_status dr_exchange_trace(dr_exchange* exchange, char* json, size_t capacity, size_t* size) {
  return in_exchange(exchange, [&](dr::context& c) -> dr_status {
    if (!size || (!json && capacity)) return fail(c.error, DR_E_ARGUMENT, "%s is NULL", size ? "json" : "size");
    if (exchange->times().empty()) return fail(c.error, DR_E_ARGUMENT, "exchange: created without DR_EXCHANGE_TRACE");
    if (exchange->busy()) return fail(c.error, DR_E_ARGUMENT, "exchange: already under way");
    const std::string text = dr::trace_json(*exchange);
    *size = text.size();
    if (text.size() > capacity) {
      fail(c.error, DR_E_CAPACITY, "json: capacity %zu bytes, %zu needed", capacity, text.size());
      c.error.needed = text.size();
      return DR_E_CAPACITY;
    }
    std::memcpy(json, text.data(), text.size());
    return DR_OK;
  });
}

dr_status dr_loopback_create(const dr_loopback_options* options, dr_loopback** loopback, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!loopback || !options) return fail(e, DR_E_ARGUMENT, "%s is NULL", loopback ? "options" : "loopback");
    *loopback = nullptr;
    dr_loopback_options o;
    if (const dr_status s = read_struct(options, "options", o, e)) return s;
    auto l = std::make_unique<dr_loopback>();
    if (const dr_status s = l->create(o, e)) return s;
    *loopback = l.release();
    return DR_OK;
  });
}

void dr_loopback_destroy(dr_loopback* loopback) { delete loopback; }

dr_status dr_loopback_transport(dr_loopback* loopback, uint32_t rank, dr_transport* transport) {
  if (!loopback || !transport || rank >= loopback->ranks()) return DR_E_ARGUMENT;
  if (dr::size_of_struct(transport) < dr::first_of<dr_transport>.size) return DR_E_ARGUMENT;
  write_struct(loopback->transport(rank), transport);
  return DR_OK;
}

dr_status dr_loopback_run(dr_loopback* loopback, dr_exchange* const* exchanges, dr_status* statuses) {
  if (!loopback || !exchanges) return DR_E_ARGUMENT;
  dr_error error = dr::no_error();
  return dr::guarded(error, [&]() -> dr_status {
    const uint32_t n = loopback->ranks();
    // Ranks may share a context.
    std::vector<dr::context*> contexts;
    for (uint32_t i = 0; i < n; ++i)
      if (exchanges[i]) contexts.push_back(&exchanges[i]->of());
    std::sort(contexts.begin(), contexts.end());
    contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
    std::deque<dr::turn> turns;
    // To all contexts that this call has: which of them the caller asks is not known.
    const auto hand_on = [&](dr_status s) {
      for (const dr::turn& t : turns)
        if (t.has_turn()) t.error() = error, (void)t.end(s);
      return s;
    };
    for (dr::context* const c : contexts)
      if (const dr_status s = turns.emplace_back(*c).check()) {
        error = turns.back().error();
        return hand_on(s);
      }
    if (loopback->alike() && exchanges[0] && !exchanges[0]->stands_for_all())
      return hand_on(
          fail(error, DR_E_ARGUMENT,
               "exchanges: DR_LOOPBACK_ALIKE requires a DRY gather, owner or ring, none of whose ranges is empty"));
    for (uint32_t i = 0; i < n; ++i)
      if (exchanges[i] && !exchanges[i]->is_on(loopback->transport(i)))
        return hand_on(fail(error, DR_E_ARGUMENT, "exchanges: the one at %u is not rank %u of this loopback", i, i));
    std::vector<dr::exchange*> list(exchanges, exchanges + n);
    std::vector<dr_status> made(n);
    loopback->run(list, made);
    dr_status first = DR_OK;
    for (uint32_t i = 0; i < n; ++i) {
      if (made[i] == DR_OK && exchanges[i] && exchanges[i]->info().calls) exchanges[i]->write_counts();
      if (!first) first = made[i];
    }
    if (statuses) std::copy(made.begin(), made.end(), statuses);
    return first;
  });
}

uint64_t dr_loopback_now(const dr_loopback* loopback, uint32_t rank) {
  return loopback && rank < loopback->ranks() ? loopback->now(rank) : 0;
}
