#include "pipeline/device_encode.hpp"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>

#include "core/arena.hpp"
#include "cuda/fused.hpp"
#include "feedback/feedback_tile.hpp"
#include "feedback/residual.hpp"
#include "pipeline/device_decode_work.hpp"
#include "pipeline/draw_keys.hpp"
#include "pipeline/draw_tile.hpp"
#include "pipeline/launch_own.hpp"
#include "pipeline/sequence.hpp"
#include "split/order_tile.hpp"

namespace dr {
namespace {

class device_encoder {
 public:
  device_encoder(const batch& b, const encode_call& call, std::span<const tensor_view> tensors, device_queue& queue,
                 device_encode_scratch& host, dr_error& error)
      : b_(b), call_(call), tensors_(tensors), queue_(queue), host_(host), error_(error) {}

  dr_status run(const device_prepared& prepared, void* workspace, uint8_t* frame, uint64_t capacity,
                dr_result* result) {
    fused_call small(queue_, is_small(b_, prepared.memory) ? &small_encode_kernel() : nullptr);
    if (const dr_status s = launch_all(prepared, workspace, frame, capacity, result)) return s;
    return launched(queue_.fused_end());
  }
  dr_status launch_all(const device_prepared& prepared, void* workspace, uint8_t* frame, uint64_t capacity,
                       dr_result* result) {
    prepared.memory.place(static_cast<std::byte*>(workspace), w_, rows_, scratch_, units_);
    for (size_t i = 0; i < rows_.size() && queue_.where; ++i) use_in_place(i);
    if (const dr_status s = begin(prepared.headers[(call_.flags & DR_CALL_TAG) != 0])) return s;
    if (const dr_status s = select()) return s;
    for (uint32_t p = 0; p < b_.wire.size(); ++p)
      if (const dr_status s = streams(p)) return s;
    if (const dr_status s = pack(frame, capacity, result)) return s;
    return feedback();
  }

 private:
  // Whether one block may do all of it. (With keys the descriptors are longest.)
  static bool is_small(const batch& b, const device_encode_layout& memory) {
    if (b.rows.size() != 1 || b.patches() || memory.work.keys_at + sizeof(row_keys) > begin_small) return false;
    const unit& u = b.units[0];
    if (b.rows[0].listed.count_max * u.width > fused_values) return false;
    return u.sparse || (!b.has_large && device_select_job_of(b, 0).solved);
  }

  const tensor_view& tensor_of(size_t row) const { return tensors_[b_.units[b_.rows[row].unit].first_tensor]; }
  uint64_t segment_of(size_t row) const { return row - unit_of(row).first_row; }
  const wire_plan& wire_of(size_t row) const { return b_.wire[b_.rows[row].plan]; }
  const unit& unit_of(size_t row) const { return b_.units[b_.rows[row].unit]; }
  // The part of a tensor's values, or of the sums in f32, that is a row's.
  const std::byte* part_of(size_t row, const void* values, bool sums = false) const {
    const uint64_t first = b_.rows[row].first;
    return first ? static_cast<const std::byte*>(values) + first * (sums ? sizeof(float) : row_bytes(row))
                 : static_cast<const std::byte*>(values);
  }
  float* sums_of(size_t row) const { return residual_of(tensor_of(row).state) + b_.rows[row].first; }
  // Where the state of a row's tensor is noted, and its selection, if that is cut afterwards.
  device_row* unit_row(size_t row) const {
    device_row* const own = units_[b_.rows[row].unit].row;
    return own ? own : w_.rows + row;
  }
  uint64_t row_bytes(size_t row) const { return uint64_t{unit_of(row).width} * value_size(unit_of(row).dtype); }
  const codec_scratch& scratch_of(uint32_t p, section s, bool decode) const {
    constexpr uint32_t position[section_count] = {1, 2, 0};  // the order of lay_out
    return scratch_[2 * (section_count * p + position[s]) + decode];
  }

