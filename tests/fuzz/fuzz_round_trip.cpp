// Encode and decode through the C ABI: whatever tensors and plans, a call answers; a frame fits its bound, decodes sparse and dense to the
// same, is what a prepared batch makes, too, and holds what its plan's flags promise.
//
// Input: plan (a codec a stage, with parameters), flags of the call, tensors (shapes, then values and indices).
#include <deepreduce/deepreduce.h>

#include <cmath>
#include <memory>
#include <string>

#include "fuzz/script.hpp"

namespace {

using fuzz::block;
using fuzz::bytes;
using fuzz::script;
using fuzz::wrong;

constexpr uint64_t elements_most = 3000;

// More than a block of any codec, more than a stream, and more than one worker takes alone (make_corpus.py knows it, too).
constexpr uint64_t times_max = 45;

// Filling the workspace of a bitmap of a wide universe takes most of the time.
constexpr uint64_t workspace_most = 1 << 24;

bool threaded = false;  // of this input
dr_context* context() { return fuzz::context(threaded ? 3 : 0); }

// ---- Plans ----------------------------------------------------------------------------------------------

std::string number(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

// NAME(PARAMETER=VALUE,…) of a codec of that role.
std::string codec_text(script& from, dr_role role) {
  std::vector<const dr_codec*> of_role;
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (const dr_codec* c = dr_codec_at(i); c->role == role && !(c->traits & DR_PREFIX)) of_role.push_back(c);
  const dr_codec& c = *of_role[from.up_to(of_role.size() - 1)];
  std::string inside;
  const uint8_t given = from.byte();
  for (size_t i = 0; i < c.param_count; ++i) {
    const dr_param& p = *dr_param_at(c.params, i);
    if (!p.required && !(given >> i % 8 & 1)) continue;
    std::string value;
    if (p.type == DR_PARAM_CHOICE) {
      std::string choices = p.choices;
      for (size_t skip = from.byte() % 8; skip > 0 && choices.find('|') != std::string::npos; --skip)
        choices = choices.substr(choices.find('|') + 1);
      value = choices.substr(0, choices.find('|'));
    } else {
      const double share = static_cast<double>(from.byte()) / 255;
      double x = given & 128 || p.minimum <= 0 ? p.minimum + share * (std::min(p.maximum, p.minimum + 256) - p.minimum)
                                               : p.minimum * std::pow(p.maximum / p.minimum, share);
      if (p.type == DR_PARAM_INT) x = std::floor(x);
      value = number(std::clamp(x, p.minimum, p.maximum));
    }
    inside += (inside.empty() ? "" : ",") + std::string(p.name) + "=" + value;
  }
  return c.name + (inside.empty() ? "" : "(" + inside + ")");
}

std::string with_bytes(script& from, std::string text) {
  for (uint8_t more = from.byte() % 8; more > 5; --more) text += "+" + codec_text(from, DR_ROLE_BYTES);
  return text;
}

std::string plan_text(script& from) {
  const uint8_t what = from.byte();
  std::string text;
  if (what == 0xff) {  // as it is written
    for (uint8_t c = from.byte(); c != 0; c = from.byte()) text += static_cast<char>(c);
    return text;
  }
  if (what & 1) text += "sparsify=" + codec_text(from, DR_ROLE_SPARSIFY) + " ";
  if (what & 2) text += "feedback=" + codec_text(from, DR_ROLE_FEEDBACK) + " ";
  text += "index=" + (what & 4 ? "auto" : with_bytes(from, codec_text(from, DR_ROLE_INDEX)));
  if (what & 8) {
    text += " value=auto(error=" + number(static_cast<double>(from.byte()) / 100 + 0.001) + ")";
  } else {
    text += " value=" + with_bytes(from, codec_text(from, DR_ROLE_VALUE));
  }
  if (what & 16) text += " order=" + with_bytes(from, codec_text(from, DR_ROLE_ORDER));
  if (what & 32) text += " bucket=flat";
  if (what & 64) text += what & 128 ? " regather=off" : " regather=on";
  return text;
}

struct plan {
  dr_plan* handle = nullptr;
  dr_plan_info info{};
  explicit plan(const std::string& text) {
    dr_error error{};
    error.struct_size = sizeof error;
    const dr_status s = dr_plan_parse(text.c_str(), &handle, &error);
    if (s && s != DR_E_ARGUMENT && s != DR_E_UNSUPPORTED) wrong(dr_status_name(s), text.c_str());
    info.struct_size = sizeof info;
    if (!s && dr_plan_describe(handle, &info, nullptr)) wrong("a plan that cannot be described", text.c_str());
  }
  ~plan() { dr_plan_destroy(handle); }
  plan(const plan&) = delete;
  plan& operator=(const plan&) = delete;
  bool keeps(uint32_t flag) const { return info.flags & flag; }
};

// ---- Tensors --------------------------------------------------------------------------------------------

size_t value_size(uint32_t dtype) {
  if (dtype == DR_F32 || dtype == DR_U32) return 4;
  return dtype == DR_F64 ? 8 : dtype == DR_U8 ? 1 : 2;
}

struct gradient {
  dr_tensor view{};
  std::unique_ptr<block> values, indices, state, base;
  std::vector<uint64_t> keys;  // of a sparse one, in input order

  gradient(script& from, const plan& p) {
    const uint8_t what = from.byte();
    view.struct_size = sizeof view;
    view.dtype = DR_F32 + what % 3;
    const bool patch = p.keeps(DR_PLAN_PATCH), sparse = what & 4 && !patch;
    static constexpr dr_dtype words[] = {DR_F32, DR_F16, DR_BF16, DR_F64, DR_U8, DR_U16, DR_U32};
    if (patch) view.dtype = words[what % 7];
    view.width = what & 8 ? 1 + from.byte() % 5 : 0;
    const uint64_t width = std::max(1u, view.width);
    uint64_t rows = from.up_to(elements_most / width);
    // The largest tensors are drawn, not taken from the input, and may be several times as large.
    uint64_t drawn = rows == elements_most / width ? from.number(4) : 0;
    if (drawn) rows *= 1 + drawn % times_max;
    const auto next = [&] {
      if (!drawn) return from.byte();
      drawn = drawn * 6364136223846793005u + 1442695040888963407u;
      return static_cast<uint8_t>(drawn >> 56);
    };
    view.universe = rows;
    if (sparse) {
      view.universe =
          rows + from.up_to(what & 16 && !p.keeps(DR_PLAN_FEEDBACK) ? UINT32_MAX : 4096);  // (a state is dense)
      if (what & 32) view.flags = DR_TENSOR_SUM_DUPLICATES;
      static constexpr uint32_t types[] = {DR_U32, DR_I32, DR_U64, DR_I64};
      view.index_dtype = types[what >> 6];
      const unsigned size = view.index_dtype <= DR_I32 ? 4 : 8;
      indices = std::make_unique<block>(rows * size);
      uint64_t key = 0;
      for (uint64_t i = 0; i < rows; ++i) {
        const uint8_t step =
            drawn ? next() % 240 : next();  // mostly ascending; a large one may go back, repeat or leave the universe
        key += step < 240 ? uint64_t{step} + (i > 0) : static_cast<uint64_t>(-static_cast<int64_t>(step - 240) * 7);
        std::memcpy(indices->data() + i * size, &key, size);
        keys.push_back(size == 4 ? key & UINT32_MAX : key);
      }
      view.indices = indices->data();
      view.count = rows;
    }
    const size_t element = value_size(view.dtype);
    bytes raw(rows * width * element);
    if (from.byte() & 1) {  // few kinds of values
      for (size_t i = 0; i + element <= raw.size(); i += element) {
        const uint8_t x = next();
        raw[i + element - 1] = static_cast<uint8_t>((x & 0x80) | (x & 0x40 ? 0x3c : 0));
        if (element > 1) raw[i + element - 2] = static_cast<uint8_t>(x << 2);
      }
    } else if (drawn) {
      std::generate(raw.begin(), raw.end(), next);
      for (size_t i = element - 1; i < raw.size(); i += element) raw[i] = (raw[i] & 0x80) | 0x3b;  // finite
    } else {
      const bytes taken = from.take(raw.size());
      std::copy(taken.begin(), taken.end(), raw.begin());
    }
    values = std::make_unique<block>(raw);
    view.values = values->data();
    if (patch) {  // few words change, or many, by a little
      const uint8_t rarely = from.byte() % 32;
      for (size_t i = 0; i < raw.size(); i += element)
        if (const uint8_t change = next(); change % 32 >= rarely) raw[i] = static_cast<uint8_t>(raw[i] + (change >> 5));
      base = std::make_unique<block>(raw);
      view.base = base->data();
    }
    view.key = from.byte() & 1 ? from.number(2) : 0;
    size_t size = 0;
    if (dr_state_size(p.handle, &view, &size, nullptr) == DR_OK && size) {
      state = std::make_unique<block>(size, 0);
      view.state = state->data();
      view.state_size = size;
    }
  }
  gradient(gradient&&) = default;
};

struct output {
  std::unique_ptr<block> values, indices;
  dr_tensor_out out{};
  output(const dr_tensor_info& t, bool sparse) {
    const uint64_t rows = sparse ? t.support : t.universe;
    values = std::make_unique<block>(rows * t.width * value_size(t.dtype));
    indices = std::make_unique<block>(sparse ? 8 * rows : 0);
    out.struct_size = sizeof out;
    out.dtype = t.dtype;
    out.index_dtype = sparse ? DR_U64 : 0;
    out.universe = t.universe;
    out.width = t.width;
    out.values = values->data();
    out.indices = sparse ? indices->data() : nullptr;
    out.capacity = t.support;
  }
  bytes held() const { return values->copy(values->size()); }
};

// ---- Judgement ------------------------------------------------------------------------------------------

// Of elements that are 0 or -0.
bool is_zero(const uint8_t* row, size_t size, size_t element) {
  for (size_t i = 0; i < size; ++i)
    if (row[i] & ((i + 1) % element ? 0xff : 0x7f)) return false;
  return true;
}

// What is neither dropped nor rounded comes back bit for bit: each row of a sparse tensor, each row of a dense one that is not zero.
void check_exact(const gradient& g, const output& sparse, uint64_t support) {
  const auto* const keys = sparse.indices->as<uint64_t>();
  const size_t element = value_size(g.view.dtype), row = std::max(1u, g.view.width) * element;
  const auto has = [&](uint64_t key, const uint8_t* values) {
    const uint64_t* const at = std::lower_bound(keys, keys + support, key);
    return at != keys + support && *at == key && !std::memcmp(sparse.values->data() + (at - keys) * row, values, row);
  };
  for (uint64_t i = 0; i < g.keys.size() && !g.view.flags; ++i)
    if (!has(g.keys[i], g.values->data() + i * row)) wrong("a row of a sparse tensor is lost");
  for (uint64_t i = 0; i < g.view.universe && !g.view.index_dtype; ++i)
    if (!is_zero(g.values->data() + i * row, row, element) && !has(i, g.values->data() + i * row))
      wrong("a row is lost");
}

std::vector<dr_tensor_info> inspect(const bytes& frame, size_t n) {
  dr_frame_info head{};
  head.struct_size = sizeof head;
  dr_error error{};
  error.struct_size = sizeof error;
  dr_tensor_info empty{};
  empty.struct_size = sizeof empty;
  std::vector<dr_tensor_info> infos(n, empty);
  if (dr_inspect(frame.data(), frame.size(), &head, infos.data(), sizeof empty, n, &error))
    wrong("inspect", error.message);
  if (head.frame_size != frame.size()) wrong("inspect tells another size than encode");
  infos.resize(head.tensors, empty);
  return infos;
}

struct step {
  const plan& method;
  std::vector<gradient>& gradients;
  std::vector<dr_tensor> views;
  dr_call call{};
  size_t bound = 0;

  bool encode(bytes& frame, uint64_t capacity) {
    const block room(capacity);
    dr_result result{};
    result.struct_size = sizeof result;
    const dr_status s = dr_encode(context(), method.handle, &call, nullptr, views.data(), sizeof(dr_tensor),
                                  views.size(), room.data(), capacity, &result);
    if (s && s != DR_E_ARGUMENT && s != DR_E_UNSUPPORTED && (s != DR_E_CAPACITY || capacity >= bound))
      wrong(dr_status_name(s), dr_last_error(context())->message);
    if (s && !dr_last_error(context())->message[0]) wrong("an error without a sentence");
    if (result.size > capacity) wrong("a frame beyond its room");
    if (s && result.size &&
        dr_decode(context(), nullptr, room.data(), result.size, nullptr, nullptr, 0, 0) != DR_E_PEER)
      wrong("a status frame that is no error");
    frame = room.copy(result.size);
    return s == DR_OK;
  }

  // What a frame needs beyond the limits for any frame (dr_decode_options), it gets.
  void decode_to(const bytes& frame, std::vector<dr_tensor_out>& outs) {
    dr_decode_options limits{};
    limits.struct_size = sizeof limits;
    const auto call = [&] {
      return dr_decode(context(), nullptr, frame.data(), frame.size(), &limits, outs.data(), sizeof(dr_tensor_out),
                       outs.size());
    };
    dr_status s = call();
    if (s == DR_E_CAPACITY) {
      limits.max_elements = UINT64_MAX;
      limits.max_workspace = dr_last_error(context())->needed;
      s = call();
    }
    if (s) wrong(dr_plan_text(method.handle), dr_last_error(context())->message);
  }

  void decode(const bytes& frame, bool fitted) {
    const std::vector<dr_tensor_info> infos = inspect(frame, views.size());
    std::vector<output> sparse, dense;
    std::vector<dr_tensor_out> outs;
    uint64_t written = 0;
    for (const dr_tensor_info& t : infos) written += t.universe * t.width;
    for (const dr_tensor_info& t : infos) outs.push_back(sparse.emplace_back(t, true).out);
    decode_to(frame, outs);
    const bool exact = !fitted && !method.keeps(DR_PLAN_SPARSIFIES | DR_PLAN_LOSSY_VALUES | DR_PLAN_LOSSY_SUPPORT);
    for (size_t i = 0; i < infos.size() && exact && infos.size() == gradients.size() && !method.keeps(DR_PLAN_FEEDBACK);
         ++i)
      check_exact(gradients[i], sparse[i], outs[i].count);
    if (written > 64 * elements_most) return;
    outs.clear();
    for (const dr_tensor_info& t : infos) outs.push_back(dense.emplace_back(t, false).out);
    decode_to(frame, outs);
    for (size_t i = 0; i < infos.size(); ++i) {
      const size_t row = infos[i].width * value_size(infos[i].dtype);
      bytes scattered(dense[i].values->size());
      for (uint64_t k = 0; k < infos[i].support; ++k)
        std::memcpy(scattered.data() + sparse[i].indices->as<uint64_t>()[k] * row, sparse[i].values->data() + k * row,
                    row);
      if (scattered != dense[i].held()) wrong("sparse and dense outputs differ", dr_plan_text(method.handle));
    }
  }

  // The base becomes the sender's words, in place and by pairs, of any base else nothing.
  void apply(const bytes& frame) {
    const std::vector<dr_tensor_info> infos = inspect(frame, views.size());
    dr_decode_options options{};
    options.struct_size = sizeof options;
    options.flags = DR_DECODE_APPLY;
    for (const bool sparse : {false, true}) {
      std::vector<output> outs;
      std::vector<dr_tensor_out> list;
      for (size_t i = 0; i < infos.size(); ++i) {
        list.push_back(outs.emplace_back(infos[i], sparse).out);
        const block& base = *gradients[i].base;
        if (sparse)
          list.back().base = base.data();
        else if (base.size())
          std::memcpy(outs[i].values->data(), base.data(), base.size());
      }
      const auto decode = [&] {
        return dr_decode(context(), nullptr, frame.data(), frame.size(), &options, list.data(), sizeof(dr_tensor_out),
                         list.size());
      };
      if (decode()) wrong(dr_plan_text(method.handle), dr_last_error(context())->message);
      for (size_t i = 0; i < infos.size(); ++i) {
        bytes now = gradients[i].base->copy(gradients[i].base->size());
        const size_t row = infos[i].width * value_size(infos[i].dtype);
        for (uint64_t k = 0; sparse && k < list[i].count; ++k)
          std::memcpy(now.data() + outs[i].indices->as<uint64_t>()[k] * row, outs[i].values->data() + k * row, row);
        if ((sparse ? now : outs[i].held()) != gradients[i].values->copy(now.size()))
          wrong("a patch makes something else", dr_plan_text(method.handle));
      }
    }
  }

  // What a prepared batch makes of the same is the same, and it decodes it in its own workspace.
  void prepared(const bytes& expected) {
    dr_batch* batch = nullptr;
    if (dr_batch_create(context(), method.handle, nullptr, views.data(), sizeof(dr_tensor), views.size(),
                        call.segment_rows, &batch))
      wrong("what encodes cannot be prepared", dr_last_error(context())->message);
    dr_batch_info info{};
    info.struct_size = sizeof info;
    size_t room = 0;
    if (dr_batch_describe(batch, &info, nullptr) || dr_batch_merge_workspace(batch, 2, &room, nullptr))
      wrong("describe");
    if (info.workspace > workspace_most) return dr_batch_destroy(batch);
    const block workspace(info.workspace), frame(info.bound), more(room);
    dr_result result{};
    result.struct_size = sizeof result;
    if (dr_batch_encode(context(), batch, &call, nullptr, views.data(), sizeof(dr_tensor), views.size(),
                        workspace.data(), workspace.size(), frame.data(), frame.size(), &result))
      wrong("a prepared encode fails", dr_last_error(context())->message);
    if (frame.copy(result.size) != expected)
      wrong("a prepared encode makes another frame", dr_plan_text(method.handle));
    uint64_t written = 0;
    for (const dr_tensor& v : views) written += v.universe * std::max(1u, v.width);
    if (written <= 64 * elements_most && !method.keeps(DR_PLAN_PATCH)) {
      std::vector<output> outs;
      std::vector<dr_tensor_out> list;
      for (const dr_tensor& v : views) {
        dr_tensor_info t{};
        t.universe = v.universe;
        t.width = std::max(1u, v.width);
        t.dtype = v.dtype;
        list.push_back(outs.emplace_back(t, false).out);
      }
      const dr_bytes two[] = {{expected.data(), expected.size()}, {expected.data(), expected.size()}};
      if (dr_batch_merge(context(), batch, nullptr, two, nullptr, 2, nullptr, list.data(), sizeof(dr_tensor_out),
                         list.size(), more.data(), more.size(), &result))
        wrong("a prepared merge fails", dr_last_error(context())->message);
    }
    dr_batch_destroy(batch);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  script from(data, size);
  const plan method(plan_text(from));
  if (!method.handle) return 0;
  const uint8_t flags = from.byte();
  threaded = flags & 32;
  std::vector<gradient> gradients;
  for (uint8_t n = 1 + from.byte() % 3; n > 0; --n) gradients.emplace_back(from, method);
  step s{method, gradients, {}};
  for (const gradient& g : gradients) s.views.push_back(g.view);
  // Codecs that look at every element of a universe. (From 2^20 on bloom's is shared by threads.)
  const std::string canonical = dr_plan_text(method.handle);
  const auto has = [&](const char* codec) { return canonical.find(codec) != std::string::npos; };
  const uint64_t universe_most = has("seeded")                            ? 1 << 16
                                 : has("bloom") || has("sparsify=random") ? 9 << 17
                                                                          : UINT64_MAX;
  for (const dr_tensor& v : s.views)
    if (v.universe > universe_most) return 0;
  s.call.struct_size = sizeof s.call;
  s.call.seed = flags;
  s.call.flags = flags & (DR_CALL_TAG | DR_CALL_STATUS_FRAME | DR_CALL_LIST);
  s.call.tag = flags & DR_CALL_TAG ? 77 : 0;
  if (flags & 16) s.call.segment_rows = 1 + flags % 13 * 40;
  for (const dr_tensor& v :
       s.views)  // segments of `auto`: 16,384 take 8 s under ASan, a million gigabytes, as asked for
    if (flags & 16 && v.universe / s.call.segment_rows > 1 << 12) return 0;
  if (const dr_status e = dr_bound(context(), method.handle, &s.call, nullptr, s.views.data(), sizeof(dr_tensor),
                                   s.views.size(), &s.bound)) {
    if (e != DR_E_ARGUMENT && e != DR_E_UNSUPPORTED && e != DR_E_MEMORY)
      wrong(dr_status_name(e), dr_last_error(context())->message);
    return 0;
  }
  if (s.bound > 1 << 24) return 0;
  bytes frame;
  for (s.call.step = 0; s.call.step < 2; ++s.call.step) {
    if (!s.encode(frame, s.bound)) return 0;
    if (method.keeps(DR_PLAN_PATCH))
      s.apply(frame);
    else
      s.decode(frame, false);
  }
  const bool again = !method.keeps(DR_PLAN_FEEDBACK);
  s.call.step = 1;
  if (flags & 32 && again) s.prepared(frame);
  if (flags & 64 && method.keeps(DR_PLAN_FEEDBACK)) s.call.flags |= DR_CALL_FIT;
  if (flags & 128 && !method.keeps(DR_PLAN_PATCH) && s.encode(frame, frame.size() / 2)) s.decode(frame, true);
  return 0;
}
