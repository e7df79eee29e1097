#include "core/registry.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <mutex>

#include "core/codec_notes.hpp"
#include "core/stage_list.hpp"
#include "core/versioned.hpp"

namespace dr {
namespace {

// Fixed room, so that readers need no lock: the count is published after the entry.
struct registry {
  std::array<const dr_codec*, 1024> entries{};
  std::atomic<size_t> count{0};
  std::mutex mutex;
  std::array<std::array<const dr_codec*, 32>, DR_ROLE_FEEDBACK + 1>
      builtin{};  // by role and id, for the lookups of every frame

  registry() {
    size_t n = 0;
    for (const dr_codec* codec : builtin_codecs()) {
      entries[n++] = codec;
      if (codec->id < builtin[codec->role].size()) builtin[codec->role][codec->id] = codec;
    }
    count.store(n, std::memory_order_release);
  }
};

registry& all() {
  static registry instance;
  return instance;
}

bool valid_name(const char* name) {
  if (!name || *name < 'a' || *name > 'z') return false;
  for (const char* c = name; *c; ++c)
    if (!((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '_') || c - name >= 48) return false;
  return true;
}

bool same_name(const dr_codec& a, const dr_codec& b) { return a.role == b.role && std::strcmp(a.name, b.name) == 0; }

// The stride of an array of structs: the size in its first struct. (check_struct refuses a size above the maximum.)
size_t stride_of(const void* first) { return std::min(size_of_struct(first), struct_size_max); }

// The shortest text of a number, independent of the locale.
struct number_text {
  char text[32] = {};
  explicit number_text(double number) { std::to_chars(text, text + sizeof text - 1, number); }
};

size_t choices_of(const char* choices) {
  return 1 + static_cast<size_t>(std::count(choices, choices + std::strlen(choices), '|'));
}

dr_status check_param(const dr_codec& c, size_t i, dr_error& error) {
  const dr_param& p = *dr_param_at(c.params, i);
  if (const dr_status s = check_struct(&p, sizeof(dr_param), sizeof p, stride_of(c.params), "codec: parameter", error))
    return s;
  const bool choice = p.type == DR_PARAM_CHOICE;
  if (!valid_name(p.name) || p.type < DR_PARAM_INT || p.type > DR_PARAM_CHOICE || (choice && !p.choices) ||
      (!choice && !(p.minimum <= p.maximum)))
    return fail(error, DR_E_ARGUMENT, "codec %s: parameter %zu is malformed (name, type, range or choices)", c.name, i);
  for (size_t j = 0; j < i; ++j)
    if (std::strcmp(dr_param_at(c.params, j)->name, p.name) == 0)
      return fail(error, DR_E_ARGUMENT, "codec %s: parameters %zu and %zu are both called %s", c.name, j, i, p.name);
  if (p.required) return DR_OK;  // it has no default
  const number_text number(p.fallback);
  const bool whole = p.fallback == std::floor(p.fallback);
  if (choice) {
    const size_t n = choices_of(p.choices);
    if (whole && p.fallback >= 0 && p.fallback < static_cast<double>(n)) return DR_OK;
    return fail(error, DR_E_ARGUMENT, "codec %s: parameter %s: default %s is not a position among its %zu choices, %s",
                c.name, p.name, number.text, n, p.choices);
  }
  if (!(p.fallback >= p.minimum && p.fallback <= p.maximum))
    return fail(error, DR_E_ARGUMENT, "codec %s: parameter %s: default %s is not in %s … %s", c.name, p.name,
                number.text, number_text(p.minimum).text, number_text(p.maximum).text);
  if (p.type == DR_PARAM_INT && !whole)
    return fail(error, DR_E_ARGUMENT, "codec %s: parameter %s: default %s is not an integer", c.name, p.name,
                number.text);
  return DR_OK;
}

dr_status check(const dr_codec* c, dr_error& error) {
  if (!c) return fail(error, DR_E_ARGUMENT, "codec is NULL");
  if (const dr_status s = check_struct(c, sizeof(dr_codec), sizeof *c, struct_size_max, "codec", error)) return s;
  if (!valid_name(c->name))
    return fail(error, DR_E_ARGUMENT, "codec 0x%x: name is not [a-z][a-z0-9_]* of at most 48 characters", c->id);
  // index=auto and value=auto choose among codecs (pipeline/bind.cpp). Reserved in every role: one word, one meaning.
  if (std::strcmp(c->name, "auto") == 0)
    return fail(error, DR_E_ARGUMENT, "codec auto, id 0x%x: the name is reserved: plans choose a codec by it", c->id);
  if (c->role < DR_ROLE_INDEX || c->role > DR_ROLE_BYTES)
    return fail(error, DR_E_UNSUPPORTED, "codec %s: role %u cannot be registered (index, value, order and bytes can)",
                c->name, c->role);
  if (!is_private(*c) || c->id > 0xffff)
    return fail(error, DR_E_ARGUMENT, "codec %s: id 0x%x is not private (dr_private_id)", c->name, c->id);
  if (c->traits & DR_PREFIX)
    return fail(error, DR_E_UNSUPPORTED, "codec %s: a codec that precedes an index codec cannot be registered",
                c->name);
  if (c->traits & DR_NEEDS_BASE)
    return fail(error, DR_E_UNSUPPORTED, "codec %s: a codec that reads a base cannot be registered", c->name);
  constexpr uint32_t traits = (DR_NEEDS_HISTORY << 1) - 1, of_index = DR_REPLACES_SUPPORT | DR_CARRIES_ORDER,
                     of_value = DR_REORDERS | DR_NEEDS_FINITE,
                     types = (DR_DTYPE_BIT(DR_U16) << 1) - DR_DTYPE_BIT(DR_F32);
  if (c->traits & ~traits) return fail(error, DR_E_UNSUPPORTED, "codec %s: unknown traits 0x%x", c->name, c->traits);
  if (c->dtypes & ~types) return fail(error, DR_E_UNSUPPORTED, "codec %s: unknown dtypes 0x%x", c->name, c->dtypes);
  const uint32_t foreign = (c->role == DR_ROLE_INDEX ? 0 : of_index) | (c->role == DR_ROLE_VALUE ? 0 : of_value);
  if (c->traits & foreign)
    return fail(error, DR_E_ARGUMENT, "codec %s: trait 0x%x is of %s codecs, and its role is %s", c->name,
                c->traits & foreign, role_name(c->traits & foreign & of_index ? DR_ROLE_INDEX : DR_ROLE_VALUE),
                role_name(c->role));
  if (c->role == DR_ROLE_VALUE && !c->dtypes)
    return fail(error, DR_E_ARGUMENT, "codec %s: dtypes is 0: a value codec says which it accepts (DR_DTYPE_BIT)",
                c->name);
  if (c->reserved) return fail(error, DR_E_UNSUPPORTED, "codec %s: reserved is not 0", c->name);
  for (const dr_ops* ops : {c->cpu, c->cuda})
    if (ops)
      if (const dr_status s =
              check_struct(ops, sizeof(dr_ops), sizeof *ops, struct_size_max, "codec: operations", error))
        return s;
  if (!c->cpu || !c->cpu->need || !c->cpu->encode || !c->cpu->decode)
    return fail(error, DR_E_ARGUMENT, "codec %s: need, encode and decode on the CPU are required", c->name);
  if (c->role == DR_ROLE_INDEX && !(c->forms & 1u << DR_FORM_LIST))
    return fail(error, DR_E_UNSUPPORTED, "codec %s: this version requires DR_FORM_LIST of index codecs", c->name);
  if (c->forms & 1u << DR_FORM_ALL && (c->role != DR_ROLE_INDEX || c->field_count ||
                                       !(c->traits & DR_REPLACES_SUPPORT) || !(c->traits & DR_FIXED_SIZE)))
    return fail(
        error, DR_E_ARGUMENT,
        "codec %s: DR_FORM_ALL requires an index codec of fixed size that replaces the support and has no wire fields",
        c->name);
  if ((c->param_count && !c->params) || (c->field_count && !c->fields))
    return fail(error, DR_E_ARGUMENT, "codec %s: %s is NULL, but its count is not 0", c->name,
                c->param_count && !c->params ? "params" : "fields");
  if (c->field_count > DR_FIELDS_MAX)
    return fail(error, DR_E_ARGUMENT, "codec %s: %zu wire fields, at most %d", c->name, c->field_count, DR_FIELDS_MAX);
  if (c->field_count && !c->cpu->resolve)
    return fail(error, DR_E_ARGUMENT, "codec %s: has wire fields but no resolve", c->name);
  if (c->param_count > 32)
    return fail(error, DR_E_ARGUMENT, "codec %s: %zu parameters, at most 32", c->name, c->param_count);
  for (size_t i = 0; i < c->field_count; ++i) {
    const dr_field& f = *dr_field_at(c->fields, i);
    if (const dr_status s =
            check_struct(&f, sizeof(dr_field), sizeof f, stride_of(c->fields), "codec: wire field", error))
      return s;
    if (!f.name || f.minimum > f.maximum || f.fallback < f.minimum || f.fallback > f.maximum)
      return fail(error, DR_E_ARGUMENT, "codec %s: wire field %zu: default is not in its range", c->name, i);
  }
  for (size_t i = 0; i < c->param_count; ++i)
    if (const dr_status s = check_param(*c, i, error)) return s;
  return DR_OK;
}

}  // namespace

size_t codec_count() { return all().count.load(std::memory_order_acquire); }
const dr_codec* codec_at(size_t position) { return position < codec_count() ? all().entries[position] : nullptr; }

const dr_codec* find_codec(dr_role role, std::string_view name) {
  constexpr std::string_view of_plugins = "plugin.";
  const bool qualified = name.starts_with(of_plugins);
  if (qualified) name.remove_prefix(of_plugins.size());
  for (size_t i = qualified ? builtin_codecs().size() : 0, n = codec_count(); i < n; ++i)
    if (const dr_codec* c = codec_at(i); c->role == role && name == c->name) return c;
  return nullptr;
}

std::string plan_name(const dr_codec& codec) {
  return (find_codec(codec.role, codec.name) == &codec ? "" : "plugin.") + std::string(codec.name);
}

const dr_codec* find_codec(dr_role role, uint32_t id) {
  const registry& r = all();
  if (role < r.builtin.size() && id < r.builtin[role].size()) return r.builtin[role][id];
  for (size_t i = 0, n = r.count.load(std::memory_order_acquire); i < n; ++i)
    if (r.entries[i]->role == role && r.entries[i]->id == id) return r.entries[i];
  return nullptr;
}

codec_notes notes_of(const dr_codec& codec) {
  for (const codec_notes* notes : builtin_notes())
    if (notes->codec == &codec) return *notes;
  return {.codec = &codec};
}

bool is_candidate(const codec_notes& notes, dr_role role) {
  return notes.tries && notes.codec->role == role && !(notes.codec->traits & DR_NEEDS_BASE);
}

const char* index_of_form(dr_form form) {
  for (const dr_codec* codec : builtin_codecs())
    if (codec->role == DR_ROLE_INDEX && (codec->forms & 1u << form)) return codec->name;
  return "?";
}

const char* index_with(uint32_t trait) {
  for (const dr_codec* codec : builtin_codecs())
    if (codec->role == DR_ROLE_INDEX && (codec->traits & trait)) return codec->name;
  return "?";
}

dr_status register_codecs(const dr_codec* const* codecs, size_t n, dr_error& error) {
  registry& r = all();
  std::lock_guard lock(r.mutex);
  const size_t before = codec_count(), built_in = builtin_codecs().size();
  size_t added = before;
  std::string shared;  // names that are also names of built-ins
  for (size_t i = 0; i < n; ++i) {
    if (const dr_status s = check(codecs[i], error)) return s;
    const dr_codec& c = *codecs[i];
    bool known = false;
    for (size_t j = 0; j < added && !known; ++j) {
      const dr_codec& other = *r.entries[j];
      known = &other == &c;
      if (known || other.role != c.role) continue;
      if (other.id == c.id)
        return fail(error, DR_E_ARGUMENT,
                    "%s codec %s: its id 0x%x is used by %s; another reverse-DNS name has another id",
                    role_name(c.role), c.name, c.id, other.name);
      if (!same_name(other, c)) continue;
      if (j >= built_in)
        return fail(error, DR_E_ARGUMENT,
                    "%s codec %s, id 0x%x: the name is used by a codec of another plug-in, id 0x%x; plans could not "
                    "distinguish them",
                    role_name(c.role), c.name, c.id, other.id);
      shared += (shared.empty() ? "" : ", ") + std::string(role_name(c.role)) + "=plugin." + c.name;
    }
    if (known) continue;
    if (added == r.entries.size())
      return fail(error, DR_E_CAPACITY, "codec %s: the registry is full (%zu)", c.name, added);
    r.entries[added++] = &c;  // past the published count: invisible until all are sound
  }
  r.count.store(added, std::memory_order_release);
  if (!shared.empty())
    (void)fail(error, DR_OK, "built-in codecs have names of this plug-in; its own are named so in plans: %s",
               shared.c_str());
  return DR_OK;
}

const char* role_name(dr_role role) {
  static constexpr const char* names[] = {"?",    "index",  "value",    "order",   "bytes",
                                          "pair", "tensor", "sparsify", "feedback"};
  return role < std::size(names) ? names[role] : "?";
}

}  // namespace dr