  // Values of a sparse tensor, and of one that is sent whole; with feedback the residual, to which they are added.
  void use_in_place(size_t i) {
    const unit& u = unit_of(i);
    if ((u.sparse && u.rows > 1) || (!u.sparse && (!u.whole || moves_values(u)))) return;
    const bool sums = u.whole && u.method->keeps_feedback();
    const std::byte* const values =
        sums ? reinterpret_cast<const std::byte*>(sums_of(i)) : part_of(i, tensor_of(i).values);
    rows_[i].selected = const_cast<std::byte*>(values);
    if (u.whole || !wire_of(i).replaces_support()) rows_[i].sent = rows_[i].selected;
    if (!u.whole || !copies_values(wire_of(i))) return;
    rows_[i].plain |= reinterpret_cast<uintptr_t>(values) % 4 == 0;
    if (rows_[i].plain) rows_[i].slot[section_value] = reinterpret_cast<uint8_t*>(rows_[i].sent);
  }

  dr_status launched(dr_status s) {
    if (s == DR_OK) return DR_OK;
    return fail(error_, s, "device: a launch failed: %s", queue_.reason());
  }

  // ---- begin: zeroes, descriptors, states ---------------------------------------------------------------

  dr_status begin(const device_header& header) {
    shape_ = header.shape;
    host_.blob.assign((b_.rows.size() + 1) * sizeof(pack_row), 0);
    tiles_ = 0;
    for (size_t i = 0; i <= b_.rows.size(); ++i) {
      pack_row p{};
      p.first_tile = static_cast<uint32_t>(tiles_);
      if (i < b_.rows.size()) {
        describe_row(b_, i, rows_[i], p);
        if (b_.patches() && queue_.where) p.sent = reinterpret_cast<const uint8_t*>(part_of(i, tensor_of(i).values));
        tiles_ += ceil_div((shape_.rows == 1 ? shape_.header_size : 0) + padded(b_.rows[i].listed.payload), frame_tile);
        if (tiles_ > 0x7fffffff) return fail(error_, DR_E_UNSUPPORTED, "device: the frame is too large for one launch");
      }
      std::memcpy(host_.blob.data() + i * sizeof p, &p, sizeof p);
    }
    const size_t head = host_.blob.size();
    host_.blob.insert(host_.blob.end(), header.head.begin(), header.head.end());
    if (call_.flags & DR_CALL_LIST) host_.blob[head + 3] |= DR_FRAME_LIST;
    if (shape_.has_tag) store(host_.blob.data() + head + 24, call_.tag);
    host_.blob.resize(round_up(host_.blob.size(), 16));
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (unit_of(i).tensors > 1) list_bucket(i);
      if (rows_[i].unlisted_at) put_source(i);
    }
    if (step_at() || draws()) list_keys();
    dr_exec exec = queue_.exec();
    if (const dr_status s = launched(begin_on_device(exec, w_.zero, w_.zero_size, w_.blob, host_.blob))) return s;
    if (step_at())
      if (const dr_status s = launched(draw_keys_at_step())) return s;
    host_.jobs.clear();
    for (size_t i = 0; i < rows_.size(); ++i) {
      const unit& u = unit_of(i);
      if (!u.method->keeps_feedback() || i != u.first_row) continue;
      uint64_t first = 0;
      for (uint32_t t = u.first_tensor; t < u.first_tensor + u.tensors; ++t) {
        dr_job job{sizeof(dr_job)};
        if (queue_.where) job.out = tensors_[t].state;
        job.private_key = b_.shapes[t].universe;
        job.shared_key = first;
        first += b_.shapes[t].universe;
        job.universe = u.method->feedback_rule().kind.number();
        job.fault = &unit_row(i)->fault;
        job.tell_count = reinterpret_cast<uint64_t*>(unit_row(i));
        job.count_max = 1;
        host_.jobs.push_back(job);
      }
    }
    if (host_.jobs.empty()) return DR_OK;
    return launched(
        launch_jobs<open_states>(exec, host_.jobs.data(), host_.jobs.size(), no_common{}, [&](size_t i, tile_job& t) {
          t.key = host_.jobs[i].private_key;
          t.extra = host_.jobs[i].universe;
          t.universe = static_cast<uint32_t>(host_.jobs[i].shared_key);
          return 1;
        }));
  }

