"""Makes reach.md: the targets, and the measurements.

    python3 bench/results/reach.py

Codecs by themselves come from peers.json and peers_avx2.json, whole calls from pipeline.json and pipeline_avx2.json (DEEPREDUCE_CPU=avx2), Fig. 8's times from fig8_laplace.json and its sizes over 20 seeds from sizes.json, P2's recall from
bloom_policies.json. Supports of accumulators and volumes come from the table of ratios (volumes: the smallest frame whose error is at most that of 7-bit QSGD). Data are accumulators where the table has one, and raw gradients where the row names them. The federation of paper.json stands beside its stand-in: the target comes from such a run.
Models that no package carries have stand-ins, which are named as that. Of several runs in a json the median counts. A row without a measurement has a note, and so does each limit that was missed.
"""

import csv
import json
import math
import pathlib
import statistics

from runs import median_ratio, runs_of

here = pathlib.Path(__file__).parent


def read(name):
    path = here / name
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


best, avx2, calls, sizes = read("peers.json"), read("peers_avx2.json"), read("pipeline.json"), read("sizes.json")
avx2_calls = read("pipeline_avx2.json")
STREAMVBYTE = "streamvbyte delta, SSSE3"


def row(made, name, codec, group="indices"):
    """The row of a set whose name begins so; None if it was not measured."""
    return next((r for r in made["rows"] if r["group"] == group and r["set"].startswith(name) and r["codec"] == codec and "bits" in r), None)


def rate(r, way):
    return statistics.median(runs_of(r[way], "median"))


def speeds(r):
    return f"{rate(r, 'encode'):.2f} / {rate(r, 'decode'):.2f} G"


def avx2_speeds(name, codec, group="indices"):
    """With AVX2 only, and × StreamVByte's of the same run; empty: not measured."""
    slower, peer = row(avx2, name, codec, group), row(avx2, name, STREAMVBYTE, group)
    if slower is None:
        return ""
    ratios = f" ({' / '.join(f'{median_ratio(slower[way], peer[way]):.2f}' for way in ('encode', 'decode'))} × StreamVByte's)" if peer else ""
    return f"; AVX2 {speeds(slower)}{ratios}"


def line(label, name, codec, group="indices"):
    """Bits and speeds of one codec on one set; with AVX2 only, and beside StreamVByte of the same run, where those were measured."""
    r = row(best, name, codec, group)
    if r is None:
        return None
    text = f"{label}: {r['bits']:.3f} bits"
    if "bits_over_local" in r:
        text += f", {r['bits_over_local']:+.3f} over the local entropy {r['local_entropy']:.2f}"
    elif "bits_over" in r:
        text += f", {r['bits_over']:+.3f}"
    elif "relative_l2_error" in r:
        text += f", error {r['relative_l2_error']:.2e} (squared {r['relative_l2_error'] ** 2:.1e})"
    text += f", {speeds(r)}"
    text += avx2_speeds(name, codec, group)
    if (peer := row(best, name, STREAMVBYTE)) and group == "indices":
        text += f"; {median_ratio(r['decode'], peer['decode']):.2f} × StreamVByte's decode, {100 * (1 - r['bits'] / peer['bits']):.0f} % fewer bits"
    return text


def lines(*of):
    return "<br>".join(text for text in of if text) or None


def smallest(name, among):
    """The registered codec that codes the set in the fewest bits."""
    rows = [r for r in best["rows"] if r["group"] == "indices" and r["set"] == name and r["of"] == "deepreduce" and "bits" in r and "support" not in r and among(r)]
    return min(rows, key=lambda r: r["bits"], default=None)


