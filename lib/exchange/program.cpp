#include "exchange/program.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "deepreduce/exchange.h"

namespace dr {
namespace {

class builder {
 public:
  builder(uint32_t ranks, uint32_t rank, uint32_t ranges) {
    p_.ranks = ranks;
    p_.rank = rank;
    p_.ranges = ranges;
    last_sum_.resize(ranges);
  }

  program& p() { return p_; }
  uint32_t n() const { return p_.ranks; }
  uint32_t me() const { return p_.rank; }
  // The rank so many places behind this one.
  uint32_t behind(uint32_t places) const { return (me() + places) % n(); }
  uint32_t before(uint32_t places) const { return (me() + n() - places % n()) % n(); }

  uint32_t slot(uint32_t range, uint32_t maker, frame_kind kind, uint32_t tag, uint32_t depth = 0) {
    p_.slots.push_back({range, maker, kind, tag, depth});
    if (tag >= p_.tags) p_.tags = tag + 1;
    return static_cast<uint32_t>(p_.slots.size() - 1);
  }

  step& add(uint8_t what, uint32_t range, uint32_t slot) {
    step s{what};
    s.range = range;
    s.slot = slot;
    p_.steps.push_back(s);
    return p_.steps.back();
  }
  void encode(uint32_t slot) {
    step& s = add(DR_STEP_ENCODE, p_.slots[slot].range, slot);
    s.exact = p_.slots[slot].kind == frame_kind::exact;
    s.residual = residual_kind::own;
  }
  void send(uint32_t slot, uint32_t peer) {
    step& s = add(DR_STEP_SEND, p_.slots[slot].range, slot);
    s.peer = peer;
    s.message = p_.messages++;
  }
  // A slot for a frame from a peer.
  uint32_t recv(uint32_t slot, uint32_t peer) {
    step& s = add(DR_STEP_RECV, p_.slots[slot].range, slot);
    s.peer = peer;
    s.message = p_.messages++;
    if (receives_.size() <= slot) receives_.resize(slot + 1);
    receives_[slot] = {peer, s.message};
    return slot;
  }
  void wait(uint32_t slot) {
    step& s = add(DR_STEP_WAIT, p_.slots[slot].range, slot);
    std::tie(s.peer, s.message) = receives_[slot];
  }
  void merge(uint8_t what, uint32_t range, const std::vector<uint32_t>& slots, weighting weight) {
    step& s = add(what, range, no_slot);
    s.first = static_cast<uint32_t>(p_.inputs.size());
    s.count = static_cast<uint32_t>(slots.size());
    s.weight = weight;
    p_.inputs.insert(p_.inputs.end(), slots.begin(), slots.end());
    if (what == DR_STEP_SUM) last_sum_[range] = s;
  }
  void encode_sum(uint32_t slot, residual_kind residual, bool with_gradient) {
    const step sum = last_sum_[p_.slots[slot].range];
    step& s = add(DR_STEP_ENCODE_SUM, p_.slots[slot].range, slot);
    s.first = sum.first;
    s.count = sum.count;
    s.weight = sum.weight;
    s.residual = residual;
    s.with_gradient = with_gradient;
  }
  void sum_into(uint32_t slot, const std::vector<uint32_t>& slots) {
    merge(DR_STEP_SUM, p_.slots[slot].range, slots, weighting::one);
    p_.steps.back().slot = slot;
  }
  // The frames of a range that go to the outputs. Every encode and sum is before that.
  void decode(uint32_t range, const std::vector<uint32_t>& slots, weighting weight) {
    merge(DR_STEP_DECODE, range, slots, weight);
  }
  void agree() { add(DR_STEP_AGREE, 0, no_slot); }
  // After all are decoded, the ranks agree, and then they are merged.
  void agree_and_merge() {
    agree();
    for (size_t i = 0, n = p_.steps.size(); i < n; ++i)
      if (p_.steps[i].what == DR_STEP_DECODE) {
        step s = p_.steps[i];
        s.what = DR_STEP_MERGE;
        p_.steps.push_back(s);
      }
  }
  program finish() {
    add(DR_STEP_DRAIN, 0, no_slot);
    return std::move(p_);
  }

