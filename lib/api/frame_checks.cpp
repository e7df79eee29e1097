#include "api/frame_checks.hpp"

#include <cinttypes>
#include <cmath>

namespace dr {

dr_status read_sound_frame(const dr_bytes& frame, frame_view& out, dr_error& error, uint64_t memory_max) {
  if (!frame.data) return fail(error, DR_E_ARGUMENT, "frame is NULL");
  if (const dr_status s = read_frame(static_cast<const uint8_t*>(frame.data), frame.size, out, error, memory_max))
    return s;
  if (out.status)
    return fail(error, DR_E_PEER, "frame: its sender could not encode (%s): %s", status_name(out.status), out.message);
  return DR_OK;
}

dr_status check_tag(const frame_view& f, const dr_decode_options& o, dr_error& error) {
  if (!(o.flags & DR_DECODE_TAG) || (f.flags & DR_FRAME_TAG && f.tag == o.tag)) return DR_OK;
  if (!(f.flags & DR_FRAME_TAG)) return fail(error, DR_E_ARGUMENT, "frame: no tag; expected %" PRIu64, o.tag);
  fail(error, DR_E_ARGUMENT, "frame: tag %" PRIu64 "; expected %" PRIu64, f.tag, o.tag);
  error.what = f.tag;
  return DR_E_ARGUMENT;
}

dr_status check_patch(bool patch, const dr_decode_options& o, dr_error& error) {
  const bool applies = o.flags & DR_DECODE_APPLY;
  if (patch == applies) return DR_OK;
  return fail(error, DR_E_ARGUMENT,
              applies ? "options: DR_DECODE_APPLY requires a patch; the frame is not one"
                      : "frame: is a patch of weights: decode it with DR_DECODE_APPLY, into its base");
}

dr_status check_merged_types(std::span<const tensor_out> outs, dr_error& error) {
  for (size_t i = 0; i < outs.size(); ++i)
    if (!is_value_type(outs[i].dtype)) {
      fail(error, DR_E_ARGUMENT, "output %zu: dtype %u is not f32, f16 or bf16, which a merge adds up", i,
           outs[i].dtype);
      error.tensor = i;
      return DR_E_ARGUMENT;
    }
  return DR_OK;
}

dr_status check_weights(const float* weights, size_t k, dr_error& error) {
  for (size_t i = 0; weights && i < k; ++i)
    if (!std::isfinite(weights[i])) {
      fail(error, DR_E_ARGUMENT, "weights: the weight %g of frame %zu is not finite", static_cast<double>(weights[i]),
           i);
      error.frame = i;
      return DR_E_ARGUMENT;
    }
  return DR_OK;
}

dr_status blame_frame(dr_error& error, size_t frame) {
  error.frame = frame;
  return prefix(error, "frame %zu: ", frame);
}

}  // namespace dr
