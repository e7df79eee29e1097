"""Writes patch.md from patch.json, which bench/patch/rivals.py measures and bench/patch/large.py adds to.

    python3 bench/results/patch_page.py
"""

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

here = Path(__file__).resolve().parent
Row = Dict[str, Any]

AUTO, GOLOMB, VALUES = "ours: auto", "ours: golomb + ulp", "ours: golomb + values"
PUBLIC = "ours: deepreduce.patch"
OURS = (AUTO, GOLOMB, VALUES, f"{AUTO}, without sums", PUBLIC)
SHARES = {"int32 + value": 0.16, "u16 gaps + value + zstd -1": 0.35, "u16 gaps + xor + zstd -1": 0.55, "xor + zstd -1": 0.37}
ABOUT_ONE = (0.007, 0.016)  # share changed that counts as about 1 %
BUSY = 0.5  # load, as in results.py

INTRO = """# Patches of weights: ours beside what others send

Made by `patch_page.py` from `patch.json`. Repeat: `python -m bench.patch.record` (records, {minutes} minutes of one core; without it the bundled recordings are read), `python -m bench.patch.rivals`, `python3 bench/results/patch_page.py`.

- A patch takes the weights that a receiver has to those of the sender, bit for bit. **Every result was compared with the sender's words before it was timed**; a code that failed would be a stopped run.
- *Recordings*: [datasets](../../datasets/README.md#weights). `gpt rl_1e-06_8` is the GPT after 8 steps of policy gradient at a rate of 1e-6, against the weights before. A model is one tensor of all its weights here.
- *Ours* are whole calls of the C ABI: a frame with its header, the checks of base and result, and the check of its bytes. `auto` is the preset `patch`, `sparsify=changed index=auto value=ulp`; its index goes by classes of the base's magnitude where that is shorter.
  Sender and receiver have the base's sums from the patch before; *without sums* they read the base for its check. Others send no check.
  `deepreduce.patch` is the Python call on the model as a dict of its tensors, without sums: `auto` for tensors that share a frame, with all that names the tensors; of the synthetic tensor it is one.
- *int32 + value* and the gaps are in numpy, as the projects that send them have it; xor is numpy's, zstd is libzstd {zstd} in memory. `zstd --patch-from` and `xdelta3` are the programs on files in shared memory: their own CPU time, start and all. `openzl` gets the exclusive or; it knows no base.
  {missing}
- CPU time of one thread; all took turns in each of {rounds} rounds on the synthetic tensor, median [first, third quartile]. What takes longer than a fifth of a second was timed once. zstd -19 and xdelta3 did not run on the synthetic tensor.
- {cpu}, instructions: {level}; {date}, commit {commit}{newer}; load of the machine before {load}, after {load_after}.{busy}
"""


def rate(words: int, seconds: float) -> str:
    return f"{words / seconds / 1e9:.2f}" if words / seconds >= 1e7 else f"{words / seconds / 1e9:.3f}"


def line(cells: List[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def ruled(head: List[str], rows: List[List[str]]) -> str:
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)]) + "\n"


def by_name(pair: Row) -> Dict[str, Row]:
    return {row["what"]: row for row in pair["rows"] if "bytes" in row}


def share(pair: Row) -> float:
    return pair["changed"] / pair["words"]


def percent(x: float) -> str:
    return f"{100 * x:.3g} %"


def recorded(made: Row) -> List[Row]:
    return [pair for pair in made["pairs"] if not pair["data"].startswith("synthetic")]


def synthetic(made: Row) -> List[Row]:
    return [pair for pair in made["pairs"] if pair["data"].startswith("synthetic")]


def names(pairs: List[Row]) -> List[str]:
    return list(dict.fromkeys(row["what"] for pair in pairs for row in pair["rows"] if "bytes" in row))


# ---- tables --------------------------------------------------------------------------------------------------------