  // The address of the step (DR_CALL_STEP_AT), or nullptr.
  const uint64_t* step_at() const {
    return call_.flags & DR_CALL_STEP_AT ? reinterpret_cast<const uint64_t*>(call_.step) : nullptr;
  }
  dr_status draw_keys_at_step() {
    const auto rows = static_cast<uint32_t>(rows_.size());
    const draw_row_keys::args args{
        w_.keys, step_at(), combine(0, call_.seed), draw_keys::private_base, call_.private_seed, rows};
    return launch<draw_row_keys>(queue_.exec(), ceil_div(rows, draw_row_keys::lanes), args);
  }
  // Whether a selection draws on the device.
  bool draws() const {
    for (size_t i = 0; i < rows_.size() && !b_.patches(); ++i)
      if (device_select_job_of(b_, i).kind == device_select_job::chance) return true;
    return false;
  }
  void list_keys() {
    host_.blob.resize(w_.keys_at + round_up(rows_.size() * sizeof(row_keys), 16));
    for (size_t i = 0; i < rows_.size() && queue_.where; ++i) {
      const tensor_view& t = tensor_of(i);
      const draw_keys keys = draw_keys::of(call_, t, unit_of(i).first_tensor, segment_of(i));
      row_keys here{keys.shared, keys.own};
      if (step_at()) here = {t.key ? t.key : unit_of(i).first_tensor, segment_of(i)};
      std::memcpy(host_.blob.data() + w_.keys_at + i * sizeof here, &here, sizeof here);
    }
  }

  // What a row is selected from, and that is read again: the sums of feedback, or the values.
  const void* source_of(size_t row) const {
    if (unit_of(row).method->keeps_feedback()) return sums_of(row);
    return part_of(row, tensor_of(row).values);
  }

  // Appends what a row is selected from to the blob, for a row that may be unlisted.
  void put_source(size_t row) {
    const unit& u = unit_of(row);
    unlisted_source from{rows_[row].flat, 0, u.method->keeps_feedback()};
    from.low = magnitude_from(u.dtype, device_select_job_of(b_, row).threshold);
    if (!from.values && queue_.where) from.values = source_of(row);
    host_.blob.resize(rows_[row].unlisted_at + sizeof from);
    std::memcpy(host_.blob.data() + rows_[row].unlisted_at, &from, sizeof from);
  }

  // Appends the table of a bucket to the blob.
  void list_bucket(size_t row) {
    const unit& u = unit_of(row);
    host_.blob.resize(rows_[row].flat_at + flat_table_size(u.tensors));
    flat_table table{.pieces = 0, .first_tensor = u.first_tensor, .reserved = {}};
    uint64_t at = rows_[row].flat_at + sizeof table;
    flat_piece p{};
    const auto put = [&] {
      std::memcpy(host_.blob.data() + at, &p, sizeof p);
      at += sizeof p;
    };
    for (uint32_t t = u.first_tensor; t < u.first_tensor + u.tensors; ++t) {
      const uint64_t elements = b_.shapes[t].universe;
      if (elements == 0) continue;
      p.tensor = t;
      if (queue_.where) {
        p.values = tensors_[t].values;
        if (u.method->keeps_feedback()) p.residual = residual_of(tensors_[t].state);
      }
      put();
      ++table.pieces;
      p.first += static_cast<uint32_t>(elements);
      p.first_tile += flat_tiles_of(elements, u.dtype);
    }
    p.values = nullptr;
    p.residual = nullptr;
    put();
    std::memcpy(host_.blob.data() + rows_[row].flat_at, &table, sizeof table);
  }

