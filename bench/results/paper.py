"""Writes paper.md and its pictures from paper.json, train.jsonl, train_paper.jsonl, train_policies.jsonl, train_zeros.jsonl, fig8_laplace.json and paper_ncf.json. `./dev paper --page`

    python3 bench/results/paper.py
"""

import json
import statistics
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here))
import paper_ncf  # noqa: E402
import paper_pictures  # noqa: E402
from paper_figures import DENSENET, FIG_8, FIG_15, FIG_16, POLICIES, RANDOM, TABLE_2, TABLE_4, TABLE_5, TABLE_6  # noqa: E402
from train_rows import provenance, qualities, read, settings  # noqa: E402

from bench.train.train_plan import SETS  # noqa: E402

TOP = "sparsify=topr(ratio=0.01) "

INTRO = """# The paper's experiments

Made by `paper.py` from `paper.json`, `train.jsonl`, `train_paper.jsonl`, `train_policies.jsonl`, `train_zeros.jsonl`, `fig8_laplace.json` and `paper_ncf.json`. Repeat: `./dev paper`. The paper is Xu et al. 2021, *DeepReduce: A Sparse-tensor Communication Framework for Federated Deep Learning* (NeurIPS);
its tables as printed, its figures as read off. **What differs, in all of it**: the paper has 8 V100 at 100 Gbit/s or 57 machines in seven regions, PyTorch and TensorFlow, CIFAR-10, ImageNet and Stack Overflow, trained to the end. Here are two cores,
models of 0.2 to 0.5 M parameters, data that a package carries, and 150 to 500 steps. So compare how methods stand to one another, not scores.
"""


def percent(x, digits=2):
    return f"{100 * x:.{digits}f}"


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)])


def breakdown(made):
    times = {row["plan"]: row for row in json.loads((here / "fig8_laplace.json").read_text("utf-8"))["rows"]}
    rows = []
    for row in (row for row in made["volumes"] if row["figure"] == 8):
        paper = FIG_8.get(row["name"])
        measured = times.get(TOP + row["plan"])
        cells = [row["name"], f"`{row['plan']}`"]
        cells += [f"{paper[0]:.2f} + {paper[1]:.2f} = {paper[2]:.2f}" if paper else ""]
        order = f" + {percent(row['order'])} order" if row["order"] else ""
        cells += [f"{percent(row['value'])} + {percent(row['index'])}{order} = {percent(row['total'])}", percent(row["frame"])]
        cells += [f"{paper[3]:,g} / {paper[4]:,g} ({paper[5]})" if paper and paper[3] else ""]
        cells += [f"{measured['encode_ns'] / 1e6:.4f} / {measured['decode_ns'] / 1e6:.4f}" if measured else "not timed"]
        rows.append(cells)
    return table(["method", "plan here", "paper: values + indices, % of dense", "here", "frame", "paper: encode / decode ms", "here"], rows)


def fig_15(made):
    rows = {row["name"]: row for row in made["volumes"] if row["figure"] == 15}
    paper = {"Top-r": "0.0200", "BF-P0": "0.0158", "BF-P1": "0.0147", "BF-P2": "0.0147", "Fit-Poly": "0.0100 (Fig. 16)"}
    accumulator = {row["plan"].removeprefix(TOP): row["relative_volume"] for row in json.loads((here / "resnet20_accumulator.json").read_text("utf-8"))["rows"]}
    cells = [[name, f"`{row['plan']}`", paper.get(name, ""), f"{accumulator[row['plan']]:.4f}" if row["plan"] in accumulator else "not measured", f"{row['total']:.4f}"] for name, row in rows.items()]
    return table(["method", "plan", "paper", "here: an accumulator", "a raw gradient"], cells)


def trained(runs="paper"):
    """{model: {method: Quality}} of a set, 2 ranks; of each model the seeds that all its methods have, so that means
    are comparable: a seed moves ResNet-20's score more than a method does."""
    models, methods = SETS[runs]
    rows = [row for name in ("train.jsonl", f"train_{runs}.jsonl") for row in read(here / name) if row["kind"] == "quality"]
    rows = [row for row in rows if row["model"] in models and row["method"] in methods and row["ranks"] == 2]
    alike = []
    for model in models:
        mine = [row for row in rows if row["model"] == model]
        seeds = [{row["seed"] for row in mine if row["method"] == name} for name in {row["method"] for row in mine}]
        common = set.intersection(*seeds) if seeds else set()
        alike += [row for row in mine if row["seed"] in common]
    found = qualities(alike)
    return {model: found.get((model, 2), {}) for model in models}


