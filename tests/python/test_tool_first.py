"""The tool `deepreduce`: the first command answers: few lines, no wider than the terminal, a summary last."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios

import pytest
from tool_runs import DATASETS, EXACT, LOSSY, SYNTH, TOOL, TOPR, compare, needs_tool, run, words_of

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

pytestmark = needs_tool
RAW = TOPR + "index=raw value=raw"
MODEL = DATASETS / "gradients/resnet20_digits_step0150.npz"


def on_terminal(width, *arguments, stream="stdout", **variables):
    """What a run writes to a terminal of so many columns, as its stdout or its stderr."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"} | variables
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    with subprocess.Popen([TOOL, *map(str, arguments)], env=environment, **{stream: theirs, other: subprocess.DEVNULL}) as process:
        os.close(theirs)
        seen = b""
        while select.select([ours], [], [], 120)[0]:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            seen += part
    os.close(ours)
    assert process.returncode == 0
    return seen.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Lines of the first command of README, but for the rounds."""
    report = tmp_path_factory.mktemp("first") / "report.html"
    done = run("compare", "--report", report, "--repeat", 1)
    assert all(line.startswith("deepreduce: input ") for line in done.stderr.decode().splitlines())  # of a slow machine
    assert report.exists()
    return done.stdout.decode().splitlines(), report


def test_the_first_command_has_at_most_42_lines_of_80_columns(first):
    lines, _ = first
    assert 20 < len(lines) <= 42 and max(map(len, lines)) <= 80
    assert lines[0].startswith("4 bundled inputs, summed, d = 1,741,787, 6.97 MB as f32")
    assert not any("differ by less" in line for line in lines)


def test_its_last_lines_are_a_summary_and_the_report(first):
    lines, report = first
    text = "\n".join(lines)
    labels = re.findall(r"^(smallest|fastest|best exact|pays|training|dense bf16|next|report):", text, flags=re.M)
    assert labels[:2] == ["smallest", "fastest"] and [label for label in labels[2:] if label != "best exact"] == ["pays", "training", "dense bf16", "next", "report"]
    assert lines[-1] == f"report: {report}"
    assert "deepreduce predict" in text and "residual" in text
    assert "the residual sends the others later" in words_of(text) and "dense bf16: ×2, exact here (values of 8 bits)" in words_of(text)


def test_the_summary_says_what_training_showed_for_the_smallest_plan_and_names_one_that_trained(first):
    """The smallest, the fastest and the best exact plan are all of Top-0.1 %, which no training bears."""
    training = words_of("\n".join(first[0]).partition("\ntraining:")[2].partition("\ndense bf16:")[0])
    plan, better, worse = re.fullmatch(r"×[\d.,]+: (sparsify=.*?): (.*)\. The smallest: (.*)", training).groups()
    assert plan.startswith("sparsify=topr(ratio=0.1) feedback=residual ") and better.startswith("Top-10 % with a residual was as good as dense on 3 of 6")
    assert worse.startswith("Top-1 % with a residual scored worse than dense on 5 of 6 models")


def test_a_summary_of_plans_that_no_training_bears_says_so():
    text = words_of(run("compare", SYNTH, "--repeat", 1, "--plan", EXACT, "--plan", LOSSY).stdout.decode())
    assert "training: the smallest: what is not sent is lost without feedback=residual" in text
    text = words_of(run("compare", SYNTH, "--repeat", 1, "--plan", "index=all value=uniform_quant(bits=4) feedback=residual", "--plan", "index=all value=sign").stdout.decode())
    assert ": 8 and 4 bits with a residual were within 0.01 of dense's loss" in text and "The smallest: no training of such a plan is recorded" in text
    text = run("compare", SYNTH, "--repeat", 1, "--plan", "sparsify=topr(ratio=0.01) feedback=residual", "--plan", "sparsify=topr(ratio=0.01) feedback=residual value=half").stdout.decode()
    assert "training:   the smallest: Top-1 % with a residual" in text and "the residual sends the others later" in words_of(text)


def test_a_locale_without_utf_8_gets_ascii_and_a_dumb_terminal_no_sequences():
    words = ("compare", SYNTH, "--repeat", 1, "--plan", "index=golomb|raw sparsify=topr(ratio=0.01) value=auto(error=0.05)", "--wide")
    utf8, ascii_ = (run(*words, env={**os.environ, "LC_ALL": locale}) for locale in ("en_US.UTF-8", "C"))
    assert "×" in utf8.stdout.decode() and "→" in utf8.stdout.decode() and "2 plans × 1 input" in utf8.stderr.decode()
    assert ascii_.stdout.isascii() and b"->" in ascii_.stdout and b"2 plans x 1 input" in ascii_.stderr
    lines = [line for line in ascii_.stdout.decode().splitlines() if " us" in line]
    assert lines and run("compare", "--help", env={**os.environ, "LC_ALL": "POSIX"}).stdout.isascii()
    dumb = [on_terminal(80, "compare", SYNTH, "--repeat", 5, "--plan", EXACT, "--plan", LOSSY, TERM="dumb", stream=stream) for stream in ("stdout", "stderr")]
    assert "\x1b" not in "".join(dumb) and "\r" not in "".join(dumb)


def test_its_five_columns_are_the_numbers_of_the_rows(first):
    text = "\n".join(first[0])
    document = json.loads(run("compare", "--repeat", 1, "--format", "json").stdout)
    by_plan = {}
    for row in document["rows"]:
        by_plan.setdefault(row["plan"], []).append(row)
    assert all(len(rows) == 4 for rows in by_plan.values()) and len(by_plan) == 14
    for ratio, streams in (("0.01", "index=golomb value=log_quant"), ("0.001", "index=golomb value=raw")):
        plan = f"sparsify=topr(ratio={ratio}) feedback=residual {streams}"
        rows = by_plan[plan]
        section = text.partition(f"sparsify=topr(ratio={ratio}) feedback=residual: sends ")[2]
        line = next(line for line in section.splitlines() if line.strip().startswith(streams))
        smaller, error = line.removeprefix(" " * 4 + streams).replace("~", "").split()[:2]
        times = 4 * sum(row["d"] for row in rows) / sum(row["bytes"] for row in rows)
        assert float(smaller.replace("×", "").replace(",", "")) == pytest.approx(times, rel=0.01)
        energy = sum(row["kept_energy"] for row in rows)
        coding = (sum(row["relative_l2_error"] ** 2 * row["kept_energy"] for row in rows) / energy) ** 0.5
        assert float(error) == pytest.approx(100 * coding if coding else 0, rel=0.02)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_a_table_is_as_wide_as_the_terminal_and_breaks_no_word(width):
    arguments = ("compare", SYNTH, "--repeat", 5)
    plans = [word for plan in (EXACT, TOPR + "index=golomb value=uniform_quant(bits=8)", "sparsify=topr(ratio=0.1) index=auto value=auto(error=0.05)",
                               "index=all value=half(type=bf16)") for word in ("--plan", plan)]  # fmt: skip
    text = on_terminal(width, *arguments, *plans, NO_COLOR="1")
    assert max(map(len, text.splitlines())) <= width and "\x1b" not in text
    if width >= 60:
        for word in ("value=uniform_quant(bits=8)", "index=golomb", "sparsify=topr(ratio=0.01)", "value=auto(error=0.05)", "value=half(type=bf16)"):
            assert word in text
    assert ("pays\n" in text.partition("index=golomb ")[0]) == (width >= 80)  # what stands on the right goes first
    assert (" size " in text) == (width >= 120)


def test_one_plan_is_bold_on_a_terminal_that_has_colours():
    words = ("compare", SYNTH, "--repeat", 5, "--plan", EXACT, "--plan", LOSSY, "--plan", RAW)
    text = on_terminal(100, *words)
    assert text.count("\x1b[1m") == text.count("\x1b[0m") == 1
    assert "\x1b" not in on_terminal(100, *words, NO_COLOR="1") and b"\x1b" not in run(*words).stdout


def test_progress_has_a_count_and_is_no_longer_than_the_line():
    words = ("compare", "synth:d=300000", "synth:d=400000", "--time", "0.3", "--plan", EXACT, "--plan", LOSSY, "--plan", TOPR + "index=bloom(policy=p2,fpr=0.001) value=qsgd")
    text = on_terminal(50, *words, stream="stderr")
    shown = text.split("\r\x1b[K")
    assert max(map(len, shown)) < 50
    assert any(line.startswith("input 1/2, plan 2/3") for line in shown) and any(line.startswith("input 2/2, round ") for line in shown)
    left = [int(match[1]) for line in shown if (match := re.search(r", about (\d+) s left", line))]
    assert left and left[-1] < 10
    assert text.endswith("\r\x1b[K")


def test_a_long_run_that_is_piped_has_a_line_every_ten_seconds():
    done = subprocess.run([TOOL, "compare", "synth:d=1000", "synth:d=2000", "--time", "3600", "--plan", EXACT], capture_output=True, timeout=240)
    assert done.stderr == b""  # 200 rounds of it take less
    calls = ("compare", "synth:d=20000000", "--plan", RAW, "--repeat", "100000")
    with subprocess.Popen([TOOL, *calls], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        ready = select.select([process.stderr], [], [], 120)[0]
        line = process.stderr.readline().decode() if ready else ""
        process.terminate()
        process.communicate()
    assert re.fullmatch(r"deepreduce: (plan 1/1|round \d+ of 100000)(, about .* left)?\n", line), line


def test_best_prints_its_answers_and_tables_if_all_is_asked():
    words = ("compare", MODEL, "--tensor", "*", "--repeat", 1, "--plan", EXACT, "--plan", LOSSY, "--best", "total_error <= 1")
    answers = run(*words).stdout.decode().splitlines()
    assert 1 < len(answers) <= 5 and all(": the plan of least bytes with total_error <= 1 is '" in line for line in answers)
    everything = run(*words, "--all").stdout.decode()
    plans = [[line.partition("total_error 0.")[0] for line in lines] for lines in (answers, everything.splitlines()[: len(answers)])]
    assert plans[0] == plans[1] and "Totals over all tensors" in everything


def test_many_tensors_are_their_total_unless_their_rows_are_asked_for():
    words = ("compare", MODEL, "--per-tensor", "--repeat", 1, "--plan", EXACT, "--plan", LOSSY)
    text = run(*words).stdout.decode()
    assert "Totals over all tensors" in text and "worst tensor of 2 plans" in text and "layer3.0.conv2.weight, conv" not in text
    assert re.search(r"\d+ rows of tensors are left out: --wide, --sort or --where shows them\.", text)
    for more in ("--wide", "--sort=bytes", "--where=bytes > 0"):
        assert "layer3.0.conv2.weight, conv" in run(*words, more).stdout.decode(), more


def test_times_as_short_as_the_shortest_are_marked_and_no_warning_says_it(tmp_path):
    document = compare(SYNTH, plans=(EXACT, LOSSY, RAW))
    times = {EXACT: (1000, 0.2), LOSSY: (1050, 0.2), RAW: (5000, 0.2)}
    for row in document["rows"]:
        if row["plan"] in times:
            row |= {"rounds": 20, "sparsify_ns": 0, "sparsify_ns_spread": 0, "decode_ns": 0, "decode_ns_spread": 0, "merge_ns_spread": 0,
                    "encode_ns": times[row["plan"]][0], "encode_ns_spread": times[row["plan"]][1]}  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(document))
    text = run("compare", "--from", tmp_path / "a.json").stdout.decode()
    assert "~1 µs" in text and "~1.05 µs" in text and " 5 µs" in text and "~5 µs" not in text and "warning" not in text


def test_a_plan_reads_the_errors_of_a_default_compare_and_the_costs_of_a_default_calibrate(tmp_path):
    """Every plan of the one is a plan of the other, so no candidate is dropped."""
    rows, profile = tmp_path / "rows.json", tmp_path / "profile.json"
    run("compare", "--repeat", 1, "--output", rows)
    run("calibrate", "--time", 0, "--sizes", "1024,16384", "-o", profile)
    chosen = run("plan", profile, "--input", MODEL, "--link", "100Mb/s,50us", "--ranks", 4, "--errors", rows, "--format", "json")
    answer = json.loads(chosen.stdout)
    assert not any("not a candidate" in note or "error of" in note for note in answer["notes"]), answer["notes"]
    measured = {row["plan"].partition(" exchange=")[0] for row in json.loads(rows.read_text())["rows"]} - {"memcpy"}
    assert measured | {"index=all value=raw"} == {cost["plan"] for cost in json.loads(profile.read_text())["costs"]}


def test_the_wide_table_has_one_layout_for_all_questions(tmp_path):
    """The heading of its columns, and the units of its cells."""
    words = ("compare", SYNTH, "--wide", "--repeat", 5, "--plan", EXACT, "--plan", LOSSY)
    run(*words, "--output", tmp_path / "a.json", "--link", "1Gb/s")
    run(*words, "--output", tmp_path / "b.json")
    tables = [run(*words, *more).stdout.decode() for more in ((), ("--sort", "bytes"), ("--where", "bytes > 0"), ("--pareto=bytes,total_error",))]
    tables.append(run("compare", "--from", tmp_path / "b.json", "--wide").stdout.decode())
    headings = [next(words_of(line).replace(" cpu", "") for line in text.splitlines() if " smaller " in line) for text in tables]
    assert set(headings) == {headings[0]} and headings[0].startswith("plan bytes smaller bits error coding energy sparsify encode decode merge")
    for text in tables:
        row = next(line for line in text.splitlines() if line.strip().startswith("value=raw") or line.strip().startswith("index=golomb value=raw"))
        assert len(re.findall(r"\d [nµm]?s", row)) == 4
    linked = run("compare", "--from", tmp_path / "a.json", "--wide").stdout.decode()
    assert " step " in linked and "dense step: " in linked and "1Gb/s among 8 ranks" in words_of(linked)
