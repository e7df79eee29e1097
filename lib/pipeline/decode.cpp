#include "pipeline/decode.hpp"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstring>
#include <numeric>

#include "merge/merge.hpp"
#include "pipeline/batch.hpp"
#include "primitive/bits.hpp"
#include "primitive/value_type.hpp"
#include "split/split.hpp"
#include "stage/chain.hpp"

namespace dr {
namespace {

// Elements of a tile: those of one frame stay in L1; of many, so that a frame has enough in it to be worth turning to.
uint64_t tile_elements(size_t frames) { return frames < 2 ? 8192 : 32768; }
constexpr uint64_t tile_bytes = 4 * 32768;
// What is larger does not stay in the caches, so it is written past them.
constexpr uint64_t streamed_from = uint64_t{8} << 20;

struct row_work {
  dr_fault fault;
  uint64_t out_size[section_count];
  uint32_t* support;
  void* values;
  uint32_t* order;
  uint8_t* seen;     // to judge a permutation, one bit an element
  uint64_t* sorted;  // of keys that carry the order: key and position
  void* in_order;    // values, once they are in index order
  stream_slot slots[section_count];
};

uint64_t row_bytes(const wire_plan& p) { return uint64_t{p.width} * value_size(p.dtype); }
bool aligned(const uint8_t* payload) { return reinterpret_cast<uintptr_t>(payload) % 4 == 0; }
bool coded(const wire_row& r) { return r.mode != mode_dense && r.count != 0; }

// A support that is all of the universe, as the index codec of the plan says of every row: nothing is read for it, and no list made.
// (A row that states another is the codec's to refuse.)
bool whole(const wire_plan& plan, const wire_row& row) {
  return plan.index().whole() && row.mode == mode_plan && row.support == row.universe;
}

// Whether a stream of a coded row has to be decoded.
bool has_stream(const wire_plan& plan, const wire_row& row, uint32_t s) {
  return s != section_index || (row.mode != mode_raw_index && !whole(plan, row));
}

row_work take_row(arena& memory, const wire_plan& plan, const wire_row& row, const uint8_t* payload,
                  uint64_t& scratch) {
  row_work o{};
  if (row.mode == mode_dense && !aligned(payload)) o.values = memory.take<std::byte>(row.payload());
  if (!coded(row)) return o;
  for (uint32_t s = 0; s < section_count; ++s) {
    const stage_list& list = plan.lists[s];
    if (list.count == 0 || !has_stream(plan, row, s)) continue;
    const uint64_t count = s == section_index ? row.count : row.support;
    list_need need;
    (void)list_needs(list, {row.universe, count, plan.dtype, plan.width}, need);  // was judged with the header
    o.slots[s] = stream_slot::take(memory, list, need, true);
    scratch = std::max(scratch, need.decode_scratch);
  }
  if (!whole(plan, row)) o.support = memory.take<uint32_t>(row.support);
  o.values = memory.take<std::byte>(row.support * row_bytes(plan));
  if (plan.value().has(DR_REORDERS)) {
    o.in_order = memory.take<std::byte>(row.support * row_bytes(plan));
    if (plan.carries_order) {
      o.sorted = memory.take<uint64_t>(row.support);
    } else {
      o.order = memory.take<uint32_t>(row.support);
      o.seen = memory.take<uint8_t>(row.support / 8 + 1);
    }
  }
  return o;
}

// The workspace of frames; with a measuring arena, its size.
struct work {
  row_work* rows;
  job_list jobs;
  uint32_t *selected, *by_plan;
  std::byte* scratch;
  uint64_t scratch_stride;
};

// Of one worker.
deliver_room take_room(arena& memory, size_t frames) {
  return {memory.take<deliver_room::cursor>(frames), memory.take<std::byte>(tile_bytes)};
}

// Of n rows, at most `most` of them in one frame.
work take_lists(arena& memory, size_t n, size_t most) {
  work w{};
  w.rows = memory.take<row_work>(n);
  w.jobs = job_list::take(memory, most);
  w.selected = memory.take<uint32_t>(most);
  w.by_plan = memory.take<uint32_t>(most);
  return w;
}
void take_scratch(arena& memory, uint64_t scratch, uint32_t workers, work& w) {
  w.scratch_stride = ceil_div(scratch, arena::alignment) * arena::alignment;
  w.scratch = memory.take<std::byte>(w.scratch_stride * workers);
}

work take(arena& memory, std::span<const frame_view> frames, uint32_t workers) {
  size_t n = 0, most = 0;
  for (const frame_view& f : frames) {
    n += f.rows.size();
    most = std::max(most, f.rows.size());
  }
  work w = take_lists(memory, n, most);
  uint64_t scratch = 0;
  size_t i = 0;
  for (const frame_view& f : frames)
    for (const wire_row& row : f.rows) {
      const row_work o = take_row(memory, f.plans[row.plan], row, f.data + row.offset, scratch);
      if (!memory.measures() && memory.fits()) w.rows[i] = o;
      ++i;
    }
  take_scratch(memory, scratch, workers, w);
  return w;
}

// A plan as a reader knows it, without what only an encoder does.
wire_plan as_read(const wire_plan& plan) {
  wire_plan read = plan;
  for (stage_list& list : read.lists)
    for (stage& s : list.stages) s.values = nullptr;
  return read;
}

// The most that take_row takes of a row of a batch, whatever the data were. An encoder sends a row by one of its plans (auto: of
// its choices), with raw keys in place of a support that would be replaced, or dense; each is asked for here. It never sends
// more rows or a larger support than the batch's bounds; what take_row takes grows with both, for an arena does and a codec's
// need does (codec.h; "a need never falls" in tests/properties/traits.cpp). Dense it is sent only where its codes may be longer,
// so where the bound of the payload is the dense row's; and unaligned, whatever the address of the frame.
uint64_t most_of_row(const batch& b, const batch_row& r, uint64_t& scratch) {
  uint64_t most = 0;
  const auto ask = [&](uint32_t plan, row_mode mode, uint64_t count, uint64_t support, uint64_t dense) {
    wire_row row;
    row.mode = mode;
    row.universe = r.universe;
    row.count = count;
    row.support = support;
    row.size[section_value] = dense;
    arena memory;
    const auto* const unaligned = reinterpret_cast<const uint8_t*>(uintptr_t{1});  // never looked at
    take_row(memory, as_read(b.wire[plan]), row, unaligned, scratch);
    most = std::max<uint64_t>(most, memory.used());
  };
  const auto ask_plan = [&](uint32_t plan, uint64_t count, uint64_t support) {
    ask(plan, mode_plan, count, support, 0);
    if (b.wire[plan].replaces_support()) ask(plan, mode_raw_index, count, count, 0);
  };
  if (r.choices.empty()) ask_plan(r.plan, r.count_max, r.support_max);
  for (const row_choice& c : r.choices) ask_plan(c.plan, c.bound.count, c.bound.support);
  const uint64_t dense = r.universe * row_bytes(b.wire[r.plan]);
  if (r.bound.payload >= dense) ask(r.plan, mode_dense, r.count_max, r.universe, dense);
  return most;
}

class decoder {
 public:
  decoder(const frame_view& frame, const work& w, row_work* rows, pool& workers, dr_error& error)
      : f_(frame), w_(w), rows_(rows), error_(error), run_{w.scratch, w.scratch_stride, &workers} {}