def captured():
    names = dict.fromkeys(r["set"] for r in best["rows"] if r["group"] == "indices" and "_step" in r["set"])
    texts = []
    for name in names:
        golomb, gaps, fewest = row(best, name, "golomb"), row(best, name, "gap_huffman"), smallest(name, lambda r: True)
        if golomb and gaps and fewest:
            texts.append(f"{name}: bound {golomb['bound']:.2f}, `golomb` {golomb['bits']:.2f}, `gap_huffman` {gaps['bits']:.2f}, {speeds(gaps)}{avx2_speeds(name, 'gap_huffman')}, "
                         f"least `{fewest['codec']}` {fewest['bits']:.2f}, {speeds(fewest)}{avx2_speeds(name, fewest['codec'])}")
    return "<br>".join(texts) or None


def dense():
    texts = []
    for r in ("300000", "600000", "900000"):
        name = next((x["set"] for x in best["rows"] if x["set"].startswith("uniform, d = 1e+06") and str(x["r"]) == r), None)
        bitmap, golomb, ours = (row(best, name, c) if name else None for c in ("bitmap", "golomb", "golomb"))
        if golomb:
            limit = min(golomb["bits"], bitmap["bits"]) if bitmap else golomb["bits"]
            texts.append(f"{int(r) // 10000} %: `golomb` {golomb['bits']:.3f} bits (bitmap {bitmap['bits']:.3f}), {ours['bits'] - limit:+.3f} over the better, {speeds(ours)}{avx2_speeds(name, 'golomb')}")
    return "<br>".join(texts) or None


def table_of_ratios(data, sparsify):
    with open(here.parents[1] / "tests" / "ratio" / "expected.csv", encoding="utf-8", newline="") as file:
        return [r for r in csv.DictReader(file) if r["data"] == data and r["plan"].startswith(sparsify or "index=") and r["bytes"].isdigit()]


def smallest_frame(data, sparsify, largest_error):
    """The smallest frame in the table of ratios whose relative L2 error is not larger."""
    return min((r for r in table_of_ratios(data, sparsify) if float(r["relative_l2_error"]) <= largest_error), key=lambda r: int(r["bytes"]))


# Parameters of the models.
RESNET, LSTM, NEUMF, TRANSFORMER = 269722, 485328, 376561, 610176
# An accumulator with feedback, where the table of ratios has one of that ratio: there is none of the LSTM at 10 %, and none is sparse, as the recommender's gradient is.
STAND_INS = {"stackoverflow": ("lstm_docs_step1500", "its raw gradient", "sparsify=topr(ratio=0.1)", LSTM, "0.1"),
             "mobilenet": ("resnet20_digits_residual_top10_step0225", "its accumulator", "sparsify=topr(ratio=0.1)", RESNET, "0.1"),
             "ncf_volume": ("neumf_names_step0600", "its raw gradient", "", NEUMF, "0.6")}
ACCUMULATORS = {"resnet20_digits_residual_top1_step0450": RESNET, "lstm_docs_residual_top1_step0500": LSTM, "neumf_names_residual_top1_step1000": NEUMF, "transformer_docs_residual_top1_step0400": TRANSFORMER}


def accumulated():
    """For each accumulator at Top-1 %: the bound of a uniform support, and [codec] bits an index of the exact codecs."""
    for data, d in ACCUMULATORS.items():
        bits, prefix = {}, "sparsify=topr(ratio=0.01) index="
        for row in table_of_ratios(data, prefix):
            codec, _, value = row["plan"].removeprefix(prefix).partition(" value=")
            if value == "raw" and row["relative_l2_error"] == "0":
                r = int(row["value_bytes"]) // 4
                bits[codec] = 8 * int(row["index_bytes"]) / r
        yield data, (math.lgamma(d + 1) - math.lgamma(r + 1) - math.lgamma(d - r + 1)) / math.log(2) / r, bits


def accumulated_bits():
    texts = []
    for data, bound, bits in accumulated():
        winner = min(bits, key=bits.get)
        texts.append(f"{data}: bound {bound:.2f}, " + ", ".join(f"`{c}` {bits[c]:.2f}" for c in ("golomb", "golomb(adaptive=1)", "gap_huffman")) + f", least `{winner}` {bits[winner]:.2f}")
    return lines(*texts)