  // The rows that differ from their bases.
  dr_status compare() {
    host_.changes.clear();
    for (size_t i = 0; i < rows_.size(); ++i) {
      changes_job j{};
      if (queue_.where) {
        j.base = part_of(i, tensor_of(i).base);
        j.now = part_of(i, tensor_of(i).values);
      }
      j.support = rows_[i].support;
      j.selected = rows_[i].selected;
      j.based = rows_[i].based;
      j.row = w_.rows + i;
      j.checks = w_.patched + 2 * i;
      j.ticket = rows_[i].ticket;
      j.universe = static_cast<uint32_t>(b_.rows[i].universe);
      j.count_max = static_cast<uint32_t>(std::min(unit_of(i).dense_above, b_.rows[i].universe));
      j.size = value_size(unit_of(i).dtype);
      host_.changes.push_back(j);
    }
    return launched(launch_own<find_changes>(
        queue_, host_.changes, [](const changes_job& j) { return changes_tiles(uint64_t{j.universe} * j.size); }));
  }

  // Cuts tensors in segments: `before` their selection the states of those that are sent whole, then the lists of others.
  dr_status cut(bool before) {
    host_.cuts.clear();
    for (size_t i = 0; i < rows_.size(); ++i) {
      const unit& u = unit_of(i);
      if (!is_cut_up(u) || u.whole != before || (u.whole && !u.method->keeps_feedback())) continue;
      const batch_row& r = b_.rows[i];
      const device_encode_unit& all = units_[r.unit];
      cut_job j{};
      j.tensor = all.row;
      j.row = w_.rows + i;
      j.positions = all.support;
      j.values = all.selected;
      if (u.sparse && queue_.where) j.values = tensor_of(i).values;
      j.support = rows_[i].support;
      j.selected = rows_[i].selected;
      j.first = static_cast<uint32_t>(r.first);
      j.universe = static_cast<uint32_t>(r.universe);
      j.count_max = u.whole ? 0 : static_cast<uint32_t>(r.listed.count_max);
      j.width = u.width;
      j.dtype = static_cast<uint8_t>(u.dtype);
      uint32_t flags = i == u.first_row ? uint32_t{cut_first} : 0;
      if (needs_finite(b_, i)) flags |= cut_needs_finite;
      if (u.method->keeps_feedback()) flags |= cut_sums;
      if (u.dense_above < u.universe) {
        flags |= cut_unlisted;
        j.low = magnitude_from(u.dtype, device_select_job_of(b_, i).threshold);
        if (queue_.where) j.source = source_of(i);
      }
      j.flags = static_cast<uint8_t>(flags);
      host_.cuts.push_back(j);
    }
    return launched(launch_own<cut_rows>(
        queue_, host_.cuts, [](const cut_job& j) { return ceil_div(std::max(1u, j.count_max), row_tile); }));
  }

  // Of rows that are selected by blocks: where their elements are.
  block_source block_source_of(size_t i) const {
    const unit& u = unit_of(i);
    block_source from{};
    from.flat = rows_[i].flat;
    if (queue_.where && !from.flat) {
      from.values = tensor_of(i).values;
      if (u.method->keeps_feedback()) from.residual = residual_of(tensor_of(i).state);
    }
    from.d = static_cast<uint32_t>(u.universe);
    from.dtype = static_cast<uint8_t>(u.dtype);
    from.shift = static_cast<uint8_t>(std::countr_zero(block_of(b_, i)));
    from.needs_finite = needs_finite(b_, i);
    return from;
  }
  dr_status measure_blocks() {
    host_.energies.clear();
    for (size_t i = 0; i < rows_.size() && w_.block_rows; ++i) {
      if (!block_of(b_, i)) continue;
      const device_select_job select = device_select_job_of(b_, i);
      energies_job j{};
      j.from = block_source_of(i);
      j.energies = rows_[i].energies;
      j.row = w_.rows + i;
      j.selected = w_.block_rows + i;
      j.beta = select.beta;
      j.gamma = select.gamma;
      host_.energies.push_back(j);
    }
    return launched(launch_own<find_energies>(queue_, host_.energies,
                                              [](const energies_job& j) { return ceil_div(j.from.d, energy_tile); }));
  }
  // Lists the elements of the selected blocks.
  dr_status take() {
    host_.taken.clear();
    for (size_t i = 0; i < rows_.size() && w_.block_rows; ++i) {
      if (!block_of(b_, i)) continue;
      take_job j{};
      j.from = block_source_of(i);
      j.blocks = rows_[i].blocks;
      j.support = rows_[i].support;
      j.values = rows_[i].selected;
      j.row = w_.rows + i;
      j.selected = w_.block_rows + i;
      j.count_max = static_cast<uint32_t>(b_.rows[i].listed.count_max);
      host_.taken.push_back(j);
    }
    return launched(launch_own<take_blocks>(
        queue_, host_.taken, [](const take_job& j) { return ceil_div(uint64_t{j.count_max}, row_tile); }));
  }