def convergence(found):
    head = ["method", "paper, ResNet-20: volume, accuracy", "paper, ResNet-50"]
    for model in found:
        head += [f"{settings()[model].title}: {settings()[model].metric}", "bytes of dense"]
    rows = []
    for name in SETS["paper"][1]:
        there = [methods[name] for methods in found.values() if name in methods]
        cells = [there[0].method.title if there else name]
        cells += [f"{figure[name][0]:.4f}, {figure[name][1]:.4f}" if name in figure else "" for figure in (FIG_15, FIG_16)]
        for methods in found.values():
            q, dense = methods.get(name), methods.get("dense")
            cells += [f"{q.score:.4f}" + (f" ± {q.spread:.4f}" if q.spread is not None else "") + f" ({len(q.scores)})", f"{q.sent / dense.sent:.4f}"] if q and dense else ["not run", ""]
        rows.append(cells)
    return table(head, rows)


def policies(methods):
    """Fig. 15 and 17: accuracy and volume by policy and rate, of Top-1 % and of Random-1 %."""
    dense, exact = methods["dense"], methods["top1"]
    cell = lambda q: f"{q.score:.4f} ± {q.spread:.4f}" if q else ""
    there = lambda name: [f"{x:.4f}" for x in FIG_15[name]]
    rows = [["dense f32", "", *there("dense"), "", f"{DENSENET['dense']:.4f}", "1.0000", cell(dense), ""],
            ["exact indices", "", *there("top1"), f"{RANDOM:.4f}", f"{DENSENET['top1']:.4f}", f"{exact.sent / dense.sent:.4f}", cell(exact), cell(methods["random1"])]]
    for (policy, rate), (volume, top, random) in POLICIES.items():
        q, of_random = methods[f"top1_{policy}_{rate}"], methods.get(f"random1_{policy}_{rate}")
        densenet = f"{DENSENET[policy]:.4f}" if rate == "0.001" else ""
        rows.append([f"BF-{policy.upper()}", rate, f"{volume:.4f}", f"{top:.4f}", f"{random:.4f}", densenet, f"{q.sent / dense.sent:.4f}", cell(q), cell(of_random)])
    return table(["policy", "rate", "paper, ResNet-20: volume", "Top-1 %", "Random-1 %", "DenseNet-40: Top-1 %", f"CNN here ({len(dense.scores)} seeds): volume", "Top-1 %", "Random-1 %"], rows)


def policies_verdict(methods):
    """What policies and rates change, beside what seeds do."""
    top, random = ([q for name, q in methods.items() if name.startswith(names)] for names in ("top1_p", "random1"))
    means = lambda found: f"{min(q.score for q in found):.4f} to {max(q.score for q in found):.4f}"
    lost = [100 * (FIG_15["dense"][1] - accuracy) for _, _, accuracy in POLICIES.values()]
    low, high = min(lost), max(lost)
    learns = "" if max(q.score for q in random) > 0.5 else f"**Random-1 % with a residual learns next to nothing here, nor does it with exact indices** (chance is 0.1); the paper's loses {low:.1f} to {high:.1f} points at these rates."
    return (f"Accuracies of Top-1 % are {means(top)} by policy and rate, exact indices {methods['top1'].score:.4f}, dense {methods['dense'].score:.4f}; seeds of a method differ by {statistics.median(q.spread for q in top):.4f} (a standard deviation, the median of methods). "
            f"The lowest is that of {min(top, key=lambda q: q.score).method.title}; the paper's lowest is P1's at 0.02. Volumes are the paper's, P0's at 0.004 and 0.02 a little above. {learns}").rstrip()