def volumes(key):
    """Shares of dense f32: of the stand-in's raw gradient, and of a support and values without clusters."""
    data, kind, sparsify, d, density = STAND_INS[key]
    fewest = smallest_frame(data, sparsify, 0.075)
    found = [(f"{data}, a stand-in, {kind}", int(fewest["bytes"]) / (4 * d), fewest["plan"].removeprefix(sparsify).strip(), float(fewest["relative_l2_error"]))]
    if uniform := sizes.get("uniform", {}).get(density):
        found.append((f"uniform support of {100 * float(density):g} %, Laplace values", uniform["relative_volume"], uniform["plan"], uniform["relative_l2_error"]))
    return found


def federated():
    """(name, share of dense f32, down and up): messages of the FedAvg runs of paper.json, the experiment from which the target of StackOverflow comes;
    the mean of the seeds, as paper.md has it."""
    wires = {"log": "`golomb` + `log_quant`", "golomb_qsgd": "`golomb` + `qsgd`"}
    found: dict = {}
    for row in read("paper.json").get("rows", []):
        found.setdefault(row["wire"], []).append(row)
    return [(f"{name}, FedAvg with both directions, {way}", statistics.fmean(row[key] for row in found[wire])) for wire, name in wires.items() if wire in found for way, key in (("down", "volume_down"), ("up", "volume_up"))]


def word_lstm():
    """Volumes in the place of StackOverflow's: the stand-in's gradient, an accumulator, and messages of the federation, which has the paper's set-up."""
    run = next(run for run in read("accumulated.json")["runs"] if (run["model"], run["memory"], run["ratio"]) == ("lstm_docs", "residual", 0.1))
    seen = next(step for step in run["steps"] if step["kind"] == "seen")
    accumulator = f"lstm_docs, accumulator of step {seen['step']}: {seen['volume']['auto(error=0.07)']:.4f} by `index=auto value=auto(error=0.07)`, which no federation was run with"
    return lines(volume("stackoverflow"), accumulator, *(f"{name}: {share:.4f} of dense f32" for name, share in federated()))


def volume(key):
    return lines(*(f"{of}: {share:.4f} of dense f32 by `{plan}`, relative L2 error {error:.2g}" for of, share, plan, error in volumes(key)))


def figure(name, key="ratio", made=calls):
    """A figure of a row of pipeline_bench: times a counting pass, or seconds."""
    found = next((r for r in made["rows"] if name in r["name"]), None)
    return None if found is None else statistics.median(runs_of(found, key))


def call(name, unit="ratio"):
    found, slower = (figure(name, "ratio" if unit == "ratio" else "seconds", made) for made in (calls, avx2_calls))
    text = lambda x: f"{x:.2f} ×" if unit == "ratio" else f"{1e3 * x:.1f} ms"
    return None if found is None else text(found) + ("" if slower is None else f"; AVX2 {text(slower)}")


def times(*of, unit="ratio"):
    return lines(*(f"{label}: {call(name, unit)}" for label, name in of if call(name, unit)))


FIG8 = ("lloyd(levels=2)", "uniform_quant(error=0.1095)", "auto(error=0.07)")


def fig8_time(value):
    """Encode and decode, in µs."""
    plan = f"index={'auto' if value.startswith('auto') else 'golomb'} value={value}"
    found = next((r for r in read("fig8_laplace.json")["rows"] if r["plan"].endswith(plan)), None)
    return None if found is None else (plan, *(statistics.median(runs_of(found, way)) / 1e3 for way in ("encode_ns", "decode_ns")))


def fig8_sizes(plan):
    """[seed] volume and squared error."""
    return [(r["relative_volume"], r["relative_l2_error"] ** 2) for r in sizes.get("fig8", []) if r["plan"].endswith(plan)]


def fig8():
    texts = []
    for plan, encode, decode in filter(None, map(fig8_time, FIG8)):
        drawn = fig8_sizes(plan)
        volume, error = (statistics.median(draws) for draws in zip(*drawn)) if drawn else (float("nan"), float("nan"))
        texts.append(f"`{plan}`, median of {len(drawn)} seeds: {100 * volume:.3f} %, squared error {error:.2e} (relative {error ** 0.5:.3f}), encode {encode:.1f} µs, decode to dense {decode:.1f} µs")
    return lines(*texts)


