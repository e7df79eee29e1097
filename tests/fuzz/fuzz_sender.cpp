// A hostile rank among senders: what it gives to a collective is what the input says: changed, cut, another's, an old one, with checks put
// right. Every honest rank's calls end with a status that they document; all that read the same slots have the same status and the same
// bits; a merge that fails writes nothing; states stay finite, and a next step works or fails as cleanly. States of a damaged file, too.
//
// Input: ranks, options, tensors; then for each step gradients and, for each collective, what becomes of the hostile rank's part.
#include <deepreduce/sender.h>

#include <cmath>
#include <memory>
#include <string>

#include "fuzz/fix_check.hpp"
#include "fuzz/script.hpp"
#include "sender/slot_check.hpp"

namespace {

using fuzz::bytes;
using fuzz::script;
using fuzz::wrong;
using number_types::size_of;

constexpr uint8_t untouched = 0xa5;
constexpr int steps = 3;

constexpr const char* methods[] = {
    "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=log_quant",
    "sparsify=topr(ratio=0.1) feedback=residual index=golomb exchange=owner",
    "index=all value=half",
    "index=all value=half feedback=residual",
    "transform=lowrank(rank=2) feedback=residual",
    "index=all value=uniform_quant(bits=4) exchange=owner",
    "index=all value=sign merge=vote",
    "index=all value=sign feedback=efsignsgd(lr=0.1)",
    "bucket=flat index=all value=raw",
    "sparsify=dgc(ratio=0.1) feedback=dgc(clip=2) index=rice value=qsgd(levels=7)",
    "sparsify=threshold(value=0.5,max_ratio=0.2) feedback=residual index=bloom(fpr=0.1) value=raw",
    "sparsify=topr(ratio=0.1) feedback=residual index=auto value=auto(error=0.1)",
    "sparsify=random(ratio=0.1) feedback=residual index=seeded value=raw",
    "sparsify=visible(type=bf16,rate=0.5) feedback=residual index=golomb value=half",
    "sparsify=topr(ratio=0.2) feedback=residual index=golomb value=qsgd(levels=7) bucket=flat"};

// ---- An all-reduce --------------------------------------------------------------------------------------

bytes sum_of(const std::vector<bytes>& slots, dr_dtype type) {
  bytes sum = slots[0];
  for (size_t rank = 1; rank < slots.size(); ++rank)
    for (size_t at = 0; at < sum.size(); at += size_of(type))
      number_types::put(&sum[at], type, number_types::get(&sum[at], type) + number_types::get(&slots[rank][at], type));
  return sum;
}

// ---- Ranks ----------------------------------------------------------------------------------------------

struct tensor {
  std::string name;
  const char* method;
  dr_dtype type;
  uint64_t rows, elements;
  bool is_sparse;
};
struct task {
  std::vector<tensor> tensors;
  dr_sender_options options{};
  bool on_device = false;
};

struct rank {
  dr_context* context = nullptr;
  dr_sender* sender = nullptr;
  dr_status status = DR_OK;  // of the step
  bool skips = false;
  std::vector<std::unique_ptr<fuzz::block>> in, out, base, state;
  std::vector<std::vector<uint32_t>> keys;  // of sparse rows, by tensor

  ~rank() {
    dr_sender_destroy(sender);
    dr_context_destroy(context);
  }

  const dr_error& error() const { return *dr_last_error(context); }

  // Ends at once if a status is not among those that the calls document.
  dr_status expect(dr_status s, const char* call) const {
    switch (s) {
      case DR_OK: return s;
      case DR_E_ARGUMENT:
      case DR_E_UNSUPPORTED:
      case DR_E_CORRUPT:
      case DR_E_PEER:
      case DR_E_CAPACITY: break;
      default: wrong(call, error().message);
    }
    if (!error().message[0]) wrong("an error without a sentence", call);
    if (std::memchr(error().message, 0, sizeof error().message) == nullptr) wrong("a sentence that does not end", call);
    return s;
  }

