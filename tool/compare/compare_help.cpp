#include "compare_help.hpp"

#include "columns.hpp"
#include "link_model.hpp"
#include "tool/show/text_table.hpp"

namespace dr::compare {
namespace {

constexpr const char* compare_footer =
    R"(INPUT is a .npy, .npz or .safetensors file, a sparse matrix of scipy.sparse.save_npz, raw little-endian f32 (.f32, .bin,
.raw), or a directory of these. `python -m deepreduce compare` also reads .pt. A synthetic input is a text:
  synth:d=25M,support=uniform|clustered|powerlaw,values=laplace|gauss|student3,density=0.01,seed=1
Without INPUT the tool reads bundled data: an accumulator (gradient + residual, the input of a sparsifier in training) of each of
four models, shown as one table. DEEPREDUCE_DATASETS names the folder that holds accumulators/ and gradients/; of a folder
without these four all files are read.
The tensors of a file are joined into one, named '*', from which a sparsifier takes the largest of all, as DDPHook does. --batch puts
them into one frame as a list, each with its own share, byte for byte as `encode` does. DEEPREDUCE_CPU=scalar|avx2|avx512 (aarch64: scalar|neon) limits the instructions in use.

The table has the plan, how many times smaller than dense f32 it is, the coding error, the time of an encode and a decode, and
the speed of a link below which it pays against dense bf16 (with --link: the modelled step). It is as wide as the terminal, 80
columns elsewhere; --wide shows all columns. ~ marks times as short as the shortest, within the spread. NO_COLOR: no bold line.

Every round trip is verified before it is timed. Then all plans run in turns, and so does a plain copy ('memcpy': one copy
counts as encode and as decode). The first round does not count. Rounds go on until every plan has had --time seconds, at
least 5 and at most 200 rounds, or for --repeat rounds. Times are medians; a spread is (75th - 25th percentile) / median.
A merge adds up one frame per rank: that of the tensor, and up to 7 others in turn, encoded from the cyclically shifted
tensor with another private seed. For more than 64 ranks it is the time of 64, scaled in proportion.

Feedback adds the residual of earlier steps. An input is a first step, without a residual, unless --steps N makes the
inputs, in order and repeated until there are N, the steps of one training. The last step is shown. For plans with
feedback r, bounds, coding errors, energy, cosine and contraction refer to gradient + residual. The total error is that of
the sums over all steps. Repeated gradients of one batch are not a training: for real numbers record gradients of
consecutive steps (datasets/README.md).

)";

constexpr const char* compare_examples = R"(
`deepreduce help columns` describes the columns of csv, json and conditions.

Sweeps, conditions and reports of rows; docs/COMPARE.md has a dozen questions with their commands:
  --plan, synth: inputs     'index=rice|golomb value=half|log_quant(bits=3..6)' is every combination, without duplicates. 3..6 means
                            all integers; 0.001..0.1 means 0.001 0.002 0.005 0.01 … 0.1; 0.001..0.1/5 means five values
                            with equal ratios. a|b binds less than +; value=raw+(deflate|zstd) groups
  --where CONDITION         columns, numbers, 'texts', + - * /, < <= > >= == !=, ~ (glob), and, or, not, ( ). A comparison
                            with an empty cell is false; COLUMN == null asks for one
  --pareto[=COLUMNS]        the rows of a tensor that no other row beats; less is better, for -COLUMN more
  --best CONDITION          for every input, and for its layers of every kind (conv, embedding, linear, norm_bias, recurrent,
                            attention; by name and shape), the plan with the fewest bytes (--best-by) whose total over
                            their tensors meets the condition; the tables only with --all
  totals                    for an input with several tensors (--per-tensor): bytes and times are summed, errors are combined
                            by energy. --where, --sort and --pareto apply to totals as to rows

Exit status: 0 success, 1 a plan failed on an input (the others are reported), 2 an error of usage, input or output.

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

}  // namespace

std::string compare_help() { return std::string(compare_footer) + model_help + compare_examples; }

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
0/0 is 0, but the recall of nothing is 1. What is undefined is null, empty in csv.
)";
}

}  // namespace dr::compare
