// The pipeline's own kernels, for a GPU.
#include "container/frame_tile.hpp"
#include "container/open_tile.hpp"
#include "container/unpack_tile.hpp"
#include "cuda/entry.cuh"
#include "feedback/feedback_tile.hpp"
#include "merge/merge_many_tile.hpp"
#include "patch/apply_changes_tile.hpp"
#include "patch/find_changes_tile.hpp"
#include "pipeline/draw_tile.hpp"
#include "split/cut_tile.hpp"
#include "split/expand_tile.hpp"
#include "split/order_tile.hpp"
#include "split/regather_tile.hpp"

DR_DEVICE_KERNEL(dr::begin_call<dr::begin_few>)
DR_DEVICE_KERNEL(dr::begin_call<dr::begin_many>)
DR_DEVICE_KERNEL(dr::draw_row_keys)
DR_DEVICE_JOB_KERNEL(dr::open_states, dr::no_common)
DR_DEVICE_KERNEL(dr::find_changes<dr::jobs_few>)
DR_DEVICE_KERNEL(dr::find_changes<dr::jobs_many>)
DR_DEVICE_KERNEL(dr::cut_rows<dr::jobs_few>)
DR_DEVICE_KERNEL(dr::cut_rows<dr::jobs_many>)
DR_DEVICE_KERNEL(dr::regather_values<dr::jobs_few>)
DR_DEVICE_KERNEL(dr::regather_values<dr::jobs_many>)
DR_DEVICE_JOB_KERNEL(dr::reorder_keys, dr::no_common)
DR_DEVICE_KERNEL(dr::pack_frame)
DR_DEVICE_KERNEL(dr::subtract_rows<dr::jobs_few>)
DR_DEVICE_KERNEL(dr::subtract_rows<dr::jobs_many>)

DR_DEVICE_KERNEL(dr::open_frames<dr::begin_few>)
DR_DEVICE_KERNEL(dr::open_frames<dr::begin_many>)
DR_DEVICE_KERNEL(dr::unpack_frames)
DR_DEVICE_JOB_KERNEL(dr::expand_lists, dr::no_common)
DR_DEVICE_JOB_KERNEL(dr::apply_order, dr::apply_order_common)
DR_DEVICE_JOB_KERNEL(dr::sort_keys, dr::sort_keys_common)
DR_DEVICE_JOB_KERNEL(dr::take_keys, dr::sort_keys_common)
DR_DEVICE_KERNEL(dr::judge_supports)
DR_DEVICE_KERNEL(dr::gather_bases)
DR_DEVICE_KERNEL(dr::check_bases)
DR_DEVICE_KERNEL(dr::assign_changes)
DR_DEVICE_KERNEL(dr::add_rows)
DR_DEVICE_KERNEL(dr::merge_tiles)
DR_DEVICE_KERNEL(dr::hand_over_row)
DR_DEVICE_KERNEL(dr::tell_decoded)
