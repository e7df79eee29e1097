"""Rows of train.jsonl, grouped and averaged, for train.py (the page) and train_pictures.py."""

import collections
import statistics
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
ROOT = here.parents[1]
sys.path[:0] = [str(ROOT), str(here)]
import ages  # noqa: E402

from bench.train import train_results  # noqa: E402
from bench.train.methods import METHODS  # noqa: E402
from bench.train.step_times import BASES, verdict  # noqa: E402
from bench.train.task import settings  # noqa: E402

__all__ = ["BASES", "METHODS", "ORDER", "Quality", "provenance", "qualities", "read", "settings", "times", "verdict"]
MODELS, ORDER = list(settings()), list(METHODS)


class Quality:
    """The seeds of one model, method and number of ranks."""

    def __init__(self, rows):
        self.rows, self.method = rows, METHODS[rows[0]["method"]]
        self.name = rows[0]["method"]
        self.scores = [row["score"] for row in rows]
        self.score, self.sent = statistics.fmean(self.scores), statistics.fmean(row["sent"] for row in rows)
        self.spread = statistics.stdev(self.scores) if len(rows) > 1 else None
        self.loss = statistics.fmean(row["loss"][-1][1] for row in rows)

    @property
    def residual(self):
        return bool(self.method.plan and "feedback=residual" in self.method.plan)

    def against(self, other):
        """Where its mean lies: "=" in the range of the other's seeds, "+" above it, "−" below."""
        if self.score > max(other.scores):
            return "+"
        return "−" if self.score < min(other.scores) else "="

    def bits(self, part):
        """(first, last) of the frames that were inspected, mean of the seeds; None if there is none."""
        sent_bits = [row["bits"] for row in self.rows if row["bits"]]
        return tuple(statistics.fmean(bits[i][part] for bits in sent_bits) for i in (0, -1)) if sent_bits else None

    def curve(self):
        """[(step, loss)], mean of the seeds"""
        curves = [row["loss"] for row in self.rows]
        return [(points[0][0], statistics.fmean(p[1] for p in points)) for points in zip(*curves)]


def full_length(rows):
    """The rows of the model's full number of steps: others were requested by --steps."""
    full = {name: setting.steps for name, setting in settings().items()}
    return [row for row in rows if row["steps"] == full[row["model"]]]


def qualities(rows):
    """{(model, ranks): {method: Quality}}, in the order of models and methods"""
    groups = collections.defaultdict(list)
    for row in full_length([row for row in rows if row["kind"] == "quality" and row["method"] != "local"]):
        groups[row["model"], row["ranks"], row["method"]].append(row)
    found = collections.defaultdict(dict)
    for model, ranks, method in sorted(groups, key=lambda key: (MODELS.index(key[0]), key[1], ORDER.index(key[2]))):
        found[model, ranks][method] = Quality(groups[model, ranks, method])
    return found


def times(rows):
    """{(model, ranks, link): {method: row}}; of a row that was measured again the last"""
    found = collections.defaultdict(dict)
    for row in rows:
        if row["kind"] == "times":
            found[row["model"], row["ranks"], row["link"]][row["method"]] = row
    return found


def provenance(name):
    """Of a file of trainings beside this: the commits of its rows of quality, the oldest first, and what cannot be repeated."""
    rows = sorted((row for row in read(here / name) if row["kind"] == "quality"), key=lambda row: row["date"])
    counts = collections.Counter(row["commit"] for row in rows)
    gone = f"; not to be built again: {', '.join(ages.UNREPEATABLE[name])}" if name in ages.UNREPEATABLE else ""
    return f"`{name}`, commits (rows): {', '.join(f'{commit} ({count})' for commit, count in counts.items())}{gone}"


def read(path):
    return train_results.read(path)