  dr_status run(decoded_row* out) {
    // Rows by plan, once: a hostile frame has as many plans and rows as it has bytes.
    const size_t n = f_.rows.size();
    std::iota(w_.by_plan, w_.by_plan + n, 0u);
    std::sort(w_.by_plan, w_.by_plan + n, [&](uint32_t a, uint32_t b) {
      return f_.rows[a].plan != f_.rows[b].plan ? f_.rows[a].plan < f_.rows[b].plan : a < b;
    });
    for (size_t begin = 0, end = 0; begin < n; begin = end) {
      while (end < n && f_.rows[w_.by_plan[end]].plan == f_.rows[w_.by_plan[begin]].plan) ++end;
      for (const uint32_t s : {section_index, section_value, section_order})
        if (const dr_status status = section({w_.by_plan + begin, w_.by_plan + end}, s)) return status;
    }
    for (size_t i = 0; i < f_.rows.size(); ++i)
      if (const dr_status status = finish(i, out[i])) return status;
    return DR_OK;
  }

 private:
  const wire_plan& plan_of(size_t i) const { return f_.plans[f_.rows[i].plan]; }

  // One section of the rows of a plan.
  dr_status section(std::span<const uint32_t> rows, uint32_t s) {
    static constexpr uint32_t stream[] = {DR_STREAM_VALUE, DR_STREAM_ORDER, DR_STREAM_INDEX};
    const wire_plan& plan = plan_of(rows[0]);
    const stage_list& list = plan.lists[s];
    if (list.count == 0) return DR_OK;
    w_.jobs.n = 0;
    for (const uint32_t i : rows) {
      const wire_row& row = f_.rows[i];
      if (!coded(row) || !has_stream(plan, row, s)) continue;
      row_work& o = rows_[i];
      uint64_t at = row.offset;
      for (uint32_t before = 0; before < s; ++before) at += row.size[before];
      o.slots[s].data = f_.data + at;
      o.slots[s].size = row.size[s];
      o.fault = no_fault(stream[s]);
      dr_job job = shape_job({row.universe, s == section_index ? row.count : row.support, plan.dtype, plan.width});
      if (s == section_order) job.universe = row.support;
      job.fault = &o.fault;
      void* const outs[] = {o.values, o.order, o.support};
      job.out = outs[s];
      job.out_capacity = row.support * (s == section_value ? row_bytes(plan) : 4);
      job.out_size = &o.out_size[s];
      w_.selected[w_.jobs.n] = i;
      w_.jobs.add(job, o.slots[s]);
    }
    if (w_.jobs.n == 0) return DR_OK;
    if (decode_chain(list, run_, w_.jobs))
      return fail(error_, DR_E_INTERNAL, "%s broke its contract while decoding: it returned an error",
                  list.front().codec->name);
    for (size_t j = 0; j < w_.jobs.n; ++j)
      if (rows_[w_.selected[j]].fault.code)
        return fail(error_, rows_[w_.selected[j]].fault, tensor_of(w_.selected[j]), list.front().codec->name);
    return DR_OK;
  }

