"""Writes tool/compare/page/training.json, which the page of `compare --report` shows, from train.jsonl.

    python3 bench/results/train_report.py [FILE]        FILE: train.jsonl beside this
"""

import json
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here))
from train_rows import qualities, read, settings  # noqa: E402

OUT = here.parents[1] / "tool" / "compare" / "page" / "training.json"
NOTE = ("Score on held-out data after data-parallel training by each method, mean of the seeds (bench/train, bench/results/train.md). The runs are short, "
        "so models are not trained to the end, which is hard on sparsification. Bytes: what a rank sends in a step.")


def rounded(number):
    return None if number is None else float(f"{number:.4g}")


def facts(quality):
    return {"method": quality.name, "title": quality.method.title, "kind": quality.method.kind, "plan": quality.method.plan, "mean": rounded(quality.score),
            "spread": rounded(quality.spread), "seeds": len(quality.scores), "bytes": round(quality.sent)}


def page_facts(rows):
    """{note, models: [{model, title, metric, ranks, steps, dense: {mean, spread, low, high, bytes}, methods: [facts]}]}"""
    models = []
    for (model, ranks), methods in qualities(rows).items():
        dense = methods.get("dense")
        if dense is None:
            continue
        setting = settings()[model]
        models.append({
            "model": model, "title": setting.title, "metric": setting.metric, "ranks": ranks, "steps": setting.steps,
            "dense": {"mean": rounded(dense.score), "spread": rounded(dense.spread), "low": rounded(min(dense.scores)), "high": rounded(max(dense.scores)), "bytes": round(dense.sent)},
            "methods": [facts(quality) for quality in methods.values()],
        })
    return {"note": NOTE, "models": models}


def text_of(page):
    """A line a method, so that a change shows."""
    models = []
    for model in page["models"]:
        head = json.dumps({key: value for key, value in model.items() if key != "methods"}, ensure_ascii=False)[:-1]
        models.append(head + ', "methods": [\n  ' + ",\n  ".join(json.dumps(m, ensure_ascii=False) for m in model["methods"]) + "]}")
    return f'{{"note": {json.dumps(page["note"])}, "models": [\n ' + ",\n ".join(models) + "]}\n"


def remade(path=here / "train.jsonl"):
    """training.json, of what is kept."""
    return text_of(page_facts(read(path)))


if __name__ == "__main__":
    OUT.write_text(remade(*map(Path, sys.argv[1:2])), "utf-8")