def zeros(methods):
    """Table 6: quality and volume of methods that leave out nothing but zeros."""
    dense, rows = methods["dense"], []
    for name, q in methods.items():
        paper = TABLE_6.get(name)
        apart = [a - b for a, b in zip(q.scores, dense.scores)]
        rows.append([q.method.title, f"`{q.method.plan}`" if q.method.plan else "all-reduce", f"{paper[0]:.4f}, {paper[1]:.4f}" if paper else "", f"{q.sent / dense.sent:.4f}",
                     f"{q.score:.4f} ± {q.spread:.4f}", *(["", ""] if q is dense else [f"{100 * statistics.fmean(apart):+.2f}", f"{min(apart):+.4f} to {max(apart):+.4f}"])])
    return table(["method", "plan here", "paper, Table 6: volume, hit rate", "volume", f"hit rate at 10 ({len(dense.scores)} seeds)", "points above dense", "difference to dense of the same seed"], rows)


def zeros_verdict(methods):
    """Whether BF-P0 + QSGD costs no hit rate here either, and what of its volume ours is."""
    dense, theirs, ours = methods["dense"], methods["zeros_p0_qsgd"], methods["zeros_qsgd"]
    low, high = min(dense.scores), max(dense.scores)
    verdict = "**Reproduced here**" if low <= theirs.score <= high else "**Not reproduced here**"
    return (f"{verdict}: BF-P0 + QSGD's hit rate is {theirs.score:.4f}, dense gradients' {low:.4f} to {high:.4f} by seed; its volume is {theirs.sent / dense.sent:.4f} of dense (paper 0.2063). "
            f"With the same values, an exact index code in place of the filter takes {ours.sent / dense.sent:.4f}, {percent(ours.sent / theirs.sent, 0)} % of it: a filter of a rate of 0.6 makes false positives of most zeros, and each costs a value.")


def federated(by_wire):
    rows = []
    for name, seeds in by_wire.items():
        last = [row["curve"][-1] for row in seeds]
        mean = lambda key, last=last: statistics.fmean(point[key] for point in last)
        spread = lambda key, digits, last=last: f" ± {statistics.stdev(point[key] for point in last):.{digits}f}" if len(last) > 1 else ""
        paper, mobile = TABLE_2.get(name), TABLE_5.get(name)
        first = seeds[0]
        volume = lambda key, seeds=seeds: statistics.fmean(row[key] for row in seeds)
        caught = f" ({first['volume_caught_up']:.4f} with what was missed)" if first["way"] == "update" else ""
        rows.append([first["title"], f"{paper[0]:.4f}, {paper[1]:.4f}, {paper[2]:.4f}" if paper else "", f"{mobile[0]:.4f}, {mobile[1]:.4f}" if mobile else "",
                     f"{volume('volume_down'):.4f}{caught}", f"{volume('volume_up'):.4f}", f"{mean('up') / 1e6:.1f}, {mean('down') / 1e6:.1f}",
                     f"{mean('perplexity'):.1f}{spread('perplexity', 1)} ({len(seeds)})", f"{mean('at_clients'):.1f}", f"{mean('accuracy'):.4f}{spread('accuracy', 4)}",
                     f"{mean('accuracy_at_clients'):.4f}{spread('accuracy_at_clients', 4)}"])
    return table(["plan", "paper, Table 2: volume down, up, accuracy", "Table 5: volume, accuracy", "volume down", "volume up", "MB up, down", "perplexity (seeds)", "perplexity at the clients", "accuracy", "accuracy at the clients"], rows)


def federated_times(by_wire):
    """Table 4: what a message takes at both sides, and on a link of 100 Mbit/s."""
    rows = []
    for name, seeds in by_wire.items():
        ms = {key: statistics.median(row["ms"][key] for row in seeds) for key in seeds[0]["ms"]}
        size = 4 * seeds[0]["parameters"]
        transfers = [1e3 * 8 * size * seeds[0][key] / 100e6 for key in ("volume_down", "volume_up")]
        coded = [ms[key] for key in ("decode_down", "encode_up", "decode_up", "encode_down")]
        paper = TABLE_4.get(name)
        rows.append([seeds[0]["title"], ", ".join(f"{x:,.1f}" for x in paper) if paper else "", *(f"{x:.2f}" for x in coded), *(f"{x:.1f}" for x in transfers),
                     f"{sum(coded) + sum(transfers):.1f}", f"{sum(paper):,.0f}" if paper else ""])
    return table(["plan", "paper, ms: a client's decode, encode; the server's; transfer down, up", "a client decodes, ms", "encodes", "the server decodes", "encodes", "transfer down", "up", "sum", "paper's sum"], rows)


