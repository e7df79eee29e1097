// A call that has one small tensor, as one launch: what it may consist of, with the codecs that plans use most.
#pragma once

#include "codecs/family/golomb/golomb_decode_tile.hpp"
#include "codecs/family/golomb/golomb_encode_tile.hpp"
#include "codecs/index/raw/index_raw_tile.hpp"
#include "codecs/value/log_quant/log_quant_decode_tile.hpp"
#include "codecs/value/log_quant/log_quant_encode_tile.hpp"
#include "codecs/value/qsgd/qsgd_tile.hpp"
#include "codecs/value/raw/value_raw_tile.hpp"
#include "container/frame_tile.hpp"
#include "container/open_tile.hpp"
#include "container/unpack_tile.hpp"
#include "feedback/feedback_tile.hpp"
#include "merge/merge_many_tile.hpp"
#include "pipeline/draw_tile.hpp"
#include "primitive/begin_tile.hpp"
#include "primitive/fused_tile.hpp"
#include "sparsify/select_tile.hpp"

namespace dr {

// A kernel over jobs, of which there is one.
template <template <class> class K, class Common>
using small_job = fused_part<K<tile_args<Common, jobs_few>>, K<tile_args<Common, 1>>>;
template <template <size_t> class K>
using small_rows = fused_part<K<jobs_few>, K<1>>;
template <class Bits>
using small_solve = fused_part<select_solve<Bits, jobs_few>, select_solve<Bits, 1>>;
using small_golomb = golomb_common<golomb_rule, golomb_block_log2>;

using small_encode_parts =
    fused<fused_part<begin_call<begin_few>, begin_call<begin_small>>, fused_part<draw_row_keys>,
          small_job<open_states, no_common>, small_job<select_adopt, adopt_common>, small_solve<uint32_t>,
          small_solve<uint16_t>, small_job<qsgd_encode, qsgd_common>, small_job<log_quant_range, log_quant_common>,
          small_job<log_quant_levels, log_quant_common>, small_job<log_quant_code, log_quant_common>,
          small_job<value_raw_copy, value_raw_common>, small_job<golomb_encode_tile, small_golomb>,
          small_job<index_raw_encode, index_raw_common>, fused_part<pack_frame>, small_job<qsgd_decode, qsgd_common>,
          small_job<log_quant_open, log_quant_common>, small_job<log_quant_decode, log_quant_common>,
          small_rows<subtract_rows>, small_rows<subtract_rows>>;
struct small_encode : small_encode_parts {
  using as = small_encode_parts;
  static constexpr const char* name = "small_encode";
};

using small_decode_parts =
    fused<fused_part<open_frames<begin_few>, open_frames<begin_small>>, fused_part<unpack_frames>,
          small_job<golomb_decode_tile, small_golomb>, small_job<index_raw_decode, index_raw_common>,
          small_job<qsgd_decode, qsgd_common>, small_job<log_quant_open, log_quant_common>,
          small_job<log_quant_decode, log_quant_common>, small_job<value_raw_copy, value_raw_common>,
          fused_part<judge_supports>, fused_part<add_rows>, fused_part<hand_over_row>, fused_part<merge_tiles>>;
struct small_decode : small_decode_parts {
  using as = small_decode_parts;
  static constexpr const char* name = "small_decode";
};

}  // namespace dr