def recovered():
    rows = [r for r in read("bloom_policies.json")["rows"] if r["policy"] == "p2" and r["layout"] == "standard"]
    return lines(*(f"d = {r['d']:,}, {100 * r['density']:g} %, fpr {r['fpr']:g}: {r['recovered']:.4f} (table {r['published']:.4f})" for r in rows))


UNIFORM = {"0.1 %": "uniform, d = 2.5e+07, r = 25000", "1 %": "uniform, d = 2.5e+07, r = 250000", "10 %": "uniform, d = 2.5e+07, r = 2.5e+06"}
LAPLACE = "laplace, Top-r 1 %"
QUANTISERS = ("uniform_quant", "uniform_quant(bits=5)", "log_quant", "lloyd(levels=8)", "lloyd(levels=2)", "qsgd")
PEERS = "`./dev bench peers`"
CALLS = "`build/bench/kernels/pipeline_bench "
RATIO = "`./dev ratio`; tests/ratio/expected.csv; `bench/results/sizes.py`"

ROWS = [
    # key, work, best elsewhere, reach, measured, how to repeat
    ("uniform", "Index sets, uniform, 0.1 / 1 / 10 %", "StreamVByte delta 16.2 / 10.6 / 10.0 bits at 4.8 / 5.3 G; Elias–Fano +0.49 bit at 0.9 / 3.4 G; gaps + Huff0 +0.08 bit at 0.7 / 0.8 G",
     "≤ +0.05 bit over log2 C(d, r) / r at ≥ 1.8 / 4.0 G indices/s with AVX-512, 1.0 / 1.5 with AVX2; ≥ 0.75 × StreamVByte's delta decode at 23 % fewer bits",
     lines(*(line(f"`golomb`, {k}", v, "golomb") for k, v in UNIFORM.items())), PEERS),
    ("avx2", "Without AVX-512: `DEEPREDUCE_CPU=avx2`", "StreamVByte's SSSE3 lines in the same run, 10 to 16.2 bits", "`golomb` ≥ 0.45 / 0.65 × StreamVByte's, 0.1 / 1 / 10 %; `gap_huffman` ≥ 0.3 / 0.6 G; quantisers ≥ 1 / 1.2 G values/s",
     lines(*(f"`{c}`, {k}: {text[2:]}" for c in ("golomb", "gap_huffman") for k, v in UNIFORM.items() if (text := avx2_speeds(v, c))),
           *(f"`{c}`, Laplace: {text[2:]}" for c in QUANTISERS if (text := avx2_speeds(LAPLACE, c, "values")))), "`python3 bench/results/avx2.py build/bench/peers/peers`; [avx2.md](avx2.md)"),
    ("clustered", "Index sets, clustered: lognormal density, σ = 1, 2", "plain Golomb blocks of 512 / 4096: 7.65 / 7.90 and 5.76 / 6.34 bits at local entropies of 7.34 and 5.15",
     "≤ +0.20 and ≤ +0.35 bit over the local entropy", lines(*(line(f"`{c}`, σ = {s}", f"clustered, lognormal sigma = {s},", c) for s in (1, 2) for c in ("golomb", "golomb(adaptive=1)", "gap_huffman"))), PEERS),
    ("accumulated", "Supports of accumulators (gradient + residual), Top-1 %", "log2 C(d, r) / r, which no code of uniform sets goes below", "below it", accumulated_bits(), "`./dev ratio`; tests/ratio/expected.csv"),
    ("captured", "Supports of raw gradients", "log2 C(d, r) / r", "below it", captured(), PEERS),
    ("sparse", "d / r = 10⁴", "Elias–Fano 15.2 bits", "≥ 1 / 2 G indices/s", line("`golomb`", "uniform, d = 2.5e+09", "golomb"), PEERS),
    ("dense", "Density 30 – 90 %", "a bitmap: 3.33 – 1.11 bits", "≥ 1 / 2 G indices/s; never over the better of bitmap and golomb by 0.1 bit", dense(), PEERS),
    ("values", "Values: tail of a Laplace gradient, Top-1 %", "int8 by absmax of 512: 8.06 bits at 4.6e-3; own uniform quantiser + Huff0 5.97 bits at 0.68 / 1.03 G; SZ3 10.2 bits at 1e-3",
     "relative L2 error ≤ 5.1e-3 at ≤ 5.85 bits, ≥ 1.8 / 4 G values/s", lines(*(line(f"`{c}`", LAPLACE, c, "values") for c in ("uniform_quant", "uniform_quant(bits=5)"))), PEERS),
    ("log_quant", "Values: `log_quant(bits=4)`, same data", "sign + log-uniform 4 bits, entropy-coded: 3.1 – 3.9 bits at 5.6e-4", "≤ 3.9 bits, squared error ≤ 6e-4, ≥ 0.8 / 1.2 G values/s",
     lines(line("`log_quant`", LAPLACE, "log_quant", "values")), PEERS),
    ("topr", "Exact Top-r, d = 25e6, 0.1 / 1 / 10 %", "x86-simd-sort 19 – 24 ms, nth_element 90 – 103 ms; a counting pass 2.8 – 3.1 ms", "≤ 1.2 / 1.5 / 2.6 × a counting pass", times(("0.1 %", "Top-0.1 %"), ("1 %", "Top-1 %, sorted"), ("10 %", "Top-10 %")), CALLS + "a`"),
    ("feedback", "The same with `feedback=residual`", "", "≤ 1.25 × a pass that reads g and m and writes m, plus the time without feedback less its counting pass", times(("encode with feedback, less what selection takes beyond counting, of that pass", "feedback, without"), ("the same with `uniform_quant`", "feedback, the same")), CALLS + "b`"),
    ("encode", "Dense gradient to frame, d = 25.6e6", "a counting pass", "≤ 1.7 × a counting pass", times(*((f"`golomb` + `{v}`", f"encode sparsify=topr(ratio=0.01) index=golomb value={v}") for v in ("raw", "qsgd", "uniform_quant"))), CALLS + "c`"),
    ("ncf", "NCF's gradient, d = 31.8e6", "0.56 s (BF-P2), 1.37 – 1.46 s (both)", "≤ 40 ms, Top-10 %, dense to frame to dense", times(*((f"`golomb` + `{v}`", f"there and back, {v}") for v in ("raw", "qsgd", "uniform_quant")), unit="ms"), CALLS + "e`"),
    ("merge", "Merge of 64 frames", "decode, and scatter one after the other", "≤ 1.5 × (decode alone + one scatter of the pairs)", times(("merge", "merge 64 frames, r")), CALLS + "d`"),
    ("fig8", "Fig. 8's tensor, d = 36,864, Top-1 %", "SKCompress 0.34 %, 709 + 2,277 ms on a CPU; BF-P2 + QSGD 0.70 %, 4.98 + 2.87 ms on a GPU; its error here is 0.064", "frame ≤ 0.33 %, squared error ≤ 1.2e-2, ≤ 10 µs there and back", fig8(), "`python3 bench/results/sizes.py` and `fig8.py`, both with `build/tool/deepreduce`"),
    ("stackoverflow", "A word LSTM in the place of StackOverflow's, Top-10 %", "0.0621 on StackOverflow (QSGD + BF-P0)", "≤ 0.031", word_lstm(), RATIO + "; `./dev paper`"),
    ("mobilenet", "ResNet-20 in the place of MobileNet, Top-10 %", "0.0713 on MobileNet", "≤ 0.036", volume("mobilenet"), RATIO),
    ("ncf_volume", "A small recommender in the place of NCF, 61 % dense", "0.2063 on NCF, 60 % dense (7-bit QSGD + BF-P0)", "≤ 0.13", volume("ncf_volume"), RATIO),
    ("p2", "P2: share of true indices recovered", "simulation of the paper's method (reference, 1.2)", "at least the table's", recovered(), "`python3 bench/results/bloom_policies.py`"),
]