  bool create(const task& what, uint32_t number) {
    if (dr_context_create(nullptr, &context, nullptr)) wrong("no context");
    keys.resize(what.tensors.size());
    std::vector<dr_plan*> plans;
    std::vector<dr_named_tensor> named;
    for (const tensor& t : what.tensors) {
      dr_named_tensor n{};
      n.struct_size = sizeof n;
      n.name = t.name.c_str();
      n.dtype = t.type;
      n.flags = t.is_sparse ? DR_NAMED_ROWS : 0;
      n.rows = t.rows;
      n.elements = t.elements;
      if (dr_plan_parse(t.method, &plans.emplace_back(), nullptr)) wrong("no plan", t.method);
      n.plan = plans.back();
      n.base = base.emplace_back(new fuzz::block(t.elements * size_of(t.type), 0x3c))->data();
      named.push_back(n);
    }
    dr_place place{};
    place.struct_size = sizeof place;
    place.kind = what.on_device ? DR_PLACE_EMULATED : DR_PLACE_CPU;
    dr_sender_options options = what.options;
    options.rank = number;
    const dr_status s = expect(
        dr_sender_create(context, &place, nullptr, named.data(), sizeof named[0], named.size(), &options, &sender),
        "create");
    for (dr_plan* plan : plans) dr_plan_destroy(plan);
    if (s) return false;
    std::vector<const void*> from;
    std::vector<void*> to, states;
    for (size_t i = 0; i < named.size(); ++i) {
      const tensor& t = what.tensors[i];
      dr_sent_tensor info{};
      info.struct_size = sizeof info;
      if (dr_sender_tensor(sender, i, &info, nullptr)) wrong("no tensor");
      const uint64_t shard = t.elements / (options.flags & DR_SENDER_SCATTER ? options.ranks : 1);
      from.push_back(in.emplace_back(new fuzz::block(t.elements * size_of(t.type)))->data());
      to.push_back(
          out.emplace_back(new fuzz::block(shard * (options.flags & DR_SENDER_F32 ? 4 : size_of(t.type))))->data());
      states.push_back(state.emplace_back(new fuzz::block(info.state, 0))->data());
    }
    const bool lends = options.flags & DR_SENDER_CALLER_STATES;
    return expect(dr_sender_place(sender, 0, named.size(), from.data(), to.data(), lends ? states.data() : nullptr),
                  "place") == DR_OK;
  }

  dr_unit_info unit(size_t u) const {
    dr_unit_info info{};
    info.struct_size = sizeof info;
    if (dr_sender_unit(sender, u, &info, nullptr)) wrong("no unit");
    return info;
  }
  void fail(dr_status s) {
    if (!status) status = s;
  }
};

dr_call call_of(int step, size_t rank) {
  dr_call call{};
  call.struct_size = sizeof call;
  call.step = static_cast<uint64_t>(step);
  call.seed = 5;
  call.private_seed = rank;
  return call;
}

struct world {
  script& from;
  const task& what;
  std::vector<std::unique_ptr<rank>> ranks;
  size_t hostile = 0;
  std::vector<std::vector<bytes>> old;             // the slots of each unit in the step before
  std::vector<std::unique_ptr<fuzz::block>> held;  // slots that stay until the step ends

  fuzz::block& hold(fuzz::block* slots) { return *held.emplace_back(slots); }

  bool same_outputs() const {
    for (const auto& r : ranks)
      for (size_t i = 0; i < r->out.size(); ++i)
        if (r->out[i]->copy(r->out[i]->size()) != ranks[0]->out[i]->copy(r->out[i]->size())) return false;
    return true;
  }

