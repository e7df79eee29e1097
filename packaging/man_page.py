#!/usr/bin/env python3
"""Writes deepreduce.1: what `--help` says, in the page that deepreduce.1.in is.

    man_page.py TOOL deepreduce.1.in VERSION deepreduce.1
"""

import re
import sys
from pathlib import Path
from typing import Iterator, List

import cli_help

# Stages that are no codecs, and those whose list is short.
STAGES = ("sparsify", "feedback", "index", "value", "order", "bytes")


def escaped(text: str) -> str:
    """Text for roff: a dash is a minus that can be copied, and no line is a request."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.M)


def option_lines(option: cli_help.Option) -> Iterator[str]:
    yield ".TP"
    words = ", ".join(rf"\fB{escaped(name)}\fR" for name in option.names)
    if option.names[0][0] != "-":  # a positional
        words = rf"\fI{escaped(option.names[0])}\fR"
    elif option.argument:
        words += rf" \fI{escaped(option.argument)}\fR"
    elif option.value:
        words += rf"[=\fI{escaped(option.value)}\fR]"
    yield words
    text = option.help.rstrip(".") + "."
    if option.repeats and "may be repeated" not in text and option.names[0][0] == "-":
        text += " May be repeated."
    if option.range:
        text += f" From {option.range}."
    if option.required:
        text += " Required."
    if option.needs:
        text += f" Only with {' and '.join(option.needs)}."
    if option.excludes:
        text += f" Not with {' or '.join(option.excludes)}."
    yield escaped(text)


def prose(text: str) -> Iterator[str]:
    """Paragraphs are filled; lines that begin with two spaces stay as they are."""
    literal = False
    for line in text.split("\n"):
        if line.startswith("  ") != literal and line:
            literal = not literal
            yield from ([".PP", ".nf", ".RS 2"] if literal else [".RE", ".fi", ".PP"])
        if not line:
            yield from ([""] if literal else [".PP"])
        else:
            yield escaped(line[2:] if literal else line)
    if literal:
        yield from (".RE", ".fi")


def command_lines(command: cli_help.Command) -> Iterator[str]:
    yield f".SS {escaped(command.usage)}"
    yield from prose(command.summary + ".")
    for option in [*command.positionals, *command.options]:
        if "--help" not in option.names:
            yield from option_lines(option)
    if command.footer:
        yield ".PP"
        yield from prose(command.footer)


def codec_lines(tool: str) -> Iterator[str]:
    codecs = cli_help.read_codecs(tool)
    for stage in STAGES:
        yield f".SS {stage}" if stage != "bytes" else ".SS behind any stage, with +"
        for name, summary in codecs[stage].items():
            yield from (".TP", rf"\fB{escaped(name)}\fR", escaped(summary or "Keeps what is not zero."))


def top_options(program: cli_help.Command) -> Iterator[str]:
    for option in program.options:
        yield from option_lines(option)


def page(tool: str, template: str, version: str) -> str:
    program, *commands = cli_help.read_program(tool)
    parts = {
        "VERSION": [version],
        "ABOUT": list(prose(program.summary)),
        "OPTIONS": list(top_options(program)),
        "COMMANDS": [line for command in commands for line in command_lines(command)],
        "COLUMNS": list(prose(cli_help.run(tool, "help", "columns").rstrip())),
        "CODECS": list(codec_lines(tool)),
    }

    def part(match: "re.Match[str]") -> str:
        lines: List[str] = parts[match[1]]
        return "\n".join(lines)

    return re.sub(r"@(\w+)@", part, template)


if __name__ == "__main__":
    tool, template, version, out = sys.argv[1:]
    Path(out).write_text(page(tool, Path(template).read_text(encoding="utf-8"), version), encoding="utf-8")
