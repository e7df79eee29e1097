// Ranks in one thread, each with a sender; the test carries their slots as a framework's collectives would.
#pragma once

#include <deepreduce/sender.h>

#include <functional>
#include <map>
#include <memory>
#include <random>

#include "client.hpp"
#include "fuzz/number_types.hpp"

namespace sending {

struct tensor {
  std::string name;
  uint64_t elements;
  dr_dtype dtype = DR_F32;
  std::string plan = "";  // "": the book's
  uint64_t rows = 0;
  bool is_sparse = false;        // its gradient is rows
  std::vector<float> base = {};  // the weights that it is to move, the same on all ranks
  size_t base_shift = 0;         // bytes
};

struct settings {
  std::string book = "*: sparsify=topr(ratio=0.1) feedback=residual index=golomb";
  uint32_t ranks = 2, flags = 0, flat = DR_FLAT_BY_PLAN;
  uint64_t dense_below = DR_DENSE_BELOW_BY_PLAN, unit_bytes = 0;
  bool on_device = false;  // an emulated one: its memory is the host's
  int32_t order = 0;       // of its lanes and blocks
  uint32_t threads = 1;    // of a rank's context
};

using number_types::size_of;
inline float number(const uint8_t* at, dr_dtype type) { return number_types::get(at, type); }
inline uint16_t to_bf16(float x) {
  uint8_t bytes[2];
  number_types::put(bytes, DR_BF16, x);
  return static_cast<uint16_t>(little_endian::number(bytes, 2));
}

// A rank's numbers added to those of the ranks before it, as an all-reduce does.
inline void add_numbers(client::bytes& sum, const client::bytes& more, dr_dtype type) {
  for (size_t at = 0; at < sum.size(); at += size_of(type))
    number_types::put(sum.data() + at, type, number(sum.data() + at, type) + number(more.data() + at, type));
}

// One rank.
struct rank {
  client::context context;
  dr_sender* sender = nullptr;
  std::vector<client::bytes> in, out;                                 // of each tensor
  std::vector<std::vector<client::bytes>> sent, received, sums, all;  // slots of each unit
  dr_error error{};

  explicit rank(uint32_t threads) : context(threads) {}
  ~rank() { dr_sender_destroy(sender); }
};

struct world {
  std::vector<tensor> tensors;
  settings how;
  std::vector<std::unique_ptr<rank>> ranks;

  world(std::vector<tensor> list, settings s) : tensors(std::move(list)), how(std::move(s)) {
    for (uint32_t i = 0; i < how.ranks; ++i) {
      dr_status status = DR_OK;
      std::string error;
      auto r = make(i, status, error);
      INFO(error);
      REQUIRE(status == DR_OK);
      ranks.push_back(std::move(r));
    }
  }

  std::unique_ptr<rank> make(uint32_t number, dr_status& status, std::string& error) const {
    auto r = std::make_unique<rank>(how.threads);
    dr_error e{sizeof(dr_error)};
    dr_book* book = nullptr;
    REQUIRE(dr_book_parse(how.book.data(), how.book.size(), nullptr, &book, &e) == DR_OK);
    std::vector<dr_named_tensor> named;
    std::vector<std::unique_ptr<client::plan>> plans;
    for (const tensor& t : tensors) {
      dr_named_tensor n{};
      n.struct_size = sizeof n;
      n.name = t.name.c_str();
      n.dtype = t.dtype;
      n.elements = t.elements;
      n.rows = t.rows;
      n.flags = t.is_sparse ? DR_NAMED_ROWS : 0;
      n.base = t.base.empty() ? nullptr : reinterpret_cast<const std::byte*>(t.base.data()) + t.base_shift;
      if (!t.plan.empty()) {
        plans.push_back(std::make_unique<client::plan>(t.plan));
        n.plan = plans.back()->handle;
      }
      named.push_back(n);
    }
    dr_sender_options o{};
    o.struct_size = sizeof o;
    o.ranks = how.ranks;
    o.rank = number;
    o.flags = how.flags;
    o.flat = how.flat;
    o.dense_below = how.dense_below;
    o.unit_bytes = how.unit_bytes;
    dr_place place{};
    place.struct_size = sizeof place;
    place.kind = how.on_device ? DR_PLACE_EMULATED : DR_PLACE_CPU;
    place.device = how.order;
    status = dr_sender_create(r->context.handle, &place, book, named.data(), sizeof(dr_named_tensor), named.size(), &o,
                              &r->sender);
    error = r->context.error();
    dr_book_destroy(book);
    if (status) return r;
    std::vector<const void*> in;
    std::vector<void*> out;
    for (const tensor& t : tensors) {
      const uint64_t shard = how.flags & DR_SENDER_SCATTER ? t.elements / how.ranks : t.elements;
      r->in.emplace_back(t.elements * size_of(t.dtype));
      r->out.emplace_back(shard * (how.flags & DR_SENDER_F32 ? 4 : size_of(t.dtype)));
      in.push_back(r->in.back().data());
      out.push_back(r->out.back().data());
    }
    REQUIRE(dr_sender_place(r->sender, 0, tensors.size(), in.data(), out.data(), nullptr) == DR_OK);
    r->sent.resize(units(*r));
    r->received.resize(units(*r));
    r->sums.resize(units(*r));
    r->all.resize(units(*r));
    return r;
  }

