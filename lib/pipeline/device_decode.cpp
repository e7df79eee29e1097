#include "pipeline/device_decode.hpp"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>

#include "core/arena.hpp"
#include "core/codec_notes.hpp"
#include "cuda/fused.hpp"
#include "pipeline/begin.hpp"
#include "pipeline/device_decode_work.hpp"
#include "pipeline/device_encode.hpp"
#include "primitive/value_type.hpp"
#include "split/expand_tile.hpp"
#include "split/order_tile.hpp"

namespace dr {
namespace {

static_assert(based_tile == merge_tile);  // supports know where the output's tiles begin

// The part of a tensor's output that is a row's; of a sparse one all of it, with the part of its base.
tensor_out part_of(const tensor_out& o, const decode_shape::row& r) {
  tensor_out part = o;
  const auto behind = [&](auto* p) {
    using bytes = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(p)>>, const std::byte, std::byte>;
    return p && r.first ? static_cast<bytes*>(p) + r.first * width_of(o) * value_size(o.dtype) : p;
  };
  if (!o.index_dtype) part.values = behind(o.values);
  part.base = behind(o.base);
  part.universe = r.universe;
  return part;
}

class device_decoder {
 public:
  device_decoder(const decode_shape& shape, size_t frames, const device_decode_work& work, device_queue& queue,
                 device_decode_scratch& host, dr_error& error)
      : s_(shape), frames_(frames), w_(work), queue_(queue), host_(host), error_(error) {}

  // at_once: deliver follows, by whoever has enqueued this.
  dr_status judge(const decode_request& request, std::span<const tensor_out> outs, dr_result* result, bool at_once,
                  judged_frames& judged) {
    if (const dr_status s = begin(request, outs)) return s;
    judged = {.gate = w_.gate,
              .back = w_.back,
              .rows = w_.rows,
              .merged = at<merge_row>(4),
              .outs = at<merge_out>(5),
              .residuals = at<merge_out>(6),
              .based = at<based_row>(7),
              .assign_blocks = assign_blocks_,
              .out_tiles = out_tiles_,
              .how = way_};
    const dr_exec exec = queue_.exec();
    unpack_args args{w_.rows,
                     at<unpack_row>(0),
                     w_.result,
                     at<unpack_frame>(1),
                     w_.state,
                     at<plan_rule>(2),
                     at<uint8_t>(3),
                     host_.starts.empty() ? nullptr : at<support_starts>(9),
                     s_.header.shape,
                     static_cast<uint32_t>(frames_),
                     static_cast<uint32_t>(chunks_),
                     s_.patches ? patch_checks_size : 0};
    if (const dr_status s = launched(open(args))) return s;
    if (const dr_status s = launched(launch<unpack_frames>(exec, chunks_, args))) return s;
    for (uint32_t p = 0; p < s_.wire.size(); ++p)
      if (const dr_status s = streams(p)) return s;
    // Where codecs have checked all supports, a block has little to do for each tile.
    const bool listed = std::all_of(host_.merge.begin(), host_.merge.end(), [](const merge_row& m) { return m.lists; });
    const auto tiles = static_cast<uint32_t>(row_tiles_), tiles_a_block = listed ? judge_supports::tiles_if_listed : 1;
    const tell_decoded::args reports{w_.rows,
                                     w_.state,
                                     result,
                                     static_cast<uint32_t>(frames_),
                                     static_cast<uint32_t>(s_.rows.size()),
                                     s_.segmented() ? at<uint32_t>(8) : nullptr};
    if (at_once && listed && !work_.empty() && work_.size() <= add_rows::lanes && delivers_dense(request, outs)) {
      judged.checked_rows = static_cast<uint32_t>(work_.size());
      judged.tells = reports;
      return DR_OK;
    }
    judge_supports::args supports{at<merge_row>(4),
                                  w_.rows,
                                  w_.gate,
                                  static_cast<uint32_t>(work_.size()),
                                  tiles,
                                  tiles_a_block,
                                  reports,
                                  row_tiles{at<merge_out>(5), s_.cuts}};
    if (s_.patches) supports.tells.result = nullptr;  // check_bases reports it
    if (const dr_status s = launched(launch<judge_supports>(exec, ceil_div(tiles, tiles_a_block), supports))) return s;
    if (s_.patches && !work_.empty()) {
      const check_bases::args bases{at<based_row>(7),
                                    host_.frames[0].data,
                                    &w_.gate->failed,
                                    &w_.gate->done,
                                    static_cast<uint32_t>(work_.size()),
                                    0,
                                    reports};
      if (const dr_status s = launched(launch<check_bases>(exec, based_tiles_, bases))) return s;
    }
    if (work_.empty() && result)
      if (const dr_status s = launched(launch<tell_decoded>(exec, 1, reports))) return s;
    return DR_OK;
  }

