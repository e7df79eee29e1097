"""The pictures of paper.md: Fig. 8's breakdown, convergence by steps and by bytes, the federation's perplexity by bytes."""

import train_pictures
from matplotlib import pyplot
from paper_figures import FIG_8
from train_rows import settings

# Okabe and Ito's colours, as in train_pictures.
CURVES = {"dense": "#000000", "top1": "#56b4e9", "p0": "#e69f00", "p2": "#d55e00", "fit_poly": "#009e73", "p0_qsgd": "#cc79a7", "skcompress": "#0072b2", "three_lc": "#999999"}
WIRES = {"fedavg": "#000000", "topr": "#56b4e9", "p0": "#e69f00", "fit_poly": "#009e73", "p0_qsgd": "#cc79a7", "log": "#0072b2"}


def draw_fig_8(rows, path):
    """Bars: the paper's above ours."""
    figure, axis = pyplot.subplots(figsize=(7.2, 4.6), constrained_layout=True)
    for place, row in enumerate(rows):
        ours = [100 * row[part] for part in ("value", "index", "order")]
        paper = FIG_8.get(row["name"])
        bars = [(place + 0.19, ours, ("#0072b2", "#56b4e9", "#009e73"))]
        if paper:
            bars.append((place - 0.19, paper[:2], ("#555555", "#bbbbbb")))
        for y, parts, colours in bars:
            left = 0.0
            for part, colour in zip(parts, colours):
                axis.barh(y, part, 0.34, left, color=colour)
                left += part
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axis.invert_yaxis()
    axis.set(xlabel="% of dense float32", title="Fig. 8: one layer's gradient, d = 36,864, Top-1 %")
    names = {"#555555": "paper: values", "#bbbbbb": "paper: indices", "#0072b2": "here: values", "#56b4e9": "here: indices", "#009e73": "here: order"}
    axis.legend(handles=[pyplot.Rectangle((0, 0), 1, 1, color=colour, label=name) for colour, name in names.items()], loc="lower right")
    train_pictures.save(figure, path)


def draw_convergence(found, path):
    """A row a model: training loss by steps, and by bytes sent."""
    figure, axes = train_pictures.grid(2 * len(found), across=2)
    for (model, methods), (by_step, by_bytes) in zip(found.items(), zip(axes[::2], axes[1::2])):
        for name, colour in CURVES.items():
            if name not in methods:
                continue
            q = methods[name]
            steps, losses = zip(*q.curve())
            width = 1.8 if name in ("dense", "skcompress") else 1.1
            by_step.plot(steps, losses, color=colour, linewidth=width, label=q.method.title)
            by_bytes.plot([step * q.sent / 1e6 for step in steps], losses, color=colour, linewidth=width)
        by_step.set(title=settings()[model].title, xlabel="step", ylabel="training loss")
        by_bytes.set(title=settings()[model].title, xlabel="MB a rank has sent", xscale="log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    train_pictures.save(figure, path)


def draw_federation(rows, path):
    """rows: {wire: rows of its seeds}. Perplexity by rounds, and by bytes in both directions; the mean of the seeds."""
    figure, (by_round, by_bytes) = train_pictures.grid(2, across=2)
    for name, seeds in rows.items():
        base, _, way = name.partition("_update")
        colour = WIRES.get(base if "_update" in name else name)
        if colour is None:
            continue
        curves = [row["curve"] for row in seeds]
        mean = lambda key, curves=curves: [sum(point[key] for point in points) / len(points) for points in zip(*curves)]
        line = "--" if "_update" in name else "-"
        by_round.plot(mean("round"), mean("perplexity"), line, color=colour, linewidth=1.2, label=seeds[0]["title"])
        both = [(up + down) / 1e6 for up, down in zip(mean("up"), mean("down"))]
        by_bytes.plot(both, mean("perplexity"), line, color=colour, linewidth=1.2)
    by_round.set(xlabel="round", ylabel="perplexity of held-out text", yscale="log")
    by_bytes.set(xlabel="MB in both directions", xscale="log", yscale="log")
    figure.legend(*by_round.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    train_pictures.save(figure, path)