  static size_t units(const rank& r) {
    dr_sender_info info{};
    info.struct_size = sizeof info;
    REQUIRE(dr_sender_describe(r.sender, &info, nullptr) == DR_OK);
    return info.units;
  }
  static dr_unit_info unit(const rank& r, size_t u) {
    dr_unit_info info{};
    info.struct_size = sizeof info;
    REQUIRE(dr_sender_unit(r.sender, u, &info, nullptr) == DR_OK);
    return info;
  }
  dr_unit_info unit(size_t u) const { return unit(*ranks[0], u); }
  dr_sent_tensor sent_tensor(size_t i) const {
    dr_sent_tensor info{};
    info.struct_size = sizeof info;
    REQUIRE(dr_sender_tensor(ranks[0]->sender, i, &info, nullptr) == DR_OK);
    return info;
  }

  void set(size_t r, size_t t, const std::vector<float>& values) {
    client::bytes& to = ranks[r]->in[t];
    const dr_dtype type = tensors[t].dtype;
    REQUIRE(to.size() == size_of(type) * values.size());
    for (size_t i = 0; i < values.size(); ++i) number_types::put(to.data() + size_of(type) * i, type, values[i]);
  }
  std::vector<float> values(const client::bytes& from, dr_dtype type) const {
    std::vector<float> out(from.size() / size_of(type));
    for (size_t i = 0; i < out.size(); ++i) out[i] = number(from.data() + i * size_of(type), type);
    return out;
  }
  std::vector<float> in(size_t r, size_t t) const { return values(ranks[r]->in[t], tensors[t].dtype); }
  std::vector<float> out(size_t r, size_t t) const {
    return values(ranks[r]->out[t], how.flags & DR_SENDER_F32 ? dr_dtype{DR_F32} : tensors[t].dtype);
  }
  // The residual of a tensor; zeros of a fresh state.
  std::vector<float> residual(size_t r, size_t t, uint32_t which = DR_STATE_OWN) const {
    const dr_sent_tensor info = sent_tensor(t);
    std::vector<uint64_t> state(((which == DR_STATE_SUM ? info.sum_state : info.state) + 7) / 8);
    const size_t size = which == DR_STATE_SUM ? info.sum_state : info.state;
    std::vector<float> out(tensors[t].elements);
    if (!size) return out;
    REQUIRE(dr_sender_read_state(ranks[r]->sender, t, which, state.data(), size) == DR_OK);
    float* from = nullptr;
    uint64_t elements = 0;
    if (dr_state_residual(state.data(), size, &from, &elements, nullptr) == DR_OK) out.assign(from, from + elements);
    return out;
  }

  static dr_call call(uint64_t step, size_t r) {
    dr_call c{};
    c.struct_size = sizeof c;
    c.step = step;
    c.seed = 5;
    c.private_seed = r;
    return c;
  }

  // What happens to slots under way: called with (unit, from, to, bytes). Of numbers `to` is SIZE_MAX on the way to the sum,
  // and `from` on the way from it.
  std::function<void(size_t, size_t, size_t, client::bytes&)> on_the_way;
  // Bytes that a rank sent to each other, of all collectives of the last step; and its collectives.
  uint64_t bytes_sent = 0;
  size_t rests = 0;

  // A collective: of each rank the first `size` bytes, which may be of one slot or of one for each receiver.
  static dr_status merge_all(const std::function<dr_status(const std::vector<dr_bytes>&, dr_sent&)>& f,
                             std::vector<client::bytes>& slots, uint64_t size, const std::vector<client::bytes>& whole,
                             size_t& rests) {
    for (;;) {
      std::vector<dr_bytes> list;
      for (size_t i = 0; i < slots.size(); ++i) {
        slots[i].assign(whole[i].begin(),
                        whole[i].begin() + static_cast<std::ptrdiff_t>(std::min<uint64_t>(size, whole[i].size())));
        slots[i].resize(size);
        list.push_back({slots[i].data(), slots[i].size()});
      }
      dr_sent result{};
      result.struct_size = sizeof result;
      const dr_status s = f(list, result);
      if (s != DR_E_CAPACITY) return s;
      REQUIRE(result.needed > size);
      size = result.needed;
      ++rests;
    }
  }