 private:
  dr_status launched(dr_status s) {
    if (s == DR_OK) return DR_OK;
    return fail(error_, s, "device: a launch failed: %s", queue_.reason());
  }

  // Whether all that is delivered are sums of dense outputs.
  bool delivers_dense(const decode_request& request, std::span<const tensor_out> outs) const {
    return way_ != way::none && request.residuals.empty() &&
           std::none_of(outs.begin(), outs.end(), [](const tensor_out& o) { return o.index_dtype; });
  }

  // The output of a row; of parts of the one row any: all are dense.
  size_t output_of(size_t row) const { return s_.cuts ? 0 : s_.rows[row].tensor; }

  // Part i of the blob, on the device.
  template <class T>
  const T* at(unsigned part) const {
    return reinterpret_cast<const T*>(w_.blob + part_[part]);
  }
  template <class T>
  void put(unsigned part, const std::vector<T>& from) {
    std::vector<uint8_t>& blob = host_.blob;
    part_[part] = blob.size();
    const auto* const bytes = reinterpret_cast<const uint8_t*>(from.data());
    blob.insert(blob.end(), bytes, bytes + from.size() * sizeof(T));
    blob.resize(round_up(blob.size(), 16));
  }

  dr_status begin(const decode_request& request, std::span<const tensor_out> outs) {
    const size_t n = s_.rows.size();
    host_.unpack.clear();
    host_.merge.clear();
    host_.frames.clear();
    host_.based.clear();
    chunks_ = row_tiles_ = based_tiles_ = assign_blocks_ = 0;
    way_ = way_of(request, outs);
    for (size_t f = 0; f < frames_; ++f) {
      host_.frames.push_back({static_cast<const uint8_t*>(request.frames[f].data), request.frames[f].size});
      for (size_t i = 0; i < n; ++i) {
        const auto& r = s_.rows[i];
        const wire_plan& plan = s_.wire[r.plan];
        const device_decode_row& o = work_[f * n + i];
        unpack_row& u = host_.unpack.emplace_back();  // (made in place: copies of what was just written wait for it)
        for (uint32_t s = 0; s < section_count; ++s) {
          u.slot[s] = o.slot[s];
          u.capacity[s] = o.capacity[s];
        }
        u.support = reinterpret_cast<uint8_t*>(o.support);
        u.universe = static_cast<uint32_t>(r.universe);
        u.count_max = static_cast<uint32_t>(r.count_max);
        u.support_max = static_cast<uint32_t>(r.support_max);
        u.first_tile = static_cast<uint32_t>(chunks_);
        u.plan = static_cast<uint16_t>(r.plan);
        u.entry = static_cast<uint16_t>(r.entry);
        u.frame = static_cast<uint32_t>(f);
        u.takes_dense = r.takes_dense;
        u.continues = r.continues;
        u.lists = f ? host_.unpack[i].lists : lists_starts(i);
        // A header may have 8 bytes more, for a tag.
        chunks_ += std::max<uint64_t>(
            1, ceil_div((n == 1 ? s_.header.shape.header_size + 8 : 0) + padded(r.payload), frame_tile));
        merge_row& m = host_.merge.emplace_back();
        m.support = o.sorted ? o.sorted : o.support;
        m.values = o.in_order ? o.in_order : o.values;
        m.frame = host_.frames[f].data;
        m.row = w_.rows + f * n + i;
        m.starts = s_.patches || ((way_ == way::tiles || way_ == way::touched) && outs[output_of(i)].index_dtype == 0)
                       ? o.starts
                       : nullptr;
        m.universe = u.universe;
        m.width = plan.width;
        m.support_max = u.support_max;
        m.first_tile = static_cast<uint32_t>(row_tiles_);
        m.weight = request.weights ? request.weights[f] : 1;
        m.dtype = static_cast<uint8_t>(plan.dtype);
        m.whole = plan.index().whole();
        m.lists = u.lists;
        row_tiles_ += std::max<uint64_t>(1, ceil_div(r.decoded_max, row_tile));
        if (s_.patches) list_base(f * n + i, m, part_of(outs[r.tensor], r));
      }
    }
    host_.rules.clear();
    for (uint32_t p = 0; p < s_.wire.size(); ++p) host_.rules.push_back(rule_of(p));
    host_.outs.clear();
    out_tiles_ = 0;
    uint64_t first = 0;
    for (size_t i = 0; i < std::max<size_t>(n, s_.cuts); ++i) {
      const tensor_out o = s_.cuts ? outs[i] : part_of(outs[s_.rows[i].tensor], s_.rows[i]);
      const bool dense = o.index_dtype == 0;
      const uint64_t elements = dense ? o.universe * std::max(1u, o.width) : 0;
      host_.outs.push_back(
          {o.values, elements, first, static_cast<uint32_t>(out_tiles_), static_cast<uint8_t>(o.dtype), {}});
      out_tiles_ += ceil_div(elements, merge_tile);
      if (s_.cuts) first += elements;
    }
    if (chunks_ > 0x7fffffff || based_tiles_ > 0x7fffffff || row_tiles_ > 0x7fffffff || out_tiles_ > 0x7fffffff)
      return fail(error_, DR_E_UNSUPPORTED, "device: the frames are too large for one launch");
    host_.residuals.clear();
    first = 0;
    for (size_t i = 0; i < (request.residuals.empty() ? 0 : host_.outs.size()); ++i) {
      const tensor_out o = s_.cuts ? request.residuals[i] : part_of(request.residuals[s_.rows[i].tensor], s_.rows[i]);
      host_.residuals.push_back({o.values, o.values ? o.universe : 0, first, 0, static_cast<uint8_t>(DR_F32), {}});
      if (s_.cuts) first += o.universe;
    }
    host_.tensors.clear();
    for (size_t i = 0; i < (s_.segmented() ? n : 0); ++i) host_.tensors.push_back(s_.rows[i].tensor);
    host_.blob.clear();
    put(0, host_.unpack);
    put(1, host_.frames);
    put(2, host_.rules);
    put(3, s_.header.head);
    put(4, host_.merge);
    put(5, host_.outs);
    put(6, host_.residuals);
    put(7, host_.based);
    put(8, host_.tensors);
    host_.starts.clear();
    const auto lists = [](const merge_row& m) { return m.lists && m.starts; };
    if (std::any_of(host_.merge.begin(), host_.merge.end(), lists))
      for (const merge_row& m : host_.merge)
        host_.starts.push_back({m.starts, m.universe, m.width, {at<merge_out>(5), s_.cuts}});
    put(9, host_.starts);
    return DR_OK;
  }

