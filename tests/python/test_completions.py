"""Completions of bash, zsh and fish: every command, option, codec and preset, and bash's answers by bash itself."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tool_runs import TOOL, needs_tool

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging"))
import cli_help  # noqa: E402
import completions  # noqa: E402

pytestmark = needs_tool

SCRIPTS = {"bash": "deepreduce", "zsh": "_deepreduce", "fish": "deepreduce.fish"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("completions")
    script = Path(completions.__file__)
    subprocess.run([sys.executable, "-B", script, TOOL, made], check=True)
    return made


def shell(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: apt-get install {name}")
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_option_codec_and_preset_is_there(folder, name):
    text = (folder / SCRIPTS[name]).read_text(encoding="utf-8")
    program, *commands = cli_help.read_program(TOOL)
    assert len(commands) >= 5 and not re.search(r"@[A-Z]+@", text)
    for command in commands:
        assert re.search(rf"\b{command.name}\b", text)
        for option in command.options:
            long = option.names[-1][2:]
            assert re.search(rf"-l {long}\b" if name == "fish" else rf"--{long}\b", text), (command.name, option.names)
            for choice in option.choices:
                assert re.search(rf"\b{choice}\b", text)
    stages, after_plus = completions.plan_words(TOOL)
    assert {"sparsify=topr", "index=golomb", "index=auto", "value=qsgd", "exchange=ring"} <= set(stages)
    for word in [*stages, *after_plus, *cli_help.read_presets(TOOL)]:
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text), word


def test_the_stages_that_no_codec_stands_for_are_the_librarys():
    """encode refuses a word that the library does not have as a stage or as a choice of one."""
    stages, _ = completions.plan_words(TOOL)
    for word in stages:
        if word.partition("=")[0] in completions.STAGES:
            argument = "(inner=2)" if word.endswith("hierarchy") else ""
            subprocess.run([TOOL, "encode", "synth:d=100", "--plan", word + argument], check=True, capture_output=True)


# ---- bash -----------------------------------------------------------------------------------------------

ASK = r"""
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_deepreduce
printf '%s\n' "${COMPREPLY[@]}"
"""


def bash_offers(folder, *words):
    done = subprocess.run(
        [shell("bash"), "--norc", "-c", ASK, "bash", folder / "deepreduce", "deepreduce", *words],
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_bash_offers_commands_and_options(folder):
    assert "compare" in bash_offers(folder, "") and bash_offers(folder, "comp") == ["compare"]
    assert bash_offers(folder, "--ver") == ["--version"]
    assert bash_offers(folder, "compare", "--thr") == ["--threads"]
    assert bash_offers(folder, "encode", "--pla") == ["--plan"]
    assert {"table", "csv", "json"} <= set(bash_offers(folder, "compare", "--format", ""))
    assert "BF-P2+QSGD" in bash_offers(folder, "compare", "--preset", "BF-P2")
    assert bash_offers(folder, "compare", "--output", "x") == [""]  # files, by the shell


def choices_of_commands():
    """(command, option, its choices) of each option that has some; `--format` has others in each command."""
    return [
        (command.name, option.names[-1], option.choices)
        for command in cli_help.read_program(TOOL)[1:]
        for option in command.options
        if option.choices
    ]


def test_bash_offers_the_choices_of_the_command_at_hand(folder):
    formats = {command: choices for command, option, choices in choices_of_commands() if option == "--format"}
    assert formats["plan"] == ["text", "json"] and "md" in formats["compare"] and "md" not in formats["codecs"]
    for command, option, choices in choices_of_commands():
        assert bash_offers(folder, command, option, "") == choices, (command, option)


def test_bash_completes_the_last_stage_of_a_plan(folder):
    offered = bash_offers(folder, "compare", "--plan", "'index=golo")
    assert offered == ["index=golomb"]
    offered = bash_offers(folder, "compare", "--plan", "'sparsify=topr(ratio=0.01) value=log_")
    assert offered == ["sparsify=topr(ratio=0.01) value=log_quant"]
    offered = bash_offers(folder, "compare", "--plan", "'index=golomb+z")
    assert offered == ["index=golomb+zstd"]


def test_bash_completes_a_plan_that_equal_signs_cut(folder):
    assert bash_offers(folder, "compare", "--plan", "index", "=", "golo") == ["golomb"]
    assert "topr" in bash_offers(folder, "compare", "--plan", "sparsify", "=")
    assert "index=golomb" in bash_offers(folder, "compare", "--plan", "ind")


# ---- zsh and fish -----------------------------------------------------------------------------------------


def test_zsh_reads_its_script(folder):
    subprocess.run([shell("zsh"), "-f", "-n", folder / "_deepreduce"], check=True)
    code = 'autoload -Uz compinit; fpath=($1 $fpath); compinit -D -u; autoload -Uz +X _deepreduce && print ${_comps[deepreduce]}'
    done = subprocess.run([shell("zsh"), "-f", "-c", code, "zsh", folder], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "_deepreduce"


def test_zsh_has_the_choices_of_each_command_where_it_is(folder):
    cases = dict(re.findall(r"^      (\w+)\)\n(.*?)^        ;;$", (folder / "_deepreduce").read_text(encoding="utf-8"), re.M | re.S))
    for command, option, choices in choices_of_commands():
        (line,) = (line for line in cases[command].splitlines() if f"{option}[" in line)
        assert f":value:({' '.join(choices)})" in line, (command, option)


def fish_offers(folder, line):
    done = subprocess.run(
        [shell("fish"), "--no-config", "-c", f"source {folder}/deepreduce.fish; complete -C {completions.fish_text(line)}"],
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


def test_fish_offers_commands_options_and_plans(folder):
    assert fish_offers(folder, "deepreduce comp") == ["compare"]
    assert "--threads" in fish_offers(folder, "deepreduce compare --thr")
    assert {"table", "csv", "json"} <= set(fish_offers(folder, "deepreduce compare --format "))
    assert "index=golomb" in fish_offers(folder, "deepreduce compare --plan index=golo")
    plan = fish_offers(folder, "deepreduce encode --plan 'sparsify=topr value=log_")
    assert any(word.endswith("value=log_quant") for word in plan)


def test_fish_offers_the_choices_of_the_command_at_hand(folder):
    for command, option, choices in choices_of_commands():
        for line in (f"deepreduce {command} {option} ", f"deepreduce {command} plan compare {option} "):  # files of such names
            assert sorted(fish_offers(folder, line)) == sorted(choices), line