  dr_status select() {
    if (b_.patches()) return compare();
    if (const dr_status s = measure_blocks()) return s;
    if (const dr_status s = cut(true)) return s;
    select_.clear();
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!has_selection(b_, i)) continue;
      const unit& u = unit_of(i);
      device_select_job j = device_select_job_of(b_, i);
      if (queue_.where) {
        const tensor_view& t = tensor_of(i);
        j.values = part_of(i, t.values);
        j.indices = t.indices;
        j.entries = t.count;
        if (j.residual) j.residual = sums_of(i);
      }
      if (!queue_.where) j.entries = j.count_max;
      j.flat = rows_[i].flat;
      j.key = &w_.keys[i].shared;
      const bool cuts = is_cut_up(u) && !u.whole;
      j.support = cuts ? units_[b_.rows[i].unit].support : rows_[i].support;
      if (!u.whole || moves_values(u)) j.selected = cuts ? units_[b_.rows[i].unit].selected : rows_[i].selected;
      j.plain = rows_[i].plain;
      j.row = cuts ? unit_row(i) : w_.rows + i;
      if (j.block) {
        j.values = rows_[i].energies;
        j.flat = nullptr;
        j.residual = nullptr;
        j.support = rows_[i].blocks;
        j.selected = rows_[i].kept_energies;
        j.row = w_.block_rows + i;
      }
      select_.push_back(j);
    }
    if (const dr_status s =
            launched(select_on_device(queue_.exec(), select_, w_.select_zeroed, w_.select_plain, host_.selecting)))
      return s;
    if (const dr_status s = take()) return s;
    return cut(false);
  }

  // ---- streams --------------------------------------------------------------------------------------------

  dr_status streams(uint32_t p) {
    const uint32_t before = queue_.launches;
    for (const stream_step step : sequence_of(b_.wire[p])) {
      dr_status s = DR_OK;
      switch (step) {
        case stream_step::index: {
          // Behind values neither stream needs the other.
          const bool behind_values = queue_.launches > before && !b_.wire[p].carries_order;
          s = index(p, behind_values);
          break;
        }
        case stream_step::regather: s = regather(p); break;
        case stream_step::value: s = value(p); break;
        case stream_step::reorder: s = reorder(p); break;
        case stream_step::order: s = order(p); break;
      }
      if (s) return s;
    }
    return DR_OK;
  }

  // Lists the jobs of one stream for the rows of a plan, in order.
  template <class Fill>
  void jobs_of(uint32_t p, section s, Fill&& fill) {
    host_.jobs.clear();
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (b_.rows[i].plan != p) continue;
      dr_job job = shape_job(device_stream_shape(b_, i, s));
      if (queue_.where) {
        const tensor_view& t = tensor_of(i);
        const draw_keys keys = draw_keys::of(call_, t, unit_of(i).first_tensor, segment_of(i));
        job.shared_key = keys.shared;
        job.private_key = keys.own;
        if (step_at()) {
          job.shared_key = reinterpret_cast<uintptr_t>(&w_.keys[i].shared);
          job.private_key = reinterpret_cast<uintptr_t>(&w_.keys[i].own);
        }
      }
      job.fault = &w_.rows[i].fault;
      job.out = rows_[i].slot[s];
      job.out_capacity = round_up(b_.rows[i].listed.need[s].payload[0], 16);
      job.out_size = &w_.rows[i].size[s];
      fill(i, job);
      if (!job.out) continue;  // nothing to code, or, without feedback, to decode
      host_.jobs.push_back(job);
    }
  }

  // beside: it needs nothing that the launch before its first one writes.
  dr_status run_codec(uint32_t p, section s, bool decode = false, bool beside = false) {
    if (host_.jobs.empty()) return DR_OK;
    const stage& stage = b_.wire[p].lists[s].front();
    const codec_scratch& scratch = scratch_of(p, s, decode);
    dr_exec exec = queue_.exec(scratch.at, scratch.size);
    if (step_at()) exec.reserved = keys_at;
    const dr_params params = stage.params();
    const auto f = decode ? stage.codec->cuda->decode : stage.codec->cuda->encode;
    queue_.beside = beside;
    const dr_status status = f(&exec, &params, host_.jobs.data(), host_.jobs.size());
    queue_.beside = false;  // (it may have launched nothing)
    return status ? fail(error_, status, "%s: its launch failed: %s", stage.codec->name, queue_.reason()) : DR_OK;
  }

  dr_status index(uint32_t p, bool beside) {
    const wire_plan& plan = b_.wire[p];
    if (plan.index().whole()) return DR_OK;
    jobs_of(p, section_index, [&](size_t i, dr_job& job) {
      job.in = plan.carries_order ? rows_[i].keys : rows_[i].support;
      job.in_max = 4 * plan.index().keys(b_.rows[i].listed.count_max);
      job.count = &w_.rows[i].count;
      if (plan.index().block > 1) {
        job.in = rows_[i].blocks;
        job.count = &w_.block_rows[i].count;
      }
      if (!plan.replaces_support()) return;
      job.fault = &w_.replaced[i].fault;
      job.out_size = &w_.replaced[i].size;
      job.tell = rows_[i].reported;
      job.tell_capacity = b_.rows[i].listed.support_max;
      job.tell_count = &w_.replaced[i].count;
    });
    return run_codec(p, section_index, false, beside);
  }

  dr_status regather(uint32_t p) {
    host_.regather.clear();
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (b_.rows[i].plan != p || unit_of(i).whole) continue;
      const unit& u = unit_of(i);
      regather_job j{};
      if (queue_.where) j.values = u.sparse && u.rows > 1 ? rows_[i].selected : part_of(i, tensor_of(i).values);
      j.selected = rows_[i].selected;
      j.support = rows_[i].support;
      j.reported = rows_[i].reported;
      j.sent = rows_[i].sent;
      j.row = w_.rows + i;
      if (j.reported) j.replaced = w_.replaced + i;
      j.width = u.width;
      j.reported_max = static_cast<uint32_t>(b_.rows[i].listed.support_max);
      j.dtype = static_cast<uint8_t>(u.dtype);
      uint32_t flags = u.method->regather ? regather_from_source : 0;
      if (u.sparse) flags |= regather_sparse;
      if (u.method->keeps_feedback()) {
        flags |= regather_from_residual;
        if (queue_.where) j.values = sums_of(i);
      }
      if (b_.wire[p].value().has(DR_NEEDS_FINITE)) flags |= regather_needs_finite;
      j.flags = static_cast<uint8_t>(flags);
      j.flat = rows_[i].flat;
      host_.regather.push_back(j);
    }
    return launched(launch_own<regather_values>(queue_, host_.regather, [](const regather_job& j) {
      return ceil_div(std::max(1u, j.reported_max), regather_tile);
    }));
  }

  dr_status value(uint32_t p) {
    jobs_of(p, section_value, [&](size_t i, dr_job& job) {
      job.in = rows_[i].sent;
      job.in_max = b_.rows[i].listed.support_max * row_bytes(i);
      job.count = &w_.rows[i].support_count;
      job.base = rows_[i].based;
      if (rows_[i].plain) job.out = nullptr;
      if (!rows_[i].order) return;
      job.tell = rows_[i].order;
      job.tell_capacity = b_.rows[i].listed.support_max;
      job.tell_count = &w_.rows[i].order_count;
    });
    return run_codec(p, section_value);
  }

  // Puts the support in the order of the values. (Of all elements it is that order.)
  dr_status reorder(uint32_t p) {
    if (b_.wire[p].index().whole()) return DR_OK;
    host_.jobs.clear();
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (b_.rows[i].plan != p || !rows_[i].keys) continue;
      dr_job job{sizeof(dr_job)};
      job.in = rows_[i].order;
      job.tell = rows_[i].reported;
      job.out = rows_[i].keys;
      job.count = &w_.rows[i].support_count;
      job.count_max = b_.rows[i].listed.support_max;
      job.fault = &w_.rows[i].fault;
      host_.jobs.push_back(job);
    }
    return launched(launch_jobs<reorder_keys>(
        queue_.exec(), host_.jobs.data(), host_.jobs.size(), no_common{},
        [&](size_t i, tile_job&) { return ceil_div(host_.jobs[i].count_max, regather_tile); }));
  }

  dr_status order(uint32_t p) {
    jobs_of(p, section_order, [&](size_t i, dr_job& job) {
      job.in = rows_[i].order;
      job.in_max = 4 * b_.rows[i].listed.support_max;
      job.count = &w_.rows[i].support_count;
      job.universe = b_.rows[i].listed.support_max;
    });
    return run_codec(p, section_order);
  }

  dr_status pack(uint8_t* frame, uint64_t capacity, dr_result* result) {
    const auto* place = reinterpret_cast<const pack_row*>(w_.blob);
    pack_frame::args args{w_.rows,
                          place,
                          reinterpret_cast<const uint8_t*>(place + b_.rows.size() + 1),
                          w_.state,
                          w_.check,
                          w_.patched,
                          frame,
                          capacity,
                          result,
                          call_.tag,
                          step_at(),
                          shape_,
                          call_.flags & DR_CALL_STATUS_FRAME,
                          {}};
    std::memcpy(args.message, "encode failed on the GPU", sizeof args.message);
    return launched(launch<pack_frame>(queue_.exec(), std::max<uint64_t>(1, tiles_), args));
  }

  // Subtracts the decoded values from the residual, which holds the accumulator.
  dr_status feedback() {
    const uint32_t packed = queue_.launches;
    for (uint32_t p = 0; p < b_.wire.size(); ++p) {
      subtract_.clear();
      bool decodes = false, blind = false;
      for (size_t i = 0; i < rows_.size(); ++i) {
        const unit& u = unit_of(i);
        if (b_.rows[i].plan != p || !u.method->keeps_feedback()) continue;
        const device_encode_row& o = rows_[i];
        subtract_job j{};
        if (queue_.where) j.acc = sums_of(i);
        j.flat = o.flat;
        j.states = u.tensors;
        j.reported = o.order ? o.keys : o.reported;
        j.values = o.decoded ? o.decoded : o.sent;
        j.support = o.support;
        j.selected = o.selected;
        j.row = w_.rows + i;
        j.universe = static_cast<uint32_t>(b_.rows[i].universe);
        if (u.dense_above < u.universe) j.low = magnitude_from(u.dtype, device_select_job_of(b_, i).threshold);
        j.reported_max = static_cast<uint32_t>(b_.rows[i].listed.support_max);
        subtract_.push_back(j);
        decodes = decodes || o.decoded;
        blind = blind || u.method->sparsifier().how.blind;
      }
      if (subtract_.empty()) continue;
      if (decodes) {
        jobs_of(p, section_value, [&](size_t i, dr_job& job) {
          job.in = rows_[i].slot[section_value];
          job.in_max = round_up(b_.rows[i].listed.need[section_value].payload[0], 16);
          job.in_size = &w_.rows[i].size[section_value];
          job.out = rows_[i].decoded;
          job.out_capacity = b_.rows[i].listed.support_max * row_bytes(i);
          job.out_size = &w_.rows[i].decoded_size;
          job.count = &w_.rows[i].support_count;
        });
        // Beside pack_frame, which does not read what it writes. (A codec that is not ours may raise a fault, which pack_frame reads.)
        const bool beside = queue_.launches == packed && reads_frames(b_.wire[p].value());
        if (const dr_status s = run_codec(p, section_value, true, beside)) return s;
      }
      const uint32_t dtype = b_.wire[p].dtype;
      // Whether a sum may be not finite without being sent: by chance it is not selected, or its position not told.
      const bool watched = blind || (b_.wire[p].replaces_support() && !b_.wire[p].index().whole());
      for (const uint32_t again : {0u, 1u})
        if (const dr_status s = launched(launch_own<subtract_rows>(
                queue_, subtract_,
                [](const subtract_job& j) { return ceil_div(std::max(1u, j.reported_max), row_tile); },
                [&](auto& args) {
                  args.failed = &w_.state->failed;
                  args.unfinite = &w_.state->unfinite;
                  args.dtype = dtype;
                  args.again = again && watched ? tidies_always : again;
                })))
          return s;
    }
    return DR_OK;
  }

  const batch& b_;
  const encode_call& call_;
  std::span<const tensor_view> tensors_;
  device_queue& queue_;
  device_encode_scratch& host_;
  dr_error& error_;
  device_encode_work w_{};
  std::vector<device_encode_row>& rows_ = host_.rows;
  std::vector<codec_scratch>& scratch_ = host_.scratch;
  std::vector<device_encode_unit>& units_ = host_.units;
  std::vector<device_select_job>& select_ = host_.select;
  std::vector<subtract_job>& subtract_ = host_.subtract;
  header_shape shape_{};
  uint64_t tiles_ = 0;
};

}  // namespace