  uint64_t tensor_of(size_t row) const {
    uint64_t t = 0;
    for (size_t i = 1; i <= row; ++i) t += !f_.rows[i].continues;
    return t;
  }

  dr_status corrupt(size_t i, uint32_t stream, uint64_t where, uint64_t what, const char* message) {
    return fail(error_, dr_fault{sizeof(dr_fault), DR_E_CORRUPT, stream, where, what, message}, tensor_of(i), nullptr);
  }

  // Support ascending, values in its order, whatever the codecs were: nobody below has to judge again.
  dr_status finish(size_t i, decoded_row& out) {
    const wire_row& row = f_.rows[i];
    const wire_plan& plan = plan_of(i);
    row_work& o = rows_[i];
    if (row.mode == mode_dense) {
      out = {nullptr, f_.data + row.offset};
      if (o.values && row.payload()) std::memcpy(o.values, out.values, row.payload());
      if (o.values) out.values = o.values;
      return DR_OK;
    }
    if (row.mode == mode_raw_index && row.count)
      std::memcpy(o.support, f_.data + row.offset + row.size[section_value] + row.size[section_order], 4 * row.support);
    out = {o.support, o.values};
    if (row.support == 0 || row.count == 0) return DR_OK;
    if (plan.carries_order) return finish_keys(i, out);
    if (o.support) {
      // (Without a branch, for as many as there are.)
      uint32_t falls = o.support[row.support - 1] >= row.universe;
      for (uint64_t k = 1; k < row.support; ++k) falls |= o.support[k] <= o.support[k - 1];
      for (uint64_t k = 0; falls && k < row.support; ++k)
        if (o.support[k] >= row.universe || (k && o.support[k] <= o.support[k - 1]))
          return corrupt(i, DR_STREAM_INDEX, k, o.support[k],
                         "indices do not ascend, or one is not below the universe");
    }
    if (!o.order) return DR_OK;
    std::memset(o.seen, 0, row.support / 8 + 1);
    for (uint64_t k = 0; k < row.support; ++k) {
      const uint32_t to = o.order[k];
      if (to >= row.support || (o.seen[to / 8] >> (to % 8) & 1))
        return corrupt(i, DR_STREAM_ORDER, k, to, "not a permutation");
      o.seen[to / 8] |= static_cast<uint8_t>(1u << (to % 8));
    }
    permute(row_bytes(plan), o.values, o.order, row.support, o.in_order);
    out.values = o.in_order;
    return DR_OK;
  }

