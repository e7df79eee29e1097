"""Writes the numbers of README.md, docs/RESULTS.md, docs/PYTORCH.md and docs/PAYS.md, between comments such as `numbers` and `end of numbers`, from the json and the table of ratios that are kept.

    python3 bench/results/readme.py            # write
    python3 bench/results/readme.py --check    # print what differs, and fail (a test)
"""

import csv
import json
import pathlib
import statistics
import sys

import pages
import which_plan_page

here = pathlib.Path(__file__).resolve().parent
root = here.parents[1]
topr = "sparsify=topr(ratio=0.01) "
plans = ["index=raw value=raw", "index=golomb value=raw", "index=golomb(adaptive=1) value=raw", "index=gap_huffman value=raw", "index=golomb value=uniform_quant",
         "index=golomb value=log_quant", "index=auto value=auto(error=0.07)", "index=golomb value=qsgd", "index=golomb value=fit_poly",
         "index=bloom(policy=p2,fpr=0.001) value=raw", "index=bloom(policy=p0,fpr=0.001) value=raw"]
# README's table: short enough to be read without a footnote.
few_plans = ["index=raw value=raw", "index=golomb value=raw", "index=golomb value=uniform_quant", "index=golomb value=log_quant", "index=auto value=auto(error=0.07)",
             "index=bloom(policy=p2,fpr=0.001) value=qsgd"]


def rows_of(name, tensor=""):
    made = json.loads((here / f"{name}.json").read_text())
    return made, {row["plan"].removeprefix(topr): row for row in made["rows"] if tensor in row["input"]}


def us(nanoseconds):
    return f"{nanoseconds / 1e3:.0f} µs"


def table(rows):
    lines = ["| plan | of dense | bits per index | coding error | energy that is lost | encode | decode |", "|---|---|---|---|---|---|---|"]
    for plan in plans:
        row = rows[plan]
        error = f"{row['relative_l2_error']:.3f}" if row["relative_l2_error"] else "0"
        lines.append(f"| `{plan}` | {100 * row['relative_volume']:.3f} % | {row['index_bits_per_nonzero']:.2f} | {error} | {row['contraction']:.4f} | {us(row['encode_ns'])} | {us(row['decode_ns'])} |")
    copy = us(rows["memcpy"]["encode_ns"])
    return "\n".join([*lines, f"| copying the dense tensor | 100 % | | | 0 | {copy} | {copy} |"])


def lstm_bits(index):
    """Bits an index of a codec at 1 %, over the bundled steps: the minimum and the maximum."""
    with open(root / "tests" / "ratio" / "expected.csv", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["data"].startswith("lstm_docs_step") and r["plan"] == f"{topr}index={index} value=raw"]
    bits = [8 * int(r["index_bytes"]) / (int(r["value_bytes"]) / 4) for r in rows]
    return f"{min(bits):.1f} to {max(bits):.1f}"


def machine(made):
    level = "AVX-512" if "avx512vbmi2" in " ".join(made["machine"]["flags"]).replace("_", "") else "AVX2"
    return f"one thread of an {made['machine']['cpu']} with {level}"


def accumulator():
    """The numbers of README.md."""
    made, rows = rows_of("resnet20_accumulator")
    lines = ["| plan | bytes, of dense f32 | coding error | encode | decode |", "|---|---|---|---|---|"]
    for plan in few_plans:
        row = rows[plan]
        error = f"{row['relative_l2_error']:.3f}" if row["relative_l2_error"] else "0"
        lines.append(f"| `{plan}` | {100 * row['relative_volume']:.2f} % | {error} | {us(row['encode_ns'])} | {us(row['decode_ns'])} |")
    copy = rows["memcpy"]
    lines.append(f"| copying the dense tensor | 100 % | 0 | {us(copy['encode_ns'])} | {us(copy['encode_ns'])} |")
    sparsify = statistics.median(row["sparsify_ns"] for plan, row in rows.items() if plan != "memcpy")
    return f"""
ResNet-20 ({copy['d']:,} parameters) in the middle of training, `sparsify=topr(ratio=0.01)` of the gradient plus the residual; {machine(made)}, medians.
Each step sends 1 % of the values; the others wait in the residual and go out later. The *coding error* is the relative L2 error of that 1 %. Sparsifying takes another {us(sparsify)}.
Decode also writes the zeros of the dense tensor, so it may take longer than encode. The Bloom filter is the paper's own method: it is asked about every element (its P2 chooses by a rule of ours). Commit {made['commit']}.

{chr(10).join(lines)}

"""


