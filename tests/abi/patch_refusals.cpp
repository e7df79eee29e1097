// What patches refuse, and say: another base, what is no patch, plans and memory that make no sense. Nothing is written then.
#include "abi/client_struct.hpp"
#include "abi/prepared.hpp"
#include "abi/weights.hpp"

namespace {

using abi::weights;
using client::bytes;

constexpr const char* usual = "sparsify=changed index=golomb value=ulp";

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string hex(uint64_t x) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(x));
  return text;
}

// A base, what it becomes, and the patch between them.
struct patched {
  client::context c;
  weights base, now;
  bytes frame;
  explicit patched(const char* text = usual, abi::word_kind kind = abi::word_kinds[2], uint64_t rows = 9000,
                   uint32_t width = 1)
      : base(abi::some_weights(kind, rows, width)),
        now(abi::changed(base, 0.02)),
        frame(client::encode(c, text, {abi::patch_of(base, now)})) {}
};

std::string plan_error(const std::string& text, dr_status status) {
  dr_error error{sizeof(dr_error)};
  dr_plan* p = nullptr;
  INFO(text);
  CHECK(dr_plan_parse(text.c_str(), &p, &error) == status);
  dr_plan_destroy(p);
  return error.message;
}

}  // namespace

TEST_CASE("a patch for another base is an ARGUMENT that names both checks, and nothing is written") {
  for (const char* text : {usual, "sparsify=changed index=magnitude value=xor", "sparsify=changed index=all value=raw",
                           "sparsify=changed index=golomb value=raw"}) {
    patched p(text);
    weights other = p.base;
    other.set(77, other.word(77) ^ 1);
    std::vector<uint64_t> sums = other.sums(), kept = sums;
    const auto check_of = [](const std::vector<uint64_t>& s) { return hex(dr_base_check(s.data(), s.size())); };
    const bytes before = other.data;
    for (std::vector<uint64_t>* own : {static_cast<std::vector<uint64_t>*>(nullptr), &sums}) {
      dr_tensor_out out = other.out(own);
      out.count = 12345;
      CHECK(abi::apply(p.c, p.frame, {out}) == DR_E_ARGUMENT);
      CHECK(mentions(p.c.error(), check_of(other.sums())));
      CHECK(mentions(p.c.error(), check_of(p.base.sums())));
      CHECK(mentions(p.c.error(), "tensor 0"));
      CHECK(dr_last_error(p.c.handle)->tensor == 0);
      CHECK(dr_last_error(p.c.handle)->reason == DR_REASON_WRONG_BASE);
      CHECK(dr_last_error(p.c.handle)->what == dr_base_check(other.sums().data(), other.sums().size()));
      CHECK(other.data == before);
      CHECK(sums == kept);
    }
  }
}

TEST_CASE("of several tensors none is touched if one has another base, and the error reports which") {
  client::context c;
  std::vector<weights> bases, nows;
  std::vector<dr_tensor> tensors;
  for (const abi::word_kind kind : abi::word_kinds) {
    bases.push_back(abi::some_weights(kind, 5000));
    nows.push_back(abi::changed(bases.back(), 0.1));
  }
  for (size_t i = 0; i < bases.size(); ++i) tensors.push_back(abi::patch_of(bases[i], nows[i]));
  const bytes frame = client::encode(c, usual, tensors);
  for (size_t bad = 0; bad < bases.size(); ++bad) {
    std::vector<weights> got = bases;
    got[bad].set(4999, got[bad].word(4999) ^ 1);
    const std::vector<weights> before = got;
    std::vector<dr_tensor_out> outs;
    std::vector<std::vector<uint64_t>> sums;
    for (weights& w : got) sums.push_back(w.sums());
    const auto kept = sums;
    for (size_t i = 0; i < got.size(); ++i) outs.push_back(got[i].out(i % 2 ? &sums[i] : nullptr));
    CHECK(abi::apply(c, frame, outs) == DR_E_ARGUMENT);
    CHECK(dr_last_error(c.handle)->tensor == bad);
    for (size_t i = 0; i < got.size(); ++i) CHECK(got[i].data == before[i].data);
    CHECK(sums == kept);
  }
}