  void fill(int step) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      rank& me = *ranks[r];
      for (size_t t = 0; t < what.tensors.size(); ++t) {
        const dr_dtype type = what.tensors[t].type;
        for (size_t i = 0; i < what.tensors[t].elements; ++i)
          number_types::put(me.in[t]->data() + i * size_of(type), type,
                            static_cast<float>((i * 37 + r * 11 + static_cast<size_t>(step) * 5) % 64) / 16 - 2);
        std::memset(me.out[t]->data(), untouched, me.out[t]->size());
        if (from.byte() % 16 == 1) {  // a value of any bits: infinite, say
          uint8_t* const at = me.in[t]->data() + from.up_to(what.tensors[t].elements - 1) * size_of(type);
          for (size_t i = 0; i < size_of(type); ++i) at[i] = from.byte();
        }
        if (!what.tensors[t].is_sparse) continue;
        std::vector<uint32_t>& keys = me.keys[t];
        keys.clear();
        for (uint32_t i = r % 3; i < what.tensors[t].rows; i += 2 + (i + static_cast<uint32_t>(r)) % 3)
          keys.push_back(i);
        dr_sent_rows rows{};
        rows.struct_size = sizeof rows;
        rows.count = keys.size();
        rows.indices = keys.data();
        rows.index_dtype = DR_U32;
        rows.values = me.in[t]->data();
        me.fail(me.expect(dr_sender_place_rows(me.sender, t, &rows), "place_rows"));
      }
      if (!me.status) me.fail(me.expect(dr_sender_clip(me.sender), "clip"));
    }
  }

  // What becomes of a slot of the hostile rank.
  void spoil(bytes& slot, const dr_unit_info& unit, const bytes& other, const bytes& before) {
    const uint8_t order = from.byte();
    const size_t words = unit.frames * (what.on_device ? slot_check::device_words : 1),
                 prefix = slot_check::head_size + 8 * words;
    const size_t heads = unit.numbers ? slot_check::sum_size * ranks.size() : 0;
    const bytes whole = slot;
    switch (order & 7) {
      case 0: return;
      case 1: slot = other; break;
      case 2: slot = before.empty() ? slot : before; break;
      case 3: slot = from.take(from.up_to(slot.size())); break;
      case 4:  // (of numbers the heads are the last)
        for (uint8_t n = 1 + from.byte() % 3; n > 0 && !slot.empty(); --n) {
          const size_t at = from.up_to(std::min(slot.size(), unit.numbers ? heads : prefix) - 1);
          slot[unit.numbers && slot.size() >= heads ? slot.size() - heads + at : at] ^= from.byte();
        }
        break;
      default:
        for (uint8_t n = 1 + order % 4; n > 0 && !slot.empty(); --n) {
          const size_t at = from.up_to(slot.size() - 1);
          slot[at] ^= from.byte();
        }
    }
    if (what.on_device || unit.numbers) slot.resize(whole.size());  // one size for all
    if (order & 8) return;
    if (unit.numbers) {
      for (size_t r = 0; r < ranks.size() && slot.size() >= heads; ++r)
        slot_check::seal_sum(slot.data() + slot.size() - heads + r * slot_check::sum_size, unit.numbers);
      return;
    }
    if (slot.size() < prefix) return;
    uint64_t at = what.on_device ? (prefix + 15) / 16 * 16 : prefix;
    for (size_t f = 0; f < unit.frames && at < slot.size(); ++f) {
      const uint64_t size = frame_check::number(slot.data() + slot_check::head_size + 8 * f, 8);
      if (size > slot.size() - at) break;
      frame_check::fix(slot.data() + at, size);
      if (what.on_device) break;  // (the others lie at places of their own)
      at += size;
    }
    slot_check::seal(slot.data(), words);
  }

  // What a rank reads of the slots of all: the first `size` bytes of each, more if it asks for them.
  template <class F>
  dr_status collect(const std::vector<bytes>& slots, uint64_t size, F&& read) {
    for (int turn = 0; turn < 8; ++turn) {
      std::vector<dr_bytes> list;
      if (what.on_device) {  // one behind the other, as a collective has them
        bytes joined;
        for (const bytes& slot : slots) joined.insert(joined.end(), slot.begin(), slot.end());
        const uint8_t* const at = hold(new fuzz::block(joined)).data();
        for (size_t r = 0; r < slots.size(); ++r) list.push_back({at + r * slots[0].size(), slots[0].size()});
      } else {
        for (bytes slot : slots) {
          if (slot.size() > size) slot.resize(size);
          const fuzz::block& exact = hold(new fuzz::block(slot));
          list.push_back({exact.data(), exact.size()});
        }
      }
      dr_sent sent{};
      sent.struct_size = sizeof sent;
      const dr_status s = read(list, sent);
      if (s != DR_E_CAPACITY) return s;
      if (sent.needed <= size) wrong("it asks for less than it has");
      if (sent.needed > slots[hostile ? 0 : 1].size()) wrong("it asks for more than there is");
      if (std::any_of(slots.begin(), slots.end(), [&](const bytes& slot) { return slot.size() < sent.needed; }))
        return s;
      size = sent.needed;
    }
    wrong("it asks again and again");
  }

  void unit_step(size_t u, int step) {
    const size_t n = ranks.size();
    const dr_unit_info info = ranks[0]->unit(u);
    std::vector<bytes> sent(n), sums(n);
    for (size_t r = 0; r < n; ++r) {
      rank& me = *ranks[r];
      const dr_unit_info own = me.unit(u);
      if (own.bound != info.bound || own.kind != info.kind || own.frames != info.frames)
        wrong("ranks disagree about a unit");
      fuzz::block& room = hold(new fuzz::block(own.slots * own.bound));
      const dr_call call = call_of(step, r);
      dr_sent result{};
      result.struct_size = sizeof result;
      if (const dr_status s =
              me.expect(dr_sender_encode(me.sender, u, &call, room.data(), room.size(), &result), "encode"))
        wrong("encode", me.error().message);
      if (!what.on_device && result.size > own.bound) wrong("a slot beyond its bound");
      sent[r] = room.copy(room.size());
    }
    const auto part = [](const bytes& all, size_t slot, uint64_t bound) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(slot * bound);
      return bytes(begin, begin + static_cast<std::ptrdiff_t>(bound));
    };
    // The slots that `to` reads of a collective; the hostile rank's is its script's.
    const auto arrived = [&](const std::vector<bytes>& of, size_t to, uint64_t bound, bool many) {
      std::vector<bytes> slots;
      for (size_t r = 0; r < n; ++r) slots.push_back(part(of[r], many ? to : 0, bound));
      bytes& given = slots[hostile];
      spoil(given, info, slots[(hostile + 1) % n],
            u < old.size() && !old[u].empty() ? part(old[u][hostile], 0, bound) : bytes());
      return slots;
    };
    const bool many = info.slots > 1, owns = info.kind == DR_UNIT_OWNER;
    if (info.numbers) {
      bytes total = sum_of(arrived(sent, 0, info.bound, false), info.numbers);
      for (size_t r = 0; r < n && info.sum_slot; ++r) {
        rank& me = *ranks[r];
        const dr_call call = call_of(step, r);
        fuzz::block &room = hold(new fuzz::block(info.sum_bound)), &given = hold(new fuzz::block(total));
        const dr_bytes slot{given.data(), given.size()};
        me.fail(me.expect(dr_sender_sum(me.sender, u, &call, &slot, 1, room.data(), room.size(), nullptr), "sum"));
        sums[r] = room.copy(room.size());
      }
      if (info.sum_slot) total = sum_of(sums, info.numbers);
      merge_all(u, step, {total}, total.size(), !info.sum_slot);
    } else if (owns) {
      for (size_t r = 0; r < n; ++r) {
        rank& me = *ranks[r];
        const dr_call call = call_of(step, r);
        const std::vector<bytes> slots = arrived(sent, r, info.bound, many);
        fuzz::block& room = hold(new fuzz::block(info.sum_bound));
        me.fail(collect(slots, info.slot, [&](const std::vector<dr_bytes>& list, dr_sent& result) {
          return me.expect(
              dr_sender_sum(me.sender, u, &call, list.data(), list.size(), room.data(), room.size(), &result), "sum");
        }));
        sums[r] = room.copy(room.size());
      }
      merge_all(u, step, arrived(sums, 0, info.sum_bound, false), info.sum_slot, false);
    } else if (many) {  // a reduce-scatter: each rank reads others
      for (size_t r = 0; r < n; ++r) merge_one(r, u, step, arrived(sent, r, info.bound, true), info.slot);
    } else {
      merge_all(u, step, arrived(sent, 0, info.bound, false), info.slot, true);
    }
    old.resize(std::max(old.size(), u + 1));
    old[u] = sent;
  }

  dr_status merge_one(size_t r, size_t u, int step, const std::vector<bytes>& slots, uint64_t size) {
    rank& me = *ranks[r];
    const dr_call call = call_of(step, r);
    std::vector<bytes> before;
    for (const auto& values : me.out) before.push_back(values->copy(values->size()));
    bool skips = false;
    const dr_status s = collect(slots, size, [&](const std::vector<dr_bytes>& list, dr_sent& result) {
      const dr_status status =
          me.expect(dr_sender_merge(me.sender, u, &call, list.data(), list.size(), &result), "merge");
      if (!status && result.skips) skips = true;
      if (result.skips && !(what.options.flags & DR_SENDER_SKIP)) wrong("it skips unasked");
      return status;
    });
    for (size_t t = 0; t < before.size() && (s || skips) && !what.on_device; ++t)
      if (me.out[t]->copy(before[t].size()) != before[t])
        wrong("a merge that fails writes its outputs", me.error().message);
    me.skips |= skips;
    me.fail(s);
    return s;
  }
  // agree: what each reads is the same, and so far none has refused anything.
  void merge_all(size_t u, int step, const std::vector<bytes>& slots, uint64_t size, bool agree) {
    dr_status first = DR_OK;
    for (size_t r = 0; r < ranks.size(); ++r) {
      const dr_status s = merge_one(r, u, step, slots, size);
      if (r == 0) first = s;
      if (agree && first != s) wrong("ranks do not agree", ranks[r]->error().message);
    }
    const auto failed = [](const auto& r) { return r->status || r->skips; };
    if (agree && !what.on_device && !(what.options.flags & DR_SENDER_SCATTER) &&
        std::none_of(ranks.begin(), ranks.end(), failed) && !same_outputs())
      wrong("ranks have other bits");
  }

  void run() {
    dr_sender_info info{};
    info.struct_size = sizeof info;
    if (dr_sender_describe(ranks[0]->sender, &info, nullptr)) wrong("no description");
    for (int step = 0; step < steps; ++step) {
      held.clear();
      for (auto& r : ranks) r->status = DR_OK, r->skips = false;
      fill(step);
      if (std::any_of(ranks.begin(), ranks.end(), [](const auto& r) { return r->status; }))
        return;  // rows that cannot be
      for (size_t u = 0; u < info.units; ++u) unit_step(u, step);
      for (auto& r : ranks) {
        dr_sent sent{};
        sent.struct_size = sizeof sent;
        const auto number = static_cast<uint64_t>(step);
        r->fail(r->expect(dr_sender_check(r->sender, number, &sent), "check"));
        std::vector<uint32_t> behind(ranks.size());
        const size_t count = dr_sender_behind(r->sender, behind.data(), behind.size());
        if (count > ranks.size()) wrong("more ranks are behind than there are");
        for (size_t i = 0; i < count; ++i)
          if (behind[i] >= ranks.size()) wrong("a rank is behind that there is not");
        if (what.on_device) continue;
        if (r->status)
          r->expect(dr_sender_take_back(r->sender, number), "take_back");
        else if (r->skips)
          r->expect(dr_sender_skip(r->sender, number), "skip");
      }
      for (size_t t = 0; t < what.tensors.size(); ++t) check_states(t);
    }
  }

  // What is in a tensor's states is finite; what a damaged file has is taken or refused.
  void check_states(size_t t) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      rank& me = *ranks[r];
      dr_sent_tensor info{};
      info.struct_size = sizeof info;
      if (dr_sender_tensor(me.sender, t, &info, nullptr)) wrong("no tensor");
      const uint64_t sizes[] = {info.state, info.sum_state, info.warm_state};
      for (const uint32_t which : {DR_STATE_OWN, DR_STATE_SUM, DR_STATE_WARM}) {
        if (!sizes[which]) continue;
        fuzz::block held(sizes[which]);
        if (me.expect(dr_sender_read_state(me.sender, t, which, held.data(), held.size()), "read_state")) {
          if (what.options.flags & DR_SENDER_CALLER_STATES) continue;  // the caller has it
          wrong("a state that cannot be read", me.error().message);
        }
        float* values = nullptr;
        uint64_t count = 0;
        if (which != DR_STATE_WARM && dr_state_residual(held.data(), held.size(), &values, &count, nullptr) == DR_OK)
          for (uint64_t i = 0; i < count; ++i)
            if (!std::isfinite(values[i])) wrong("a residual that is not finite");
        if (r != hostile) continue;
        uint8_t changes = from.byte();
        if (changes % 8 != 1) continue;
        for (changes /= 8; changes > 0; --changes) {
          const size_t at = from.up_to(held.size() - 1);
          held.data()[at] ^= from.byte();
        }
        const bytes before = held.copy(held.size());
        if (!me.expect(dr_sender_write_state(me.sender, t, which, held.data(), held.size() - (from.byte() == 1)),
                       "write_state")) {
          std::memset(held.data(), untouched, held.size());
          me.expect(dr_sender_read_state(me.sender, t, which, held.data(), held.size()), "read_state");
        }
      }
    }
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  script from(data, size);
  task what;
  const uint8_t shape = from.byte();
  what.options.struct_size = sizeof what.options;
  what.options.ranks = 2 + (shape & 1);
  what.on_device = (shape & 6) == 6;
  what.options.dense_below = shape & 8 ? DR_DENSE_BELOW_BY_PLAN : 0;
  what.options.unit_bytes = shape & 16 ? 256 : 0;
  what.options.flat = (shape >> 5) % 4;
  what.options.flags = from.byte() & ~uint32_t{DR_SENDER_DRY};
  const uint8_t n = 1 + from.byte() % 3;
  for (uint8_t i = 0; i < n; ++i) {
    tensor t{};
    t.name = i ? std::string("layer.") + static_cast<char>('a' + i) : "first";
    const uint8_t kind = from.byte();
    t.method = methods[kind % std::size(methods)];
    t.is_sparse = kind >= 15 * std::size(methods);
    t.type = dr_dtype{from.byte() % 3 == 0 ? DR_F32 : shape & 2 ? DR_F16 : DR_BF16};
    t.rows = 1 + from.byte() % 24;
    t.elements = t.rows * (1 + from.byte() % 48);
    if (what.options.flags & DR_SENDER_SCATTER && !(shape & 64)) t.elements *= what.options.ranks;
    what.tensors.push_back(t);
  }
  world w{from, what, {}, from.up_to(what.options.ranks - 1), {}};
  for (uint32_t r = 0; r < what.options.ranks; ++r)
    if (!w.ranks.emplace_back(new rank{})->create(what, r)) return 0;
  w.run();
  return 0;
}
