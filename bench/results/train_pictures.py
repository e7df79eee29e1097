"""The pictures of train.md: score against bytes, bits over the steps, loss against time at a link's speed."""

import sys
from pathlib import Path

import matplotlib
from train_rows import METHODS, settings

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bindings" / "python"))
from deepreduce.figure import adapt_to_dark, place_labels  # noqa: E402

matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "deepreduce", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False,
})
# Okabe and Ito's colours, which most eyes distinguish; a kind has a colour and a mark.
KINDS = {"torch": ("#666666", "s", "torch's own"), "ours": ("#0072b2", "o", "DeepReduce"), "paper": ("#d55e00", "^", "the paper's plans")}
LINES = {"dense": "#000000", "bf16": "#999999", "powersgd1": "#cc79a7", "top1": "#56b4e9", "top1_log": "#0072b2", "top1_auto": "#009e73"}
# Marks with a label, the most telling first: where there is no room the last go without.
LABELS = {"dense": "dense", "top1_log": "1 % log_quant", "powersgd1": "PowerSGD 1", "top10_log": "10 % log_quant", "top01_log": "0.1 %", "bf16": "bf16", "top1_auto": "1 % auto",
          "blocks": "blocks", "top1": "1 % raw", "top1_none": "no residual"}
TIMED_MODELS = ("lstm_large", "lstm", "transformer", "resnet20")
SPEEDS = {"100mbit": ("100 Mbit/s", 100e6), "1gbit": ("1 Gbit/s", 1e9)}


def save(figure, path):
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)
    adapt_to_dark(path)


def grid(count, across=2):
    """Two panels side by side: with three, a page shows their text at eight pixels."""
    down = -(-count // across)
    figure, axes = pyplot.subplots(down, across, figsize=(3.6 * across, 2.9 * down), squeeze=False, constrained_layout=True)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat)


def draw_quality(found, path):
    models = [(model, methods) for (model, ranks), methods in found.items() if ranks == 2]
    figure, axes = grid(max(1, len(models)))
    bars = {model: [] for model, _ in models}
    for axis, (model, methods) in zip(axes, models):
        for q in methods.values():
            colour, mark, _ = KINDS[q.method.kind]
            filled = q.residual or not q.method.plan
            down = up = q.spread or 0.0
            if "accuracy" in settings()[model].metric:  # no bar ends above 1
                up = min(up, max(0.0, 1 - q.score))
            bars[model].append((q.sent, q.score - down, q.sent, q.score + up))
            axis.errorbar(q.sent, q.score, [[down], [up]] if up + down else None, fmt=mark, color=colour, markersize=4.5, markerfacecolor=colour if filled else "white", elinewidth=0.7, capsize=1.5)
        axis.set(xscale="log", title=settings()[model].title, xlabel="bytes a rank sends a step", ylabel=settings()[model].metric)
        axis.margins(x=0.12, y=0.14)
    marks = [pyplot.Line2D([], [], color=c, marker=m, linestyle="", label=label) for c, m, label in KINDS.values()]
    marks.append(pyplot.Line2D([], [], color="#0072b2", marker="o", markerfacecolor="white", linestyle="", label="without residual"))
    figure.legend(handles=marks, loc="outside lower center", ncols=4)
    figure.draw_without_rendering()  # the layout, by which labels have their places
    for axis, (model, methods) in zip(axes, models):
        named = [(methods[name].sent, methods[name].score, words) for name, words in LABELS.items() if name in methods]
        place_labels(axis, named, [(q.sent, q.score) for q in methods.values()], 7.5, bars[model])
    save(figure, path)


def draw_bits(found, path):
    models = [(model, methods) for (model, ranks), methods in found.items() if ranks == 2]
    figure, axes = grid(max(1, len(models)))
    for axis, (model, methods) in zip(axes, models):
        for name, colour in {"top1": "#56b4e9", "top1_log": "#0072b2", "top1_auto": "#009e73", "p0_qsgd": "#d55e00"}.items():
            q = methods.get(name)
            if q is None:
                continue
            bits = [row["bits"] for row in q.rows if row["bits"]]
            for part, line in (("index", "-"), ("value", "--")):
                if (name, part) in (("top1", "value"), ("top1_log", "index")):  # always 32; as top1's
                    continue
                points = [(p[0]["step"], sum(b[part] for b in p) / len(p)) for p in zip(*bits)]
                axis.plot(*zip(*points), line, color=colour, linewidth=1.2, marker=".", markersize=3, label=f"{METHODS[name].title}: {part}")
        axis.set(title=settings()[model].title, xlabel="step", ylabel="bits a nonzero", ylim=(0, None))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    save(figure, path)


def step_ms(timed, model, link, name, bits_a_second):
    """(milliseconds of a step of 2 ranks, measured or not): on the shaped link if it was measured there; else the step
    without exchange, and encode, merge, the hook's own and the bytes by the link's rate, one after the other."""
    row = timed.get((model, 2, link), {}).get(name)
    if row:
        return row["median"], True
    rows = timed.get((model, 2, "loopback"), {})
    if name not in rows or "local" not in rows:
        return None, False
    parts = rows[name]["parts"]
    return rows["local"]["median"] + sum(parts.get(part, 0) for part in ("encode", "merge", "own")) + 8e3 * rows[name]["sent"] / bits_a_second, False


def time_panels(found, timed):
    """[(model, link, {method: (step's milliseconds, measured or not)})]: of at most three models whose steps were timed."""
    panels, models = [], []
    for model in TIMED_MODELS:
        for link, (_, speed) in SPEEDS.items():
            times = {name: step_ms(timed, model, link, name, speed) for name in LINES if name in found.get((model, 2), {})}
            times = {name: time_ for name, time_ in times.items() if time_[0] is not None}
            if len(times) > 1 and len({*models, model}) <= 3:
                models.append(model)
                panels.append((model, link, times))
    return panels


def draw_time(found, timed, path):
    panels = time_panels(found, timed)
    if not panels:
        path.unlink(missing_ok=True)
        return
    figure, axes = grid(len(panels), across=2)
    for axis, (model, link, times) in zip(axes, panels):
        for name, (took, _) in times.items():
            curve = found[model, 2][name].curve()
            axis.plot([step * took / 1e3 for step, _ in curve], [loss for _, loss in curve], color=LINES[name], linewidth=1.2, label=METHODS[name].title)
        how = "steps timed on the shaped link" if all(was for _, was in times.values()) else "model: compute, codec, bytes / rate"
        axis.set(xscale="log", title=f"{settings()[model].title}, {SPEEDS[link][0]}\n({how})", xlabel="seconds", ylabel="training loss")
    labels = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels())}
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=3)
    save(figure, path)


def draw(found, timed, folder):
    draw_quality(found, folder / "train_quality.svg")
    draw_bits(found, folder / "train_bits.svg")
    draw_time(found, timed, folder / "train_time.svg")