  // Zeroes, transfers the descriptors and judges the headers.
  dr_status open(const unpack_args& frames) {
    const dr_exec exec = queue_.exec();
    uint64_t zero_size = w_.zero_size;
    std::span<const uint8_t> blob = host_.blob;
    if (blob.size() > begin_many) {
      if (const dr_status s = begin_on_device(exec, w_.zero, zero_size, w_.blob, blob)) return s;
      zero_size = 0;
      blob = {};
    }
    return with_begin_size(blob.size(), [&]<uint64_t N>(std::integral_constant<uint64_t, N>) {
      const typename open_frames<N>::args args{begin_args<N>(w_.zero, zero_size, w_.blob, blob), frames};
      return launch<open_frames<N>>(exec, std::max<uint64_t>(frames_, begin_blocks(args.begin)), args);
    });
  }

  // Whether the index codec of row i of a frame checks its support.
  bool lists_starts(size_t i) const {
    const wire_plan& plan = s_.wire[s_.rows[i].plan];
    return !plan.index().whole() && plan.index().block == 1 && !plan.carries_order &&
           stream_of(s_, i, section_index).count_max && notes_of(*plan.index().front().codec).lists_starts;
  }

  // Describes a row of a patch and its base.
  void list_base(size_t row, const merge_row& m, const tensor_out& out) {
    based_row b{};
    b.base = out.index_dtype ? out.base : out.values;
    b.to = out.index_dtype ? nullptr : out.values;
    b.support = m.support;
    b.values = m.values;
    b.frame = m.frame;
    b.starts = m.starts;
    b.row = w_.rows + row;
    b.checks = w_.patched + 2 * row;
    b.based = work_[row].based;
    b.universe = m.universe;
    b.support_max = m.support_max;
    b.first_tile = static_cast<uint32_t>(based_tiles_);
    b.first_assign = static_cast<uint32_t>(assign_blocks_);
    b.size = value_size(m.dtype);
    based_tiles_ += std::max<uint64_t>(1, ceil_div(b.universe, based_tile));
    assign_blocks_ += std::max<uint64_t>(1, ceil_div(s_.rows[row % s_.rows.size()].decoded_max, assign_tile));
    host_.based.push_back(b);
  }

