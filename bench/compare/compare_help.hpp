// What `deepreduce compare --help` says beneath the options.
#pragma once

namespace dr::compare {

inline constexpr const char* compare_footer =
    R"(INPUT is a .npy, .npz or .safetensors file, raw little-endian f32 (.f32, .bin, .raw), a directory of these,
or made on the spot: synth:d=25000000,support=uniform|clustered|powerlaw,values=laplace|gauss|student3,density=0.01,seed=1
Without INPUT the bundled data are taken: accumulators, which are what a sparsifier sees in training, gradients with their
residuals; then gradients by themselves (DEEPREDUCE_DATASETS may name the folder above accumulators/ and gradients/).
A file of several tensors is compared as one, its tensors joined and called '*'.

Each round trip is verified before anything is timed. Then all plans are run in turns, and so is a plain copy
('memcpy': one copy is its encode and its decode); the first round does not count. Times are medians, a spread is
(75th - 25th percentile) / median.

Feedback adds what it kept of the steps before. An input is a first step, with nothing kept, unless --steps N makes steps
of one training of the inputs, in their order, from the first again until there are N. What is shown is the last step, and
of plans with feedback against gradient + residual: r, bounds, errors, cosine, contraction. Gradients of the same batch
again and again are no training: for real figures record gradients of consecutive steps (datasets/README.md).

Columns of csv and of the rows in json (with machine, commit, build, seed around them):
  input tensor step dtype d what was compressed: d elements of that type; 1 is the first step
  r support                 nonzeros that the sparsifier kept, and that decode gives back
  plan fallback             the canonical plan; none, raw_index or dense where the frame fell back to less
  bytes index_bytes value_bytes order_bytes header_bytes
  relative_volume           bytes / (4 d): of dense f32, whatever the type
  index_bits_per_nonzero value_bits_per_nonzero index_bound_bits_per_nonzero     by r; the bound is log2 C(d,r) / r
  sparsify_ns encode_ns decode_ns encode_ns_spread decode_ns_spread              encode without sparsify
  index_recall              share of what was kept that decode's support has
  relative_l2_error max_relative_error          of what decode gives, against what was kept
  cosine_similarity contraction                 the same against the dense tensor; contraction is |g - c|^2 / |g|^2
  missed false_positives    indices that were kept and are not in decode's support, and the other way round
0/0 is 0; what is undefined is null, empty in csv.

Exit status: 0 fine, 1 a plan failed on an input (the others are reported), 2 usage, input or output.

  deepreduce compare
  deepreduce compare grad.npz --plan 'sparsify=topr(ratio=0.001) index=golomb value=raw' --plan 'index=raw value=qsgd'
  deepreduce compare model.safetensors --tensor 'layer3.*' --format json --output rows.json
  deepreduce compare --preset paper --preset 'BF-P2+QSGD'
  deepreduce compare step*.npz --steps 40 --plan 'sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw'
  deepreduce compare synth:d=36864,density=0.01 --format csv

Sweeps, conditions and reports of rows; docs/COMPARE.md has a dozen questions with their commands:
  --plan, synth: inputs     'index=rice|golomb value=half|log_quant(bits=3..6)' is every combination, each plan once. 3..6 is every
                            integer; 0.001..0.1 is 0.001 0.002 0.005 0.01 … 0.1; 0.001..0.1/5 is five with equal ratios.
                            a|b binds less than +; value=raw+(deflate|zstd) groups
  --where CONDITION         columns, numbers, 'texts', + - * /, < <= > >= == !=, ~ (glob), and, or, not, ( ). A comparison
                            with an empty cell is false; COLUMN == null asks for one
  --pareto[=COLUMNS]        of each tensor the rows that no other beats; less is better, -COLUMN: more
  --best CONDITION          of each input, and of its layers of a kind (conv, embedding, linear, norm_bias, recurrent, attention;
                            by name and shape), the plan of least bytes (--best-by) whose total over their tensors meets it
  totals                    of an input with several rows of a plan (--per-tensor): bytes and times are summed, errors combined
                            by energies. --where, --sort and --pareto select totals as they do rows

  deepreduce compare g.npz --plan 'index=golomb|rice value=qsgd|log_quant(bits=3..6)' --where 'total_error < 0.5' --sort bytes
  deepreduce compare g.npz --plan 'sparsify=topr(ratio=0.001..0.1) index=golomb value=half' --pareto
  deepreduce compare g.npz --per-tensor --preset paper --best 'total_error <= 0.9'
  deepreduce compare --from old.json --from new.json --sort -total_error --output rows.csv
  deepreduce compare g.npz --against old.json --fail-if-worse)";

}  // namespace dr::compare
