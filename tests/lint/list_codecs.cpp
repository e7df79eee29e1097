// The built-in codecs as REGISTRY.md has them: role, id, name, wire fields.
#include <deepreduce/deepreduce.h>

#include <cstdio>
#include <string>

int main() {
  for (size_t i = 0; i < dr_codec_count(); ++i) {
    const dr_codec& c = *dr_codec_at(i);
    constexpr const char* roles[] = {"?", "index", "value", "order", "bytes", "pair", "tensor", "sparsify", "feedback"};
    std::string fields;
    for (size_t f = 0; f < c.field_count; ++f) fields += (f ? ", " : "") + std::string(dr_field_at(c.fields, f)->name);
    std::printf("%s\t%u\t%s\t%s\n", roles[c.role], c.id, c.name, fields.c_str());
  }
}
