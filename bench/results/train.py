"""Writes train.md, its pictures and the page's training.json from train.jsonl, which `./dev train` fills.

    python3 bench/results/train.py [FILE]        FILE: train.jsonl beside this
"""

import statistics
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here))
import train_pictures  # noqa: E402
import train_report  # noqa: E402
from paired import STUDENT, interval_of  # noqa: E402
from train_rows import BASES, METHODS, ORDER, provenance, qualities, read, settings, times, verdict  # noqa: E402

WIDE = 0.05  # standard deviation of scores over seeds, of half of the methods
BUSY = 1.0  # load before a row's ranks started, from which its times are marked
RATIO = "ratio=0.01"
LINKS = {"loopback": "loopback", "unshaped": "unshaped", "1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}

INTRO = """# Training for real

Made by `train.py` from `train.jsonl`. Data-parallel training over torch.distributed (gloo), ranks as processes of one thread each on one machine of two cores; every method trains
the same model on the same batches, and all ranks' parameters were {identical}.

- **Score**: on held-out data after the last step, mean ± standard deviation over the seeds (their number in brackets). **vs dense**: where a method's mean lies: `=` in the range of dense's seeds, `+` above it, `−` below; of one seed a range is a point, which says little.
- **Bytes**: what a rank sends in a step of the second half, by gloo's rings: an all-reduce of b bytes 2 (n − 1) / n · b, an all-gather of slots of b bytes (n − 1) · b. Slots, not frames: they have room for an eighth more. Since 572117f8 a plan that sparsifies takes all tensors of a unit as one, small ones too: Top-1 % sends about half of these bytes.
- **Bits**: of index, value and order a nonzero, in rank 0's first inspected frame → in its last. Small tensors (below 1,000 elements) travel dense in the same frame: in the bytes, not in the bits.
- **PowerSGD** is torch's own hook, rank 1, after 10 dense steps (warm start, error feedback), in one bucket: with more it aborts or hangs on gloo.

Repeat: `./dev train` (what is in `train.jsonl` is skipped: `--out FILE` starts anew), `./dev train --links` (root), `./dev train --quick` (CI). Data: scikit-learn's digits, Debian's `dataset-fashion-mnist`,
PyTorch's own documentation and functions; nothing else is downloaded.

**What was cut** for two hours of two cores: steps (150 to 1,000 a run, the rate falls to zero over them), so models are not trained to the end. That is hard on sparsification: at 1 % an element travels every 100 steps on average,
at 0.1 % every 1,000. **Rates were tuned for no method**: each model has one rate for all, which need not be dense's best. Where a method that sends less scores above dense, that says that dense is not at its best there, not that compression helps; and "within dense's range" is a statement on this rate. Then 4 ranks, for two models and five methods only; plans without residual, other than `golomb` for the LSTM only; six of the methods, not for ResNet-20 and the large LSTM.
Momentum-corrected memory (`feedback=dgc`) is among the methods of the other table, [methods.md](methods.md).

Scores are of {provenance}.
"""


BLOCKS = """`sparsify=blocks(ratio=0.08,block=16)` with `lloyd(price=0.35)` sends the bytes of Top-1 % with `log_quant`. Mean training loss of the last fifth of the steps (seeds). *Blocks − single*: mean ± standard deviation of the differences by seed; in bold if 0 is outside of the 95 % interval of their mean (Student's t). *Distance left*: what is left of Top-1 %'s distance to dense, 0 is dense, 1 is Top-1 %;
– where the seeds do not show that Top-1 % and dense differ, for then it is a ratio by noise.
Asked: 0.5 on the LSTM and the transformer, or no worse than Top-1 % at 0.6 × the bytes.
"""


def number(x, digits=0):
    return f"{x:,.{digits}f}"


def quality_table(methods):
    dense = methods.get("dense")
    lines = ["| method | residual | score | vs dense | last loss | bytes | of dense | bits: index | value | order |", "|---|---|---|---|---|---|---|---|---|---|"]
    for name in ORDER:
        q = methods.get(name)
        if METHODS[name].missing:
            lines.append(f"| {METHODS[name].title} | | unsupported: {METHODS[name].missing} | | | | | | | |")
            continue
        if q is None:
            continue
        bits = [f"{change[0]:.1f} → {change[1]:.1f}" if (change := q.bits(part)) else "" for part in ("index", "value", "order")]
        spread = "" if q.spread is None else f" ± {q.spread:.4f}"
        share = f"{100 * q.sent / dense.sent:.2f} %" if dense else ""
        lines.append(f"| {q.method.title} | {'yes' if q.residual else 'no' if q.method.plan else ''} | {q.score:.4f}{spread} ({len(q.scores)}) | {q.against(dense) if dense else ''} | {q.loss:.3f} "
                     f"| {number(q.sent)} | {share} | {' | '.join(bits)} |")
    return "\n".join(lines)


def spreads_of(methods):
    """Standard deviations of scores over seeds, ascending."""
    return sorted(q.spread for q in methods.values() if q.spread is not None)


def orders_nothing(methods):
    """Whether seeds differ more than methods."""
    spreads = spreads_of(methods)
    return bool(spreads) and spreads[len(spreads) // 2] > WIDE


def remarks(methods):
    """What its scores do not say: where dense is beaten, and where seeds differ more than methods."""
    dense = methods.get("dense")
    above = [q.method.title for q in methods.values() if dense and q.name != "dense" and q.against(dense) == "+"]
    spreads = spreads_of(methods)
    text = f"\nAbove all seeds of dense: {'; '.join(above)}. So dense is not at its best rate here." if above else ""
    if orders_nothing(methods):
        seeds = {row["seed"] for q in methods.values() for row in q.rows}
        low = min(seeds, key=lambda seed: statistics.fmean(row["score"] for q in methods.values() for row in q.rows if row["seed"] == seed))
        scores = [row["score"] for q in methods.values() if RATIO in (q.method.plan or "") for row in q.rows if row["seed"] == low]
        text += (f"\n**This table orders no methods**: standard deviations over seeds are up to {spreads[-1]:.2f}, and one seed makes them. With seed {low} the plans of Top-1 % score {min(scores):.2f} to {max(scores):.2f}."
                 if scores else "")
    return text


def one_percent(methods, kind):
    return [q for q in methods.values() if q.method.kind == kind and q.residual and RATIO in q.method.plan]


def reach_table(found):
    """What issue and paper ask for, a line a model."""
    lines = ["| model | ranks | our 1 % plans with residual against dense | fewest bytes of ours within dense's range | not worse than PowerSGD-1 at no more bytes | fewer bytes than every plan of the paper, not worse |",
             "|---|---|---|---|---|---|"]
    for (model, ranks), methods in found.items():
        dense, low, ours, paper = methods.get("dense"), methods.get("powersgd1"), one_percent(methods, "ours"), one_percent(methods, "paper")
        if not dense or not ours:
            continue
        sentence = ", ".join(f"{q.name} {q.against(dense)}" for q in ours)
        equal = min((q for q in methods.values() if q.method.kind == "ours" and q.against(dense) != "−"), key=lambda q: q.sent, default=None)
        at = "none of those measured" if equal is None else f"{equal.name}: {number(equal.sent)}, {100 * equal.sent / dense.sent:.2f} %"
        cheap = [q for q in methods.values() if q.method.kind == "ours" and q.residual and low and q.sent <= low.sent]
        best = max(cheap, key=lambda q: q.score, default=None)
        power = "" if not low else "no plan of ours has so few bytes" if best is None else \
            f"{best.name}: {best.score:.4f} at {number(best.sent)} bytes, {low.score:.4f} at {number(low.sent)}: {'met' if best.score >= low.score else '**worse**' if best.against(low) == '−' else 'less, within its range'}"
        if orders_nothing(methods):
            lines.append(f"| {model} | {ranks} | {sentence} | {at} | not judged: seeds differ more than methods | not judged |")
            continue
        smallest = min(ours, key=lambda q: q.sent)
        beaten = [p for p in paper if smallest.sent < p.sent and smallest.against(p) != "−"]
        fewer = "" if not paper else f"{smallest.name}: {len(beaten)} of {len(paper)}" + ("" if len(beaten) == len(paper) else ", not " + ", ".join(p.name for p in paper if p not in beaten))
        lines.append(f"| {model} | {ranks} | {sentence} | {at} | {power} | {fewer} |")
    return "\n".join(lines)


def late_loss(row):
    """Mean loss of the last fifth of the steps."""
    losses = [loss for _, loss in row["loss"]]
    return statistics.fmean(losses[-max(1, len(losses) // 5) :])


def late(q):
    return statistics.fmean(map(late_loss, q.rows))


def differences(a, b):
    """Of late losses, by the seeds that both have."""
    of = {row["seed"]: late_loss(row) for row in b.rows}
    return [late_loss(row) - of[row["seed"]] for row in a.rows if row["seed"] in of]


def is_clear(values):
    """Whether 0 is outside of the 95 % interval of their mean."""
    return len(values) in STUDENT and interval_of(values).is_clear


def blocks_table(found):
    """How much nearer to dense training blocks come for the bytes of single elements: by the training loss, because scores of few samples are coarse."""
    lines = ["| model | dense | Top-1 %, log_quant | blocks, 8 % | blocks − single | distance left | bytes | score: dense, single, blocks | blocks, 4 % | blocks − single | distance left | bytes |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for (model, ranks), methods in found.items():
        dense, single, whole, half = (methods.get(name) for name in ("dense", "top1_log", "blocks", "blocks_half"))
        if ranks != 2 or not (dense and single and whole):
            continue

        near, far = late(dense), late(single) - late(dense)
        apart = is_clear(differences(single, dense))

        def cells(q, near=near, far=far, single=single, apart=apart):
            if not q:
                return " | | | "
            of_seeds = differences(q, single)
            difference = f"{statistics.fmean(of_seeds):+.3f} ± {statistics.stdev(of_seeds):.3f}" if len(of_seeds) > 1 else ""
            left = f"{(late(q) - near) / far:.2f}" if apart else "–"
            return f"{late(q):.3f} ({len(q.rows)}) | {f'**{difference}**' if is_clear(of_seeds) else difference} | {left} | {q.sent / single.sent:.2f} ×"

        scores = ", ".join(f"{q.score:.4f}" for q in (dense, single, whole))
        lines.append(f"| {model} | {late(dense):.3f} ({len(dense.rows)}) | {late(single):.3f} ({len(single.rows)}) | {cells(whole)} | {scores} | {cells(half)} |")
    return "\n".join(lines) if len(lines) > 2 else "Not measured yet."


def split_table(rows):
    """Where a step's time goes."""
    local = rows["local"]["median"] if "local" in rows else None
    lines = ["| method | step ms [p10, p90] | encode | wait | merge | hook's own | compute | bytes |", "|---|---|---|---|---|---|---|---|"]
    for name in [name for name in ORDER if name in rows]:
        row = rows[name]
        cells = [f"{row['parts'][part]:.2f}" if row["parts"] else "" for part in ("encode", "wait", "merge", "own", "compute")]
        if METHODS[name].kind == "torch" and local:
            cells[1::3] = [f"({row['median'] - local:.1f})", f"({local:.1f})"]
        lines.append(f"| {METHODS[name].title} | {row['median']:.1f} [{row['p10']:.1f}, {row['p90']:.1f}] | {' | '.join(cells)} | {number(row['sent'])} |")
    return "\n".join(lines)


def link_table(found):
    lines = ["| model | ranks | link (measured) | method | step ms [p10, p90] | bytes | encode / wait / merge ms | vs dense | vs bf16 | vs PowerSGD |", "|---|---|---|---|---|---|---|---|---|---|"]
    for (model, ranks, link), rows in found.items():
        if link == "loopback":
            continue
        for name in [name for name in ORDER if name in rows]:
            row = rows[name]
            parts = " / ".join(f"{row['parts'][part]:.1f}" for part in ("encode", "wait", "merge")) if row["parts"] else ""
            verdicts = {base: verdict(row, rows[base]) for base in BASES if base in rows} if METHODS[name].plan else {}
            lines.append(f"| {model} | {ranks} | {LINKS[link]} ({row['rate'] / 1e6:,.0f}) | {METHODS[name].title} | {row['median']:.1f} [{row['p10']:.1f}, {row['p90']:.1f}] | {number(row['sent'])} | {parts} "
                         f"| {' | '.join(verdicts.get(base, '') for base in BASES)} |")
    return "\n".join(lines)


def link_reach(found):
    """The reach of shaped links: the large LSTM, 4 ranks."""
    lines = []
    if any(row["load"] > BUSY for key, rows in found.items() if key[2] != "loopback" for row in rows.values()):
        lines.append("\nTimes over shaped links were taken on a busy machine ([below](#shaped-links)), so these verdicts are provisional:\n")
    for link, asked in (("100mbit", {"dense": 0.14, "bf16": 0.24}), ("1gbit", dict.fromkeys(("dense", "bf16", "powersgd1"), 1.0)), ("unshaped", {"dense": 1.0})):
        rows = found.get(("lstm_large", 4, link))
        if not rows:
            continue
        for name in [name for name in ORDER if name in rows and METHODS[name].plan]:
            sentences = []
            for base, limit in asked.items():
                ratio, words = rows[name]["median"] / rows[base]["median"], verdict(rows[name], rows[base])
                if link == "100mbit":
                    met = ratio <= limit
                else:
                    met = words.startswith("faster") if link == "1gbit" else not words.startswith("does not pay")
                sentences.append(f"{ratio:.2f} × {base}{f' (at most {limit})' if link == '100mbit' else ''}: {'met' if met else 'not met'}")
            lines.append(f"- {LINKS[link]}, {METHODS[name].title}: {'; '.join(sentences)}")
    return "\n".join(lines)


def busy(rows):
    """A sentence on what else ran."""
    loads = [row["load"] for row in rows]
    if not loads:
        return ""
    dates, commits = sorted({row["date"] for row in rows}), sorted({row["commit"] for row in rows})
    state = "**Taken on a busy machine: to be taken again.** " if max(loads) > BUSY else ""
    return f"{state}Load before the ranks started {min(loads)} to {max(loads)}; {', '.join(dates)}, commit {', '.join(commits)}."


def remade(path=here / "train.jsonl"):
    """train.md, of what is kept."""
    rows = read(path)
    found, timed = qualities(rows), times(rows)
    differ = [row for row in rows if not row["identical"]]
    parts = [INTRO.format(identical=f"**different in {len(differ)} of {len(rows)} runs**" if differ else f"bit-identical at the end of each of the {len(rows)} runs", provenance=provenance(path.name))]
    parts += ["## Reach\n", reach_table(found), link_reach(timed)]
    parts += ["\n## Blocks against single elements\n", BLOCKS, blocks_table(found), ""]
    parts += ["## Quality against bytes\n", "![score against bytes](train_quality.svg)\n", "![bits a nonzero over the steps](train_bits.svg)\n"]
    for (model, ranks), methods in found.items():
        setting = settings()[model]
        parts.append(f"### {setting.title}, {ranks} ranks: {setting.metric}\n\n{setting.parameters:,} parameters, {setting.steps} steps of {setting.batch} a rank, {setting.optimizer}.\n\n{quality_table(methods)}\n{remarks(methods)}".rstrip() + "\n")
    loops = {key: value for key, value in timed.items() if key[2] == "loopback"}
    parts += ["## Where a step's time goes\n", f"Over the loopback, 2 ranks; the methods took turns. `wait` has the other rank's lateness in it; compute is what the hook's parts leave of the step; medians, so they do not add up exactly. Torch's own ways do not tell: in brackets the step without exchange, and what theirs takes more. {busy([r for t in loops.values() for r in t.values()])}\n"]
    parts += [f"### {settings()[model].title}\n\n{split_table(methods)}\n" for (model, _, _), methods in loops.items()]
    shaped = [row for key, t in timed.items() if key[2] != "loopback" for row in t.values()]
    parts += ["## Shaped links\n", "Network namespaces, a bridge, tbf on both ends; a raw socket's rate was asserted before anything was measured (Mbit/s in brackets). A verdict is *faster* or *does not pay* if that was so in "
              f"every round, in which all methods took their turn: medians' ratio [least, most of the rounds]. Four ranks share two cores. {busy(shaped)}\n" if shaped else "Not measured yet: `./dev train --links`.\n",
              "![loss against time](train_time.svg)\n" if train_pictures.time_panels(found, timed) else "", link_table(timed) if shaped else ""]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else here / "train.jsonl"
    (here / "train.md").write_text(remade(source), "utf-8")
    rows = read(source)
    train_pictures.draw(qualities(rows), times(rows), here)
    train_report.OUT.write_text(train_report.remade(source), "utf-8")
