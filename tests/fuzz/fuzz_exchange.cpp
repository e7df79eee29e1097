// A hostile peer: ranks exchange over a transport that does to its messages what the input says: changes, cuts, repeats, delays or drops
// them, or puts others in their place, with their checks put right. Every honest rank ends in time, with a status that it documents and a
// rank to blame; what it held stays sound, its outputs are untouched if it failed, and a next exchange works or fails as cleanly.
//
// Input: ranks, plan, schedule, tensors; then for each message of the hostile rank what becomes of it.
#include <deepreduce/exchange.h>

#include <cmath>
#include <deque>
#include <memory>
#include <string>

#include "fuzz/fix_check.hpp"
#include "fuzz/script.hpp"

namespace {

using fuzz::bytes;
using fuzz::script;
using fuzz::wrong;

constexpr uint64_t timeout_ns = 100'000, turn_ns = 1'000;
constexpr float untouched = -7;

// ---- Verdicts: what ranks tell one another before an output is written (lib/exchange/verdict.hpp) --------------

constexpr size_t verdict_size = 256, verdict_check = 72;
constexpr uint32_t verdict_magic = 0x56586472;

bool is_verdict(const bytes& message) {
  return message.size() == verdict_size && frame_check::number(message.data(), 4) == verdict_magic;
}

void seal_verdict(bytes& v) {
  frame_check::put(v.data() + verdict_check, 0);
  uint64_t sum = 0x9e3779b97f4a7c15;
  for (size_t i = 0; i < v.size(); i += 8) sum = frame_check::combine(sum, frame_check::number(v.data() + i, 8));
  frame_check::put(v.data() + verdict_check, sum);
}

// ---- Transport ------------------------------------------------------------------------------------------

struct message {
  uint32_t from, to, tag;
  bytes data;
  uint64_t arrives;
};
struct receive {
  uint32_t from, to, tag;
  uint8_t* room;
  size_t capacity;
  bool open;
};

struct network {
  script& orders;
  uint32_t hostile;
  uint64_t clock = 0;
  std::deque<message> under_way;
  std::vector<receive> receives;  // a request is a number in it; those of sends are over at once

  static constexpr uint64_t sent = UINT64_MAX;

  // What becomes of a message of the hostile rank.
  void send(message m) {
    const uint8_t order = m.from == hostile ? orders.byte() : 0;
    const bool repaired = !(order & 16);
    switch (order & 15) {
      case 0: break;
      case 1: return;  // lost
      case 2: m.arrives += uint64_t{orders.byte()} * turn_ns; break;
      case 3: m.data.resize(m.data.size() - std::min<size_t>(m.data.size(), 1 + orders.byte())); break;
      case 4: {
        const bytes more = orders.take(1 + orders.byte() % 16);
        m.data.insert(m.data.end(), more.begin(), more.end());
        break;
      }
      case 5: m.data = orders.take(orders.number(2)); break;
      case 6: under_way.push_back(m); break;  // twice
      case 7: m.tag ^= orders.byte(); break;
      default:
        for (uint8_t changes = 1 + order % 4; changes > 0 && !m.data.empty(); --changes) {
          const uint64_t at = orders.up_to(m.data.size() - 1);
          m.data[at] ^= orders.byte();
        }
    }
    if (order && repaired) {
      if (is_verdict(m.data))
        seal_verdict(m.data);
      else
        frame_check::fix(m.data.data(), m.data.size());
    }
    under_way.push_back(std::move(m));
  }

  dr_status test(uint64_t request, size_t* size) {
    if (request == sent) return DR_OK;
    receive& r = receives[request];
    if (!r.open) wrong("a request is tested that is over");
    for (auto m = under_way.begin(); m != under_way.end(); ++m) {
      if (m->from != r.from || m->to != r.to || m->tag != r.tag) continue;
      if (m->arrives > clock) return DR_PENDING;
      r.open = false;
      const size_t n = m->data.size();
      const bool fits = n <= r.capacity;
      if (fits && n) std::memcpy(r.room, m->data.data(), n);
      under_way.erase(m);
      *size = n;
      return fits ? DR_OK : DR_E_CAPACITY;
    }
    return DR_PENDING;
  }
};

struct port {
  network* net;
  uint32_t rank;