  dr_status finish_keys(size_t i, decoded_row& out) {
    const wire_row& row = f_.rows[i];
    row_work& o = rows_[i];
    for (uint64_t k = 0; k < row.support; ++k) {
      if (o.support[k] >= row.universe)
        return corrupt(i, DR_STREAM_INDEX, k, o.support[k], "a key is not below the universe");
      o.sorted[k] = uint64_t{o.support[k]} << 32 | k;
    }
    std::sort(o.sorted, o.sorted + row.support);
    const uint64_t bytes = row_bytes(plan_of(i));
    for (uint64_t k = 0; k < row.support; ++k) {
      o.support[k] = static_cast<uint32_t>(o.sorted[k] >> 32);
      if (k && o.support[k] == o.support[k - 1])
        return corrupt(i, DR_STREAM_INDEX, static_cast<uint32_t>(o.sorted[k]), o.support[k], "a key comes twice");
      std::memcpy(static_cast<std::byte*>(o.in_order) + k * bytes,
                  static_cast<const std::byte*>(o.values) + static_cast<uint32_t>(o.sorted[k]) * bytes, bytes);
    }
    out.values = o.in_order;
    return DR_OK;
  }

  const frame_view& f_;
  work w_;
  row_work* rows_;
  dr_error& error_;
  stage_runner run_;
};

// Calls f(first row, rows behind it, universe) for each tensor of a frame.
template <class F>
void each_tensor(const frame_view& frame, F&& f) {
  for (size_t i = 0; i < frame.rows.size();) {
    size_t end = i;
    uint64_t universe = 0;
    do universe += frame.rows[end++].universe;
    while (end < frame.rows.size() && frame.rows[end].continues);
    f(i, end, universe);
    i = end;
  }
}

bool is_cut(const frame_view& frame, size_t outs) { return frame.tensors == 1 && outs > 1; }

std::byte* at_element(const tensor_out& o, uint64_t element) {
  return static_cast<std::byte*>(o.values) + element * value_size(o.dtype);
}

// Frames to dense outputs, a tile of an output after the other and in it frame after frame: every element is added up as if
// frame after frame had been added to the whole. Rows and outputs are cut where either ends.
class deliverer {
 public:
  deliverer(std::span<const frame_view> frames, const decoded_row* rows, const float* weights, bool copies, bool clears,
            const deliver_room* rooms, pool& workers, std::span<tensor_out> outs)
      : frames_(frames),
        rows_(rows),
        weights_(weights),
        copies_(copies),
        clears_(clears),
        rooms_(rooms),
        pool_(workers),
        outs_(outs) {}

  void run() {
    uint64_t bytes = 0;
    for (const tensor_out& o : outs_) {
      tiles_ += tiles_of(o);
      if (!o.index_dtype) bytes += o.universe * width_of(o) * value_size(o.dtype);
    }
    streams_ = clears_ && bytes >= streamed_from;
    // A few items a worker, for frames are not evenly filled.
    const uint64_t items = pool_.workers() > 1 ? 8 * uint64_t{pool_.workers()} : 1;
    each_ = std::max<uint64_t>(1, ceil_div(tiles_, items));
    pool_.run(
        static_cast<size_t>(ceil_div(tiles_, each_)),
        [](void* self, size_t item, size_t worker) { static_cast<deliverer*>(self)->run_item(item, worker); }, this);
  }

 private:
  static uint32_t width_of(const tensor_out& o) { return o.width ? o.width : 1; }
  uint64_t tile_rows(const tensor_out& o) const {
    return std::max<uint64_t>(1, tile_elements(frames_.size()) / width_of(o));
  }
  uint64_t tiles_of(const tensor_out& o) const { return o.index_dtype ? 0 : ceil_div(o.universe, tile_rows(o)); }

  void run_item(size_t item, size_t worker) {
    const deliver_room& room = rooms_[worker];
    uint64_t tile = item * each_, left = std::min(each_, tiles_ - tile);
    uint64_t before = 0;  // rows of the outputs before
    size_t i = 0;
    for (; tile >= tiles_of(outs_[i]); ++i) {
      tile -= tiles_of(outs_[i]);
      before += outs_[i].universe;
    }
    size_t first_row = 0;
    for (size_t f = 0; f < frames_.size(); ++f) {
      room.cursors[f] = find(frames_[f], rows_ + first_row, before + tile * tile_rows(outs_[i]));
      first_row += frames_[f].rows.size();
    }
    if (streams_) std::memset(room.tile, 0, tile_bytes);
    for (; left; --left, ++tile) {
      for (; tile >= tiles_of(outs_[i]); ++i) {
        tile = 0;
        before += outs_[i].universe;
      }
      tensor_out& o = outs_[i];
      const uint64_t begin = tile * tile_rows(o), n = std::min(tile_rows(o), o.universe - begin);
      const uint64_t bytes = n * width_of(o) * value_size(o.dtype);
      std::byte* const out = at_element(o, begin * width_of(o));
      const bool streams = streams_ && bytes <= tile_bytes;
      if (!streams && clears_) std::memset(out, 0, bytes);
      const uint64_t pairs = fill(room, o, before + begin, n, streams ? room.tile : out);
      if (streams) {
        stream_out(room.tile, bytes, out);
        std::memset(room.tile, 0, bytes);
      }
      std::atomic_ref(o.count).fetch_add(pairs, std::memory_order_relaxed);
    }
  }

