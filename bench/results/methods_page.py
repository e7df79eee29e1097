"""Writes methods.md from methods.json, which `./dev bench methods` measures, and train_methods.jsonl, of `./dev train --set methods`.

    python3 bench/results/methods_page.py

Times over shaped links are in methods_links.jsonl, of `python -m bench.train --links --out bench/results/methods_links.jsonl …` (as root; the page has the command).
"""

import json
import math
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here))
import train_pictures  # noqa: E402
from matplotlib import pyplot  # noqa: E402
from train_rows import METHODS, ORDER, provenance, qualities, read, settings, times as timed, verdict  # noqa: E402

from bench.train.grace_methods import KNOWN  # noqa: E402

MIN_SPEEDUP = 10
GOALS = {**dict.fromkeys(("topk", "qsgd", "terngrad", "onebit", "dgc", "natural"), MIN_SPEEDUP), "powersgd4": 1}  # x faster than torch
PACKED = ("onebit", "terngrad", "signsgd", "efsignsgd")  # which should send four to eight times fewer bytes
MODELS = ("resnet20", "lstm")
UNITS = ("signsgd", "signum")  # of ±1: their length is a unit, so only the cosine says something
BUSY = 1.0  # load, as in train.py
WAYS = ("encode_ms", "decode_ms")
ALIASES = {"none": "dense", "half_bf16": "bf16", "topk": "top1", "half": "fp16"}  # what train.jsonl calls them

INTRO = """# Methods: plain torch beside ours, and a table of methods

Made by `methods_page.py` from `methods.json`{trained}. Repeat: `./dev bench methods` (about {minutes} minutes), `./dev train --set methods` (45 minutes of two cores), then `python3 bench/results/methods_page.py`.

- **torch** is plain torch code written for this comparison from the papers (`bench/methods/torch_codes.py`): what a user writes. Like GRACE's, it packs nothing below a byte: signs and ternaries are 8 bits, an element of a sparse tensor 8 bytes
  (GRACE's torch code sends 12, with 64-bit indices). Torch runs with one thread.
- **ours** is a whole call of the Python package on one thread: a frame with header and check. *new*: `encode(x, plan)` and `decode(frame)`, of new memory each time, as torch's code has it. *in place*: a `Bound`'s, of which the memory is there, as a training loop calls it.
- Before it is timed, each pair is verified: what is deterministic decodes to the same values, what is random is as far from the input. All candidates of a method took turns in each of {rounds} rounds of one run; {clock}; median [first, third quartile].
  The input: Laplace, float32.
- {machine}, instructions: {level}; torch {torch}; {date}, commit {commit}; load of the machine before {load}.{busy}
"""


def ms(cell):
    return f"{cell['median']:.3g} [{cell['low']:.3g}, {cell['high']:.3g}]" if cell else ""


def times(a, b, way):
    return a[way]["median"] / b[way]["median"]


def grouped(rows):
    """{(d, method): {what: row}}"""
    found = {}
    for row in rows:
        found.setdefault((row["d"], row["method"]), {})[row["what"]] = row
    return found


