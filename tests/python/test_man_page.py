"""--version, and deepreduce.1: it has every command, option and codec of the program, and is sound roff."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tool_runs import TOOL, needs_tool

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
sys.path.insert(0, str(PACKAGING))
import cli_help  # noqa: E402
import man_page  # noqa: E402

pytestmark = needs_tool

VERSION = "1.2.3"


@pytest.fixture(scope="module")
def source():
    return man_page.page(TOOL, (PACKAGING / "deepreduce.1.in").read_text(encoding="utf-8"), VERSION)


@pytest.fixture(scope="module")
def text(source):
    """The page as words: without requests, fonts and escapes."""
    plain = re.sub(r"\\f[BIR]", "", source)
    for escape, letter in ((r"\-", "-"), (r"\(aq", "'"), (r"\(ga", "`"), (r"\&", ""), (r"\e", "\\")):
        plain = plain.replace(escape, letter)
    return plain


def every_option():
    """(command, option) as --help prints them, found without the parser under test."""
    for command in ("", *re.findall(r"^  ([a-z][\w-]*) ", help_text("").partition("Subcommands:")[2], flags=re.M)):
        if command == "help":  # it takes none
            continue
        for line in re.findall(r"^  (-[^\s{[]+)", help_text(command), flags=re.M):
            for name in line.split(","):
                yield command, name


def help_text(command):
    words = [TOOL, *([command] if command else []), "--help"]
    return subprocess.run(words, check=True, capture_output=True, encoding="utf-8").stdout


def test_every_command_and_option_of_help_is_in_the_page(text):
    options = list(every_option())
    commands = {command for command, _ in options if command}
    assert {"compare", "codecs", "presets", "inspect", "encode"} <= commands
    assert len(options) > 25
    for command, name in options:
        if name in ("-h", "--help") and command:
            continue  # once is enough
        part = text.partition(".SH OPTIONS\n")[2] if not command else text.partition(f".SS deepreduce {command} ")[2]
        assert re.search(rf"^(?:-\w, )?{name}\b", part.partition("\n.SS ")[0], flags=re.M), (command, name)


def test_no_option_is_without_words():
    for command in cli_help.read_program(TOOL):
        for option in [*command.options, *command.positionals]:
            assert option.help, (command.name, option.names)


def test_every_codec_is_in_the_page(text):
    codecs = cli_help.read_codecs(TOOL)
    assert {"golomb", "bloom"} <= codecs["index"].keys() and "zstd" in codecs["bytes"]
    part = text.partition(".SH CODECS\n")[2].partition("\n.SH ")[0]
    for names in codecs.values():
        for name in names:
            assert re.search(rf"^{name}$", part, flags=re.M), name


def test_the_page_names_version_status_and_environment(text):
    assert f"deepreduce {VERSION}" in text and "@" not in text
    sections = re.findall(r"^\.SH (.*)", text, flags=re.M)
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert {"OPTIONS", "COMMANDS", "PLANS", "CODECS", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"} <= set(sections)


def test_every_environment_variable_of_the_sources_is_in_the_page(text):
    read = set()
    for folder in ("tool/compare", "tool/predict", "tool/read", "tool/show", "lib", "capi"):
        for path in (ROOT / folder).rglob("*.[ch]pp"):
            read |= set(re.findall(r'getenv\("(DEEPREDUCE_\w+)"', path.read_text(encoding="utf-8")))
    assert "DEEPREDUCE_DATASETS" in read
    for name in read:
        assert f"\n{name}\n" in text.replace(".B ", ""), name


def test_flags_have_the_value_that_they_take_and_no_other(source):
    for page in (help_text("compare"), source.replace(r"\fB", "").replace(r"\fI", "").replace(r"\fR", "").replace(r"\-", "-")):
        assert "--pareto[=COLUMNS]" in page
    assert re.search(r"^  --no-break-even +Omits", help_text("predict"), flags=re.M)
    assert r"\fB\-\-no\-break\-even\fR" + "\n" in source
    assert not re.search(r"^  -[\w,-]*\{", "".join(help_text(command) for command in ("compare", "predict", "plan", "calibrate", "encode")), flags=re.M)


def test_every_exit_status_is_in_the_page(text):
    part = text.partition(".SH EXIT STATUS\n")[2].partition("\n.SH ")[0]
    assert re.findall(r"^\.B (\d+)$", part, flags=re.M) == ["0", "1", "2", "77", "130"]


def test_groff_finds_no_fault_in_the_page(source, tmp_path):
    if shutil.which("groff") is None:
        pytest.skip("no groff: apt-get install groff-base")
    page = tmp_path / "deepreduce.1"
    page.write_text(source, encoding="utf-8")
    done = subprocess.run(
        ["groff", "-man", "-K", "utf8", "-Tutf8", "-rLL=100n", "-wall", "-Wbreak", page],
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.stderr == "" and "deepreduce compare" in done.stdout


@pytest.mark.parametrize(
    "line, names, argument, value, help_text",
    [
        ("  -h,--help                   Print this", ["-h", "--help"], "", "", "Print this"),
        ("  --plan PLAN ...             A plan", ["--plan"], "PLAN", "", "A plan"),
        ("  --pareto[=COLUMNS]          Only rows", ["--pareto"], "", "COLUMNS", "Only rows"),
        ("  --link RATE[,LATENCY]       Models", ["--link"], "RATE[,LATENCY]", "", "Models"),
        ("  --time SECONDS-OF-A-ROUND ...\n" + 30 * " " + "Seconds. From 0 to 9. Only with --a and --b. Not with --c.", ["--time"], "SECONDS-OF-A-ROUND", "", "Seconds"),
        ("  INPUT REQUIRED              Gradients", ["INPUT"], "", "", "Gradients"),
    ],
)
def test_a_line_of_help_is_read(line, names, argument, value, help_text):
    section = "Options" if line.startswith("  -") else "Positionals"
    command = cli_help.parse("", f"About\nUsage: deepreduce [OPTIONS]\n\n{section}:\n{line}\n\nMore words: here\n  --no option\n")
    (option,) = command.options + command.positionals
    assert [option.names, option.argument, option.value, option.help] == [names, argument, value, help_text]
    assert command.footer == "More words: here\n  --no option"


def test_limits_of_an_option_are_read_from_its_sentences():
    option = cli_help.parse_option("--time S", "Seconds. From 0 to 9. Only with --a and --b. Not with --c or --d.")
    assert (option.range, option.needs, option.excludes, option.help) == ("0 to 9", ["--a", "--b"], ["--c", "--d"], "Seconds")
    plain = cli_help.parse_option("--x X", "Seconds. And more.")
    assert (plain.range, plain.needs, plain.excludes, plain.help) == ("", [], [], "Seconds. And more.")


@pytest.mark.parametrize("command", ["compare", "predict"])
def test_h_is_25_lines_in_five_groups_and_help_is_everything(command):
    def printed(option):
        return subprocess.run([TOOL, command, option], check=True, capture_output=True, text=True).stdout

    short, full = printed("-h"), printed("--help")
    lines = short.splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 100
    assert [line for line in lines if re.fullmatch(r"[A-Z][a-z ]+", line)] == ["What", "Which plans", "Which rows", "Link", "Output"]
    names = re.findall(r"^  (--[\w-]+)", short, flags=re.M)
    assert len(names) > 10 and all(re.search(rf"^  (-\w,)?{name}\b", full, flags=re.M) for name in names)
    assert len(full.splitlines()) > 60 and f"deepreduce {command} --help" in lines[-1]
    for debris in (":INT", ":FLOAT", ":UINT", "Excludes:", "Needs:", " in [", ":{"):
        assert debris not in full


def test_version_says_commit_build_and_level_of_instructions():
    def version_of(**environment):
        return subprocess.run([TOOL, "--version"], check=True, capture_output=True, text=True, env={**os.environ, **environment}).stdout

    version = re.search(r'DR_VERSION_STRING "(.*)"', (ROOT / "include/deepreduce/version.h").read_text()).group(1)
    assert re.fullmatch(rf"deepreduce {version}\ncommit  \S+\nbuild   \S+ .*, with(out)? CUDA\nCPU     \S+\n", version_of())
    assert version_of(DEEPREDUCE_CPU="scalar").endswith("\nCPU     scalar\n")


def test_a_line_of_help_that_is_not_understood_is_an_error():
    text = "About\nUsage: deepreduce [OPTIONS]\n\nOptions:\n  --good WORD                 Good\n  --bad {odd thing}           Bad\n"
    with pytest.raises(ValueError, match="--bad"):
        cli_help.parse("", text)