  // The place of the first row of the universe from `first` on.
  static deliver_room::cursor find(const frame_view& frame, const decoded_row* rows, uint64_t first) {
    deliver_room::cursor c{0, 0, 0};
    while (c.row < frame.rows.size() && c.first + frame.rows[c.row].universe <= first)
      c.first += frame.rows[c.row++].universe;
    if (c.row == frame.rows.size()) return c;
    if (const uint32_t* const support = rows[c.row].support)
      c.at = static_cast<uint64_t>(std::lower_bound(support, support + frame.rows[c.row].support, first - c.first) -
                                   support);
    return c;
  }

  // Rows [first, first + n) of the universe. Returns how many pairs that were.
  uint64_t fill(const deliver_room& room, const tensor_out& o, uint64_t first, uint64_t n, std::byte* out) const {
    uint64_t pairs = 0;
    size_t first_row = 0;
    for (size_t f = 0; f < frames_.size(); ++f) {
      const frame_view& frame = frames_[f];
      const decoded_row* const rows = rows_ + first_row;
      first_row += frame.rows.size();
      if (f + 1 < frames_.size()) fetch(frames_[f + 1], rows_ + first_row, room.cursors[f + 1]);
      deliver_room::cursor& c = room.cursors[f];
      while (c.row < frame.rows.size() && c.first < first + n) {
        const wire_row& row = frame.rows[c.row];
        const wire_plan& p = frame.plans[row.plan];
        const pair_sink sink{p.dtype, o.dtype, p.width, !copies_, weights_ ? weights_[f] : 1};
        const uint64_t row_end = c.first + row.universe, bytes = row_bytes(p),
                       to_bytes = uint64_t{p.width} * value_size(o.dtype);
        const uint64_t begin = std::max(first, c.first), end = std::min(first + n, row_end);
        const auto* const values = static_cast<const std::byte*>(rows[c.row].values);
        if (begin < end && !rows[c.row].support && row.support) {
          put_rows(sink, values + (begin - c.first) * bytes, end - begin, out + (begin - first) * to_bytes);
          pairs += end - begin;
        } else if (begin < end && row.support) {
          const uint64_t put = put_pairs(sink, rows[c.row].support + c.at, values + c.at * bytes, row.support - c.at,
                                         begin - c.first, end - c.first, out + (begin - first) * to_bytes);
          c.at += put;
          pairs += put;
        }
        if (row_end > first + n) break;
        c = {c.row + 1, row_end, 0};
      }
    }
    return pairs;
  }

  // What of a frame comes next is on its way while the one before is worked on.
  static void fetch(const frame_view& frame, const decoded_row* rows, const deliver_room::cursor& c) {
    if (c.row >= frame.rows.size() || !rows[c.row].support) return;
    const auto* const support = reinterpret_cast<const char*>(rows[c.row].support + c.at);
    const auto* const values =
        static_cast<const char*>(rows[c.row].values) + c.at * row_bytes(frame.plans[frame.rows[c.row].plan]);
    for (unsigned line = 0; line < 4; ++line) {
      __builtin_prefetch(support + 64 * line);
      __builtin_prefetch(values + 64 * line);
    }
  }

  std::span<const frame_view> frames_;
  const decoded_row* rows_;
  const float* weights_;
  bool copies_, clears_, streams_ = false;
  const deliver_room* rooms_;
  pool& pool_;
  std::span<tensor_out> outs_;
  uint64_t tiles_ = 0, each_ = 1;
};

}  // namespace

namespace {

// The limits that hold where the caller sets none (dr_decode_options says them).
constexpr uint64_t workspace_factor = 256, workspace_least = uint64_t{1} << 20;
constexpr uint64_t asked_factor = 4096, asked_least = uint64_t{1} << 20;

uint64_t saturated_product(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }
uint64_t saturated_sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

// What the limits are multiples of, and what a decoder asks of sparse outputs beside.
struct extent {
  uint64_t bytes = 0;  // of the frames, and of what is written to the outputs for each
  uint64_t asked = 0;  // elements of universes that an index codec goes through for a sparse output

