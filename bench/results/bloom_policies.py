"""How much of a uniform support each policy of index=bloom recovers, beside the published code's P2 rule.

    python3 bench/results/bloom_policies.py build/tool/deepreduce      # run, keep bloom_policies.json, print the table
    python3 bench/results/bloom_policies.py                                     # print it from what is kept

recovered: share of the r true indices that decode returns, mean over supports and filter seeds; error: its standard error. (P0 returns all of
them.) published: the rule of the authors' C++ operation, simulated, mean of 20 supports.
"""

import json
import pathlib
import statistics
import subprocess
import sys

from runs import refuse_changes, refuse_unrepeatable

here = pathlib.Path(__file__).parent
document = here / "bloom_policies.json"
policies = ["leftmost", "middle", "rightmost", "p1", "p2", "p0"]
layouts = ["standard", "split_block"]
# d, density, fpr, supports, the published rule
settings = [(36864, 0.01, 0.001, 100, 0.9993), (36864, 0.01, 0.002, 100, 0.9938), (36864, 0.01, 0.004, 100, 0.9656), (36864, 0.01, 0.01, 100, 0.8129),
            (36864, 0.01, 0.02, 100, 0.5447), (36864, 0.1, 0.01, 30, 0.9866), (2359296, 0.01, 0.001, 3, 0.9980)]


def measure(tool):
    refuse_changes()
    rows, commit = [], None
    for d, density, fpr, supports, published in settings:
        seen = {(layout, policy): [] for layout in layouts for policy in policies}
        for seed in range(supports):
            plans = {f"index=bloom(policy={p},fpr={fpr:g},seed={1000 * seed + 1},layout={layout})": (layout, p) for layout, p in seen}
            arguments = [a for plan in plans for a in ("--plan", plan)] + ["--repeat", "1", "--format", "json"]
            made = json.loads(subprocess.run([tool, "compare", f"synth:d={d},density={density},seed={seed + 1}", *arguments], check=True,
                                             capture_output=True, text=True).stdout)
            commit = refuse_unrepeatable(made)["commit"]
            for (key, row) in zip(plans.values(), [row for row in made["rows"] if row["plan"] != "memcpy"]):
                assert row["fallback"] == "none" and row["missed"] == row["r"] - row["support"] + row["false_positives"]
                seen[key].append(row)
        for (layout, policy), of in seen.items():
            recalls = [row["index_recall"] for row in of]
            rows.append({"d": d, "density": density, "fpr": fpr, "layout": layout, "policy": policy, "supports": supports,
                         "recovered": round(statistics.mean(recalls), 6), "error": round(statistics.stdev(recalls) / len(recalls) ** 0.5, 6),
                         "missed": round(statistics.mean(row["missed"] for row in of), 3),
                         "false_positives": round(statistics.mean(row["false_positives"] for row in of), 3),
                         "index_bits_per_nonzero": round(statistics.mean(row["index_bits_per_nonzero"] for row in of), 3),
                         **({"published": published} if policy == "p2" else {})})
            print(rows[-1], flush=True)
    document.write_text(json.dumps({"commit": commit, "rows": rows}, indent=1) + "\n")


def table(rows):
    lines = ["| d | r/d | fpr | layout | bits an index | " + " | ".join(policies[:-1]) + " | P2, published rule |", "|---|---|---|---|---|" + "---|" * len(policies)]
    for d, density, fpr, _, published in settings:
        for layout in layouts:
            of = {row["policy"]: row for row in rows if (row["d"], row["density"], row["fpr"], row["layout"]) == (d, density, fpr, layout)}
            cells = [f"{d:,}", f"{density:.0%}", f"{fpr:g}", layout, f"{of['p2']['index_bits_per_nonzero']:.2f}"]
            cells += [f"{of[p]['recovered']:.4f}" for p in policies[:-1]] + [f"{published:.4f}" if layout == "standard" else ""]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if len(sys.argv) > 1:
    measure(sys.argv[1])
print(table(json.loads(document.read_text())["rows"]))
