// What a built-in codec declares beside its public interface (codec.h), so that the engine knows none by name.
#pragma once

#include <span>
#include <vector>

#include "deepreduce/codec.h"

namespace dr {

// A parameter that differs from its default. name == nullptr: none does.
struct codec_argument {
  const char* name = nullptr;
  double value = 0;
};

struct codec_notes {
  const dr_codec* codec;
  // The arguments with which index=auto or value=auto tries the codec, one after the other; for a value codec, those
  // that may meet a relative L2 error. nullptr: auto does not try it. A codec with DR_NEEDS_BASE is tried in patches
  // only.
  std::vector<codec_argument> (*tries)(double error) = nullptr;
  // The reported support follows from the tensor's shape, its count and the shared key: it is the same on every rank.
  bool blind = false;
  // A payload of values is the values: a device codes and decodes none, but reads them where they are.
  bool copies = false;
  // An index codec whose decode on a device checks that indices ascend below the universe, and lists where the tiles of the
  // output begin: dr_job.tell is a support_starts (primitive/support_starts.hpp), or NULL.
  bool lists_starts = false;
  // Its decode on a device takes a payload where it is in a frame (tile_job.in, which is NULL), and while others check the
  // frame: it reads no byte of other memory, whatever the payload has. An index section may begin at any byte.
  bool reads_frames = false;
};

// For codecs that need no arguments, whatever the error.
inline std::vector<codec_argument> tried_once(double) { return {{}}; }

// The notes of the codecs that declare any, in the order in which auto tries them (codecs/builtin.cpp).
std::span<const codec_notes* const> builtin_notes();

// Empty if the codec declares nothing.
codec_notes notes_of(const dr_codec& codec);
// Whether auto tries it outside of patches.
bool is_candidate(const codec_notes& notes, dr_role role);
// The name, for errors, of the built-in index codec with a form or with a trait; "?" if there is none.
const char* index_of_form(dr_form form);
const char* index_with(uint32_t trait);

}  // namespace dr