def sizes(pairs: List[Row]) -> str:
    columns = [name for name in names(pairs) if not name.endswith("without sums")]
    head = ["data", "type", "changed", "entropy: one class", "by exponent", *columns]
    rows = []
    for pair in sorted(pairs, key=lambda p: (p["kind"] != "bf16", p["kind"], share(p))):
        found, changed = by_name(pair), max(1, pair["changed"])
        bits = {name: 8 * row["bytes"] / changed for name, row in found.items()}
        smallest = min(bits, key=lambda name: bits[name])
        cells = [(f"**{bits[name]:.2f}**" if name == smallest else f"{bits[name]:.2f}") if name in bits else "" for name in columns]
        entropy = [f"{pair['uniform index'] + pair['uniform value']:.2f}", f"{pair['exponent index'] + pair['exponent value']:.2f}"] if "uniform index" in pair else ["", ""]
        rows.append([pair["data"], pair["kind"], percent(share(pair)), *entropy, *cells])
    return ruled(head, rows)


def cell(row: Optional[Row], key: str, words: int) -> str:
    if not row or key not in row:
        return ""
    s = row[key]
    return f"{rate(words, s['median'])} [{rate(words, s['high'])}, {rate(words, s['low'])}]" if s["runs"] > 1 else rate(words, s["median"])


def speeds(pairs: List[Row], key: str) -> str:
    head = ["changed", *names(pairs)]
    rows = [[percent(share(pair)), *(cell(by_name(pair).get(name), key, pair["words"]) for name in names(pairs))] for pair in pairs]
    return ruled(head, rows)


def contexts(rows: List[Row]) -> str:
    columns = list(rows[0]["bits"])
    made = []
    for name in columns:
        cells = []
        for row in rows:
            bits, plain = row["bits"][name], row["bits"]["exponent"]
            cells.append(f"{bits:.2f} ({100 * (bits / plain - 1):+.1f} %)")
        made.append([name, *cells])
    return ruled(["context", *(f"{row['data']}: {percent(row['changed'])} changed" for row in rows)], made)


def chains(rows: List[Row]) -> str:
    head = ["chain", "changed a step", "`patch`", "`patch_chain`", "fewer", "fewer, last 8 steps"]
    made = []
    for row in rows:
        plain, chain = row["patch"], row["patch_chain"]
        fewer = [f"{100 * (1 - chain[key] / plain[key]):.1f} %" for key in ("bytes", "last")]
        sizes = [f"{encoded['bytes']:,} bytes, {encoded['bits']:.2f} bits a change" for encoded in (plain, chain)]
        made.append([f"{row['data']}, {row['patches']} patches", percent(row["changed"]), *sizes, *fewer])
    return ruled(head, made)


# ---- what was asked for --------------------------------------------------------------------------------------------

Verdict = Tuple[str, str, str, bool]  # what, asked, measured, met


def sizes_asked(pairs: List[Row]) -> Iterator[Verdict]:
    bf16 = [pair for pair in pairs if pair["kind"] == "bf16"]
    ones = [pair for pair in bf16 if ABOUT_ONE[0] <= share(pair) <= ABOUT_ONE[1]]
    for name, limit in ((AUTO, 7.4), (GOLOMB, 10.0)):
        bits = {f"{pair['data']} ({percent(share(pair))})": 8 * by_name(pair)[name]["bytes"] / pair["changed"] for pair in ones}
        yield f"bits a changed weight at about 1 %, {name}", f"≤ {limit}", ", ".join(f"{d}: {b:.2f}" for d, b in bits.items()), all(b <= limit for b in bits.values())
    for rival, limit in SHARES.items():
        ratios = {pair["data"]: by_name(pair)[AUTO]["bytes"] / by_name(pair)[rival]["bytes"] for pair in ones}
        yield f"bytes at about 1 %, {AUTO}, beside {rival}", f"≤ {limit} ×", ", ".join(f"{d}: {x:.3f}" for d, x in ratios.items()), all(x <= limit for x in ratios.values())
    for ours, what in ((AUTO, "the model as one tensor"), (PUBLIC, "the model as a dict")):
        lost = []
        for pair in pairs:
            found = by_name(pair)
            mine = found[ours]["bytes"]
            better = {name: row["bytes"] for name, row in found.items() if name not in OURS and row["bytes"] <= mine}
            lost += [f"{pair['data']} {pair['kind']}, {percent(share(pair))}: {name} {mine / size:.3f} ×" for name, size in better.items()]
        yield f"fewer bytes than all others in every row, {ours}, {what}", "all", f"{len(pairs)} rows; " + ("; ".join(lost) or "all"), not lost


