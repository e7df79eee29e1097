// Sparse tensors: ranks have rows that others do not, and more or fewer of them, so a sum has more than any.
#include "world.hpp"

namespace {

struct sparse_case {
  std::string plan;
  uint32_t ranks;
  uint64_t rows;
  uint32_t width;
  bool sparse_out;
  bool on_device = false;
  size_t most = SIZE_MAX;        // rows of a rank
  uint64_t capacity = SIZE_MAX;  // of an output
};

struct sparse_rank : world::rank {
  std::vector<uint32_t> keys, out_keys;
};

// Rank i has the rows i, i + ranks, …, as far as i + 1 of its ranks-th parts; the last rank also the first row.
std::vector<uint32_t> keys_of(const sparse_case& c, uint32_t rank) {
  std::vector<uint32_t> keys;
  if (rank + 1 == c.ranks && rank > 0) keys.push_back(0);
  for (uint64_t i = rank; i < c.rows * (rank + 1) / c.ranks && keys.size() < c.most; i += c.ranks)
    keys.push_back(static_cast<uint32_t>(i));
  return keys;
}

struct sparse_group {
  sparse_case how;
  dr::loopback net;
  std::vector<std::unique_ptr<sparse_rank>> ranks;

  explicit sparse_group(const sparse_case& c) : how(c) {
    dr_loopback_options o{};
    o.ranks = c.ranks;
    dr_error error = dr::no_error();
    REQUIRE(net.create(o, error) == DR_OK);
  }

  // A tensor or an output at these values.
  template <class T>
  T tensor(world::floats& values) const {
    T t{};
    t.struct_size = sizeof t;
    t.dtype = DR_F32;
    t.universe = how.rows;
    t.width = how.width;
    t.values = values.data();
    return t;
  }
  dr::tensor_view view(sparse_rank& r, uint64_t count) const {
    auto v = tensor<dr::tensor_view>(r.in[0]);
    v.index_dtype = DR_U32, v.indices = r.keys.data(), v.count = count;
    return v;
  }
  dr::tensor_out out(sparse_rank& r) const {
    auto o = tensor<dr::tensor_out>(r.out[0]);
    if (how.sparse_out)
      o.index_dtype = DR_U32, o.indices = r.out_keys.data(), o.capacity = std::min(how.rows, how.capacity);
    return o;
  }

  // A rank that may have so many rows.
  dr_status try_to_add(uint64_t rows_most) {
    dr_error error = dr::no_error();
    const auto i = static_cast<uint32_t>(ranks.size());
    sparse_rank& r = *ranks.emplace_back(std::make_unique<sparse_rank>());
    REQUIRE(r.context.start(dr_context_options{}, error) == DR_OK);
    r.keys = keys_of(how, i);
    const uint64_t count = r.keys.size();
    r.in = {world::integers(count * how.width, i)};
    r.out = {world::floats(how.rows * how.width, -1.0f)};
    r.out_keys.resize(how.rows);
    r.keys.resize(std::max(count, rows_most));
    r.in[0].resize(r.keys.size() * how.width);
    dr_exchange_options o{};
    o.flags = DR_EXCHANGE_SUM;
    r.exchange = std::make_unique<dr::exchange>(r.context);
    world::options places;
    places.on_device = how.on_device ? UINT32_MAX : 0;
    dr_status s = r.exchange->create({world::plan_of(how.plan), net.transport(i), o, world::place_of(places, i)},
                                     {view(r, rows_most)}, {out(r)});
    if (!s) s = r.exchange->rebind({view(r, count)}, {out(r)});
    r.keys.resize(count);
    return s;
  }
  void add(uint64_t rows_most) {
    const dr_status s = try_to_add(rows_most);
    INFO(ranks.back()->error());
    REQUIRE(s == DR_OK);
  }