def raw_gradient():
    """The numbers of docs/RESULTS.md."""
    made, rows = rows_of("resnet20_flat", "step0150")
    sizes = json.loads((here / "sizes.json").read_text())
    sparsify = sorted(row["sparsify_ns"] for plan, row in rows.items() if plan != "memcpy")
    first, p0, p2 = (rows[plan] for plan in (plans[0], "index=bloom(policy=p0,fpr=0.001) value=raw", "index=bloom(policy=p2,fpr=0.001) value=raw"))
    joined = sizes["joined"]

    def fig8(plan):
        drawn = [row for row in sizes["fig8"] if row["plan"] == topr + plan]
        volume, error = (statistics.median(row[key] for row in drawn) for key in ("relative_volume", "relative_l2_error"))
        return f"{100 * volume:.2f} % and {error:.3f}"

    return f"""
A raw ResNet-20 gradient ({first['d']:,} values, a middle step of training), `sparsify=topr(ratio=0.01)` over its 59 tensors joined; {machine(made)}, medians; sparsify takes another {us(sparsify[len(sparsify) // 2])}.
The bound for a uniform support is {first['index_bound_bits_per_nonzero']:.2f} bits; this support is clustered, so a code may go below it. With a residual it is not: see [above](#a-residual-flattens-the-index-stream).

{table(rows)}

The coding error is the relative L2 error against the values that Top-r selected; the energy that is lost, ‖g − c‖² / ‖g‖², is against the whole gradient. P0's error comes from {p0['false_positives']:,.0f} values that it sends in addition: they are true, and it loses less energy than Top-r. P2 finds {100 * p2['index_recall']:.1f} % of the indices.
With Top-r in each tensor apart the frame of `auto` takes {100 * joined['bytes_by_tensor'] / (4 * first['d']):.3f} % instead of {100 * joined['relative_volume']:.3f} %.

The supports of LSTM gradients are more clustered: `golomb(adaptive=1)` takes {lstm_bits("golomb(adaptive=1)")} bits an index at 1 %, `gap_huffman` {lstm_bits("gap_huffman")}. On the tensor of the paper's Fig. 8 (20 seeds, median share of dense and coding error) `bloom(policy=p2,fpr=0.001)` + `qsgd` has {fig8("index=bloom(policy=p2,fpr=0.001) value=qsgd")},
`golomb` + `qsgd` {fig8("index=golomb value=qsgd")}, `auto` + `auto(error=0.07)` {fig8("index=auto value=auto(error=0.07)")}, SKCompress's preset {fig8("index=gap_huffman value=sketch(buckets=2)+huffman")}: [sizes.md](../bench/results/sizes.md). Times: [fig8.md](../bench/results/fig8.md).

"""


def with_parts(name, **parts):
    """The whole page, with each part between its comments."""
    text = (root / name).read_text(encoding="utf-8")
    for part, now in parts.items():
        word = part.replace("_", " ")
        begin, end = f"<!-- {word}: made by bench/results/readme.py -->\n", f"<!-- end of {word} -->\n"
        before, rest = text.split(begin)
        text = before + begin + now + end + rest.split(end)[1]
    return text


def readme_text():
    return with_parts("README.md", numbers=accumulator(), which_plan=which_plan_page.readme_table())


def results_text():
    return with_parts("docs/RESULTS.md", numbers=raw_gradient())


def pytorch_text():
    return with_parts("docs/PYTORCH.md", which_plan=which_plan_page.pytorch_table())


def pays_text():
    return with_parts("docs/PAYS.md", which_plan=which_plan_page.pays_table())


def main():
    names = ("README.md", "docs/RESULTS.md", "docs/PYTORCH.md", "docs/PAYS.md")
    if "--check" in sys.argv[1:]:
        return pages.check(names)
    for name in names:
        (root / name).write_text(pages.remade(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