def federated_verdict(by_wire):
    """Whether Top-r loses as little against FedAvg here as in the paper, by the rows."""
    plain, top = ([row["curve"][-1] for row in by_wire[name]] for name in ("fedavg", "topr"))
    mean = lambda points, key: statistics.fmean(point[key] for point in points)
    here = [(mean(plain, key), mean(top, key)) for key in ("accuracy", "perplexity")]
    paper = TABLE_2["fedavg"][2], TABLE_2["topr"][2]
    shares = [after / before for before, after in (paper, here[0])]
    sentence = (f"FedAvg's accuracy goes from {here[0][0]:.4f} to {here[0][1]:.4f} by {by_wire['topr'][0]['title']} both ways, {percent(shares[1], 1)} % of it, and its perplexity from {here[1][0]:.1f} to {here[1][1]:.1f} "
            f"({len(top)} seed{'s' if len(top) > 1 else ''}); in the paper's Table 2 accuracy goes from {paper[0]:.4f} to {paper[1]:.4f}, {percent(shares[0], 1)} %.")
    # As near to the paper's share as a twentieth.
    return f"**Reproduced here**: {sentence}" if abs(shares[1] - shares[0]) < 0.05 else f"**Not reproduced here**: {sentence} The volumes are the paper's, the quality is not."


def accuracies(by_wire, name):
    return [row["curve"][-1]["accuracy"] for row in by_wire[name]]


def clients_verdict(by_wire):
    plain, top = (statistics.fmean(row["curve"][-1]["accuracy_at_clients"] for row in by_wire[name]) for name in ("fedavg", "topr"))
    return f"There Top-10 % both ways has {percent(top / plain, 1)} % of FedAvg's accuracy ({top:.4f}, {plain:.4f})."


def down_verdict(by_wire):
    mean = {name: statistics.fmean(accuracies(by_wire, name)) for name in ("fedavg", "topr", "topr_up", "log", "log_up", "log_update")}
    lost = lambda name: f"{100 * (mean['fedavg'] - mean[name]):.1f}"
    return (f"Points of accuracy below FedAvg, means of {len(by_wire['fedavg'])} seeds: {lost('topr')} with Top-10 % both ways, {lost('topr_up')} with the model sent whole; {lost('log')} with Golomb + log_quant both ways, "
            f"{lost('log_up')} with the difference as halves (0.50 of the bytes down), {lost('log_update')} by updates.")


def seed_verdict(by_wire):
    """How far seeds move FedAvg, and differences to it."""
    plain = accuracies(by_wire, "fedavg")
    if len(plain) < 2:
        return "One seed: rows that differ by less than 0.03 are in no order."
    pairs = [a - b for a, b in zip(accuracies(by_wire, "topr"), accuracies(by_wire, "p0_qsgd"))]
    return (f"They move FedAvg's accuracy from {min(plain):.3f} to {max(plain):.3f}; of one seed, Top-10 % less BF-P0 + QSGD is {min(pairs):+.4f} to {max(pairs):+.4f}. "
            "So the rows with both directions compressed by a selection are in no order.")


def stored():
    """(paper.json, trainings, federation: rows by wire)"""
    made = json.loads((here / "paper.json").read_text("utf-8"))
    by_wire = {}
    for row in made["rows"]:
        by_wire.setdefault(row["wire"], []).append(row)
    return made, trained(), by_wire


def draw():
    made, found, by_wire = stored()
    paper_pictures.draw_fig_8([row for row in made["volumes"] if row["figure"] == 8], here / "paper_fig8.svg")
    paper_pictures.draw_convergence(found, here / "paper_convergence.svg")
    paper_pictures.draw_federation(by_wire, here / "paper_federation.svg")


