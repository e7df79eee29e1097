#include "pipeline/inverse.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "dct/dct.hpp"
#include "merge/merge.hpp"
#include "pipeline/batch.hpp"
#include "pipeline/decode.hpp"

namespace dr {
namespace {

bool has_tiles(const frame_view& frame) {
  return std::ranges::any_of(frame.plans, [](const wire_plan& p) { return bool(p.tiles); });
}

// Calls f(tensor of the frame, its tiles) for every tensor.
template <class F>
void each_tiles(const frame_view& frame, F&& f) {
  size_t next = 0;
  each_tensor(frame, [&](size_t begin, size_t, uint64_t) { f(next++, frame.plans[frame.rows[begin].plan].tiles); });
}

// The first tensor that has other tiles in another frame of a merge; SIZE_MAX: none.
size_t first_other(const frame_view& a, const frame_view& b) {
  const auto next = [](const frame_view& f, size_t row) {
    while (++row < f.rows.size() && f.rows[row].continues) {
    }
    return row;
  };
  const auto tiles = [](const frame_view& f, size_t row) { return f.plans[f.rows[row].plan].tiles; };
  size_t i = 0;
  for (size_t x = 0, y = 0; x < a.rows.size() && y < b.rows.size(); x = next(a, x), y = next(b, y), ++i)
    if (tiles(a, x) != tiles(b, y)) return i;
  return SIZE_MAX;
}

void lay_out(arena& memory, size_t outs, tensor_out*& own, tile_form*& tiles) {
  own = memory.allocate<tensor_out>(outs);
  tiles = memory.allocate<tile_form>(outs);
}

}  // namespace

dr_status check_tiles(std::span<const frame_view> frames, std::span<const tensor_out> outs,
                      const dr_decode_options& how, dr_error& error) {
  if (std::ranges::none_of(frames, has_tiles)) return DR_OK;
  const auto bad = [&](size_t i, dr_status status, const char* what) {
    fail(error, status, "output %zu: %s", i, what);
    error.tensor = i;
    return status;
  };
  for (size_t k = 0; k < frames.size(); ++k) {
    if (is_cut(frames[k], outs.size())) {
      fail(error, DR_E_ARGUMENT, "frame %zu: %zu outputs, but the frame has one tensor, and others have coefficients",
           k, outs.size());
      error.frame = k;
      return DR_E_ARGUMENT;
    }
    const size_t differs = first_other(frames[0], frames[k]);
    if (differs == SIZE_MAX) continue;
    bad(differs, DR_E_ARGUMENT, "is of other tiles than in frame 0: coefficients of different tiles do not add up");
    error.frame = k;
    prefix(error, "frame %zu: ", k);
    return DR_E_ARGUMENT;
  }
  if (how.flags & DR_DECODE_COEFFICIENTS) return DR_OK;
  dr_status status = DR_OK;
  each_tiles(frames[0], [&](size_t i, const tile_form& tiles) {
    if (!tiles || status) return;
    if (outs[i].index_dtype)
      status = bad(i, DR_E_UNSUPPORTED,
                   "is sparse, and the frame has coefficients (transform=dct), whose inverse is dense; "
                   "DR_DECODE_COEFFICIENTS decodes the coefficients");
    else if (how.flags & DR_DECODE_VOTE)
      status = bad(i, DR_E_UNSUPPORTED, "is of coefficients (transform=dct), whose signs have no votes");
  });
  return status;
}

inverse::inverse(arena& memory, decoded_frame like, std::span<tensor_out> outs) : outs_(outs) {
  if (std::ranges::none_of(like, [](const decoded_row& r) { return bool(r.tiles); })) return;
  lay_out(memory, outs.size(), own_, tiles_);
  const bool real = memory.fits();
  size_t i = 0;
  for (size_t row = 0; row < like.size(); ++row) {
    if (row && like[row].tensor == like[row - 1].tensor) continue;
    const tensor_out& o = outs[i];
    float* const coefficients = like[row].tiles ? memory.allocate<float>(o.universe) : nullptr;
    if (real && memory.fits()) {
      tiles_[i] = like[row].tiles;
      own_[i] = o;
      if (tiles_[i]) own_[i].dtype = DR_F32, own_[i].values = coefficients;
    }
    ++i;
  }
}

std::span<tensor_out> inverse::merged(bool clears) {
  if (!own_) return outs_;
  for (size_t i = 0; clears && i < outs_.size(); ++i)
    if (tiles_[i]) std::memset(own_[i].values, 0, own_[i].universe * sizeof(float));
  return {own_, outs_.size()};
}

void inverse::finish(bool adds, pool& workers) {
  if (!own_) return;
  for (size_t i = 0; i < outs_.size(); ++i) {
    outs_[i].count = own_[i].count;
    if (!tiles_[i]) continue;
    struct sink {
      const tensor_out& to;
      pair_sink how;
    } to{outs_[i], {DR_F32, outs_[i].dtype, 1, adds, 1}};
    from_coefficients(
        tiles_[i], static_cast<const float*>(own_[i].values), own_[i].universe, workers,
        [](void* self, uint64_t first, const float* values, uint32_t n) {
          const sink& s = *static_cast<sink*>(self);
          put_rows(s.how, values, n, at_element(s.to, first));
        },
        &to);
  }
}

void measure_inverse(arena& memory, std::span<const frame_view> frames, std::span<const tensor_out> outs,
                     const dr_decode_options& how) {
  if (frames.empty() || !has_tiles(frames[0]) || (how.flags & DR_DECODE_COEFFICIENTS)) return;
  tensor_out* own;
  tile_form* tiles;
  lay_out(memory, outs.size(), own, tiles);
  each_tiles(frames[0], [&](size_t i, const tile_form& t) {
    if (t) memory.allocate<float>(outs[i].universe);
  });
}

void measure_inverse(arena& memory, const batch& b) {
  if (std::ranges::none_of(b.units, [](const unit& u) { return bool(u.tiles); })) return;
  tensor_out* own;
  tile_form* tiles;
  lay_out(memory, b.shapes.size(), own, tiles);
  for (const unit& u : b.units)
    if (u.tiles) memory.allocate<float>(u.universe);
}

}  // namespace dr