  plan_rule rule_of(uint32_t p) const {
    const wire_plan& plan = s_.wire[p];
    plan_rule rule{};
    rule.entry_at = s_.header.entry_at[p];
    rule.flags = row_flags(plan) | (plan.index().whole() ? rule_sends_all : 0) |
                 static_cast<uint32_t>(std::countr_zero(plan.index().block)) << rule_block;
    rule.value_bytes = uint64_t{plan.width} * value_size(plan.dtype);
    for (uint32_t s = 0; s < section_count; ++s) {
      rule.size[s].struct_size = sizeof(dr_size_rule);
      rule.size[s].granule = 8;
      // The rule is the same for all rows, but fields fit only the rows that have been validated with them.
      for (size_t i = 0; i < s_.rows.size(); ++i) {
        const stream_shape shape = stream_of(s_, i, s);
        if (s_.rows[i].plan != p || shape.count_max == 0) continue;
        need_of(plan.lists[s], shape, &rule.size[s]);
        break;
      }
    }
    return rule;
  }

  // Lists jobs for the rows of a plan with elements in a stream, frame by frame. No codec runs for the other rows,
  // whose fields may not fit it.
  template <class Fill>
  void jobs_of(uint32_t p, uint32_t s, Fill&& fill) {
    jobs_.clear();
    const size_t n = s_.rows.size();
    for (size_t f = 0; f < frames_; ++f)
      for (size_t row = 0; row < n; ++row) {
        const stream_shape shape = stream_of(s_, row, s);
        if (s_.rows[row].plan != p || shape.count_max == 0) continue;
        const size_t i = f * n + row;
        dr_job& job = jobs_.emplace_back(shape_job(shape));
        job.in = work_[i].slot[s];
        job.in_max = work_[i].capacity[s];
        job.in_size = &w_.result[i].section[s].size;
        job.out_size = w_.made + i;
        job.fault = &w_.rows[i].fault;
        job.count = &w_.rows[i].support_count;
        fill(i, s_.rows[row], job);
      }
  }

  // beside: it needs nothing that the launch before its first one writes, nor one beside which that stands.
  dr_status run_codec(uint32_t p, uint32_t s, bool beside = false) {
    if (jobs_.empty()) return DR_OK;
    const stage& stage = s_.wire[p].lists[s].front();
    const device_decode_scratch::room& own = scratch_[p * section_count + s];
    const dr_exec exec = queue_.exec(own.at, own.size);
    const dr_params params = stage.params();
    queue_.beside = beside;
    const dr_status status = stage.codec->cuda->decode(&exec, &params, jobs_.data(), jobs_.size());
    queue_.beside = false;  // (it may have launched nothing)
    return status ? fail(error_, status, "%s: its launch failed: %s", stage.codec->name, queue_.reason()) : DR_OK;
  }