dr_status count_device_launches(const batch& b, const device_prepared& prepared, device* loads,
                                device_encode_scratch& host, uint32_t& launches, dr_error& error) {
  device_queue dry;
  dry.loads = loads;
  encode_call call;
  call.flags = DR_CALL_TAG;
  device_encoder e(b, call, {}, dry, host, error);
  void* const workspace = reinterpret_cast<void*>(uintptr_t{1} << 32);  // never read
  // Kernels of what a call fuses are loaded, too: one with other flags may launch them.
  if (loads) {
    loads->load(kernel<draw_row_keys>);
    loads->load(kernel<begin_call<begin_few>>);  // by the size of descriptors, which depends on the call
    loads->load(kernel<begin_call<begin_many>>);
    if (const dr_status s = e.launch_all(prepared, workspace, nullptr, 0, nullptr)) return s;
  }
  dry.nodes = dry.launches = 0;
  if (const dr_status s = e.run(prepared, workspace, nullptr, 0, nullptr)) return s;
  launches = dry.nodes;
  return DR_OK;
}

dr_status encode_on_device(const batch& b, const device_prepared& prepared, const encode_call& call,
                           std::span<const tensor_view> tensors, device_queue& queue, void* workspace,
                           uint64_t workspace_size, uint8_t* frame, uint64_t capacity, dr_result* result,
                           device_encode_scratch& host, dr_error& error) {
  if (!call.checked) {
    if (const dr_status s = check_tensors(b, tensors, true, error)) return s;
    host.states.resize(states_of(b));
    if (!host.states.empty())
      if (const dr_status s = check_states_apart(b, tensors, host.states.data(), error)) return s;
  }
  if (const dr_status s = check_workspace(workspace, workspace_size, prepared.memory.size, error)) return s;
  if (reinterpret_cast<uintptr_t>(workspace) % arena::alignment || reinterpret_cast<uintptr_t>(frame) % 16 ||
      reinterpret_cast<uintptr_t>(result) % 8)
    return fail(error, DR_E_ARGUMENT, "device: workspace must be aligned to 64 bytes, frame to 16, result to 8");
  const header_layout& layout = b.layout[(call.flags & DR_CALL_TAG) != 0];
  if (capacity < std::max<uint64_t>(layout.header_size, 64)) {
    fail(error, DR_E_CAPACITY, "frame: buffer of %" PRIu64 " bytes; dr_bound is %" PRIu64, capacity, b.bound());
    error.needed = std::max<uint64_t>(layout.frame_bound, 64);
    return DR_E_CAPACITY;
  }
  return device_encoder(b, call, tensors, queue, host, error).run(prepared, workspace, frame, capacity, result);
}

}  // namespace dr
