// Our codecs by name, called as in the pipeline, but without it: no selection, no frame, no check.
#include <cassert>
#include <cmath>
#include <cstring>

#include "deepreduce/codec.hpp"
#include "deepreduce/deepreduce.hpp"
#include "peer.hpp"

namespace dr::bench {
namespace {

struct free_aligned {
  void operator()(void* p) const { std::free(p); }
};
using aligned_bytes = std::unique_ptr<uint8_t, free_aligned>;

aligned_bytes allocate(uint64_t size) {
  const uint64_t rounded = (size + 64 + 63) / 64 * 64;
  aligned_bytes p(static_cast<uint8_t*>(std::aligned_alloc(64, rounded)));
  if (!p) throw std::bad_alloc();
  std::memset(p.get(), 0, rounded);
  return p;
}

struct refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const dr_codec& find(dr_role role, const std::string& name) {
  for (const dr_codec* codec : codecs())
    if (codec->role == role && name == codec->name) return *codec;
  throw refused("no such codec in this build");
}

// One codec with its parameters: "name(key=value,key=value)".
struct stage {
  const dr_codec* codec;
  std::vector<dr_value> values;
  uint64_t fields[DR_FIELDS_MAX] = {};
  dr_need need{.struct_size = sizeof(dr_need)};
  aligned_bytes out;
  uint64_t size = 0;

  dr_params params() const { return {sizeof(dr_params), values.data(), fields}; }
};

double number_of(const dr_param& p, const std::string& text) {
  if (p.type != DR_PARAM_CHOICE) return std::stod(text);
  const std::string all = std::string(p.choices) + "|";
  double position = 0;
  for (size_t begin = 0, end; (end = all.find('|', begin)) != std::string::npos; begin = end + 1, ++position)
    if (all.compare(begin, end - begin, text) == 0) return position;
  throw refused("no choice " + text);
}

stage read_stage(dr_role role, const std::string& text) {
  const size_t open = text.find('(');
  stage s{&find(role, text.substr(0, open)), {}, {}, {}, nullptr};
  s.values.resize(s.codec->param_count);
  for (size_t i = 0; i < s.values.size(); ++i)
    s.values[i] = {sizeof(dr_value), 0, 0, dr_param_at(s.codec->params, i)->fallback};
  std::string arguments = open == std::string::npos ? "" : text.substr(open + 1, text.size() - open - 2) + ",";
  for (size_t begin = 0, end; (end = arguments.find(',', begin)) != std::string::npos; begin = end + 1) {
    const size_t equals = arguments.find('=', begin);
    const std::string key = arguments.substr(begin, equals - begin);
    size_t i = 0;
    while (i < s.values.size() && key != dr_param_at(s.codec->params, i)->name) ++i;
    if (i == s.values.size()) throw refused("no parameter " + key);
    s.values[i] = {sizeof(dr_value), 1, 0,
                   number_of(*dr_param_at(s.codec->params, i), arguments.substr(equals + 1, end - equals - 1))};
  }
  for (size_t i = 0; i < s.values.size(); ++i)
    if (dr_param_at(s.codec->params, i)->required && !s.values[i].given)
      throw refused(std::string(dr_param_at(s.codec->params, i)->name) + " is required");
  return s;
}

template <class T>
constexpr dr_dtype dtype_of = std::is_same_v<T, float> ? DR_F32 : DR_U32;

// A stream of r elements through a codec and the bytes stages after it.
template <class T>
class coded_stream {
 public:
  coded_stream(dr_role role, const std::string& text, uint64_t d, std::span<const T> in) : in_(in), d_(d) {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('+', begin), text.size());
      stages_.push_back(read_stage(begin == 0 ? role : dr_role{DR_ROLE_BYTES}, text.substr(begin, end - begin)));
      begin = end + 1;
    }
    if (!front().cpu) throw refused("no CPU operations");
    if (role == DR_ROLE_INDEX && !(front().forms & list_form)) throw refused("takes no list of indices");
    if (role == DR_ROLE_VALUE && !(front().dtypes & DR_DTYPE_BIT(DR_F32))) throw refused("takes no f32");
    uint64_t scratch = 0;
    for (size_t i = 0; i < stages_.size(); ++i) {
      stage& s = stages_[i];
      const dr_job job = job_of(i, nullptr, i == 0 ? in_.size_bytes() : stages_[i - 1].need.payload);
      const dr_params params = s.params();
      if (s.codec->cpu->resolve && s.codec->cpu->resolve(&params, &job, s.fields, &fault_)) give_up();
      const dr_params resolved = s.params();
      s.need.struct_size = sizeof s.need;
      if (s.codec->cpu->need(&resolved, &job, 1, &s.need)) throw refused("need refuses these fields");
      s.out = allocate(s.need.payload);
      scratch = std::max({scratch, s.need.encode_scratch, s.need.decode_scratch});
    }
    scratch_ = allocate(scratch);
    scratch_size_ = scratch;
    if (front().traits & DR_REPLACES_SUPPORT) told_.resize(stages_[0].need.tell);
    if (front().traits & DR_REORDERS) told_.resize(in_.size());
  }

  const dr_codec& front() const { return *stages_[0].codec; }
  uint64_t tell_count() const { return tell_count_; }
  std::span<const uint32_t> told() const { return {told_.data(), tell_count_}; }