  dr_status streams(uint32_t p) {
    const wire_plan& plan = s_.wire[p];
    const uint64_t row_bytes = uint64_t{plan.width} * value_size(plan.dtype);
    const uint32_t before = queue_.launches;
    // Beside unpack_frames, which is ahead of the first plan, stand those that read what it checks.
    const bool early = p == 0 && reads_frames(plan.index()), early_values = p == 0 && reads_frames(plan.value());
    if (!plan.index().whole()) {
      jobs_of(p, section_index, [&](size_t i, const decode_shape::row& r, dr_job& job) {
        job.out = work_[i].blocks ? work_[i].blocks : work_[i].support;
        job.out_capacity = 4 * plan.index().keys(r.support_max);
        job.count = &w_.result[i].coded;
        job.tell_count = &w_.result[i].expected;
        if (host_.merge[i].lists && host_.merge[i].starts)
          job.tell = const_cast<support_starts*>(at<support_starts>(9) + i);
      });
      if (const dr_status s = run_codec(p, section_index, early)) return s;
      if (const dr_status s = expand(p)) return s;
    }
    // Neither stream needs the other; values with bases do, and slots need the launch that fills them.
    const bool beside = (early_values || (!early && queue_.launches > before)) && !plan.value().has(DR_NEEDS_BASE);
    if (s_.patches && plan.value().has(DR_NEEDS_BASE)) {
      const gather_bases::args bases{at<based_row>(7), static_cast<uint32_t>(work_.size())};
      if (const dr_status s = launched(launch<gather_bases>(queue_.exec(), assign_blocks_, bases))) return s;
    }
    if (!copies_values(plan)) {
      jobs_of(p, section_value, [&](size_t i, const decode_shape::row& r, dr_job& job) {
        job.base = work_[i].based;
        job.out = work_[i].values;
        job.out_capacity = r.support_max * row_bytes;
      });
      if (const dr_status s = run_codec(p, section_value, beside)) return s;
    }
    if (plan.carries_order) return sort(p);
    if (!plan.order().count) return DR_OK;
    jobs_of(p, section_order, [&](size_t i, const decode_shape::row& r, dr_job& job) {
      job.out = work_[i].order;
      job.out_capacity = 4 * r.support_max;
      job.universe = r.support_max;
    });
    if (const dr_status s = run_codec(p, section_order)) return s;
    return permute(p);
  }

  // Lists the elements of the blocks that an index codec listed.
  dr_status expand(uint32_t p) {
    const uint32_t block = s_.wire[p].index().block;
    if (block == 1) return DR_OK;
    jobs_of(p, section_index, [&](size_t i, const decode_shape::row& r, dr_job& job) {
      job.in = work_[i].blocks;
      job.out = work_[i].support;
      job.count = &w_.result[i].expected;
      job.tell_count = &w_.rows[i].support_count;
      job.universe = r.universe;
    });
    return launched(
        launch_jobs<expand_lists>(queue_.exec(), jobs_.data(), jobs_.size(), no_common{}, [&](size_t i, tile_job& t) {
          t.universe = static_cast<uint32_t>(jobs_[i].universe);
          t.extra = static_cast<uint32_t>(std::countr_zero(block));
          return ceil_div(jobs_[i].count_max * block, row_tile);
        }));
  }

  dr_status permute(uint32_t p) {
    jobs_of(p, section_value, [&](size_t i, const decode_shape::row&, dr_job& job) {
      job.in = work_[i].values;
      job.tell = work_[i].order;
      job.out = work_[i].in_order;
    });
    const apply_order_common common{seen_[p], value_size(s_.wire[p].dtype)};
    uint64_t words = 0;
    return launched(
        launch_jobs<apply_order>(queue_.exec(), jobs_.data(), jobs_.size(), common, [&](size_t i, tile_job& t) {
          t.extra = static_cast<uint32_t>(words);
          words += jobs_[i].count_max / 32 + 1;
          return ceil_div(jobs_[i].count_max, row_tile);
        }));
  }