  dr_transport transport(uint32_t ranks) {
    dr_transport t{};
    t.struct_size = sizeof t;
    t.user = this;
    t.ranks = ranks;
    t.rank = rank;
    t.send = [](void* user, uint32_t peer, uint32_t tag, const void* data, size_t size,
                uint64_t* request) -> dr_status {
      const port& p = *static_cast<port*>(user);
      const auto* const from = static_cast<const uint8_t*>(data);
      *request = network::sent;
      p.net->send({p.rank, peer, tag, bytes(from, from + size), p.net->clock});
      return DR_OK;
    };
    t.recv = [](void* user, uint32_t peer, uint32_t tag, void* data, size_t capacity, uint64_t* request) -> dr_status {
      const port& p = *static_cast<port*>(user);
      *request = p.net->receives.size();
      p.net->receives.push_back({peer, p.rank, tag, static_cast<uint8_t*>(data), capacity, true});
      return DR_OK;
    };
    t.test = [](void* user, uint64_t request, size_t* size) {
      return static_cast<port*>(user)->net->test(request, size);
    };
    t.cancel = [](void* user, uint64_t request) -> dr_status {
      if (request != network::sent) static_cast<port*>(user)->net->receives[request].open = false;
      return DR_OK;
    };
    t.now = [](void* user) { return static_cast<port*>(user)->net->clock; };
    return t;
  }
};

// ---- Ranks ----------------------------------------------------------------------------------------------

// The tensors of all ranks, and what is asked of the exchange.
struct task {
  std::vector<uint32_t> rows;  // of each tensor
  uint32_t width = 1;
  bool sparse_in = false, sparse_out = false, sums = false, small_dense = false;
};

struct rank {
  port at;
  dr_context* context = nullptr;
  dr_exchange* exchange = nullptr;
  std::vector<std::vector<float>> in, out;
  std::vector<std::vector<uint32_t>> keys, out_keys;  // of sparse ones
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs;
  dr_status status = DR_PENDING;

  ~rank() {
    dr_exchange_destroy(exchange);
    dr_context_destroy(context);
  }

  bool create(network& net, uint32_t number, uint32_t ranks, const dr_plan* plan, const task& what) {
    at = {&net, number};
    if (dr_context_create(nullptr, &context, nullptr)) wrong("no context");
    for (const uint32_t rows : what.rows) {
      std::vector<uint32_t>& own = keys.emplace_back();  // every third row or so, others on each rank
      for (uint32_t i = number % 3; i < rows && what.sparse_in; i += 2 + (i + number) % 3) own.push_back(i);
      own.reserve(rows);
      std::vector<float>& values = in.emplace_back(size_t{rows} * what.width);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 37 + number * 11) % 64) - 31;
      out.emplace_back(size_t{rows} * what.width, untouched);
      out_keys.emplace_back(what.sparse_out ? rows : 0);
    }
    for (size_t i = 0; i < what.rows.size(); ++i) {
      dr_tensor t{};
      t.struct_size = sizeof t;
      t.dtype = DR_F32;
      t.universe = what.rows[i];
      t.width = what.width;
      t.values = in[i].data();
      if (what.sparse_in) t.index_dtype = DR_U32, t.indices = keys[i].data(), t.count = what.rows[i];
      tensors.push_back(t);
      dr_tensor_out o{};
      o.struct_size = sizeof o;
      o.dtype = DR_F32;
      o.universe = what.rows[i];
      o.width = what.width;
      o.values = out[i].data();
      if (what.sparse_out) o.index_dtype = DR_U32, o.indices = out_keys[i].data(), o.capacity = what.rows[i];
      outs.push_back(o);
    }
    const dr_transport t = at.transport(ranks);
    dr_exchange_options options{};
    options.struct_size = sizeof options;
    options.flags = what.sums ? DR_EXCHANGE_SUM : 0;
    options.timeout_ns = timeout_ns;
    options.dense_below = what.small_dense ? 8 : 0;
    const dr_status s = dr_exchange_create(context, plan, &t, &options, tensors.data(), sizeof(dr_tensor), outs.data(),
                                           sizeof(dr_tensor_out), tensors.size(), &exchange);
    if (s && s != DR_E_ARGUMENT && s != DR_E_UNSUPPORTED) wrong(dr_status_name(s), dr_last_error(context)->message);
    if (s || !what.sparse_in) return s == DR_OK;
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].count = keys[i].size();  // fewer than there is room for
    if (dr_exchange_rebind(exchange, tensors.data(), sizeof(dr_tensor), outs.data(), sizeof(dr_tensor_out),
                           tensors.size()))
      wrong("rebind", dr_last_error(context)->message);
    return true;
  }

  void advance() {
    if (status == DR_PENDING) status = dr_exchange_advance(exchange);
  }

  void judge(uint32_t ranks) {
    const dr_error& e = *dr_last_error(context);
    switch (status) {
      case DR_OK: break;
      case DR_PENDING: wrong("an exchange that does not end");
      case DR_E_TIMEOUT:
      case DR_E_PEER:
      case DR_E_CORRUPT:
      case DR_E_ARGUMENT:
      case DR_E_CAPACITY:
      case DR_E_MEMORY:  // (a hostile rank may say so)
      case DR_E_UNSUPPORTED:
        if (!e.message[0]) wrong("an error without a sentence");
        if (e.frame >= ranks) wrong("no such rank to blame", e.message);
        if (std::memchr(e.message, 0, sizeof e.message) == nullptr) wrong("a sentence that does not end");
        break;
      default: wrong(dr_status_name(status), e.message);
    }
    std::vector<float> residual;
    for (size_t i = 0; i < out.size(); ++i) {
      residual.assign(out[i].size(), 0);
      for (const uint32_t which : {DR_RESIDUAL_OWN, DR_RESIDUAL_SUM, DR_RESIDUAL_MOMENTUM, DR_RESIDUAL_WARM_START}) {
        if (dr_exchange_read_residual(exchange, which, i, residual.data(), residual.size())) wrong("no residual");
        for (const float x : residual)
          if (!std::isfinite(x)) wrong("a residual that is not finite");
      }
    }
  }
  bool wrote() const {
    for (const auto& values : out)
      if (std::any_of(values.begin(), values.end(), [](float x) { return x != untouched; })) return true;
    return false;
  }
};

