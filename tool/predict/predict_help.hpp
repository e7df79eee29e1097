// Printed by `deepreduce predict --help` and `deepreduce plan --help` below the options.
#pragma once

namespace dr::predict {

inline constexpr const char* predict_footer =
    R"(Predicts the step time of a training for every way to exchange gradients: dense f32 and bf16 (DDP's buckets, ring all-reduce),
PowerSGD, and plans. The profile has the costs; the model file has the tensors and their ready times. docs/PAYS.md explains
the model.
  step            forward, backward, rest and the added time of the exchange
  exposed         the part of the step in which computing waits for the link or is slowed down by it
  no overlap      encode, link and merge after backward, one after another; perfect: the longer of computing and the link
  error           of the plan in one step, |g - c| / |g|, over all tensors by elements: from --errors, --error or the profile
  whole gradient  step / (1 - error^2): the time to transfer a whole gradient. The verdict uses it (docs/PAYS.md)
  pays below      the link rate up to which the candidate beats the faster dense ring
  pays to batch   the batch size up to which it does
  verdict         pays, slower, or even: within 3 % of the faster dense ring; incomplete: PowerSGD without the time of its
                  products (--flops), which stands last
With --every, rounds of an outer loop (docs/OUTER.md): H steps of every worker by itself, then an exchange of what their weights
moved. How long a round is and which share of it waits; from which H that is below 10 %, and up to which H and which rate of the
link a plan's round is more than 3 % shorter than a dense one.
What-ifs: bandwidth 1 … 100 Gbit/s; compute (codecs and hook included) 1 … 8 times as fast; ranks 2 … 1024; ratio: codecs k times
as fast whose frames are k times as large, k = 1/8 … 8.

  deepreduce predict profile.json --model model.json --link 1Gb/s,50us --ranks 8
  deepreduce predict profile.json --sizes 25557032 --backward 122ms --ranks 64 --link 10Gb/s,15us --powersgd 4
  deepreduce predict profile.json --preset sparseloco --sizes 1126410 --backward 60ms --ranks 4 --link 100Mb/s,20ms --every 30
  deepreduce predict profile.json --model model.json --hook exchange --exchange 'gather|owner(parts=1|4)|ring' --link 1Gb/s
  deepreduce predict profile.json --model model.json --link 1Gb/s --what-if bandwidth --curves curves.svg --timeline step.svg

Exit status: 0 success, 1 failure, 2 an error of usage, input or output, 77 only dense candidates can be modelled.)";

inline constexpr const char* plan_footer =
    R"(Chooses a plan or `dense` for every tensor and writes a plan book: lines of `pattern: plan`, of which the first match counts.
The DDP hook, deepreduce.mpi and `compare --book` read it (docs/PLAN_BOOK.md). The choice minimises the time to transfer a
whole gradient, step / (1 - error^2). With --error-budget it minimises the step, and the error of every tensor is within the
budget. Up to 20,000 combinations are all tried. Beyond that the search is greedy: it starts with the best uniform plan and the
best plan for tensors above a size, and changes one tensor at a time while the step gets shorter, for at most 5,000 to 50,000
choices. By the same model the result is never worse than the best uniform plan. The error of the whole is the root mean square
over elements.
No book is written where its step is longer than the faster dense ring or it compresses nothing (status 1), and none where no error
is known (status 2): by time alone the smallest plan always wins, and it may not train. --format json reports the choice anyway.

  deepreduce plan profile.json --model model.json --link 1Gb/s --ranks 8 -o book.txt
  deepreduce plan profile.json --model model.json --link 1Gb/s --error-budget 0.5 --errors rows.json -o book.txt)";

}  // namespace dr::predict