  // Sorts keys that carry the order, and permutes their values. Keys include the number of the job in the launch.
  dr_status sort(uint32_t p) {
    jobs_of(p, section_value, [&](size_t i, const decode_shape::row&, dr_job& job) {
      job.in = work_[i].support;
      job.tell = work_[i].values;
      job.out = work_[i].sorted;
      job.tell_count = reinterpret_cast<uint64_t*>(work_[i].in_order);
    });
    const auto fill = [&](size_t begin) {
      return [this, begin, pairs = uint64_t{0}](size_t i, tile_job& t) mutable {
        t.extra = static_cast<uint32_t>(pairs);
        pairs += jobs_[begin + i].count_max;
        return ceil_div(jobs_[begin + i].count_max, row_tile);
      };
    };
    for (size_t begin = 0; begin < jobs_.size(); begin += jobs_many) {
      const size_t n = std::min(jobs_.size() - begin, jobs_many);
      dr_sort sort = sort_[p];
      sort.n = 0;
      for (size_t i = begin; i < begin + n; ++i) sort.n += jobs_[i].count_max;
      if (sort.n > 0xffffffff) return fail(error_, DR_E_UNSUPPORTED, "device: 2^32 or more keys that carry an order");
      sort.bits = 33 + static_cast<uint32_t>(std::bit_width(n));
      const sort_keys_common common{sort.keys, sort.values, value_size(s_.wire[p].dtype)};
      dr_exec exec = queue_.exec();
      dr_status s = launch_jobs<sort_keys>(exec, jobs_.data() + begin, n, common, fill(begin));
      if (!s && sort.n) s = exec.sort(exec.device, &sort);
      if (!s) s = launch_jobs<take_keys>(exec, jobs_.data() + begin, n, common, fill(begin));
      if (s) return launched(s);
    }
    return DR_OK;
  }

  // How values are merged into dense outputs: pair by pair; by tiles; or by tiles in which only positions of values are
  // read and written.
  using way = judged_frames::way;
  way way_of(const decode_request& request, std::span<const tensor_out> outs) const {
    uint64_t elements = 0, pairs = 0;
    for (const tensor_out& o : outs) elements += o.index_dtype ? 0 : o.universe * std::max(1u, o.width);
    if (!request.delivers || elements == 0 || s_.patches) return way::none;
    for (const auto& r : s_.rows) pairs += r.decoded_max * frames_;
    // Bytes of traffic: a single pair accesses two sectors of 32 bytes in the output; tiles read and write all of it
    // once.
    if (!request.adds || request.copies || pairs * 64 >= elements * 8) return way::tiles;
    // A tile with few pairs costs more than a launch per frame.
    return frames_ > 1 && pairs >= elements / merge_tile * 128 ? way::touched : way::pairs;
  }

  const decode_shape& s_;
  const size_t frames_;
  const device_decode_work w_;
  device_queue& queue_;
  device_decode_scratch& host_;
  dr_error& error_;
  uint64_t chunks_ = 0, row_tiles_ = 0, out_tiles_ = 0, based_tiles_ = 0, assign_blocks_ = 0;
  way way_ = way::none;
  std::vector<device_decode_scratch::room>& scratch_ = host_.scratch;
  std::vector<uint32_t*>& seen_ = host_.seen;
  std::vector<device_decode_row>& work_ = host_.rows;
  std::vector<dr_sort>& sort_ = host_.sort;
  std::vector<dr_job>& jobs_ = host_.jobs;
  uint64_t part_[10] = {};
};

// The launches after the checks.
class device_deliverer {
 public:
  device_deliverer(const decode_shape& shape, const decode_request& request, const judged_frames& judged,
                   device_queue& queue, dr_error& error)
      : s_(shape), request_(request), judged_(judged), queue_(queue), error_(error) {}