constexpr const char* schedules[] = {"gather", "gather(parts=2)",   "owner", "owner(parts=3)",
                                     "ring",   "hierarchy(inner=2)"};
constexpr const char* methods[] = {
    "sparsify=topr(ratio=0.2) feedback=residual index=golomb value=raw",
    "index=bitmap value=half",
    "sparsify=topr(count=5) feedback=residual index=bloom(fpr=0.1) value=qsgd(levels=7)",
    "sparsify=topr(ratio=0.3) index=delta_varint+huffman value=fit_poly order=bitpack",
    "sparsify=random(ratio=0.2) feedback=residual index=seeded value=raw",
    "sparsify=blocks(ratio=0.3,block=4) feedback=residual index=rle value=uniform_quant+deflate",
    "value=raw",
    "sparsify=topr(ratio=0.2) feedback=residual index=elias_fano value=sketch bucket=flat",
    "transform=lowrank(rank=2) feedback=residual",
    "index=all value=sign merge=vote",  // (not by every schedule)
    "sparsify=dgc(ratio=0.2) feedback=dgc index=golomb value=raw",
    "index=auto value=auto(error=0.1)"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  script from(data, size);
  const uint32_t ranks = 2 + from.byte() % 3;
  const char* const method = methods[from.up_to(std::size(methods) - 1)];
  const bool transforms = std::string_view(method).starts_with("transform");
  const char* const schedule = schedules[from.up_to(std::size(schedules) - 1)];
  const std::string text = method + (transforms ? "" : std::string(" exchange=") + schedule);
  const uint8_t shape = from.byte();
  task what;
  for (uint8_t n = 1 + shape % 2; n > 0; --n) what.rows.push_back(1 + from.byte());
  what.width = 1 + (shape >> 1) % 8;
  what.sparse_in = shape & 16;
  what.sparse_out = shape & 32;
  what.sums = shape & 64;
  what.small_dense =
      !(shape & 128) && !std::string_view(method).ends_with("flat") && !std::string_view(method).ends_with("vote");
  network net{from, static_cast<uint32_t>(from.up_to(ranks - 1)), 0, {}, {}};
  dr_plan* plan = nullptr;
  if (const dr_status s = dr_plan_parse(text.c_str(), &plan, nullptr)) {
    if (s != DR_E_UNSUPPORTED) wrong("no plan", text.c_str());
    return 0;
  }
  {
    std::vector<std::unique_ptr<rank>> all;
    bool good = true;
    for (uint32_t i = 0; i < ranks; ++i) good = all.emplace_back(new rank{})->create(net, i, ranks, plan, what) && good;
    for (int step = 0; step < 2 && good; ++step) {
      for (auto& r : all) {
        if (dr_exchange_start(r->exchange, nullptr))
          wrong("an exchange does not start", dr_last_error(r->context)->message);
        r->status = DR_PENDING;
        for (auto& values : r->out) std::fill(values.begin(), values.end(), untouched);
      }
      const auto pending = [](const auto& r) { return r->status == DR_PENDING; };
      for (uint64_t turns = 0; turns <= timeout_ns / turn_ns + 4 && std::any_of(all.begin(), all.end(), pending);
           ++turns) {
        for (auto& r : all) r->advance();
        net.clock += turn_ns;
      }
      for (auto& r : all) r->judge(ranks);
      for (auto& r : all)
        if (r->status && r->status != DR_E_CORRUPT && r->wrote())
          wrong("an exchange that fails writes its outputs", dr_last_error(r->context)->message);
    }
  }
  dr_plan_destroy(plan);
  return 0;
}