TEST_CASE("a patch is applied once: a second time its base is another one, unless nothing changed") {
  for (const char* text :
       {usual, "sparsify=changed index=magnitude value=ulp", "sparsify=changed index=golomb value=raw"}) {
    patched p(text);
    weights got = p.base;
    std::vector<uint64_t> sums = got.sums();
    abi::applied(p.c, p.frame, got, &sums);
    CHECK(abi::apply(p.c, p.frame, {got.out()}) == DR_E_ARGUMENT);
    CHECK(abi::apply(p.c, p.frame, {got.out(&sums)}) == DR_E_ARGUMENT);
    CHECK(got.data == p.now.data);
    const bytes none = client::encode(p.c, text, {abi::patch_of(p.now, p.now)});
    CHECK(client::inspect(none).support == 0);
    abi::applied(p.c, none, got);
    abi::applied(p.c, none, got, &sums);
    CHECK(got.data == p.now.data);
  }
}

TEST_CASE("a patch is decoded with DR_DECODE_APPLY only, and nothing else is; patches are not merged or added") {
  patched p;
  weights got = p.base;
  dr_tensor_out out = got.out();
  CHECK(dr_decode(p.c.handle, nullptr, p.frame.data(), p.frame.size(), nullptr, &out, sizeof out, 1) == DR_E_ARGUMENT);
  CHECK(mentions(p.c.error(), "DR_DECODE_APPLY"));
  const dr_bytes frames[] = {{p.frame.data(), p.frame.size()}, {p.frame.data(), p.frame.size()}};
  dr_decode_options options = abi::applying();
  for (const dr_decode_options* o :
       {static_cast<const dr_decode_options*>(nullptr), static_cast<const dr_decode_options*>(&options)}) {
    CHECK(dr_merge(p.c.handle, nullptr, frames, nullptr, 1, o, &out, sizeof out, 1) == DR_E_ARGUMENT);
    CHECK(dr_merge(p.c.handle, nullptr, frames, nullptr, 2, o, &out, sizeof out, 1) == DR_E_ARGUMENT);
  }
  for (const uint32_t more : {DR_DECODE_ADD, DR_DECODE_VOTE}) {
    options.flags = DR_DECODE_APPLY | more;
    CHECK(abi::apply(p.c, p.frame, {got.out()}, options) == DR_E_ARGUMENT);
    options.flags = more;
    CHECK(abi::apply(p.c, p.frame, {got.out()}, options) == DR_E_ARGUMENT);
  }
  const client::floats g = client::laplace(9000, 3);
  const bytes gradient = client::encode(p.c, "sparsify=topr(ratio=0.1) index=golomb", {client::dense(g)});
  client::floats to = g;
  CHECK(abi::apply(p.c, gradient, {client::dense_out(to)}) == DR_E_ARGUMENT);
  CHECK(mentions(p.c.error(), "DR_DECODE_APPLY requires a patch"));
  CHECK(client::same_bits(to, g));
  CHECK(got.data == p.base.data);
}

TEST_CASE("a device refuses the patches that it has no kernels for, by name, or leaves them to the CPU if it may") {
  patched p("sparsify=changed index=magnitude value=raw");
  dr_place place{};
  place.struct_size = sizeof place;
  place.kind = DR_PLACE_EMULATED;
  const client::plan plan("sparsify=changed index=magnitude value=raw");
  const dr_tensor t = abi::patch_of(p.base, p.now);
  size_t size = 0;
  weights got = p.base;
  dr_tensor_out out = got.out();
  const dr_decode_options options = abi::applying();
  CHECK(dr_bound(p.c.handle, plan.handle, nullptr, &place, &t, sizeof t, 1, &size) == DR_E_UNSUPPORTED);
  CHECK(mentions(p.c.error(), "magnitude"));
  CHECK(dr_decode(p.c.handle, &place, p.frame.data(), p.frame.size(), nullptr, &out, sizeof out, 1) == DR_E_ARGUMENT);
  CHECK(mentions(p.c.error(), "base"));
  CHECK(dr_decode(p.c.handle, &place, p.frame.data(), p.frame.size(), &options, &out, sizeof out, 1) ==
        DR_E_UNSUPPORTED);
  CHECK(mentions(p.c.error(), "magnitude"));
  CHECK(got.data == p.base.data);
  place.flags = DR_PLACE_ALLOW_HOST;
  CHECK(dr_decode(p.c.handle, &place, p.frame.data(), p.frame.size(), &options, &out, sizeof out, 1) == DR_OK);
  CHECK(got.data == p.now.data);
}