  std::vector<dr_status> run() {
    std::vector<dr::exchange*> list;
    for (const auto& r : ranks) {
      REQUIRE(r->exchange->start(dr_call{}) == DR_OK);
      list.push_back(r->exchange.get());
    }
    std::vector<dr_status> statuses(ranks.size());
    net.run(list, statuses);
    return statuses;
  }
};

void check_sums(const sparse_case& c) {
  CAPTURE(c.plan);
  CAPTURE(c.ranks);
  CAPTURE(c.width);
  CAPTURE(c.rows);
  sparse_group g(c);
  for (uint32_t i = 0; i < c.ranks; ++i) g.add(keys_of(c, c.ranks - 1).size());
  const std::vector<dr_status> statuses = g.run();
  std::vector<double> total(c.rows * c.width);
  for (const auto& r : g.ranks)
    for (size_t k = 0; k < r->keys.size() * c.width; ++k)
      total[r->keys[k / c.width] * size_t{c.width} + k % c.width] += static_cast<double>(r->in[0][k]);
  for (uint32_t i = 0; i < c.ranks; ++i) {
    sparse_rank& r = *g.ranks[i];
    INFO("rank " << i << ": " << r.error());
    REQUIRE(statuses[i] == DR_OK);
    world::floats dense(total.size(), 0.0f);
    if (!c.sparse_out) dense = r.out[0];
    for (uint64_t k = 0; c.sparse_out && k < r.exchange->count_rows()[0]; ++k)
      std::copy_n(r.out[0].data() + k * c.width, c.width, dense.data() + r.out_keys[k] * size_t{c.width});
    REQUIRE(std::equal(total.begin(), total.end(), dense.begin(), dense.end()));
  }
}

}  // namespace

TEST_CASE("sums of sparse tensors have the rows of all ranks, exactly") {
  for (const char* codecs : {"index=golomb value=raw", "index=auto value=raw", "index=raw value=raw+zstd",
                             "feedback=residual index=elias_fano value=raw"})
    for (const char* schedule : {"gather", "gather(parts=3)", "owner", "owner(parts=3)"})
      for (const uint32_t ranks : {1u, 2u, 3u, 5u})
        for (const uint32_t width : {1u, 8u})
          for (const uint64_t rows : {1u, 7u, 242u, 5000u})
            check_sums({std::string(codecs) + " exchange=" + schedule, ranks, rows, width, false, false});
}

TEST_CASE("on a device, too, if the output is dense") {
  for (const char* schedule : {"gather", "owner", "owner(parts=3)"})
    for (const uint32_t ranks : {1u, 3u})
      for (const uint32_t width : {1u, 8u})
        for (const uint64_t rows : {1u, 5000u})
          check_sums({std::string("index=golomb value=raw exchange=") + schedule, ranks, rows, width, false, true});
}

TEST_CASE("a sparse output of a gather has the rows of all ranks, exactly") {
  for (const char* codecs : {"index=golomb value=raw", "feedback=residual index=auto value=raw"})
    for (const uint32_t ranks : {1u, 3u})
      for (const uint32_t width : {1u, 8u}) check_sums({codecs, ranks, 500, width, true, false});
}

TEST_CASE("an index codec that scans the universe delivers a few sparse rows of a huge one") {
  check_sums({"index=bloom value=raw exchange=gather", 2, uint64_t{1} << 22, 1, true, false, 8});
}

TEST_CASE("ranks that made room for other numbers of sparse rows see it, and say who") {
  for (const char* schedule : {"gather", "owner"}) {
    sparse_group g({std::string("index=golomb value=raw exchange=") + schedule, 3, 900, 8, false, false});
    for (const uint64_t rows : {400, 400, 500}) g.add(rows);
    const std::vector<dr_status> statuses = g.run();
    for (uint32_t i = 0; i < 3; ++i) {
      INFO(g.ranks[i]->error());
      CHECK(statuses[i] == DR_E_ARGUMENT);
      CHECK(g.ranks[i]->context.error.frame == 2);
      CHECK(g.ranks[i]->error().find("sparse counts differ from those of rank 0") != std::string::npos);
    }
  }
}

TEST_CASE("a sparse output needs room for all rows where a frame may be sent dense, and no more where it may not") {
  using answer = std::pair<dr_status, uint64_t>;
  const auto create = [](uint32_t ranks, uint64_t rows, uint64_t capacity) -> answer {
    sparse_group g({"index=raw value=raw exchange=gather", ranks, 1000, 1, true, false, 499, capacity});
    const dr_status s = g.try_to_add(rows);
    return {s, s ? g.ranks[0]->context.error.needed : 0};
  };
  CHECK(create(2, 499, 998) == answer(DR_OK, 0));  // 499 pairs are shorter than 1000 values
  CHECK(create(2, 499, 997) == answer(DR_E_CAPACITY, 998));
  CHECK(create(1, 499, 499) == answer(DR_OK, 0));
  CHECK(create(1, 600, 600) == answer(DR_E_CAPACITY, 1000));  // 600 are not
}
