"""bench/results: what several runs of a measurement become."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "results"))
import results  # noqa: E402


def run(seconds, bits=7.5, low=1.0, codec="golomb"):
    return {"commit": "c", "rows": [{"codec": codec, "bytes": 12, "seconds": seconds, "encode": {"low": low, "median": bits, "high": 9.0}, "encode_ns": int(10 * seconds)}]}


def test_a_number_is_the_median_of_the_runs_and_the_spread_theirs():
    row = results.combine([run(3.0, 2.0), run(1.0, 6.0, low=0.5), run(2.0, 4.0)])["rows"][0]
    assert row == {"codec": "golomb", "bytes": 12, "seconds": 2.0, "encode": {"median": 4.0, "low": 2.0, "high": 6.0}, "encode_ns": 20}


@pytest.mark.parametrize("other", [run(1.0, codec="rice"), {**run(1.0), "commit": "d"}, {"rows": run(1.0)["rows"]}])
def test_runs_that_say_different_things_are_refused(other):
    with pytest.raises(SystemExit, match="the runs say"):
        results.combine([run(2.0), other], "pipeline")


def test_every_step_writes_what_its_command_names():
    for name, step in results.STEPS.items():
        assert step.files and all((results.here / step.table).exists() for _ in [0] if step.table), name
        program = step.command[1] if step.command[0] == results.python else step.command[0]
        assert program.startswith("build/") or (results.root / program).exists(), name
