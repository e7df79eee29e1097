"""Reads `deepreduce --help` and the help of each command, as CLI11 prints them, for the man page and the completions.

A line that does not have the expected form is an error, so that no option is lost without a word.
"""

import dataclasses
import json
import os
import re
import subprocess
from typing import Dict, List

COLUMN = 30  # where CLI11 puts the descriptions

# NAMES[=VALUE] ARGUMENT ... REQUIRED
LEFT = re.compile(
    r"(?P<names>-{0,2}[A-Za-z][\w-]*(?:,-{1,2}[\w-]+)*)(?:\[=(?P<value>[^]]*)\])?"
    r"(?: (?!\.\.\.|REQUIRED)(?P<argument>\S+))?(?P<repeats> \.\.\.)?(?P<required> REQUIRED)?"
)
# Sentences that the tool appends to a description (help_text.hpp).
LIMITS = re.compile(
    r"\.?(?: From (?P<low>\S+) to (?P<high>\S+)\.)?(?: Only with (?P<needs>--[\w-]+(?: and --[\w-]+)*)\.)?"
    r"(?: Not with (?P<excludes>--[\w-]+(?: or --[\w-]+)*)\.)?$"
)


@dataclasses.dataclass
class Option:
    """An option, or a positional argument (whose name has no dash)."""

    names: List[str]
    argument: str  # "PLAN"; "" of a flag
    value: str  # "COLUMNS" of a flag that may be --name=COLUMNS
    help: str
    repeats: bool
    required: bool
    range: str  # "1 to 256" or ""
    excludes: List[str]
    needs: List[str]

    @property
    def choices(self) -> List[str]:
        return self.argument.split("|") if "|" in self.argument else []


@dataclasses.dataclass
class Command:
    name: str  # "" of the program itself
    summary: str
    usage: str
    positionals: List[Option]
    options: List[Option]
    commands: Dict[str, str]  # name: summary
    footer: str


HELP = Command("help", "Describes a command", "deepreduce help [COMMAND]", [], [], {}, "")


def read_program(tool: str) -> List[Command]:
    """The program itself, then its commands."""
    program = parse("", help_of(tool))
    commands = [
        HELP if name == "help" else parse(name, help_of(tool, name))  # (help has no help)
        for name in program.commands
    ]
    for command in commands:
        if command.footer == program.footer:  # CLI11 repeats it
            command.footer = ""
    return [program, *commands]


def read_codecs(tool: str) -> Dict[str, Dict[str, str]]:
    """role: {name: summary} of what a plan may name. `block` comes by itself, so no plan names it."""
    found: Dict[str, Dict[str, str]] = {"sparsify": {"none": ""}}
    for codec in json.loads(run(tool, "codecs", "--format", "json")):
        if (codec["role"], codec["name"]) != ("index", "block"):
            found.setdefault(codec["role"], {})[codec["name"]] = codec["summary"]
    return found


def read_presets(tool: str) -> List[str]:
    """Sets, and the plans in them: `deepreduce presets` prints a set at column 0 and its plans at column 2."""
    text = run(tool, "presets")
    return re.findall(r"^ {0,2}(\S+)", text, flags=re.M)


def help_of(tool: str, *command: str) -> str:
    return run(tool, *command, "--help")


def run(*words: str) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, encoding="utf-8", env={**os.environ, "LC_ALL": "C.UTF-8"}).stdout


# ---- CLI11's page -------------------------------------------------------------------------------


def parse(name: str, text: str) -> Command:
    about, _, rest = text.partition("Usage: ")
    usage, _, rest = rest.partition("\n")
    command = Command(name, about.strip(), usage.strip(), [], [], {}, "")
    section, left, lines = "", "", rest.split("\n")
    footer: List[str] = []
    entries: List[List[str]] = []  # section, left, help
    for line in lines:
        if footer:
            footer.append(line)
        elif re.fullmatch(r"\S[^:]*:", line) and not left_over(line, entries):
            section = line[:-1]
        elif line.startswith(" " * COLUMN) and entries:
            entries[-1][2] = (entries[-1][2] + " " + line.strip()).strip()
        elif line.startswith("  ") and section:
            left, text_of = split(line)
            entries.append([section, left, text_of])
        elif line.strip():
            footer.append(line)
    for section, left, words in entries:
        if section == "Subcommands":
            command.commands[left] = words
        else:
            option = parse_option(left, words)
            (command.options if option.names[0].startswith("-") else command.positionals).append(option)
    command.footer = "\n".join(footer).strip("\n")
    return command


def left_over(line: str, entries: List[List[str]]) -> bool:
    """Whether a line "Word:" begins the text behind the options. Sections of CLI11 have no words between them."""
    return bool(entries) and " " in line


def split(line: str) -> "tuple[str, str]":
    if len(line) > COLUMN and line[COLUMN - 1] == " " and LEFT.fullmatch(line[:COLUMN].strip()):
        return line[:COLUMN].strip(), line[COLUMN:].strip()
    return line.strip(), ""


def parse_option(left: str, words: str) -> Option:
    found = LEFT.fullmatch(left)
    if not found:
        raise ValueError(f"unforeseen line in --help: {left!r}")
    limits = LIMITS.search(words)
    assert limits  # (it matches nothing, too)
    return Option(
        names=found["names"].split(","),
        argument=found["argument"] or "",
        value=found["value"] or "",
        help=words[: limits.start()] if limits["low"] or limits["needs"] or limits["excludes"] else words,
        repeats=bool(found["repeats"]),
        required=bool(found["required"]),
        range=f"{limits['low']} to {limits['high']}" if limits["low"] else "",
        excludes=re.findall(r"--[\w-]+", limits["excludes"] or ""),
        needs=re.findall(r"--[\w-]+", limits["needs"] or ""),
    )