def remade():
    """paper.md, of what is kept."""
    made, found, by_wire = stored()
    setup, recommender, by_policy = made["setup"], trained("zeros")["neumf"], trained("policies")["cnn"]
    dense, sparse = found["resnet20"]["dense"], [q for name, q in found["resnet20"].items() if name != "dense" and name != "three_lc"]
    below = [100 * (dense.score - q.score) for q in sparse]
    gap = f"{min(below):.0f} to {max(below):.0f} points below it ({min(q.score for q in sparse):.2f} to {max(q.score for q in sparse):.2f}, dense {dense.score:.2f})"
    return f"""{INTRO}
## Fig. 8: what one message has in it

**What differs**: the paper's tensor is a gradient of ResNet-20's; volumes here are those of Laplace values of the same size, the median of five seeds; times are those of [fig8.md](fig8.md), PyTorch of 2021 on a V100 or a CPU beside this library on one core of
this machine. *Frame*: with header and check, which the paper does not count. [sizes.md](sizes.md) has 20 seeds and errors.

{breakdown(made)}

![breakdown](paper_fig8.svg)

- **BF-P2** in these rows is our code, whose rule finds more of the true indices than the paper's; its volume is the same. The three rows that are not timed have codecs here, which no run has timed at this size.
- The volumes are the paper's to the second digit, but Fit-Poly's (float32 coefficients here) and SKCompress's split (a longer Huffman table, shorter indices). With Fit-DExp the order of the values is a stream of its own here; the paper counts it with the indices.
- A Bloom filter at 14.5 bits an index is above what Golomb codes take without error, 8.1.

{paper_ncf.saved_section()}
## Fig. 15 and 16: volume of Top-1 % on a whole gradient

**What differs**: the paper's is a mean over training with a residual, on CIFAR-10 (Fig. 15) and of ResNet-50 on ImageNet (Fig. 16). The column to compare it with is the *accumulator*: gradient plus residual, of ResNet-20 on scikit-learn's digits at step 225, whole frames. The *raw gradient* is that of step 150, streams without
header; its support is clustered, so exact index codes and `auto` take less there than they do in training. Both are one step, joined to one tensor.
Accuracies by rates and policies are [below](#fig-15-and-17-policies-and-rates). **Our BF-P2 is not the paper's Algorithm 1**: it keeps more of the true indices, 0.91 against 0.81 at a rate of 0.01 ([SPEC](../../codecs/index/bloom/SPEC.md)).

{fig_15(made)}

## Convergence of Top-1 %

**What differs**: 2 ranks of the paper's 8; ResNet-20 learns scikit-learn's 1,437 digits in 150 steps, not CIFAR-10 in 328 epochs, so an element travels 1.5 times on average at 1 %: that is hard on all of these alike, and its scores scatter. SKCompress has no MinMaxSketch;
3LC is dense, with a residual, as in its paper. All have a residual. Bytes are what a rank sends in a step, slots included. Of each model
those seeds that all methods have (their number in brackets); curves: their means. Rows are of code before 572117f8, since when the same plans send less ([below](#fig-15-and-17-policies-and-rates)): those of [train.md](train.md), and {provenance("train_paper.jsonl")}.

**The paper's result is not reproduced on ResNet-20**: its accuracies at Top-1 % are within 1 point of dense, ours are {gap}. The seeds of these rows are as far apart as 0.18 to 0.37, so the rows are in no order either. On the CNN Top-1 % of exact or fitted values is 1.3 to 1.6 points below dense, and on the LSTM level with a dense run whose
rate was not tuned.

{convergence(found)}

![convergence](paper_convergence.svg)

## Fig. 15 and 17: policies and rates

{policies_verdict(by_policy)}

**What differs**: a CNN of {settings()['cnn'].parameters:,} parameters on Fashion-MNIST, {settings()['cnn'].steps} steps, 2 ranks; the paper has ResNet-20 and DenseNet-40 on CIFAR-10, five rates (0.01 and 0.002 are not here, nor Random-1 % but at 0.001), 8 ranks. All with a residual. Our P2 keeps more of the true indices than the paper's. The rows *dense* and *exact indices* of Top-1 % are [train.md](train.md)'s, of older code, whose frames were longer.

{policies(by_policy)}

## Table 6: a recommender, of whose gradients only zeros are left out

{zeros_verdict(recommender)}

**What differs**: NeuMF of {settings()['neumf'].parameters:,} parameters over PyTorch's functions and the names they use, not MovieLens-20M's 31.8 million; {settings()['neumf'].steps:,} steps of Adam, 2 ranks. Of the paper's gradients 40 % are zeros; of the one of step 600 here, 39.2 % ([datasets](../../datasets/README.md#gradients)). Nothing is selected, no method has a memory.
Volume is what a rank sends in a step over a dense gradient in float32, frames with header and check. The paper does not say how many buckets its SKCompress has; two, as in its Fig. 8, lose a seventh of the hit rate here.

{zeros(recommender)}

## What of the paper is not here

- DenseNet-40 (Fig. 17), whose policies are compared on a smaller CNN; of Fig. 7 and 19 a measurement.
- Training by BF-P2 with Fit-Poly: of that plan there is a predicted iteration (NCF) alone.
- ResNet-50 on ImageNet (Fig. 16): its accuracies stand beside those of ResNet-20. MobileNet on CIFAR-10 with 10 clients (Table 5): its volumes and accuracies stand beside the LSTM's.
- Table 2's times over the internet, from machines in seven regions.

## FedAvg with both directions compressed (Tables 2 and 4)

{federated_verdict(by_wire)}

**What differs**: {setup['clients_in_all']} clients, each a part of PyTorch's documentation of about {setup['words'] // setup['clients_in_all']:,} words, not 342,477 users of Stack Overflow; their words differ by a mean total variation distance of {setup['distance']} from all words;
{setup['clients']} clients a round of the paper's 56, {setup['epochs']} local epochs of SGD {setup['rate']}, {setup['rounds']} rounds of its 200; an LSTM of {made['rows'][0]['parameters']:,} parameters, {setup['vocabulary']:,} words, of its 4,053,428. As in the paper, Top-10 % both ways, a residual at each client, tensors of one dimension not compressed,
and x_t − x_0 goes down (Algorithm 2), of which a client needs nothing from earlier rounds.

{federated(by_wire)}

![federation](paper_federation.svg)

Table 4 has the same at 100 Mbit/s. Here codecs are timed (medians of a message of {4 * made['rows'][0]['parameters'] / 1e6:.2f} MB, one core; the server's decode is a message's share of a merge) and **transfers are bytes over 100 Mbit/s, not measured**; of updates, of a message alone. The paper's model is {4053428 / made['rows'][0]['parameters']:.0f} times as large.

{federated_times(by_wire)}

- **Why**: half of what is lost is lost on the way *down*. {down_verdict(by_wire)} x_t − x_0 is a sum over all rounds, so its largest 10 % have less and less of its energy (0.91 at round 2, 0.67 at round 50), and nothing brings back what is dropped. These two shares, and what follows, are of an independent reader's runs of variants of this code (one seed, in which FedAvg ends at 0.303 and both ways at 0.245): compressed only
  down, accuracy is 0.234, only up 0.278, so the two losses do not add up; both ways with Top-50 % down, 0.274. Neither the paper's rate, nor four times the clients a round changes the share that is lost much (81 to 86 % remain). A memory on the way down is what *updates* have: what one frame loses is in the next.
  That x_t − x_0 is more concentrated in the paper's model, most of which is the embedding of 10,000 words, is possible: an LSTM of that kind, with 56 clients and 200 rounds, was not trained here.
- **Seeds**: the same clients and batches for all plans of a seed. {seed_verdict(by_wire)}
- A client takes part {setup['rounds'] * setup['clients'] / setup['clients_in_all']:.1f} times on average, so most of its residual is never sent; in the paper's, too, a client hardly comes twice.
- Volume: of a message over the model in float32, frames with header and check, the dense vectors among it; down, the first round has nothing to send.
- **Perplexity** and **accuracy** are those of the server's model on the last tenth of every client's text; **at the clients**: of the model that they were sent, which is what Algorithm 2 trains on and a deployment has. {clients_verdict(by_wire)}
- **Updates**: the server sends what clients do not have yet, so that the loss of one frame is in the next; a client that was left out fetches what it missed, or the model where that is less. Better perplexity, more bytes down, and the server has to keep frames.
- {made['date']}, commit {made['commit']}; {sum(row['seconds'] for row in made['rows']):.0f} seconds of one core.
"""

if __name__ == "__main__":
    draw()
    (here / "paper.md").write_text(remade(), "utf-8")