  // Slots as one collective writes them, in `all`.
  static std::vector<dr_bytes> joined(const std::vector<client::bytes>& whole, client::bytes& all) {
    for (const client::bytes& slot : whole) all.insert(all.end(), slot.begin(), slot.end());
    std::vector<dr_bytes> list;
    for (size_t i = 0; i < whole.size(); ++i) list.push_back({all.data() + i * whole[0].size(), whole[0].size()});
    return list;
  }
  // (Nothing reads the slots after these calls: the emulated device has ended its work.)
  static dr_status merge_on_device(rank& me, size_t u, const dr_call& c, const std::vector<client::bytes>& whole) {
    client::bytes all;
    const auto list = joined(whole, all);
    return dr_sender_merge(me.sender, u, &c, list.data(), list.size(), nullptr);
  }
  static dr_status sum_on_device(rank& me, size_t u, const dr_call& c, const std::vector<client::bytes>& whole) {
    client::bytes all;
    const auto list = joined(whole, all);
    client::bytes& sum = me.sums[u][0];
    return dr_sender_sum(me.sender, u, &c, list.data(), list.size(), sum.data(), sum.size(), nullptr);
  }
  dr_status check(size_t r, uint64_t number) {
    checked = {};
    checked.struct_size = sizeof checked;
    return dr_sender_check(ranks[r]->sender, number, &checked);
  }
  dr_sent checked{};   // of the last check
  bool checks = true;  // at the end of a step

