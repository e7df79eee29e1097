"""Makes avx2.md: codecs at the AVX2 level, beside StreamVByte and what we set out to reach.

    python3 bench/results/avx2.py build/bench/peers/peers [--rounds N]      # measure peers_avx2.json, then write: five runs, 15 minutes
    python3 bench/results/avx2.py                                           # write from what is kept
"""

import json
import pathlib
import sys

from peers import SHOWN, STREAMVBYTE, measure, speed
from runs import median_ratio

here = pathlib.Path(__file__).parent
UNIFORM = ("uniform, d = 2.5e+07, r = 25000", "uniform, d = 2.5e+07, r = 250000", "uniform, d = 2.5e+07, r = 2.5e+06")
QUANTISERS = ("uniform_quant", "log_quant", "lloyd", "qsgd")

LIMITS = """## What limits them

An estimate is of operations on 32 indices, from the code; cycles are of one thread of an AMD EPYC at 3.8 GHz whose virtual machine has no counters, in the cache, blocks of 4096; Zen 3 is llvm-mca's model of it.

- **`golomb` decode** must read 1 to 2 bytes an index and write 4. 12 cycles of 41 turn the unary string into positions: a load from a table of 4 KB, an addition and a store for each byte, as many as the front end takes. The rest
  was not operations but waiting: the way from a field over its extra bit (pdep) to its index is about 60 cycles, and the schedulers of vector units see fewer operations ahead than one step has (Zen 3: 83 % of its cycles). Two
  loops, the first of which ends with the extra bits in memory, took 48 to 41. Tried, and the same in one loop: shifts as multiplications (fewer on the two shuffle ports), a loop without its bounds' checks, no chain from index to index.
- **`golomb` encode** must choose between two divisors, so each gap is divided three times. 15 cycles of 50 are gaps and the two sizes: exact quotients by one high multiplication and a shift (before: a correction), sums in 16 bits that
  stay in registers (before: 28). 15 to 19 are quotients, v and extra bits of the one that was chosen; 17 are unary codes, by a pext of eight bytes with one bit each: 1 of 8 groups of 32 has a quotient above 7, which is a misprediction. Before,
  codes were merged in pairs (29 operations for eight, now 11). Tried: a table of four quotients of 2 bits fails too often (22 %); 16 bits a quotient without a branch costs what it saves; sixteen codes one by one where one is long, 4
  cycles more; the last group apart, the same. StreamVByte has nothing to choose, and writes whole bytes: at 0.1 %, where v has 9 bits and eight of them need two words, the ratio is lowest.
- **`gap_huffman` encode** was scalar: one branch for each 64 bits, as good as random, for words and for extras. Now five words are joined in a register before they are appended (2.4 G by itself), extras in eights where they fit 56 bits; what is
  left is half counting symbols and making codes. **Decode** waits for look-ups of the code (a load each six symbols at most); extras come from a shuffle of 16 bytes. Supports below 4096 indices are limited by making a code and its table, at every level.
- **Quantisers.** `log_quant` and `lloyd` searched bounds and looked numbers up one at a time; a vpermd does eight. `uniform_quant` decode mispredicted a loop count for each word of its unary string: a table of bytes has none.
  `lloyd` encode is limited by Lloyd's iteration, at every level (AVX-512: the same), why `log_quant` of values below its range (gauss, NeuMF's nonzeros) encodes at 0.6 to 0.8 G at every level was not found: its mean of those, without a branch, gave a tenth; `qsgd` encode by two 64-bit multiplications and a division in f64 for each value, which AVX2 has to make of others: 4 cycles a value."""


def rows_of(name):
    path = here / name
    made = json.loads(path.read_text()) if path.exists() else {"rows": []}
    return made, {(r["group"], r["set"], r["codec"]): r for r in made["rows"] if "bits" in r}


def ratio(rows, key, way):
    peer = rows.get((*key[:2], STREAMVBYTE))
    return median_ratio(rows[key][way], peer[way]) if peer else None


def cells(rows, key):
    """Encode and decode, each with what it is of StreamVByte's in the same run."""
    if key not in rows:
        return ["", ""]
    times = [ratio(rows, key, way) for way in ("encode", "decode")]
    return [speed(rows[key], way) + (f"; {of:.2f} ×" if of else "") for way, of in zip(("encode", "decode"), times)]


def verdict(rows, key):
    """What was to be reached of a row, and whether it is."""
    group, name, codec = key
    row = rows[key]
    if codec == "golomb" and name in UNIFORM:
        found, goals, unit = [ratio(rows, key, way) for way in ("encode", "decode")], (0.45, 0.65), "×"
    elif codec == "gap_huffman":
        found, goals, unit = [row[way]["median"] for way in ("encode", "decode")], (0.3, 0.6), "G"
    elif group == "values":
        found, goals, unit = [row[way]["median"] for way in ("encode", "decode")], (1.0, 1.2), "G"
    else:
        return ""
    verdicts = ["met" if f >= w else f"**missed** ({f:.2f})" for f, w in zip(found, goals)]
    return f"{goals[0]} / {goals[1]} {unit}: {verdicts[0] if verdicts[0] == verdicts[1] else ' / '.join(verdicts)}"


def table(group, codecs, rows):
    lines = ["| set | codec | encode | decode | reach |", "|---|---|---:|---:|---|"]
    for key in rows:
        if key[0] == group and codecs(key[2]) and (key[:2] in SHOWN or "missed" in verdict(rows, key)):
            encode, decode = cells(rows, key)
            lines.append(f"| {key[1]} | `{key[2]}` | {encode} | {decode} | {verdict(rows, key)} |")
    return "\n".join(lines)


def facts(made):
    return f"commit {made.get('commit')}, {made.get('date')}, {made.get('machine', {}).get('cpu')}, {made.get('rounds')} rounds"


def remade():
    """avx2.md, of what is kept."""
    made, rows = rows_of("peers_avx2.json")
    parts = [
        "# Without AVX-512\n\nMade by `avx2.py`, at `DEEPREDUCE_CPU=avx2`: 10⁹ a second of one thread's CPU time, of several runs the median (slowest – fastest), of one its median (quartiles); × StreamVByte's SSSE3 lines in the same run. "
        f"{facts(made)[0].upper() + facts(made)[1:]}. Rows of "
        "three sets, and of others those that missed; all are in [peers_avx2.json](peers_avx2.json). The other codecs, and AVX-512 beside, are in [peers.md](peers.md).",
        "## Indices\n\n" + table("indices", lambda c: c in ("golomb", "rice", "golomb(adaptive=1)", "gap_huffman"), rows),
        "## Values\n\n" + table("values", lambda c: c.split("(")[0] in QUANTISERS, rows),
        LIMITS,
        "## Not done\n\nNEON is not timed. No run on a CPU without AVX-512: the level was measured on one that has it.",
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], sys.argv[2:], {"peers_avx2": "avx2"})
    (here / "avx2.md").write_text(remade(), "utf-8")
