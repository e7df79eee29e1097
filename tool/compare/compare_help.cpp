#include "compare_help.hpp"

#include "columns.hpp"
#include "link_model.hpp"
#include "tool/show/text_table.hpp"

namespace dr::compare {
namespace {

constexpr const char* compare_footer =
    R"(INPUT is a .npy, .npz or .safetensors file, a sparse matrix of scipy.sparse.save_npz, raw little-endian f32 (.f32, .bin,
.raw), a directory of these (`python -m deepreduce compare` reads .pt, too), or made on the spot:
  synth:d=25M,support=uniform|clustered|powerlaw,values=laplace|gauss|student3,density=0.01,seed=1
Without INPUT the bundled data are taken: accumulators, which are what a sparsifier sees in training, gradients with their
residuals; then gradients by themselves (DEEPREDUCE_DATASETS may name the folder above accumulators/ and gradients/).
A file of several tensors is compared as one, its tensors joined and called '*'; --batch puts them into one frame, a list,
as `encode` and frameworks do. DEEPREDUCE_CPU=scalar|avx2|avx512 limits the instructions in use.

Each round trip is verified before anything is timed. Then all plans are run in turns, and so is a plain copy
('memcpy': one copy is its encode and its decode); the first round does not count. There are rounds until each plan has
had --time seconds, at least 5 and at most 200, or --repeat rounds. Times are medians; a spread is (75th - 25th
percentile) / median. A merge adds up a frame of each rank: the tensor's own, and up to 7 others in turn, encoded from the
tensor shifted cyclically, with another private seed. Beyond 64 ranks it is the time of 64, in proportion.

Feedback adds what it kept of the steps before. An input is a first step, with nothing kept, unless --steps N makes steps
of one training of the inputs, in their order, from the first again until there are N. What is shown is the last step, and
of plans with feedback against gradient + residual: r, bounds, coding errors, energy, cosine, contraction. The total error
is that of the sums over all steps. Gradients of the same batch again and again are no training: for real figures record
gradients of consecutive steps (datasets/README.md).

)";

constexpr const char* compare_examples = R"(

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

Exit status: 0 fine, 1 a plan failed on an input (the others are reported), 2 usage, input or output.

  deepreduce compare
  deepreduce compare grad.npz --plan 'sparsify=topr(ratio=0.001) index=golomb value=raw' --plan 'index=raw value=qsgd'
  deepreduce compare model.safetensors --tensor 'layer3.*' --format json --output rows.json
  deepreduce compare --preset paper --preset 'BF-P2+QSGD'
  deepreduce compare step*.npz --steps 40 --plan 'sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw'
  deepreduce compare grad.npz --ranks 8 --link 10Gb/s,50us
  deepreduce compare synth:d=36864,density=0.01 --format csv
  deepreduce compare g.npz --plan 'index=golomb|rice value=qsgd|log_quant(bits=3..6)' --where 'total_error < 0.5' --sort bytes
  deepreduce compare g.npz --plan 'sparsify=topr(ratio=0.001..0.1) index=golomb value=half' --pareto
  deepreduce compare g.npz --per-tensor --preset paper --best 'total_error <= 0.9'
  deepreduce compare --from old.json --from new.json --sort -total_error --output rows.csv
  deepreduce compare g.npz --against old.json --fail-if-worse)";

std::string column_help() {
  constexpr size_t indent = 32, widest = 126;
  std::string text = "Columns of csv and of the rows in json:\n";
  for (const column& c : columns()) {
    std::string line = std::string("  ") + c.name;
    line.resize(indent, ' ');
    for (const std::string& part : wrapped(c.meaning, widest - indent)) {
      text += line + part + '\n';
      line.assign(indent - 2, ' ');  // wrapped indents by two
    }
  }
  return text +
         R"(Times are in nanoseconds. In json a row has `samples`: encode_ns, decode_ns and merge_ns of every round. The document
also has machine, commit, build, settings and `failures`: the plans that failed, with their errors.
0/0 is 0, but the recall of nothing is 1. What is undefined is null, empty in csv.)";
}

}  // namespace

std::string compare_help() {
  return std::string(compare_footer) + model_help + "\n" + column_help() + compare_examples;
}

}  // namespace dr::compare