  // A step of all ranks; the status of each. steps: of each rank, if not the same.
  std::vector<dr_status> step(uint64_t number, std::vector<uint64_t> steps = {}) {
    const size_t n = ranks.size();
    if (steps.empty()) steps.assign(n, number);
    std::vector<dr_status> status(n, DR_OK);
    std::vector<bool> skips(n);
    bytes_sent = 0;
    const auto fail = [&](size_t r, dr_status s) {
      if (status[r] || !s) return;
      status[r] = s;
      ranks[r]->error = *dr_last_error(ranks[r]->context.handle);
    };
    for (size_t r = 0; r < n; ++r) fail(r, dr_sender_clip(ranks[r]->sender));
    const size_t count = units(*ranks[0]);
    for (size_t u = 0; u < count; ++u) {
      std::vector<dr_unit_info> info;
      for (size_t r = 0; r < n; ++r) {
        rank& me = *ranks[r];
        info.push_back(unit(me, u));
        client::bytes room(info[r].slots * info[r].bound);
        const dr_call c = call(steps[r], r);
        dr_sent result{};
        result.struct_size = sizeof result;
        REQUIRE(dr_sender_encode(me.sender, u, &c, room.data(), room.size(), &result) == DR_OK);
        me.sent[u].clear();
        me.sent[u].push_back(std::move(room));
      }
      // Where whole slots lie, as they arrive at `to`.
      const auto arrived = [&](size_t to, bool of_sums) {
        std::vector<client::bytes> out;
        for (size_t from = 0; from < n; ++from) {
          const client::bytes& all = of_sums ? ranks[from]->sums[u][0] : ranks[from]->sent[u][0];
          const size_t bound = of_sums ? info[from].sum_bound : info[from].bound;
          const size_t slot = !of_sums && info[from].slots > 1 ? to : 0;
          client::bytes bytes(all.begin() + static_cast<std::ptrdiff_t>(slot * bound),
                              all.begin() + static_cast<std::ptrdiff_t>((slot + 1) * bound));
          if (on_the_way) on_the_way(u, from, to, bytes);
          out.push_back(std::move(bytes));
        }
        return out;
      };
      if (info[0].numbers) {
        // What all ranks have of `own` slots after an all-reduce.
        const auto summed = [&](bool of_sums) {
          client::bytes total;
          for (size_t from = 0; from < n; ++from) {
            client::bytes bytes = of_sums ? ranks[from]->sums[u][0] : ranks[from]->sent[u][0];
            if (on_the_way) on_the_way(u, from, SIZE_MAX, bytes);
            if (from)
              add_numbers(total, bytes, info[0].numbers);
            else
              total = std::move(bytes);
          }
          return total;
        };
        client::bytes total = summed(false);
        // The sum of the first numbers, which has the heads, as rank r receives it.
        const auto first_at = [&](size_t r) {
          client::bytes bytes = total;
          if (on_the_way) on_the_way(u, SIZE_MAX, r, bytes);
          return bytes;
        };
        bytes_sent += 2 * (n - 1) * (info[0].slot + info[0].sum_slot) / n;
        for (size_t r = 0; r < n && info[0].sum_slot; ++r) {
          const dr_call c = call(steps[r], r);
          const client::bytes received = first_at(r);
          const dr_bytes given{received.data(), received.size()};
          ranks[r]->sums[u].assign(1, client::bytes(info[r].sum_bound));
          REQUIRE(dr_sender_sum(ranks[r]->sender, u, &c, &given, 1, ranks[r]->sums[u][0].data(),
                                ranks[r]->sums[u][0].size(), nullptr) == DR_OK);
        }
        if (info[0].sum_slot) total = summed(true);
        for (size_t r = 0; r < n; ++r) {
          const dr_call c = call(steps[r], r);
          const client::bytes received = info[0].sum_slot ? total : first_at(r);
          const dr_bytes given{received.data(), received.size()};
          dr_sent result{};
          result.struct_size = sizeof result;
          fail(r, dr_sender_merge(ranks[r]->sender, u, &c, &given, 1, &result));
          if (result.skips) skips[r] = true;
        }
        continue;
      }
      if (info[0].kind == DR_UNIT_OWNER) {
        for (size_t r = 0; r < n; ++r) {
          rank& me = *ranks[r];
          const dr_call c = call(steps[r], r);
          me.sums[u].assign(1, client::bytes(info[r].sum_bound));
          me.received[u].resize(n);
          const auto whole = arrived(r, false);
          if (how.on_device) {
            REQUIRE(sum_on_device(me, u, c, whole) == DR_OK);
            continue;
          }
          const dr_status s = merge_all(
              [&](const std::vector<dr_bytes>& slots, dr_sent& result) {
                return dr_sender_sum(me.sender, u, &c, slots.data(), slots.size(), me.sums[u][0].data(),
                                     me.sums[u][0].size(), &result);
              },
              me.received[u], info[r].slot, whole, rests);
          REQUIRE(s == DR_OK);
        }
      }
      if (info[0].slots)
        bytes_sent += info[0].kind == DR_UNIT_FRAMES || info[0].kind == DR_UNIT_ROWS
                          ? (n - 1) * info[0].slot
                          : (n - 1) * (info[0].slot + info[0].sum_slot);
      for (size_t r = 0; r < n; ++r) {
        rank& me = *ranks[r];
        const dr_call c = call(steps[r], r);
        const bool of_sums = info[r].kind == DR_UNIT_OWNER;
        me.all[u].resize(n);
        const auto whole = arrived(r, of_sums);
        if (how.on_device) {
          fail(r, merge_on_device(me, u, c, whole));
          continue;
        }
        fail(r, merge_all(
                    [&](const std::vector<dr_bytes>& slots, dr_sent& result) {
                      const dr_status s = dr_sender_merge(me.sender, u, &c, slots.data(), slots.size(), &result);
                      if (!s && result.skips) skips[r] = true;
                      return s;
                    },
                    me.all[u], of_sums ? info[r].sum_slot : info[r].slot, whole, rests));
      }
    }
    for (size_t r = 0; r < n && how.on_device && checks; ++r) fail(r, check(r, steps[r]));
    for (size_t r = 0; r < n && !how.on_device; ++r) {
      if (status[r])
        CHECK(dr_sender_take_back(ranks[r]->sender, steps[r]) == DR_OK);
      else if (skips[r])
        CHECK(dr_sender_skip(ranks[r]->sender, steps[r]) == DR_OK);
    }
    skipped = skips;
    return status;
  }
  std::vector<bool> skipped;

  bool all_ok(uint64_t number) {
    const std::vector<dr_status> s = step(number);
    for (size_t r = 0; r < s.size(); ++r) {
      INFO("rank " << r << ": " << ranks[r]->error.message);
      CHECK(s[r] == DR_OK);
    }
    return std::all_of(s.begin(), s.end(), [](dr_status x) { return x == DR_OK; });
  }
  // All ranks have the same bits.
  bool agree() const {
    for (size_t r = 1; r < ranks.size(); ++r)
      if (ranks[r]->out != ranks[0]->out) return false;
    return true;
  }
  void set_random(uint64_t seed) {
    for (size_t r = 0; r < ranks.size(); ++r)
      for (size_t t = 0; t < tensors.size(); ++t)
        set(r, t, client::laplace(tensors[t].elements, seed * 131 + r * 17 + t + 1));
  }
};

}  // namespace sending