  void add(const frame_view& frame, std::span<const tensor_out> outs) {
    bytes = saturated_sum(bytes, frame.frame_size);
    const bool cut = is_cut(frame, outs.size());
    size_t next = 0;
    each_tensor(frame, [&](size_t begin, size_t end, uint64_t universe) {
      const tensor_out& o = outs[cut ? 0 : next++];
      const uint64_t width = frame.plans[frame.rows[begin].plan].width,
                     row = saturated_product(width, value_size(o.dtype));
      if (!o.index_dtype) {
        bytes = saturated_sum(bytes, saturated_product(universe, row));
        return;
      }
      const uint64_t pair = row + (o.index_dtype == DR_U64 || o.index_dtype == DR_I64 ? 8 : 4);
      for (size_t i = begin; i < end; ++i) {
        const wire_row& r = frame.rows[i];
        const wire_plan& plan = frame.plans[r.plan];
        bytes = saturated_sum(bytes, saturated_product(r.support, pair));
        if (coded(r) && r.mode == mode_plan && plan.replaces_support() && !whole(plan, r))
          asked = saturated_sum(asked, r.universe);
      }
    });
  }
};

dr_status check_elements(const frame_view& frame, const dr_decode_options& limits, dr_error& error) {
  if (!limits.max_elements) return DR_OK;
  uint64_t elements = 0;
  for (const wire_row& row : frame.rows) {
    const uint64_t width = frame.plans[row.plan].width;
    if (row.universe > (limits.max_elements - elements) / width)
      return fail(error, DR_E_CAPACITY, "frame: more than %" PRIu64 " elements; the limit is %" PRIu64, elements,
                  limits.max_elements);
    elements += row.universe * width;
  }
  return DR_OK;
}

}  // namespace

dr_status decode_workspace(std::span<const frame_view> frames, std::span<const tensor_out> outs,
                           const dr_decode_options& limits, uint32_t workers, uint64_t& bytes, dr_error& error) {
  extent all;
  uint64_t headers = 0;
  for (const frame_view& frame : frames) {
    if (const dr_status s = check_elements(frame, limits, error)) return s;
    all.add(frame, outs);
    headers += frame.memory();
  }
  if (const uint64_t most = saturated_sum(saturated_product(asked_factor, all.bytes), asked_least);
      !limits.max_elements && all.asked > most)
    return fail(error, DR_E_CAPACITY,
                "frame: to give a sparse output its codec goes through %" PRIu64
                " elements; without a limit on elements "
                "%" PRIu64 " are allowed for such outputs",
                all.asked, most);
  arena memory;
  take(memory, frames, workers);
  for (uint32_t k = 0; k < workers; ++k) take_room(memory, frames.size());
  bytes = memory.used();
  if (bytes > SIZE_MAX / 4) return fail(error, DR_E_MEMORY, "decode: the workspace does not fit an address");
  const uint64_t most =
      limits.max_workspace
          ? limits.max_workspace
          : saturated_product(workers, saturated_sum(saturated_product(workspace_factor, all.bytes), workspace_least));
  if (bytes + headers > most) {
    fail(error, DR_E_CAPACITY, "decode: it needs %" PRIu64 " bytes of workspace; the limit is %" PRIu64,
         bytes + headers, most);
    error.needed = bytes + headers;
    return DR_E_CAPACITY;
  }
  return DR_OK;
}

dr_status decode_workspace(const batch& b, size_t frames, uint64_t& bytes, dr_error& error) {
  const auto too_large = [&] { return fail(error, DR_E_MEMORY, "decode: the workspace does not fit an address"); };
  arena memory, rows;
  uint64_t scratch = 0;
  for (const batch_row& r : b.rows) rows.take<std::byte>(most_of_row(b, r, scratch));
  if (frames && rows.used() > SIZE_MAX / frames) return too_large();
  work w = take_lists(memory, b.rows.size() * frames, b.rows.size());
  memory.take<std::byte>(rows.used() * frames);
  take_scratch(memory, scratch, b.workers, w);
  for (uint32_t k = 0; k < b.workers; ++k) take_room(memory, frames);
  bytes = memory.used();
  return bytes > SIZE_MAX / 4 ? too_large() : DR_OK;
}

dr_status check_frame(const batch& b, const frame_view& frame, dr_error& error) {
  if (frame.tensors != b.units.size())
    return fail(error, DR_E_ARGUMENT, "frame: it has %u tensors, one of the batch has %zu", frame.tensors,
                b.units.size());
  dr_status status = DR_OK;
  const unit* u = b.units.data();
  each_tensor(frame, [&](size_t begin, size_t, uint64_t universe) {
    const wire_plan& p = frame.plans[frame.rows[begin].plan];
    if (!status && (universe != u->universe || p.width != u->width || p.dtype != u->dtype)) {
      status =
          fail(error, DR_E_ARGUMENT,
               "frame: tensor %u has %" PRIu64 " rows of %u values in %s, one of the batch %" PRIu64 " of %u in %s",
               u->first_tensor, universe, p.width, dtype_name(p.dtype), u->universe, u->width, dtype_name(u->dtype));
      error.tensor = u->first_tensor;
    }
    ++u;
  });
  return status;
}

frame_view common_frame(const batch& b) {
  frame_view f;
  f.plans = b.wire;
  f.tensors = static_cast<uint32_t>(b.units.size());
  for (const batch_row& r : b.rows) {
    wire_row& row = f.rows.emplace_back();
    row.plan = r.plan;
    row.continues = r.continues;
    row.universe = r.universe;
  }
  return f;
}

namespace {

dr_status bad_output(dr_error& error, uint64_t i, dr_status code, const char* what, uint64_t has, uint64_t wants) {
  fail(error, code, "output %" PRIu64 ": %s (it has %" PRIu64 ", the frame %" PRIu64 ")", i, what, has, wants);
  error.tensor = i;
  return code;
}

}  // namespace

dr_status check_outputs(std::span<const tensor_out> outs, bool dense_only, uint64_t& total, dr_error& error) {
  const auto bad = [&](uint64_t i, const char* what, uint64_t has, uint64_t wants) {
    return bad_output(error, i, DR_E_ARGUMENT, what, has, wants);
  };
  total = 0;
  for (size_t i = 0; i < outs.size(); ++i) {
    const tensor_out& o = outs[i];
    if (!is_value_type(o.dtype)) return bad(i, "dtype is not f32, f16 or bf16", o.dtype, DR_F32);
    if (o.index_dtype && !is_index_type(o.index_dtype))
      return bad(i, "index_dtype is not u32, i32, u64, i64 or 0 (dense)", o.index_dtype, 0);
    if (o.flags) return bad(i, "unknown flags", o.flags, 0);
    if (reinterpret_cast<uintptr_t>(o.values) % value_size(o.dtype))
      return bad(i, "values are not aligned to their dtype", 0, 0);
    if (o.index_dtype && dense_only) return bad(i, "a dense output is wanted here", o.index_dtype, 0);
    if (!o.values && (o.index_dtype ? o.capacity : o.universe)) return bad(i, "values is NULL", 0, 0);
    if (o.universe > UINT64_MAX - total) return bad(i, "universe overflows", o.universe, 0);
    total += o.universe;
  }
  return DR_OK;
}

dr_status check_outputs(const frame_view& frame, std::span<const tensor_out> outs, bool dense_only, dr_error& error) {
  const auto bad = [&](uint64_t i, dr_status code, const char* what, uint64_t has, uint64_t wants) {
    return bad_output(error, i, code, what, has, wants);
  };
  const bool cut = is_cut(frame, outs.size());
  if (!cut && outs.size() != frame.tensors)
    return fail(error, DR_E_ARGUMENT, "%zu outputs; the frame has %u tensors", outs.size(), frame.tensors);
  uint64_t total = 0;
  if (const dr_status s = check_outputs(outs, cut || dense_only, total, error)) return s;
  const auto type_fits = [&](size_t i, const wire_plan& p) -> dr_status {
    const tensor_out& o = outs[i];
    const uint32_t width = o.width ? o.width : 1;
    if (width != p.width) return bad(i, DR_E_ARGUMENT, "width differs", width, p.width);
    if (o.dtype != p.dtype && o.dtype != DR_F32) {
      fail(error, DR_E_ARGUMENT, "output %zu: dtype must be the frame's, or f32 (it has %s, the frame %s)", i,
           dtype_name(o.dtype), dtype_name(p.dtype));
      error.tensor = i;
      return DR_E_ARGUMENT;
    }
    return DR_OK;
  };
  dr_status status = DR_OK;
  size_t next = 0;
  each_tensor(frame, [&](size_t begin, size_t end, uint64_t universe) {
    const wire_plan& p = frame.plans[frame.rows[begin].plan];
    if (cut) {
      for (size_t i = 0; i < outs.size() && !status; ++i) status = type_fits(i, p);
      if (!status && total != universe)
        status = fail(error, DR_E_ARGUMENT,
                      "%zu outputs hold %" PRIu64 " rows together; the frame's one tensor has %" PRIu64, outs.size(),
                      total, universe);
      return;
    }
    if (status) return;
    const size_t i = next++;
    const tensor_out& o = outs[i];
    if ((status = type_fits(i, p))) return;
    if (o.universe != universe) {
      status = bad(i, DR_E_ARGUMENT, "universe differs", o.universe, universe);
      return;
    }
    if (!o.index_dtype) return;
    uint64_t support = 0;
    for (size_t r = begin; r < end; ++r) support += frame.rows[r].support;
    const uint64_t top = o.index_dtype == DR_U32   ? uint64_t{1} << 32
                         : o.index_dtype == DR_I32 ? uint64_t{1} << 31
                         : o.index_dtype == DR_I64 ? uint64_t{1} << 63
                                                   : UINT64_MAX;
    if (universe > top)
      status = bad(i, DR_E_ARGUMENT, "its index type cannot hold such a universe", top, universe);
    else if (support > o.capacity)
      status = bad(i, DR_E_CAPACITY, "too little room for the support", o.capacity, support);
    else if (support && !o.indices)
      status = bad(i, DR_E_ARGUMENT, "indices is NULL", 0, support);
    else if (reinterpret_cast<uintptr_t>(o.indices) % (o.index_dtype == DR_U32 || o.index_dtype == DR_I32 ? 4 : 8))
      status = bad(i, DR_E_ARGUMENT, "indices are not aligned to their dtype", 0, 0);
  });
  return status;
}

dr_status decode_rows(std::span<const frame_view> frames, pool& workers, arena& memory, decoded_row* rows,
                      deliver_room* rooms, dr_error& error) {
  const work w = take(memory, frames, workers.workers());
  for (uint32_t k = 0; k < workers.workers(); ++k) rooms[k] = take_room(memory, frames.size());
  if (!memory.fits()) return fail(error, DR_E_INTERNAL, "decode: the workspace is too small");
  size_t first = 0;
  for (size_t k = 0; k < frames.size(); ++k) {
    decoder d(frames[k], w, w.rows + first, workers, error);
    if (const dr_status s = d.run(rows + first)) {
      if (frames.size() > 1) {
        error.frame = k;
        prefix(error, "frame %zu: ", k);
      }
      return s;
    }
    first += frames[k].rows.size();
  }
  return DR_OK;
}

void deliver(const frame_view& frame, const decoded_row* rows, const deliver_room* rooms, pool& workers,
             std::span<tensor_out> outs) {
  for (tensor_out& o : outs) o.count = 0;
  deliverer({&frame, 1}, rows, nullptr, true, true, rooms, workers, outs).run();
  if (is_cut(frame, outs.size())) return;
  size_t next = 0;
  each_tensor(frame, [&](size_t begin, size_t end, uint64_t) {
    tensor_out& o = outs[next++];
    uint64_t first = 0;
    for (size_t i = begin; i < end && o.index_dtype; ++i) {
      const wire_row& row = frame.rows[i];
      const wire_plan& p = frame.plans[row.plan];
      const unsigned index_size = o.index_dtype == DR_U64 || o.index_dtype == DR_I64 ? 8 : 4;
      write_indices(rows[i].support, row.support, first, o.index_dtype,
                    static_cast<std::byte*>(o.indices) + o.count * index_size);
      convert(p.dtype, rows[i].values, row.support * p.width, o.dtype, at_element(o, o.count * p.width));
      o.count += row.support;
      first += row.universe;
    }
  });
}

void merge(std::span<const frame_view> frames, const decoded_row* rows, const float* weights, bool adds,
           const deliver_room* rooms, pool& workers, std::span<tensor_out> outs) {
  if (!adds)
    for (tensor_out& o : outs) o.count = 0;
  deliverer(frames, rows, weights, false, !adds, rooms, workers, outs).run();
}

}  // namespace dr
