"""`deepreduce test-plugin`, on plug-ins that keep their promises and on those of tests/plugin/broken, which break one each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tool_runs import needs_tool, run

pytestmark = needs_tool


def plugin(name):
    found = sorted(Path(os.environ.get("DEEPREDUCE_PLUGINS", "/nowhere")).glob(f"*{name}.so"))
    if not found:
        pytest.skip("DEEPREDUCE_PLUGINS does not name the folder of tests/plugin in a build")
    return found[0]


def outcome(name, *options, status=0):
    return run("test-plugin", plugin(name), "--seconds", "0", *options, status=status).stdout.decode()


@pytest.mark.parametrize("name, codecs", [
    ("zigzag", 1), ("byte_gaps", 1), ("wider", 1), ("namesakes", 3), ("broken_in_nothing", 1),
])
def test_a_plugin_that_keeps_its_promises_passes_every_check(name, codecs):
    printed = outcome(name)
    assert "FAILED" not in printed and printed.endswith("all promises hold (seeds 1 … 1)\n")
    for check in ("bounds", "round trip", "repeatable", "threads", "batches", "faults", "flipped bits", "any bytes", "frames", "empty", "feedback"):
        assert len(re.findall(rf"^  {check} +ok +[1-9]", printed, flags=re.M)) == codecs, check


# For each broken plug-in: the check that reports it, and words of its sentence.
BROKEN = {
    "bound": ("bounds", r"'one, f32 1 x 1': encode writes outside of the room for the payload \(need.payload bytes\), 1 bytes past its end|"
                        r"writes past need.payload = 4 bytes"),
    "repeats": ("repeatable", "a second time, over other memory, encode writes another payload: byte 0 is 0x"),
    "reads": ("truncated", r"'one, f32 1 x 1', the first 0 bytes of its 5: decode reads outside of the payload, \d bytes past its end"),
    "lossy": ("exact", "DR_EXACT requires equal bits, but in the decoded stream byte 0 is"),
    "writes": ("flipped bits", r"flipped: decode writes (past out_capacity|outside of the room for the elements)"),
    "fixed": ("fixed size", r"a payload of \d+ bytes; with DR_FIXED_SIZE it has need.payload = \d+"),
    "aborts": ("truncated", "the first 0 bytes of its 5: decode ends the process: Aborted"),
    "prints": ("bounds", "encode prints: encoding"),
    "hangs": ("ends", "2^20 elements from .*: decode does not end within 10 s".replace("^", r"\^")),
    "values_read": ("round trip", "decode ends the process: Segmentation fault"),
    "never_fails": ("bounds", "'NaNs and infinities, f32 64 x 1': encode has the fault 1 .*; a codec with DR_TOTAL never fails"),
    "memory": ("repeatable", "a second time, over other memory, encode writes another payload: byte 0 is 0xff, not 0xa5"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_named_with_codec_check_input_and_seed(name):
    printed = outcome(f"broken_{name}", "--seed", "7", status=1)
    check, sentence = BROKEN[name]
    failed = dict(re.findall(r"^  FAILED value=plugin\.broken: ([\w ]+) \(seed 7\)\n    (.*)\n    promised: .", printed, flags=re.M))
    assert re.search(sentence, failed.get(check, "")), printed
    assert re.search(r"^\d+ broken promises?$", printed, flags=re.M)


def test_rounds_go_on_with_the_next_seed_while_there_is_time():
    printed = run("test-plugin", plugin("byte_gaps"), "--seconds", "0.01", "--seed", "18446744073709551615").stdout.decode()
    assert re.search(r"\(seeds 18446744073709551615 … (0|18446744073709551615)\)$", printed), printed


@pytest.mark.parametrize("arguments, sentence", [
    ((), "PLUGIN is required"), (("/nowhere/libmine.so",), "test-plugin '/nowhere/libmine.so'"), ((os.devnull,), "test-plugin '/dev/null'"),
    ((os.devnull, "--seconds", "nan"), "'nan' is not in 0"), ((os.devnull, "--seed", "-1"), "'-1' is negative"),
])
def test_what_is_no_plugin_is_misuse(arguments, sentence):
    assert sentence in run("test-plugin", *arguments, status=2).stderr.decode()


# ---- Names that a built-in has, too ----------------------------------------------------------------


def test_the_tool_lists_a_namesake_as_plans_name_it_and_says_so():
    done = run("codecs", "rice", "--plugin", plugin("namesakes"))
    assert re.findall(r"^index=(\S+)", done.stdout.decode(), flags=re.M) == ["rice", "plugin.rice"]
    assert "index=plugin.rice, value=plugin.qsgd, bytes=plugin.zstd" in done.stderr.decode()
    done = run("compare", "synth:d=2000", "--plugin", plugin("namesakes"), "--repeat", "1", "--format", "csv",
               "--plan", "sparsify=topr(ratio=0.1) index=rice|plugin.rice value=raw+plugin.zstd")
    assert re.findall(r"index=(\S+) value=raw\+plugin.zstd", done.stdout.decode()) == ["rice", "plugin.rice"]


def test_python_warns_of_a_namesake_and_lists_it_as_plans_name_it():
    program = f"""
import warnings, deepreduce
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    deepreduce.load_plugin({str(plugin("namesakes"))!r})
    deepreduce.load_plugin({str(plugin("zigzag"))!r})
print(*[str(w.message) for w in heard], sep="\\n")
print(sorted(c.name for c in deepreduce.codecs() if "rice" in c.name or c.name == "zigzag"))
print(deepreduce.Plan("index=plugin.rice value=plugin.zigzag"))
"""
    package = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "bindings/python")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=package)
    lines = done.stdout.splitlines()
    assert "value=plugin.qsgd" in lines[0]
    assert lines[1:] == ["['plugin.rice', 'rice', 'zigzag']", "index=plugin.rice value=zigzag"]