 private:
  program p_;
  std::vector<step> last_sum_;                           // [range]
  std::vector<std::pair<uint32_t, uint32_t>> receives_;  // [slot]: peer and message of its receive
};

// Every frame goes to all others; merged in rank order.
program compile_gather(uint32_t n, uint32_t me, uint32_t parts) {
  builder b(n, me, parts);
  std::vector<std::vector<uint32_t>> from(parts);  // [part][rank]
  for (uint32_t k = 0; k < parts; ++k)
    for (uint32_t p = 0; p < n; ++p) {
      from[k].push_back(b.slot(k, p, frame_kind::part, 1 + k));
      if (p != me) b.recv(from[k][p], p);
    }
  for (uint32_t k = 0; k < parts; ++k) {
    b.encode(from[k][me]);
    for (uint32_t i = 1; i < n; ++i) b.send(from[k][me], b.behind(i));
  }
  for (uint32_t k = 0; k < parts; ++k) {
    for (uint32_t i = 1; i < n; ++i) b.wait(from[k][b.before(i)]);
    b.decode(k, from[k], weighting::mean);
  }
  b.agree_and_merge();
  return b.finish();
}

// Range k · n + o belongs to rank o, which sums the frames of all ranks and sends the sum to all.
program compile_owner(uint32_t n, uint32_t me, uint32_t parts) {
  const uint32_t ranges = n * parts;
  builder b(n, me, ranges);
  b.p().owned = true;
  std::vector<std::vector<uint32_t>> from(parts);  // [part][rank]: frames of this rank's ranges; its own, too
  std::vector<uint32_t> mine(ranges), sums(ranges);
  for (uint32_t k = 0; k < parts; ++k)
    for (uint32_t p = 0; p < n; ++p) {
      const uint32_t own = k * n + me, theirs = k * n + p;
      // (A rank that waits for part k has not sent the parts behind k + 1.)
      from[k].push_back(b.slot(own, p, frame_kind::part, 1 + own, k));
      if (p != me) b.recv(from[k][p], p);
      mine[theirs] = p == me ? from[k][me] : b.slot(theirs, me, frame_kind::part, 1 + theirs);
      sums[theirs] = b.slot(theirs, p, frame_kind::sum, 1 + ranges + theirs, parts);
      if (p != me) b.recv(sums[theirs], p);
    }
  const auto sum_up = [&](uint32_t k) {
    const uint32_t own = k * n + me;
    for (uint32_t i = 1; i < n; ++i) b.wait(from[k][b.before(i)]);
    b.merge(DR_STEP_SUM, own, from[k], weighting::mean);
    b.encode_sum(sums[own], residual_kind::sum, false);
    for (uint32_t i = 1; i < n; ++i) b.send(sums[own], b.behind(i));
  };
  for (uint32_t k = 0; k < parts; ++k) {
    for (uint32_t i = 1; i <= n; ++i) {  // (to the next rank first, so that no port has all of it)
      const uint32_t to = b.behind(i), range = k * n + to;
      b.encode(mine[range]);
      if (to != me) b.send(mine[range], to);
    }
    if (k) sum_up(k - 1);
  }
  sum_up(parts - 1);
  for (uint32_t k = 0; k < parts; ++k)
    for (uint32_t i = 1; i <= n; ++i) {
      const uint32_t j = k * n + b.before(i);
      if (i < n) b.wait(sums[j]);
      b.decode(j, {sums[j]}, weighting::one);
    }
  b.agree_and_merge();
  return b.finish();
}

// Range k · n + s begins at rank s; each hop adds a gradient and encodes again. The frame of the last rank is forwarded to all
// unchanged.
program compile_ring(uint32_t n, uint32_t me, uint32_t parts) {
  const uint32_t ranges = n * parts;
  builder b(n, me, ranges);
  b.p().owned = true;
  const uint32_t next = b.behind(1), last = b.before(1);
  std::vector<uint32_t> incoming(ranges, no_slot), made(ranges), whole(ranges);
  const auto hop_of = [&](uint32_t j) { return (me + n - j % n) % n; };  // of this rank on the range's way
  for (uint32_t j = 0; j < ranges; ++j) {
    const uint32_t hop = hop_of(j), finisher = (j % n + n - 1) % n;
    if (hop) incoming[j] = b.recv(b.slot(j, last, frame_kind::sum, 1 + j, hop - 1), last);
    made[j] = b.slot(j, me, hop ? frame_kind::sum : frame_kind::part, 1 + j + (me == finisher ? ranges : 0));
    if (me == finisher)
      whole[j] = made[j];
    else
      whole[j] = b.recv(b.slot(j, finisher, frame_kind::sum, 1 + ranges + j, n - 2 + b.before(finisher)), last);
  }
  for (uint32_t hop = 0; hop < n; ++hop)
    for (uint32_t k = 0; k < parts; ++k) {
      const uint32_t j = k * n + b.before(hop);
      if (hop == 0) {
        b.encode(made[j]);
      } else {
        b.wait(incoming[j]);
        b.merge(DR_STEP_SUM, j, {incoming[j]}, weighting::one);
        b.add(DR_STEP_ADD, j, no_slot);
        b.encode_sum(made[j], residual_kind::own, true);
      }
      if (n > 1) b.send(made[j], next);
    }
  for (uint32_t far = 1; far < n; ++far)
    for (uint32_t k = 0; k < parts; ++k) {
      const uint32_t j = k * n + (b.before(far) + 1) % n;  // whose finisher is so far behind
      b.wait(whole[j]);
      if (far + 1 < n) b.send(whole[j], next);
    }
  for (uint32_t j = 0; j < ranges; ++j) b.decode(j, {whole[j]}, weighting::mean);
  b.agree_and_merge();
  return b.finish();
}

// The first of `inner` ranks in a row sums up their gradients, exactly, and gathers with the first of the others.
program compile_hierarchy(uint32_t n, uint32_t me, uint32_t inner, uint32_t parts) {
  builder b(n, me, parts);
  b.p().alike = false;
  const uint32_t head = me / inner * inner, heads = (n + inner - 1) / inner, end = std::min(n, head + inner);
  std::vector<std::vector<uint32_t>> from(parts), below(parts);  // [part][head], [part][member]
  std::vector<uint32_t> mine(parts);
  for (uint32_t k = 0; k < parts; ++k) {
    for (uint32_t h = 0; h < heads; ++h) {
      const uint32_t depth = me == head || h == head / inner ? 1 : 2;
      from[k].push_back(b.slot(k, h * inner, frame_kind::sum, 1 + parts + k * heads + h, depth));
      if (me != head)
        b.recv(from[k][h], head);
      else if (h * inner != me)
        b.recv(from[k][h], h * inner);
    }
    if (me != head)
      mine[k] = b.slot(k, me, frame_kind::exact, 1 + k);
    else
      for (uint32_t p = head + 1; p < end; ++p) below[k].push_back(b.recv(b.slot(k, p, frame_kind::exact, 1 + k), p));
  }
  const auto to_members = [&](uint32_t slot) {
    for (uint32_t p = head + 1; p < end; ++p) b.send(slot, p);
  };
  for (uint32_t k = 0; k < parts; ++k) {
    if (me != head) {
      b.encode(mine[k]);
      b.send(mine[k], head);
      continue;
    }
    const uint32_t own = from[k][head / inner];
    for (const uint32_t s : below[k]) b.wait(s);
    if (below[k].empty()) {
      b.encode(own);
    } else {
      b.merge(DR_STEP_SUM, k, below[k], weighting::one);
      b.add(DR_STEP_ADD, k, no_slot);
      b.encode_sum(own, residual_kind::own, true);
    }
    for (uint32_t i = 1; i < heads; ++i) b.send(own, (head / inner + i) % heads * inner);
    to_members(own);
  }
  for (uint32_t k = 0; k < parts; ++k) {
    for (uint32_t i = me == head; i < heads; ++i) {
      const uint32_t slot = from[k][(head / inner + heads - i) % heads];
      b.wait(slot);
      if (me == head) to_members(slot);
    }
    b.decode(k, from[k], weighting::mean);
  }
  b.agree_and_merge();
  return b.finish();
}

}  // namespace

// Collectives inside the host sum the gradients up, a share to each rank, and gather the shares of the result; between
// hosts ranks of a number gather frames of their share. A rank that has failed takes part in both, so that the others' end;
// so the result of the second waits in memory of its own until the ranks have agreed.
program compile_by_host(const exchange_stage& how, uint32_t ranks, uint32_t rank) {
  const uint32_t inner = how.inner, parts = how.parts, hosts = ranks / inner, host = rank / inner,
                 mine = rank % inner * parts;
  builder b(ranks, rank, inner * parts);
  b.p().alike = false;
  std::vector<std::vector<uint32_t>> from(parts);  // [part][host]
  for (uint32_t k = 0; k < parts; ++k)
    for (uint32_t h = 0; h < hosts; ++h) {
      const uint32_t peer = h * inner + rank % inner;
      from[k].push_back(b.slot(mine + k, peer, frame_kind::part, 1 + k));
      if (h != host) b.recv(from[k][h], peer);
    }
  b.add(DR_STEP_REDUCE, mine, no_slot);
  for (uint32_t k = 0; k < parts; ++k) {
    b.encode(from[k][host]);
    for (uint32_t i = 1; i < hosts; ++i) b.send(from[k][host], b.behind(i * inner));
  }
  for (uint32_t k = 0; k < parts; ++k) {
    for (uint32_t i = 1; i < hosts; ++i) b.wait(from[k][(host + hosts - i) % hosts]);
    b.merge(DR_STEP_SUM, mine + k, from[k], weighting::mean);
  }
  b.add(DR_STEP_GATHER, mine, no_slot);
  b.agree();
  b.add(DR_STEP_MERGE, mine, no_slot);
  return b.finish();
}

// Each chunk to its owner, the sums to all: as `owner`, but with nothing encoded.
program compile_factors(uint32_t phases, uint32_t ranks, uint32_t rank) {
  const uint32_t n = ranks, me = rank;
  const uint32_t ranges = phases * n;
  builder b(n, me, ranges);
  std::vector<std::vector<uint32_t>> from(phases);  // [phase][rank]: chunks of this rank's; its own, too
  std::vector<uint32_t> mine(ranges), sums(ranges);
  for (uint32_t f = 0; f < phases; ++f)
    for (uint32_t p = 0; p < n; ++p) {
      const uint32_t own = f * n + me, theirs = f * n + p;
      from[f].push_back(b.slot(own, p, frame_kind::part, 1 + own, 2 * f));
      if (p != me) b.recv(from[f][p], p);
      mine[theirs] = p == me ? from[f][me] : b.slot(theirs, me, frame_kind::part, 1 + theirs);
      sums[theirs] = b.slot(theirs, p, frame_kind::sum, 1 + ranges + theirs, 2 * f + 1);
      if (p != me) b.recv(sums[theirs], p);
    }
  for (uint32_t f = 0; f < phases; ++f) {
    for (uint32_t i = 1; i <= n; ++i) {
      const uint32_t to = b.behind(i);
      b.encode(mine[f * n + to]);
      if (to != me) b.send(mine[f * n + to], to);
    }
    for (uint32_t i = 1; i < n; ++i) b.wait(from[f][b.before(i)]);
    b.sum_into(sums[f * n + me], from[f]);
    for (uint32_t i = 1; i < n; ++i) b.send(sums[f * n + me], b.behind(i));
    for (uint32_t i = 1; i < n; ++i) b.wait(sums[f * n + b.before(i)]);
    if (f + 1 == phases) b.agree();
    for (uint32_t o = 0; o < n; ++o) b.merge(DR_STEP_MERGE, f * n + o, {sums[f * n + o]}, weighting::one);
  }
  return b.finish();
}

uint32_t ranges_of(const exchange_stage& how, uint32_t ranks, bool on_device) {
  if (on_device && how.kind == exchange_kind::hierarchy) return how.inner * how.parts;
  const bool owned = how.kind == exchange_kind::owner || how.kind == exchange_kind::ring;
  return owned ? ranks * how.parts : how.parts;
}

program compile(const exchange_stage& how, uint32_t ranks, uint32_t rank) {
  switch (how.kind) {
    case exchange_kind::owner: return compile_owner(ranks, rank, how.parts);
    case exchange_kind::ring: return compile_ring(ranks, rank, how.parts);
    case exchange_kind::hierarchy:
      if (how.inner > 1) return compile_hierarchy(ranks, rank, how.inner, how.parts);
      [[fallthrough]];
    default: return compile_gather(ranks, rank, how.parts);
  }
}

}  // namespace dr