TEST_CASE("plans: what a patch has no use for is refused by name, and codecs of patches need one") {
  const struct {
    const char *more, *why;
  } of_patches[] = {{"feedback=residual", "feedback"},
                    {"value=qsgd", "qsgd"},
                    {"value=half", "half"},
                    {"value=fit_poly", "fit_poly"},
                    {"value=sign", "sign"},
                    {"value=auto(error=0.1)", "error above 0"},
                    {"index=bloom(fpr=0.1)", "bloom"},
                    {"index=seeded(ratio=0.1)", "seeded"},
                    {"index=all+deflate", "index=all"},
                    {"index=all regather=off", "regather"},
                    {"bucket=flat", "bucket=flat"},
                    {"index=all merge=vote", "merge=vote"},
                    {"exchange=owner", "exchange"},
                    {"exchange=gather(parts=2)", "exchange"},
                    {"exchange=hierarchy(inner=2)", "exchange"}};
  for (const auto& each : of_patches)
    CHECK(mentions(plan_error("sparsify=changed " + std::string(each.more), DR_E_UNSUPPORTED), each.why));
  for (const char* text : {"index=magnitude", "value=ulp", "value=xor", "sparsify=topr(ratio=0.1) index=magnitude",
                           "sparsify=none index=all value=ulp"})
    CHECK(mentions(plan_error(text, DR_E_ARGUMENT), "sparsify=changed"));
  plan_error("sparsify=changed(ratio=0.1)", DR_E_ARGUMENT);
  plan_error("index=ulp", DR_E_ARGUMENT);
}

TEST_CASE("tensors: a base where none belongs, none where one does, and what no patch can be of are refused") {
  patched p;
  const auto refused = [&](const char* text, std::vector<dr_tensor> tensors, const char* why,
                           dr_status status = DR_E_ARGUMENT) {
    bytes frame;
    INFO(text << ": " << why);
    CHECK(client::try_encode(p.c, text, tensors, frame) == status);
    CHECK(mentions(p.c.error(), why));
  };
  dr_tensor t = abi::patch_of(p.base, p.now);
  t.base = nullptr;
  refused(usual, {t},
          "base is NULL: sparsify=changed compares with the receiver's values: dr_tensor.base, Python's "
          "deepreduce.patch, the command `deepreduce patch`");
  refused("sparsify=visible", {t},
          "base is NULL: sparsify=visible compares with the weights that the tensor is to move: "
          "dr_tensor.base, Python's encode(weights=) and deepreduce.outer");
  t = abi::patch_of(p.base, p.now);
  refused("index=golomb", {t}, "no sparsify=changed");
  t.base = p.base.data.data() + 1;
  refused(usual, {t}, "base is not aligned");
  t = abi::patch_of(p.base, p.now);
  std::vector<uint64_t> sums(10);
  t.sums = reinterpret_cast<uint64_t*>(reinterpret_cast<uint8_t*>(sums.data()) + 4);
  refused(usual, {t}, "sums are not aligned");
  t = abi::patch_of(p.base, p.now);
  const uint32_t at[] = {5};
  t.index_dtype = DR_U32;
  t.indices = at;
  t.count = 1;
  refused(usual, {t}, "dense", DR_E_UNSUPPORTED);
  for (const dr_dtype dtype : {DR_F64, DR_U8, DR_U16, DR_U32}) {
    t = abi::patch_of(p.base, p.now);
    t.base = nullptr;
    t.dtype = dtype;
    t.universe = 1000;
    refused("index=golomb", {t}, "f32, f16 or bf16");
    refused("index=all value=raw", {t}, "f32, f16 or bf16");
  }
  for (const dr_dtype dtype : {dr_dtype{DR_I32}, dr_dtype{DR_U64}, dr_dtype{DR_I64}, dr_dtype{0}, dr_dtype{11}}) {
    t = abi::patch_of(p.base, p.now);
    t.dtype = dtype;
    t.universe = 1000;
    refused(usual, {t}, "dtype");
  }
  t = abi::patch_of(p.base, p.now);
  t.universe /= 3;
  t.width = 3;
  refused("sparsify=changed index=magnitude value=ulp", {t}, "width");
  // A frame has patches, or none: whichever comes first.
  const client::floats g = client::laplace(100, 3);
  const client::plan gradients("index=golomb"), patches(usual);
  dr_tensor gradient = client::dense(g);
  gradient.plan = gradients.handle;
  refused(usual, {abi::patch_of(p.base, p.now), gradient}, "one kind");
  t = abi::patch_of(p.base, p.now);
  t.plan = patches.handle;
  refused("index=golomb", {client::dense(g), t}, "one kind");
}

