// What `deepreduce predict --help` and `deepreduce plan --help` say beneath the options.
#pragma once

namespace dr::predict {

inline constexpr const char* predict_footer =
    R"(The step time of a training by each way to exchange gradients: dense f32 and bf16 (DDP's buckets, ring all-reduce), PowerSGD,
and plans. Costs are the profile's, tensors and ready times the model's; docs/PAYS.md has the model, event by event.
  step            forward, backward, rest, and what the exchange adds
  exposed         the part of it in which computing waits for the link, or is slowed down by it
  no overlap      encode, link and merge behind backward, one after the other; perfect: the longer of computing and the link
  error           of the plan in one step, |g - c| / |g|, over the tensors by their elements: --errors, --error, or the profile's
  whole gradient  step / (1 - error^2): the time in which a whole gradient arrives; by it goes the verdict (docs/PAYS.md)
  pays below      the rate of the link up to which the candidate is faster than the faster dense ring
  pays to batch   the batch up to which it is
  verdict         pays, slower, or even: within 3 % of the faster dense ring
What-ifs: bandwidth 1 … 100 Gbit/s; compute 1 … 8 times as fast, codecs and the hook, too; ranks 2 … 1024; ratio: codecs k times as fast whose
frames are k times as large, k = 1/8 … 8.

  deepreduce predict profile.json --model model.json --link 1Gb/s,50us --ranks 8
  deepreduce predict profile.json --sizes 25557032 --backward 122ms --ranks 64 --link 10Gb/s,15us --powersgd 4
  deepreduce predict profile.json --model model.json --hook exchange --exchange 'gather|owner(parts=1|4)|ring' --link 1Gb/s
  deepreduce predict profile.json --model model.json --link 1Gb/s --what-if bandwidth --curves curves.svg --timeline step.svg

Exit status: 0 fine, 1 failed, 2 usage, input or output, 77 no candidate but dense ones can be modelled.)";

inline constexpr const char* plan_footer =
    R"(Chooses for each tensor a plan or `dense`, so that a whole gradient arrives soon, step / (1 - error^2), or with --error-budget so that
the step is short and each tensor's error within the budget, and writes a plan book: lines of `pattern: plan`, first match wins, for the DDP hook, deepreduce.mpi and `compare --book` (docs/PLAN_BOOK.md).
All choices are tried where there are at most 20,000. Else it is greedy: it begins with the best uniform plan and the best plan for
tensors above a size, and changes one tensor at a time as long as the step gets shorter, for at most 5,000 to 50,000 choices; so it is
never worse than the best uniform plan, by the same model. The error of the whole is the root of the mean of squares, weighted by
elements.

  deepreduce plan profile.json --model model.json --link 1Gb/s --ranks 8 -o book.txt
  deepreduce plan profile.json --model model.json --link 1Gb/s --error-budget 0.5 --errors rows.json -o book.txt)";

}  // namespace dr::predict
