// transform=dct: what is behind it reads coefficients where it would read values.
#include "dct/dct.hpp"
#include "pipeline/encoding.hpp"

namespace dr {

tensor_view* lay_out_transformed(arena& memory, const batch& b) {
  if (std::none_of(b.units.begin(), b.units.end(), [](const unit& u) { return bool(u.tiles); })) return nullptr;
  auto* const out = memory.allocate<tensor_view>(b.shapes.size());
  for (const unit& u : b.units) {
    if (!u.tiles) continue;
    const float* const coefficients = memory.allocate<float>(u.universe);
    if (!memory.measures()) out[u.first_tensor].values = coefficients;
  }
  return out;
}

std::span<const tensor_view> transform(const batch& b, const encode_call& call, std::span<const tensor_view> tensors,
                                       pool& workers, tensor_view* out) {
  trace_span span(call.trace, call.trace_user, "transform");
  for (const unit& u : b.units)
    for (uint32_t i = u.first_tensor; i < u.first_tensor + u.tensors; ++i) {
      const void* const coefficients = u.tiles ? out[i].values : tensors[i].values;
      out[i] = tensors[i];
      out[i].values = coefficients;
      if (!u.tiles) continue;
      to_coefficients(u.tiles, static_cast<const float*>(tensors[i].values), u.universe,
                      static_cast<float*>(const_cast<void*>(coefficients)), workers);
      span.bytes += u.universe * sizeof(float);
    }
  return {out, tensors.size()};
}

}  // namespace dr