def speeds_asked(pairs: List[Row], level: str) -> Iterator[Verdict]:
    """At about 1 %, on the synthetic tensor."""
    pair = min(pairs, key=lambda p: abs(share(p) - 0.01))
    found, words, at = by_name(pair), pair["words"], percent(share(pair))
    wide = level == "avx512"
    for name, minimum in ((GOLOMB, 3 if wide else 2), (AUTO, 1.5 if wide else 0.8)):
        got = words / found[name]["make_s"]["median"] / 1e9
        yield f"make, {name}, {at} changed, {level}", f"≥ {minimum} G weights/s", f"{got:.2f}", got >= minimum
    got = words / found[AUTO]["apply_s"]["median"] / 1e9
    yield f"apply, {AUTO}, {at} changed, {level}", f"≥ {1.5 if wide else 0.8} G weights/s", f"{got:.2f}", got >= (1.5 if wide else 0.8)
    ns = 1e9 * found[GOLOMB]["apply_s"]["median"] / pair["changed"]
    yield f"apply, {GOLOMB}, {at} changed, {level}", "≤ 15 ns a changed weight", f"{ns:.1f}", ns <= 15
    if "xor + zstd -1" in found:
        for name in (AUTO, GOLOMB):
            times = found["xor + zstd -1"]["make_s"]["median"] / found[name]["make_s"]["median"]
            yield f"make, {name}, beside xor + zstd -1", "≥ 2 × as fast", f"{times:.1f} ×", times >= 2


def large_asked(large: Row) -> Iterator[Verdict]:
    both, limit = (large["make_s"] + large["apply_s"]) / large["reading_and_writing_s"], 1.3
    yield f"files of {large['file_bytes'] / 1e9:.1f} GB, make and apply by the tool", f"≤ {limit} × reading both and writing one", f"{both:.2f} ×", both <= limit
    peak = max(large["make_rss"], large["apply_rss"]) / 2**30
    yield "memory of the tool there, without mapped files", "≤ 1 GiB", f"{peak:.2f} GiB", peak <= 1


def asked(made: Row) -> str:
    rows = [*sizes_asked(recorded(made))]
    if synthetic(made):
        rows += speeds_asked(synthetic(made), made["level"])
    if made.get("avx2"):
        rows += speeds_asked([pair for pair in made["avx2"] if pair["data"].startswith("synthetic")], "avx2")
    if made.get("large"):
        rows += large_asked(made["large"])
    return ruled(["what", "asked", "measured", ""], [[*row[:3], "met" if row[3] else "**missed**"] for row in rows])


def report(made: Row) -> str:
    missing = {row["what"]: row["missing"] for pair in made["pairs"] for row in pair["rows"] if "missing" in row}
    missing["nvCOMP"] = "it runs on a GPU, and none was there"
    sentence = "Not timed: " + "; ".join(f"{name} ({why})" for name, why in missing.items()) + "."
    load = made["speed_load"] if "speed_load" in made else max(made["load"], made["load_after"] - 1)
    busy = " **The machine was at work: times are longer than on a quiet one.**" if load > BUSY else ""
    facts = {key: made[key] for key in ("rounds", "cpu", "level", "date", "commit", "load", "load_after", "zstd")}
    newer = f", the synthetic tensor at {made['speed_commit']} (load {made['speed_load']})" if "speed_commit" in made else ""
    newer += f", the bytes of ours at {made['sizes_commit']}" if "sizes_commit" in made else ""
    text = INTRO.format(**facts, newer=newer, minutes=made.get("record_minutes", "a few"), missing=sentence, busy=busy)
    text += "\n## Asked for\n\n" + asked(made)
    text += "\n## Bits a changed word\n\nHeader and checks included. *Entropy*: of which words change and by how much, in one class, and by the exponent of the base (`bench/patch/entropy.py`); the smallest of a row is bold.\n\n"
    text += sizes(recorded(made))
    if synthetic(made):
        text += f"\n## Speed, G words/s\n\nA synthetic tensor of {synthetic(made)[0]['words'] / 2**20:.0f} M normal bf16 weights and Laplace steps, which is larger than the caches. *Make*, from base and result to bytes:\n\n"
        text += speeds(synthetic(made), "make_s")
        text += "\n*Apply*, in place:\n\n" + speeds(synthetic(made), "apply_s")
        if made.get("avx2"):
            pairs = [pair for pair in made["avx2"] if pair["data"].startswith("synthetic")]
            text += "\nOurs at the level of AVX2, make, then apply:\n\n" + speeds(pairs, "make_s") + "\n" + speeds(pairs, "apply_s")
        text += "\nBits a changed word there:\n\n" + sizes(synthetic(made))
    text += "\n## Where ours is worse\n\n" + worse(made)
    if made.get("contexts"):
        text += CONTEXTS + "\n" + contexts(made["contexts"])
    if made.get("chains"):
        text += CHAINS + "\n" + chains(made["chains"])
    if made.get("large"):
        text += large_text(made["large"])
    return text