  uint64_t encode() {
    for (size_t i = 0; i < stages_.size(); ++i) {
      stage& s = stages_[i];
      dr_job job =
          i == 0 ? job_of(0, in_.data(), in_.size_bytes()) : job_of(i, stages_[i - 1].out.get(), stages_[i - 1].size);
      job.out = s.out.get();
      job.out_capacity = s.need.payload;
      job.out_size = &s.size;
      if (i == 0 && !told_.empty())
        job.tell = told_.data(), job.tell_capacity = told_.size(), job.tell_count = &tell_count_;
      run(s, s.codec->cpu->encode, job);
    }
    return stages_.back().size;
  }

  void decode(std::vector<T>& out) {
    const uint8_t* data = stages_.back().out.get();
    uint64_t size = stages_.back().size;
    for (size_t i = stages_.size(); i-- > 0;) {
      stage& s = stages_[i];
      dr_job job = job_of(i, data, size);
      uint64_t written = 0;
      job.out_size = &written;
      if (i == 0) {
        job.out = out.data();
        job.out_capacity = out.size() * sizeof(T);
      } else {
        if (back_.size() < stages_.size()) back_.resize(stages_.size());
        if (!back_[i]) back_[i] = allocate(stages_[i - 1].need.payload);
        job.out = back_[i].get();
        job.out_capacity = stages_[i - 1].need.payload;
      }
      run(s, s.codec->cpu->decode, job);
      data = static_cast<const uint8_t*>(job.out);
      size = written;
    }
    if (size != out.size() * sizeof(T)) throw refused("decodes to another size");
  }

 private:
  dr_job job_of(size_t i, const void* in, uint64_t in_max) {
    dr_job job{};
    job.struct_size = sizeof job;
    job.fault = &fault_;
    job.in = in;
    job.in_max = in_max;
    if (i > 0) return job;
    job.universe = d_;
    job.count_max = in_.size();
    job.dtype = dtype_of<T>;
    job.width = 1;
    job.shared_key = 1;
    job.private_key = 2;
    return job;
  }

  template <class F>
  void run(const stage& s, F operation, const dr_job& job) {
    const auto serial = [](void*, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
      for (size_t i = 0; i < n; ++i) f(arg, i, 0);
    };
    const dr_exec exec{sizeof(dr_exec), scratch_.get(), scratch_size_, nullptr, 1, 0, nullptr, serial};
    const dr_params params = s.params();
    if (operation(&exec, &params, &job, 1) || fault_.code) give_up();
  }

  [[noreturn]] void give_up() {
    const std::string message = fault_.message ? fault_.message : "fault";
    fault_ = {.struct_size = sizeof(dr_fault)};
    throw refused(message);
  }

  std::vector<stage> stages_;
  std::span<const T> in_;
  uint64_t d_;
  dr_fault fault_{.struct_size = sizeof(dr_fault)};
  aligned_bytes scratch_;
  uint64_t scratch_size_ = 0;
  std::vector<uint32_t> told_;
  uint64_t tell_count_ = 0;
  std::vector<aligned_bytes> back_;
};

// Codecs that query a filter for every element are timed on small universes only.
constexpr uint64_t largest_universe_asked = 4'000'000;

template <class T>
candidate<T> make(dr_role role, const std::string& text, uint64_t d, std::span<const T> in) {
  candidate<T> c{text, "deepreduce", "", {}, {}};
  try {
    auto stream = std::make_shared<coded_stream<T>>(role, text, d, in);
    const uint32_t traits = stream->front().traits;
    if ((traits & DR_REPLACES_SUPPORT) && d > largest_universe_asked)
      throw refused("takes time of d: see the smaller sets");
    stream->encode();  // sets the number of elements to decode
    c.out = std::make_shared<std::vector<T>>(traits & DR_REPLACES_SUPPORT ? stream->tell_count() : in.size());
    c.exact = traits & DR_EXACT;
    if constexpr (std::is_same_v<T, uint32_t>)
      if (traits & DR_REPLACES_SUPPORT)
        c.expected = std::make_shared<std::vector<T>>(stream->told().begin(), stream->told().end());
    if (traits & DR_REORDERS)
      c.order = std::make_shared<std::vector<uint32_t>>(stream->told().begin(), stream->told().end());
    c.encode = [stream] { return stream->encode(); };
    c.decode = [stream, out = c.out] { stream->decode(*out); };
  } catch (const refused& e) {
    c.missing = e.what();
  }
  return c;
}

template <class T>
std::vector<candidate<T>> all(dr_role role, uint64_t d, std::span<const T> in, std::span<const std::string> settings) {
  std::vector<candidate<T>> list;
  for (const dr_codec* codec : codecs())
    if (codec->role == role && !(codec->traits & DR_NEEDS_BASE)) list.push_back(make<T>(role, codec->name, d, in));
  for (const std::string& text : settings) list.push_back(make<T>(role, text, d, in));
  return list;
}

}  // namespace

std::vector<index_candidate> registered_index_codecs(const index_set& set, std::span<const std::string> settings) {
  return all<uint32_t>(DR_ROLE_INDEX, set.d, set.indices, settings);
}
std::vector<value_candidate> registered_value_codecs(const value_set& set, std::span<const std::string> settings) {
  return all<float>(DR_ROLE_VALUE, set.d, set.values, settings);
}

}  // namespace dr::bench
