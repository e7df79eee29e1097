#include "frame_text.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "deepreduce/deepreduce.hpp"
#include "tool/show/text_table.hpp"

namespace dr::compare {
namespace {

std::string plural(uint64_t n, const char* what) { return fmt::format("{} {}{}", grouped(n), what, n == 1 ? "" : "s"); }

// Patches have words that are not values, too.
const char* dtype_name(dr_dtype type) {
  switch (type) {
    case DR_F32: return "f32";
    case DR_F16: return "f16";
    case DR_BF16: return "bf16";
    case DR_U32: return "u32";
    case DR_F64: return "f64";
    case DR_U8: return "u8";
    case DR_U16: return "u16";
    default: return "?";
  }
}

std::string fallback_name(uint32_t fallback) {
  return fallback == DR_FALLBACK_NONE ? "" : fallback == DR_FALLBACK_RAW_INDEX ? "raw index" : "dense";
}

std::string header_text(const dr_frame_info& f, size_t size) {
  std::string text = fmt::format("frame of version {}, {} form, {}\nheader {}, {} in {}, {}\n", f.version,
                                 f.flags & DR_FRAME_SHORT ? "short" : "general", plural(f.frame_size, "byte"),
                                 plural(f.header_size, "byte"), plural(f.tensors, "tensor"),
                                 plural(f.segments, "segment"), plural(f.plans, "plan"));
  if (f.flags & DR_FRAME_TAG) text += fmt::format("tag {:#018x}\n", f.tag);
  if (f.flags & DR_FRAME_LIST) text += "decodes to a list of tensors, not to one\n";
  if (f.flags & DR_FRAME_STATUS)
    text += fmt::format("status frame: the sender could not encode, {}: {}\n", dr_status_name(f.status), f.message);
  if (size > f.frame_size) text += fmt::format("{} after the frame\n", plural(size - f.frame_size, "byte"));
  return text;
}

template <class F>
std::vector<std::string> cells(const std::vector<dr_tensor_info>& tensors, F&& f) {
  std::vector<std::string> list;
  for (const dr_tensor_info& t : tensors) list.push_back(f(t));
  return list;
}

}  // namespace

std::string describe_frame(std::span<const std::byte> bytes) {
  const frame f = inspect(bytes);
  using enum text_table::align;
  text_table t;
  size_t position = 0;
  const auto number = [&](const char* heading, auto&& of) {
    t.column(heading, right, cells(f.tensors, [&](const dr_tensor_info& x) { return grouped(of(x)); }));
  };
  t.column("tensor", right, cells(f.tensors, [&](const dr_tensor_info&) { return std::to_string(position++); }));
  t.column("type", left, cells(f.tensors, [](const auto& x) { return std::string(dtype_name(x.dtype)); }));
  number("universe", [](const auto& x) { return x.universe; });
  number("width", [](const auto& x) { return x.width; });
  number("count", [](const auto& x) { return x.count; });
  number("support", [](const auto& x) { return x.support; });
  number("segments", [](const auto& x) { return x.segments; });
  number("index", [](const auto& x) { return x.index_size; });
  number("value", [](const auto& x) { return x.value_size; });
  number("order", [](const auto& x) { return x.order_size; });
  t.column("fallback", left, cells(f.tensors, [](const auto& x) { return fallback_name(x.fallback); }));
  t.column("runs on", left,
           cells(f.tensors, [](const auto& x) { return std::string(x.host_only ? "CPU" : "CPU, CUDA"); }));
  t.column("plan", left, cells(f.tensors, [](const auto& x) { return std::string(x.plan); }));
  return header_text(f.info, bytes.size()) +
         (f.tensors.empty() ? "" : t.text("") + "index, value, order: bytes of the payload\n");
}

std::string frame_json(std::span<const std::byte> bytes) {
  using nlohmann::ordered_json;
  const frame f = inspect(bytes);
  const bool tagged = f.info.flags & DR_FRAME_TAG, failed = f.info.flags & DR_FRAME_STATUS;
  ordered_json document{{"version", f.info.version},
                        {"bytes", f.info.frame_size},
                        {"header_bytes", f.info.header_size},
                        {"bytes_after", bytes.size() - f.info.frame_size},
                        {"segments", f.info.segments},
                        {"list", (f.info.flags & DR_FRAME_LIST) != 0},
                        {"tag", tagged ? ordered_json(f.info.tag) : ordered_json(nullptr)},
                        {"status", failed ? ordered_json(dr_status_name(f.info.status)) : ordered_json(nullptr)},
                        {"message", failed ? ordered_json(f.info.message) : ordered_json(nullptr)},
                        {"tensors", ordered_json::array()}};
  for (const dr_tensor_info& t : f.tensors)
    document["tensors"].push_back({{"dtype", dtype_name(t.dtype)},
                                   {"universe", t.universe},
                                   {"width", t.width},
                                   {"count", t.count},
                                   {"support", t.support},
                                   {"segments", t.segments},
                                   {"index_bytes", t.index_size},
                                   {"value_bytes", t.value_size},
                                   {"order_bytes", t.order_size},
                                   {"fallback", fallback_name(t.fallback)},
                                   {"host_only", t.host_only != 0},
                                   {"plan", t.plan}});
  return document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace dr::compare