def torch_table(found, d):
    lines = ["| method | bytes: torch | ours | fewer | encode ms: torch | new | in place | × faster | decode ms: torch | new | in place | × faster |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for (size, name), rows in found.items():
        if size != d or "torch" not in rows:
            continue
        torch, bound = rows["torch"], rows.get("bound")
        mine = rows.get("ours", bound)
        if bound is None:
            lines.append(f"| {KNOWN[name].title} | {torch['bytes']:,} | missing: {mine['missing'].split(';')[0]} | | {ms(torch['encode_ms'])} | | | | {ms(torch.get('decode_ms'))} | | | |")
            continue
        cells = [f"{torch['bytes']:,}", f"{mine['bytes']:,}", f"{torch['bytes'] / mine['bytes']:.2f} ×"]
        for way in [way for way in WAYS if way in torch]:
            cells += [ms(torch[way]), ms(mine[way]), ms(bound[way]), f"{times(torch, mine, way):.1f}, {times(torch, bound, way):.1f}"]
        cells += [""] * (11 - len(cells))
        lines.append(f"| {KNOWN[name].title}{', a whole round' if 'whole' in torch else ''} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdicts(found):
    """What was asked for: encode and decode together at least ten times as fast; a quarter to an eighth of the bytes."""
    lines = []
    for (d, name), rows in found.items():
        if not (name in GOALS or name in PACKED) or "bound" not in rows:
            continue
        torch, bound, goal = rows["torch"], rows["bound"], GOALS.get(name)
        ways = [way for way in WAYS if way in torch]
        both = sum(torch[w]["median"] for w in ways) / sum(bound[w]["median"] for w in ways)
        factors = [times(torch, bound, w) for w in ways]
        verdict = "" if goal is None else f" (at least {goal}): " + ("met" if min(factors) >= goal else f"**not met**, together {both:.1f} ×")
        fewer = torch["bytes"] / bound["bytes"]
        packed = f"; bytes {fewer:.2f} × fewer: {'met' if fewer >= 4 else '**not met**'}" if name in PACKED else ""
        speeds = f"encode {factors[0]:.1f} ×, decode {factors[1]:.1f} ×" if len(factors) == 2 else f"a whole round {factors[0]:.1f} ×"
        lines.append(f"- {KNOWN[name].title}, d = {d:,}: {speeds}{verdict}{packed}")
    return "\n".join(lines) or "Nothing measured yet."


def speed(rows, way):
    row = rows.get("bound", {})
    return f"{4 * row['d'] / row[way]['median'] / 1e6:.2f}" if way in row else ""


def trained():
    """{model: {method: Quality}}, of 2 ranks"""
    rows = [row for name in ("train.jsonl", "train_methods.jsonl") for row in read(here / name)]
    found = qualities(rows)
    return {model: found.get((model, 2), {}) for model in MODELS}


def quality_cell(scores, name):
    q = scores.get(ALIASES.get(name, name))
    return "" if q is None else f"{q.score:.3f}" + (f" ± {q.spread:.3f}" if q.spread is not None else "") + f" ({len(q.scores)})"


def share(x):
    return f"{x:.3f}" if x >= 1e-3 else "0" if x == 0 else f"{x:.0e}"


def method_table(made, found, scores):
    sizes = sorted({row["d"] for row in made["rows"]})
    data = list(dict.fromkeys(row["data"] for row in made["quality"]))
    judged = {(row["method"], row["data"]): row for row in made["quality"]}
    lines = ["| method | paper | plan of one call | bits an element: " + " | ".join(data) + " | encode GB/s | decode GB/s | contraction, bias, cosine: " + " | ".join(data) + " | "
             + " | ".join(f"{settings()[m].title}: {settings()[m].metric}" for m in MODELS) + " |"]
    lines.append("|" + "---|" * (lines[0].count("|") - 1))
    for name in dict.fromkeys(row["method"] for row in made["quality"]):
        judgements = [judged[name, d] for d in data]
        known = KNOWN.get(name)
        head = f"| {known.title if known else METHODS[name].title} | {known.paper if known else 'ours'} | `{judgements[0]['plan']}` | "
        if "missing" in judgements[0]:
            lines.append(head + f"missing: {judgements[0]['missing'].split(';')[0]} |" + " |" * (lines[0].count("|") - 5))
            continue
        rows = found.get((sizes[-1], name), {})
        cells = [f"{8 * row['bytes'] / row['d']:.3f}" for row in judgements] + [speed(rows, "encode_ms"), speed(rows, "decode_ms")]
        cells += [("–, –, " if name in UNITS else f"{share(row['contraction'])}, {share(row['bias'])}, ") + f"{row['cosine']:.3f}" for row in judgements]
        lines.append(head + " | ".join(cells + [quality_cell(scores[m], name) for m in MODELS]) + " |")
    return "\n".join(lines)


LINKED, SPEEDS = "lstm", {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s"}
TITLES = {"natural_nearest": "natural compression, to the nearest", "inceptionn_bound": "INCEPTIONN, in a finer code"}  # alone, out of the table's order
# Marks with a label, the most telling first.
LABELS = ("dense", "top1_log", "bf16", "sketchml", "inceptionn", "powersgd1", "signsgd", "randomk", "threshold", "p0", "qsgd", "skcompress", "terngrad", "three_lc", "signum", "8bit", "top10_log")
CODEC = ("encode", "merge", "own")  # what a codec that costs nothing would not take


def on_links():
    """{link: {method: row}}, of 2 ranks; the one without a rate last"""
    found = timed(read(here / "methods_links.jsonl"))
    return {link: found[LINKED, 2, link] for link in (*SPEEDS, "unshaped")}


def title_of(name):
    return TITLES.get(name, METHODS[name].title)


def throughput(row, dense):
    """(times dense's throughput, the same if codecs cost nothing; None for torch's own, which do not tell)"""
    codec = sum(row["parts"][part] for part in CODEC) if row["parts"] else None
    return dense["median"] / row["median"], None if codec is None else dense["median"] / (row["median"] - codec)


def throughput_table(links, scores):
    lines = ["| method | score | bytes | " + " | ".join(f"{title}: × dense | if codecs cost nothing | share" for title in SPEEDS.values()) + " |", "|---|---|---" + "|---|---|---" * len(SPEEDS) + "|"]
    fastest = sorted((name for name in ORDER if name in links["1gbit"] and name in scores), key=lambda name: links["1gbit"][name]["median"])
    for name in fastest:
        cells = [title_of(name), quality_cell(scores, name), f"{links['1gbit'][name]['sent']:,}"]
        for link in SPEEDS:
            reached, free = throughput(links[link][name], links[link]["dense"])
            cells += [f"{reached:.2f}", "" if free is None else f"{free:.2f}", "" if free is None else f"{100 * reached / free:.0f} %"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def throughput_words(links):
    """How many methods are faster than dense, and than 16 bits, in every round."""
    lines = []
    for link, rows in links.items():
        codecs = [row for name, row in rows.items() if METHODS[name].plan]
        faster = {base: sum(verdict(row, rows[base]).startswith("faster") for row in codecs) for base in ("dense", "bf16")}
        slower = sum(verdict(row, rows["bf16"]).startswith("does not pay") for row in codecs)
        shares = [reached / free for row in codecs for reached, free in [throughput(row, rows["dense"])]]
        rate = f"{SPEEDS[link]} ({rows['dense']['rate'] / 1e6:,.0f} as a socket has it)" if link in SPEEDS else "Inside the machine, not shaped"
        lines.append(f"- {rate}: of {len(codecs)} methods with our codecs {faster['dense']} are faster than dense in every round, {faster['bf16']} faster than bf16 and {slower} slower; "
                     f"they reach {100 * min(shares):.0f} to {100 * max(shares):.0f} % of the throughput that codecs without cost would have. A step without exchange: {rows['dense']['median'] / rows['local']['median']:.2f} × dense.")
    return "\n".join(lines)


def varying(links):
    """Methods that sent at least a tenth more in one run than in another: bytes of each."""
    sent = {name: [rows[name]["sent"] for rows in links.values() if name in rows] for name in ORDER}
    return "; ".join(f"{title_of(name)} {min(of):,} to {max(of):,}" for name, of in sent.items() if of and max(of) > 1.1 * min(of))


def draw_throughput(path):
    links, scores = on_links(), trained()[LINKED]
    figure, axes = train_pictures.grid(len(SPEEDS), across=1)
    figure.set_size_inches(7.2, 7.2)
    kinds = {**train_pictures.KINDS, "grace": ("#009e73", "D", "GRACE's methods, our codecs")}
    ends = {link: {name: throughput(links[link][name], links[link]["dense"]) for name in links[link] if name in scores} for link in SPEEDS}
    for axis, (link, of_methods) in zip(axes, ends.items()):
        for name, (reached, free) in of_methods.items():
            colour, mark, _ = kinds[METHODS[name].kind]
            if free is not None:
                axis.plot([reached, free], [scores[name].score] * 2, color=colour, linewidth=0.7)
                axis.plot(free, scores[name].score, marker=mark, color=colour, markerfacecolor="white", markersize=4, linestyle="")
            axis.plot(reached, scores[name].score, marker=mark, color=colour, markersize=4.5, linestyle="")
        axis.set(title=SPEEDS[link], xlabel="throughput, × dense", ylabel=settings()[LINKED].metric)
        axis.margins(x=0.12, y=0.14)
    marks = [pyplot.Line2D([], [], color=colour, marker=mark, linestyle="", label=label) for colour, mark, label in kinds.values()]
    marks.append(pyplot.Line2D([], [], color="#666666", marker="o", markerfacecolor="white", linestyle="", label="if codecs cost nothing"))
    figure.legend(handles=marks, loc="outside lower center", ncols=3)
    figure.draw_without_rendering()  # the layout, by which labels have their places
    for axis, of_methods in zip(axes, ends.values()):
        at = {name: (reached, scores[name].score) for name, (reached, _) in of_methods.items()}
        lines = [(*at[name], free, at[name][1]) for name, (_, free) in of_methods.items() if free is not None]
        train_pictures.place_labels(axis, [(*at[name], title_of(name)) for name in LABELS if name in at], list(at.values()), 7.5, lines)
    train_pictures.save(figure, path)


def standard_error(a, b):
    """The standard error of the difference of two mean scores; infinite for one seed, which has no spread."""
    if a.spread is None or b.spread is None:
        return math.inf
    return math.sqrt(a.spread**2 / len(a.scores) + b.spread**2 / len(b.scores))


def is_known(q):
    """Whether a method is of the literature, and not a plan of ours."""
    return q.method.kind in ("grace", "torch", "paper") or q.name == "top1"


def standing(plan, others):
    """None if some method has no more bytes and no less mean score. Else (whether its score is above those of all methods of no
    more bytes by more than the standard error of the difference, the nearest of them or None)."""
    smaller = [o for o in others if o.sent <= plan.sent]
    if any(o.score >= plan.score for o in smaller):
        return None
    nearest = min(smaller, key=lambda o: (plan.score - o.score) / (standard_error(plan, o) or 1e-12), default=None)
    return nearest is None or plan.score - nearest.score > standard_error(plan, nearest), nearest


def unbeaten(scores):
    """Plans of ours that no method of the literature beats in both bytes a step and score."""
    others = {model: {q.name: q for q in scores[model].values() if is_known(q)} for model in MODELS}
    every = {name: q.method.title for methods in others.values() for name, q in methods.items()}
    lines = []
    for model in MODELS:
        absent = [title for name, title in every.items() if name not in others[model]]
        lines.append(f"- {settings()[model].title}: beside {len(others[model])} methods" + (f"; without {'; '.join(absent)}, which `train.jsonl` and `train_methods.jsonl` do not have for this model" if absent else "") + ".")
        found = 0
        for q in scores[model].values():
            place = standing(q, others[model].values()) if q.method.kind == "ours" and q.residual and q.name != "top1" else None
            if place is None:
                continue
            found, (clear, nearest) = found + 1, place
            verdict = "nothing has so few bytes" if nearest is None else f"{'beyond' if clear else '**within**'} the spread of the seeds: the nearest of no more bytes is {nearest.method.title}, {nearest.score:.3f} at {nearest.sent:,.0f}, standard error of the difference {standard_error(q, nearest):.3f}"
            lines.append(f"  - {q.method.title}, {q.score:.3f} at {q.sent:,.0f} bytes a step: {verdict}")
        if not found:
            lines.append("  - none")
    return "Methods: " + "; ".join(every.values()) + ".\n\n" + "\n".join(lines)


def remade():
    """methods.md, of what is kept."""
    made = json.loads((here / "methods.json").read_text("utf-8"))
    found, scores = grouped(made["rows"]), trained()
    links = on_links()
    fact = links["100mbit"]["dense"]
    has_runs = (here / "train_methods.jsonl").exists()
    text = INTRO.format(
        trained=", final quality from `train.jsonl` and `train_methods.jsonl`" if has_runs else ", final quality from `train.jsonl` (the runs of `./dev train --set methods` are not here yet)",
        busy=" **Taken on a busy machine: to be taken again.**" if made["load"] > BUSY else "", minutes=6, machine=made["machine"]["cpu"], level=made["machine"]["level"], **{k: made[k] for k in ("rounds", "clock", "torch", "date", "commit", "load")})
    for d in sorted({row["d"] for row in made["rows"]}):
        text += f"\n## Beside plain torch code, d = {d:,}\n\n{torch_table(found, d)}\n"
    text += f"\n## What was asked for\n\nEncode and decode at least {MIN_SPEEDUP} times as fast as plain torch code, PowerSGD no slower; signs and ternaries in a quarter to an eighth of the bytes. × faster: in place.\n\n{verdicts(found)}\n"
    above = "; ".join(f"{settings()[model].title}: {', '.join(q.method.title for q in of.values() if q.name != 'dense' and q.against(of['dense']) == '+')}" for model, of in scores.items()
                      if 'dense' in of and any(q.against(of['dense']) == '+' for q in of.values()))
    above = f" (above all seeds of dense, {above})" if above else ""
    text += f"""
## The table of methods

Bits, contraction and bias: one call without memory on a bundled gradient. **Contraction** ‖x − C(x)‖² / ‖x‖²: below 1 a memory converges (Stich et al. 2018). **Bias** ‖E C(x) − x‖² / ‖x‖², over 32 draws where the plan is random: 0 is unbiased;
**cosine** of x and C(x), which does not mind the length of a sign (SignSGD and Signum send ±1: only the cosine is theirs). PowerSGD, which starts warm: the tenth round of the same gradient, in the tensors' own shapes. Speed: in place, GB/s of float32, d = {max(row["d"] for row in made["rows"]):,}. **Score**: training with the method's memory on 2 ranks, mean ± standard deviation (seeds); [train.md](train.md) says how. One rate a model, tuned for no method: where a method scores above dense, dense is not at its best rate{above}.
GRACE's Random-k, Top-k, DGC, AdaQ and GradDrop keep 1 % here; `threshold` and TBQ at 0.002 keep more, 2.9 and 2.2 % of the elements of these gradients. TernGrad is unbiased but for its clip at 2.5 standard deviations, and the clip is not small: 0.156 and 0.392 of the energy.

**INCEPTIONN** has two rows: the paper's classes (`classes=exponent`), whose 8 bits are multiples of 2⁻⁷ whatever the bound of 2⁻¹⁰ is, as GRACE has them; and a finer code of the same lengths, none of whose values is off by more than the bound
([SPEC](../../codecs/value/inceptionn/SPEC.md#beside-the-paper)).

**An all-reduce adds up** what no compression, f16, bf16, Random-1 % (all ranks select the same elements) and PowerSGD send; its bytes a rank do not grow with the ranks. Messages of all other methods go to every rank, by an all-gather, or to owners of a part (`exchange=owner`).
Scores are of [train.md](train.md)'s rows, and of {provenance("train_methods.jsonl")}. Those of ResNet-20 order no methods: train.md says why.

{method_table(made, found, scores)}

## Throughput against quality

As GRACE shows methods (Xu et al. 2021): the throughput of a training beside dense's over the same link, the score of the table above, and as an upper bound the throughput **if codecs cost nothing**: of a step without encode, merge and the hook's own time.
{settings()[LINKED].title}, 2 ranks, links that tbf shapes, all methods in turn; medians of the slowest rank; {fact["date"]}, commit {fact["commit"]}, load before {fact["load"]}. `python3 -m bench.train --links --model {LINKED} --ranks 2 --out bench/results/methods_links.jsonl --method {" ".join(links["1gbit"])}`, as root.

{throughput_words(links)}

GRACE's own study has seven models, one to eight workers and links up to 25 Gbit/s; this is one model, two ranks, two links and the way inside a machine.
Scores are of the trainings above, of which those before 572117f8 sent about twice these bytes where a plan sparsifies. Bytes are those of a step of this run at 1 Gbit/s; where they depend on the gradient, links differ, for their runs have other steps: {varying(links)}.

![throughput against score](methods_throughput.svg)

{throughput_table(links, scores[LINKED])}

## Ours that nothing here beats in both size and quality

Bytes of a step and mean score on 2 ranks, of the trainings of [train.md](train.md), so before 572117f8: plans that sparsify take a unit as one tensor since, and Top-1 % sends about half of these bytes, as in the table above. The set: all methods of the literature with scores of 2 ranks here, each in the plan of the table or as torch has it; dense and 16 bits among them. Of ours: the plans with a residual.
A plan is left out if some method has no more bytes and no less mean score. **Within the spread of the seeds** is no lead: the means differ by less than the standard error of their difference.

{unbeaten(scores)}
"""
    return text


if __name__ == "__main__":
    (here / "methods.md").write_text(remade(), "utf-8")
    draw_throughput(here / "methods_throughput.svg")