# A limit: what it is of, what was measured, at least or at most so much.
def at_least(what, measured, limit):
    return what, measured, limit, measured >= limit


def at_most(what, measured, limit):
    return what, measured, limit, measured <= limit


def of_row(label, r, **limits):
    """Limits of a row of peers.json: encode and decode at least, all else at most."""
    return [at_least(f"{label} {key}", rate(r, key), limit) if key in ("encode", "decode") else at_most(f"{label} {key.replace('_', ' ')}", r[key], limit) for key, limit in limits.items()] if r else []


def of_uniform():
    for label, name in UNIFORM.items():
        ours, slower, peer = row(best, name, "golomb"), row(avx2, name, "golomb"), row(best, name, STREAMVBYTE)
        yield from of_row(label, ours, bits_over=0.05, encode=1.8, decode=4.0)
        yield from of_row(f"{label} AVX2", slower, encode=1.0, decode=1.5)
        if ours and peer:
            yield at_least(f"{label} decode ÷ StreamVByte's", median_ratio(ours["decode"], peer["decode"]), 0.75)
            yield at_least(f"{label} fewer bits, %", 100 * (1 - ours["bits"] / peer["bits"]), 23)


def of_avx2():
    for label, name in UNIFORM.items():
        ours, peer = row(avx2, name, "golomb"), row(avx2, name, STREAMVBYTE)
        if ours and peer:
            for way, limit in (("encode", 0.45), ("decode", 0.65)):
                yield at_least(f"`golomb` {label} {way} ÷ StreamVByte's", median_ratio(ours[way], peer[way]), limit)
        yield from of_row(f"`gap_huffman` {label}", row(avx2, name, "gap_huffman"), encode=0.3, decode=0.6)
    for codec in QUANTISERS:
        yield from of_row(f"`{codec}`", row(avx2, LAPLACE, codec, "values"), encode=1, decode=1.2)