def worse(made: Row) -> str:
    """Who is faster at about 1 %."""
    lines = []
    if synthetic(made):
        pair = min(synthetic(made), key=lambda p: abs(share(p) - 0.01))
        found = by_name(pair)
        for key, verb in (("make_s", "makes"), ("apply_s", "applies")):
            for name in (AUTO, GOLOMB):
                faster = [f"{other} {found[name][key]['median'] / row[key]['median']:.1f} ×" for other, row in found.items() if other not in OURS and row[key]["median"] < found[name][key]["median"]]
                lines.append(f"- At {percent(share(pair))} changed, faster than {name}, which {verb} {rate(pair['words'], found[name][key]['median'])} G words/s: {', '.join(faster) or 'none'}.")
    return "\n".join(lines) + "\n"


CONTEXTS = """
## Further context

Bits a changed word, index and distance together, mean of the last 8 patches of a chain of consecutive steps, as two-part codes cost (`bench/patch/entropy.py`); in brackets beside the exponent alone, which is what `auto` approaches. *Age*: patches since the word changed last;
*direction*: which way; *past* of a row or column: how often its words changed in the chain beside what their exponents let expect. Age, direction and past need memory of the chain on both sides; the others need none. `index=history` and `value=history` go by the exponent, age and direction, and by how long a word had stood.
"""


CHAINS = """
## Chains

Patches of consecutive steps, as `deepreduce.patch` makes them of all weights as one tensor, headers included, without and with a history of the earlier ones (`bench/patch/chain_bytes.py`). Every patch was applied, and the result compared.
"""


def large_text(large: Row) -> str:
    return f"""
## Large files

Two safetensors of {large['file_bytes'] / 1e9:.2f} GB in bf16, {percent(large['changed'])} changed, by `deepreduce patch` (`bench/patch/large.py`, commit {large['commit']}, load before {large['load']}; the files' pages were dropped before reading and before make); the patch has {large['patch_bytes'] / 1e6:.1f} MB. Result: SHA-256 equal.{large.get('note', '')}

| | seconds | of CPU | GB/s of a file | memory without mapped files |
|---|---|---|---|---|
| reading both, then copying one to the disk | {large['reading_and_writing_s']:.1f} ({large['reading_s']:.1f} + {large['writing_s']:.1f}) | | | |
| make | {large['make_s']:.1f} | {large['make_cpu_s']:.1f} | {large['file_bytes'] / large['make_s'] / 1e9:.2f} | {large['make_rss'] / 2**20:.0f} MiB |
| apply to a new file | {large['apply_s']:.1f} | {large['apply_cpu_s']:.1f} | {large['file_bytes'] / large['apply_s'] / 1e9:.2f} | {large['apply_rss'] / 2**20:.0f} MiB |
"""


def remade() -> str:
    """patch.md, of what is kept."""
    return report(json.loads((here / "patch.json").read_text("utf-8")))


if __name__ == "__main__":
    (here / "patch.md").write_text(remade(), "utf-8")