  dr_status run(std::span<const tensor_out> outs) {
    const auto n = static_cast<uint32_t>(s_.rows.size()), frames = static_cast<uint32_t>(request_.frames.size());
    dr_exec exec = queue_.exec();
    uint32_t before = 0;
    for (uint32_t i = 0; i < n; ++i) {
      before = s_.rows[i].continues ? before + 1 : 0;
      const tensor_out& o = outs[s_.cuts ? 0 : s_.rows[i].tensor];
      if (!o.index_dtype) continue;
      const hand_over_row::args args{judged_.merged + i, judged_.gate,  o.indices, o.values, o.capacity,
                                     s_.rows[i].first,   o.index_dtype, o.dtype,   before};
      const uint64_t blocks = std::clamp<uint64_t>(ceil_div(s_.rows[i].decoded_max, row_tile), 1, 4096);
      if (const dr_status s = launched(launch<hand_over_row>(exec, blocks, args))) return s;
    }
    if (s_.patches && n) {
      const assign_changes::args args{judged_.based, &judged_.gate->failed, n,
                                      static_cast<uint32_t>(judged_.assign_blocks)};
      return launched(launch<assign_changes>(exec, judged_.assign_blocks, args));
    }
    if (!request_.residuals.empty())
      if (const dr_status s =
              add(static_cast<uint32_t>(request_.own), judged_.residuals, {.closed_by = judged_.back}, true))
        return s;
    if (judged_.how == judged_frames::way::none) return DR_OK;
    if (judged_.how == judged_frames::way::pairs) {
      for (uint32_t f = 0; f < frames; ++f)
        if (const dr_status s = add(f, judged_.outs, judged_.outputs(), false)) return s;
      return tell();
    }
    const merge_tiles::args args{
        judged_.merged, judged_.outs, judged_.outputs(), n,
        frames,         s_.cuts,      request_.adds,     judged_.how == judged_frames::way::touched,
        request_.copies};
    if (const dr_status s = launched(launch<merge_tiles>(exec, judged_.out_tiles, args))) return s;
    return tell();
  }

 private:
  // Beside the delivery, for it needs the faults of those before.
  dr_status tell() {
    if (!judged_.checked_rows || !judged_.tells.result) return DR_OK;
    queue_.beside = true;
    return launched(launch<tell_decoded>(queue_.exec(), 1, judged_.tells));
  }

  // Adds one frame to outputs of its own.
  dr_status add(uint32_t frame, const merge_out* to, const delivery_gate& gate, bool restores) {
    const auto n = static_cast<uint32_t>(s_.rows.size());
    if (n == 0) return DR_OK;
    const uint64_t base = ceil_tiles(frame, 0), before = ceil_tiles(frame, n - 1) - base;
    const add_rows::args args{judged_.merged + uint64_t{frame} * n, to,      gate,    n,
                              static_cast<uint32_t>(base),          s_.cuts, restores};
    // (A dense row has more than is expected.)
    const auto& r = s_.rows[n - 1];
    const uint64_t least = r.takes_dense ? add_rows::parts : 1;
    const uint64_t last = std::max(least, ceil_div(r.decoded_max, uint64_t{add_rows::lanes}));
    return launched(launch<add_rows>(queue_.exec(), before * add_rows::parts + last, args));
  }

  dr_status launched(dr_status s) {
    if (s == DR_OK) return DR_OK;
    return fail(error_, s, "device: a launch failed: %s", queue_.reason());
  }

  // The first tile of row i of frame f in launches over rows.
  uint64_t ceil_tiles(uint32_t f, uint32_t i) const {
    uint64_t a_frame = 0, before = 0;
    for (uint32_t k = 0; k < s_.rows.size(); ++k) {
      const uint64_t tiles = std::max<uint64_t>(1, ceil_div(s_.rows[k].decoded_max, row_tile));
      a_frame += tiles;
      before += k < i ? tiles : 0;
    }
    return f * a_frame + before;
  }