TEST_CASE("a call that fails leaves the sender's sums alone") {
  patched p;
  std::vector<uint64_t> sums = p.base.sums();
  const dr_tensor t = abi::patch_of(p.base, p.now, &sums);
  const client::plan plan(usual);
  std::vector<uint8_t> room(p.frame.size() - 1);
  CHECK(dr_encode(p.c.handle, plan.handle, nullptr, nullptr, &t, sizeof t, 1, room.data(), room.size(), nullptr) ==
        DR_E_CAPACITY);
  CHECK(sums == p.base.sums());
  dr_call call{};
  call.struct_size = sizeof call;
  call.flags = DR_CALL_FIT;
  CHECK(dr_encode(p.c.handle, plan.handle, &call, nullptr, &t, sizeof t, 1, room.data(), room.size(), nullptr) ==
        DR_E_ARGUMENT);
  CHECK(mentions(p.c.error(), "DR_CALL_FIT"));
  CHECK(sums == p.base.sums());
}

TEST_CASE(
    "outputs: another type, a sparse one without a base, one tensor for several, are refused; nothing is written") {
  patched p(usual, abi::word_kinds[0], 9000);
  weights got = p.base;
  const auto refused = [&](std::vector<dr_tensor_out> outs, const char* why, dr_status status = DR_E_ARGUMENT) {
    CHECK(abi::apply(p.c, p.frame, outs) == status);
    INFO(why);
    CHECK(mentions(p.c.error(), why));
    CHECK(got.data == p.base.data);
  };
  dr_tensor_out o = got.out();
  for (const dr_dtype dtype : {DR_F16, DR_BF16, DR_U32, DR_F64, DR_U8, DR_I32}) {
    o.dtype = dtype;
    refused({o}, "dtype");
  }
  o = got.out();
  o.base = p.base.data.data();
  refused({o}, "base");
  o = got.out();
  o.sums = reinterpret_cast<uint64_t*>(reinterpret_cast<uint8_t*>(p.now.data.data()) + 4);
  refused({o}, "sums are not aligned");
  o = got.out();
  o.universe = 8999;
  refused({o}, "universe");
  o = got.out();
  o.universe = 4500;
  o.width = 2;
  refused({o}, "width");
  // One tensor cut over several outputs is for buckets of gradients.
  dr_tensor_out first = got.out(), second = got.out();
  first.universe = 100;
  second.universe = 8900;
  second.values = got.data.data() + 400;
  refused({first, second}, "2 outputs");
  std::vector<uint64_t> indices(9000);
  bytes values(4 * 9000);
  o = got.out();
  o.index_dtype = DR_U64;
  o.indices = indices.data();
  o.values = values.data();
  o.capacity = 9000;
  refused({o}, "base is NULL");
  o.base = p.base.data.data() + 1;
  refused({o}, "aligned");
  o.base = p.base.data.data();
  o.capacity = 1;
  refused({o}, "capacity", DR_E_CAPACITY);
  CHECK(indices == std::vector<uint64_t>(9000));
  CHECK(values == bytes(4 * 9000));
  // A base is for patches.
  const client::floats g = client::laplace(9000, 3);
  const bytes gradient = client::encode(p.c, "sparsify=topr(count=9) index=golomb", {client::dense(g)});
  o.capacity = 9000;
  CHECK(dr_decode(p.c.handle, nullptr, gradient.data(), gradient.size(), nullptr, &o, sizeof o, 1) == DR_E_ARGUMENT);
}

