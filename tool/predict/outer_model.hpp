// The round of an outer loop (docs/OUTER.md): every worker trains H steps alone, then all exchange how far their weights
// moved, and apply the mean. Times in ns.
#pragma once

#include "step_model.hpp"

namespace dr::predict {

// What a round adds to its steps, the same for any H.
struct outer_exchange {
  double total_ns = 0;
  double encode_ns = 0, merge_ns = 0;  // the plan's
  double apply_ns = 0;                 // passes over the weights: the difference, the outer optimizer, copies
  double link_ns = 0;                  // the link is busy
  double exposed_ns = 0;               // the worker waits for the link or for the slowest worker
  double hideable_ns = 0;              // the part of exposed_ns that `overlap` may hide
  double sent_bytes = 0, received_bytes = 0;
};

// Over a process group: plans as the hook sends them, in units, without anything to overlap with. Dense f32 is an all-reduce
// for every tensor (plan None), dense bf16 one of halves for every 4 MiB of f32. Through a Folder: by formula. A worker
// writes one file and reads those of the others; a file costs a round trip. Throws unsupported_model.
outer_exchange exchange_of_round(const step_model& m, const candidate& c, bool folder);

// Collectives of so many bytes, issued at once. gloo runs two at a time: their bytes share the link, what a collective
// costs beside them does not.
double all_reduces_ns(const network& net, std::span<const double> bytes);

// ---- A round of H steps of step_ns -------------------------------------------------------------------------

// The least H with which at most `share` of a round is the exchange.
double least_every(double exchange_ns, double step_ns, double share);
// The largest H with which the round is more than 3 % shorter than one with the exchange `other_ns`; 0: none.
double pays_to_every(double exchange_ns, double other_ns, double step_ns);

struct overlapped {
  double steps = 0;      // the least overlap that hides all that can be hidden, at most H - 1
  double hidden_ns = 0;  // by which the round is shorter
};
// Steps beside the exchange take `slowdown` times as long.
overlapped overlap_of(const outer_exchange& x, double step_ns, double every, double slowdown);

}  // namespace dr::predict