  const decode_shape& s_;
  const decode_request& request_;
  const judged_frames& judged_;
  device_queue& queue_;
  dr_error& error_;
};

// Whether one block may do all of it.
bool is_small(const decode_shape& shape, const decode_request& request) {
  if (shape.rows.size() != 1 || request.frames.size() != 1 || shape.patches) return false;
  const auto& r = shape.rows[0];
  const uint64_t rows = r.takes_dense ? std::max(r.universe, r.decoded_max) : r.decoded_max;
  return rows * shape.wire[r.plan].width <= fused_values;
}

dr_status judge(const decode_shape& shape, const decode_request& request, std::span<const tensor_out> outs,
                device_queue& queue, void* workspace, uint64_t workspace_size, dr_result* result, bool at_once,
                device_decode_scratch& host, judged_frames& judged, dr_error& error) {
  const auto work = device_decode_work::lay_out(shape, request.frames.size(), static_cast<std::byte*>(workspace), host);
  if (const dr_status s = check_workspace(workspace, workspace_size, work.size, error)) return s;
  for (size_t i = 0; i < request.frames.size(); ++i)
    if (reinterpret_cast<uintptr_t>(request.frames[i].data) % 16)
      return fail(error, DR_E_ARGUMENT, "frame %zu: not aligned to 16 bytes on its device", i);
  if (reinterpret_cast<uintptr_t>(workspace) % arena::alignment || reinterpret_cast<uintptr_t>(result) % 8)
    return fail(error, DR_E_ARGUMENT, "device: workspace must be aligned to 64 bytes, result to 8");
  return device_decoder(shape, request.frames.size(), work, queue, host, error)
      .judge(request, outs, result, at_once, judged);
}

}  // namespace

uint64_t device_decode_workspace(const decode_shape& shape, size_t frames) {
  device_decode_scratch host;
  return device_decode_work::lay_out(shape, frames, nullptr, host).size;
}

void load_decode_kernels(const decode_shape& shape, device& where) {
  device_queue dry;
  dry.loads = &where;
  device_decode_scratch host;
  dr_error error;  // ignored: it is about the maximum number of frames, and a call may decode fewer
  std::vector<tensor_out> outs;
  for (const auto& r : shape.rows) {
    if (!r.continues) outs.emplace_back();
    tensor_out& o = outs.back();
    o.universe += r.universe;
    o.width = shape.wire[r.plan].width;
    o.dtype = DR_F32;
  }
  if (shape.cuts) outs.resize(shape.cuts, {.dtype = DR_F32});
  // Jobs and descriptors have two sizes of argument, and there are two ways to deliver.
  for (const size_t k : {size_t{1}, jobs_few + 1}) {
    const std::vector<dr_bytes> frames(k);
    decode_request request{frames};
    auto* const base = reinterpret_cast<std::byte*>(uintptr_t{1} << 32);  // never read
    device_decoder d(shape, k, device_decode_work::lay_out(shape, k, base, host), dry, host, error);
    judged_frames judged;
    if (!d.judge(request, outs, reinterpret_cast<dr_result*>(uintptr_t{1} << 32), false, judged))
      (void)device_deliverer(shape, request, judged, dry, error).run(outs);
  }
  where.load(kernel<begin_call<begin_few>>);
  where.load(kernel<begin_call<begin_many>>);
  where.load(kernel<open_frames<begin_few>>);
  where.load(kernel<open_frames<begin_many>>);
  where.load(kernel<add_rows>);
  where.load(kernel<merge_tiles>);
  where.load(kernel<tell_decoded>);
  where.load(*small_decode_kernel().whole);
}

dr_status judge_on_device(const decode_shape& shape, const decode_request& request, std::span<const tensor_out> outs,
                          device_queue& queue, void* workspace, uint64_t workspace_size, dr_result* result,
                          device_decode_scratch& host, judged_frames& judged, dr_error& error) {
  return judge(shape, request, outs, queue, workspace, workspace_size, result, false, host, judged, error);
}

dr_status deliver_on_device(const decode_shape& shape, const decode_request& request, std::span<const tensor_out> outs,
                            const judged_frames& judged, device_queue& queue, dr_error& error) {
  return device_deliverer(shape, request, judged, queue, error).run(outs);
}

dr_status decode_on_device(const decode_shape& shape, const decode_request& request, std::span<const tensor_out> outs,
                           device_queue& queue, void* workspace, uint64_t workspace_size, dr_result* result,
                           device_decode_scratch& host, dr_error& error) {
  judged_frames judged;
  fused_call small(queue, is_small(shape, request) ? &small_decode_kernel() : nullptr);
  const bool at_once = request.delivers && !queue.fused;  // (a fused launch has a part judge_supports)
  dr_status s = judge(shape, request, outs, queue, workspace, workspace_size, result, at_once, host, judged, error);
  if (!s && request.delivers) s = deliver_on_device(shape, request, outs, judged, queue, error);
  if (s) return s;
  s = queue.fused_end();
  return s ? fail(error, s, "device: a launch failed: %s", queue.reason()) : DR_OK;
}

}  // namespace dr