TEST_CASE("a prepared batch of patches takes patches only, one of gradients none, whatever the outputs' types") {
  client::context c;
  const client::floats g = client::laplace(9000, 3);
  weights base{abi::word_kinds[0], 1, bytes(4 * 9000)};
  std::memcpy(base.data.data(), g.data(), base.data.size());
  const weights now = abi::changed(base, 0.02);
  const client::plan gradients("index=golomb"), patches(usual);
  const dr_tensor plain = client::dense(g), patch = abi::patch_of(base, now);
  const bytes frame = client::encode(c, usual, {patch}), gradient = client::encode(c, "index=golomb", {plain});
  abi::batch of_gradients, of_patches;
  REQUIRE(dr_batch_create(c.handle, gradients.handle, nullptr, &plain, sizeof plain, 1, 0, &of_gradients.handle) ==
          DR_OK);
  REQUIRE(dr_batch_create(c.handle, patches.handle, nullptr, &patch, sizeof patch, 1, 0, &of_patches.handle) == DR_OK);
  const dr_decode_options options = abi::applying();
  // A gradient's outputs may be of another type, and smaller than the patch's base.
  std::vector<uint16_t> halves(9000);
  dr_tensor_out out = base.out();
  out.dtype = DR_BF16;
  out.values = halves.data();
  dr_binding* bound = nullptr;
  REQUIRE(dr_binding_create(c.handle, of_gradients.handle, nullptr, nullptr, 0, &out, sizeof out, 1, 1, &bound) ==
          DR_OK);
  dr_result result{};
  result.struct_size = sizeof result;
  CHECK(dr_binding_decode(bound, frame.data(), frame.size(), &options, &result) == DR_E_ARGUMENT);
  CHECK(mentions(c.error(), "patch"));
  CHECK(dr_binding_decode(bound, frame.data(), frame.size(), nullptr, &result) == DR_E_ARGUMENT);
  CHECK(halves == std::vector<uint16_t>(9000));
  dr_binding_destroy(bound);
  CHECK(dr_binding_create(c.handle, of_patches.handle, nullptr, nullptr, 0, &out, sizeof out, 1, 1, &bound) ==
        DR_E_ARGUMENT);
  weights got = base;
  out = got.out();
  REQUIRE(dr_binding_create(c.handle, of_patches.handle, nullptr, nullptr, 0, &out, sizeof out, 1, 2, &bound) == DR_OK);
  CHECK(dr_binding_decode(bound, gradient.data(), gradient.size(), &options, &result) == DR_E_ARGUMENT);
  CHECK(dr_binding_decode(bound, gradient.data(), gradient.size(), nullptr, &result) == DR_E_ARGUMENT);
  CHECK(dr_binding_decode(bound, frame.data(), frame.size(), nullptr, &result) == DR_E_ARGUMENT);
  const dr_bytes frames[] = {{frame.data(), frame.size()}, {frame.data(), frame.size()}};
  CHECK(dr_binding_merge(bound, frames, nullptr, 2, &options, &result) == DR_E_ARGUMENT);
  CHECK(dr_binding_merge(bound, frames, nullptr, 2, nullptr, &result) == DR_E_ARGUMENT);
  CHECK(got.data == base.data);
  CHECK(dr_binding_decode(bound, frame.data(), frame.size(), &options, &result) == DR_OK);
  CHECK(got.data == now.data);
  dr_binding_destroy(bound);
}

TEST_CASE("a client from before patches is served: its structs end before `base`") {
  patched p;
  constexpr size_t old_tensor = offsetof(dr_tensor, base), old_out = offsetof(dr_tensor_out, base);
  abi::structs<dr_tensor> tensors(abi::patch_of(p.base, p.now), old_tensor);
  const client::plan plan(usual);
  bytes room(1 << 16);
  dr_result result{};
  result.struct_size = sizeof result;
  CHECK(dr_encode(p.c.handle, plan.handle, nullptr, nullptr, tensors.data(), tensors.stride(), 1, room.data(),
                  room.size(), &result) == DR_E_ARGUMENT);
  CHECK(mentions(p.c.error(), "base is NULL"));
  CHECK(tensors.intact());
  weights got = p.base;
  abi::structs<dr_tensor_out> outs(got.out(), old_out);
  const dr_decode_options options = abi::applying();
  CHECK(dr_decode(p.c.handle, nullptr, p.frame.data(), p.frame.size(), &options, outs.data(), outs.stride(), 1) ==
        DR_OK);
  CHECK(outs.intact());
  CHECK(got.data == p.now.data);
  CHECK(outs.read().count == client::inspect(p.frame).support);
}

TEST_CASE("sums: NULL and too little room are ARGUMENT; of no bytes there are none") {
  const weights w = abi::some_weights(abi::word_kinds[4], 4097);
  uint64_t sums[2] = {7, 7};
  dr_error error{sizeof(dr_error)};
  CHECK(dr_base_sums(nullptr, 5, sums, 2, &error) == DR_E_ARGUMENT);
  CHECK(mentions(error.message, "values"));
  CHECK(dr_base_sums(w.data.data(), 5, nullptr, 2, &error) == DR_E_ARGUMENT);
  CHECK(mentions(error.message, "sums"));
  CHECK(dr_base_sums(w.data.data(), 4097, sums, 1, &error) == DR_E_ARGUMENT);
  CHECK(sums[0] == 7);
  CHECK(dr_base_sums(nullptr, 0, nullptr, 0, nullptr) == DR_OK);
  CHECK(dr_base_check(nullptr, 0) == 0);
  CHECK(dr_base_sums(w.data.data(), 4097, sums, 2, nullptr) == DR_OK);
  CHECK(dr_base_check(sums, 2) != 0);
}