def of_captured():
    for name in dict.fromkeys(r["set"] for r in best["rows"] if r["group"] == "indices" and "_step" in r["set"]):
        if gaps := row(best, name, "gap_huffman"):
            yield at_most(f"{name} bits", gaps["bits"], gaps["bound"])


def of_accumulated():
    for data, bound, bits in accumulated():
        yield at_most(f"{data} bits", min(bits.values()), bound)


def of_dense():
    for percent, r in (("30 %", 300000), ("60 %", 600000), ("90 %", 900000)):
        name = next((x["set"] for x in best["rows"] if x["set"].startswith("uniform, d = 1e+06") and x["r"] == r), "none")
        golomb, bitmap = row(best, name, "golomb"), row(best, name, "bitmap")
        yield from of_row(percent, golomb, encode=1, decode=2)
        if golomb and bitmap:
            yield at_most(f"{percent} bits over the better", golomb["bits"] - min(golomb["bits"], bitmap["bits"]), 0.1)


def of_calls(limit, key, *names):
    """`key` scaled to the limit's unit: a ratio, or ms."""
    for label, name in names:
        if (found := figure(name, key)) is not None:
            yield at_most(label, 1e3 * found if key == "seconds" else found, limit)


def of_fig8():
    for plan, encode, decode in filter(None, map(fig8_time, FIG8[:2])):
        drawn = fig8_sizes(plan)
        yield at_least(f"`{plan}` seeds that meet size and error", sum(volume <= 0.0033 and error <= 1.2e-2 for volume, error in drawn), len(drawn) or 1)
        yield at_most(f"`{plan}` µs", encode + decode, 10)


def of_squared(r, limit):
    return [at_most("squared error", r["relative_l2_error"] ** 2, limit)] if r else []


LOG_QUANT = row(best, LAPLACE, "log_quant", "values")
LIMITS = {
    "uniform": of_uniform(),
    "avx2": of_avx2(),
    "clustered": [check for s, limit in ((1, 0.2), (2, 0.35)) for check in of_row(f"`golomb(adaptive=1)`, σ = {s}", row(best, f"clustered, lognormal sigma = {s},", "golomb(adaptive=1)"), bits_over_local=limit)],
    "accumulated": of_accumulated(),
    "captured": of_captured(),
    "sparse": of_row("`golomb`", row(best, "uniform, d = 2.5e+09", "golomb"), encode=1, decode=2),
    "dense": of_dense(),
    "values": of_row("`uniform_quant`", row(best, LAPLACE, "uniform_quant", "values"), relative_l2_error=5.1e-3, bits=5.85, encode=1.8, decode=4),
    "log_quant": of_row("`log_quant`", LOG_QUANT, bits=3.9, encode=0.8, decode=1.2) + of_squared(LOG_QUANT, 6e-4),
    "topr": [*of_calls(1.2, "ratio", ("0.1 %", "Top-0.1 %")), *of_calls(1.5, "ratio", ("1 %", "Top-1 %, sorted")), *of_calls(2.6, "ratio", ("10 %", "Top-10 %"))],
    "feedback": of_calls(1.25, "ratio", ("`raw`", "feedback, without"), ("`uniform_quant`", "feedback, the same")),
    "encode": of_calls(1.7, "ratio", *((f"`{v}`", f"encode sparsify=topr(ratio=0.01) index=golomb value={v}") for v in ("raw", "qsgd", "uniform_quant"))),
    "ncf": of_calls(40, "seconds", *((f"`{v}` ms", f"there and back, {v}") for v in ("raw", "qsgd", "uniform_quant"))),
    "merge": of_calls(1.5, "ratio", ("merge", "merge 64 frames, r")),
    "fig8": of_fig8(),
    **{key: [at_most(what, share, limit) for what, share, _, _ in volumes(key)] for key, limit in (("mobilenet", 0.036), ("ncf_volume", 0.13))},
    "stackoverflow": [*(at_most(what, share, 0.031) for what, share, _, _ in volumes("stackoverflow")), *(at_most(name, share, 0.031) for name, share in federated() if "log_quant" in name)],
    "p2": [at_least(f"d = {r['d']:,}, {100 * r['density']:g} %, fpr {r['fpr']:g}", r["recovered"], r["published"]) for r in read("bloom_policies.json")["rows"] if r["policy"] == "p2" and r["layout"] == "standard"],
}


def verdict(key):
    checks = list(LIMITS[key])
    missed = [f"{what} {measured:.4g} of {limit:g}" for what, measured, limit, good in checks if not good]
    return "not measured yet" if not checks else f"met, all {len(checks)}" if not missed else f"**missed**, {len(missed)} of {len(checks)}: " + "; ".join(missed)


def remade():
    """reach.md, of what is kept."""
    facts = " ".join(f"`{name}.json`: commit {made['commit']}, {made['date']}, {made['machine'].get('cpu')}, runs: {made.get('runs', 1)}." for name, made in (("peers", best), ("peers_avx2", avx2)) if made["rows"])
    parts = ["# Reach\n\nTargets (*reach*), the best result found elsewhere, and the measurements. Made by `reach.py`; encode / decode, medians of one thread, 10⁹ a second. "
             "Speeds elsewhere were measured on another machine (an Intel Xeon with AVX-512), and papers' volumes on their own data: only ratios within one run, and rows on the same tensor, are like for like. "
             f"Each limit is checked by itself; a missed one is shown with its measurement. {facts}",
             "| work | best elsewhere | reach | met | measured | how to repeat |\n|---|---|---|---|---|---|\n" + "\n".join(
                 f"| {work} | {elsewhere} | {reach} | {verdict(key)} | {found or 'not measured yet'} | {how} |" for key, work, elsewhere, reach, found, how in ROWS)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    (here / "reach.md").write_text(remade(), "utf-8")
