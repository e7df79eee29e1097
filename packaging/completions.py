#!/usr/bin/env python3
"""Writes the completions of `deepreduce` for bash, zsh and fish: commands, options, codecs of plans, presets.

    completions.py TOOL FOLDER      writes deepreduce (bash), _deepreduce (zsh) and deepreduce.fish to FOLDER

Names come from the program (`--help`, `codecs`, `presets`) when it is built; codecs of plug-ins are not among them.
"""

import sys
from pathlib import Path
from typing import Dict, List

import cli_help

HERE = Path(__file__).resolve().parent
# Stages that no codec stands for: their words are the library's own.
STAGES = {
    "regather": ["on", "off"],
    "bucket": ["none", "flat"],
    "exchange": ["gather", "owner", "ring", "hierarchy"],
}
FILES = ("FILE", "PATH", "INPUT", "FRAME")


def plan_words(tool: str) -> "tuple[List[str], List[str]]":
    """`stage=name` of all stages; names of bytes codecs, which follow a `+`."""
    codecs = cli_help.read_codecs(tool)
    names: Dict[str, List[str]] = {
        role: list(codecs[role]) for role in ("sparsify", "feedback", "index", "value", "order")
    }
    names["index"].append("auto")
    names["value"].append("auto")
    names.update(STAGES)
    return [f"{stage}={name}" for stage, each in names.items() for name in each], list(codecs["bytes"])


def kind(option: cli_help.Option) -> str:
    """How an option's argument is completed: flag, choices, plan, preset, file or text."""
    if not option.argument:
        return "flag"
    if option.choices:
        return "choices"
    if option.argument == "PLAN":
        return "plan"
    if option.argument.startswith(FILES):
        return "file"
    return "preset" if option.names[-1] == "--preset" else "text"


def long_options(command: cli_help.Command) -> List[cli_help.Option]:
    return [option for option in command.options if option.names[-1].startswith("--")]


# ---- bash ---------------------------------------------------------------------------------------


def bash(program: cli_help.Command, commands: List[cli_help.Command], words: Dict[str, List[str]]) -> str:
    cases = []
    for command in commands:
        names = " ".join(name for option in command.options for name in option.names)
        cases.append(f"    {command.name}) options='{names}' ;;")
        if command is cli_help.HELP:
            cases[-1] = "    help) words='@COMMANDS@' ;;"
    arguments: Dict[str, List[str]] = {}  # what is done: "command --option" of those that want it
    for command in commands:
        for option in long_options(command):
            done = {
                "choices": f"words='{' '.join(option.choices)}'",
                "plan": "_deepreduce_plan; return",
                "preset": f"words='{' '.join(words['presets'])}'",
                "file": "return",
                "text": "return",
            }.get(kind(option))
            if done:
                arguments.setdefault(done, []).append(f"'{command.name} {option.names[-1]}'")
    values = [f"    {'|'.join(names)}) {done} ;;" for done, names in arguments.items()]
    text = (HERE / "completion.bash.in").read_text(encoding="utf-8")
    return fill(
        text,
        CASES="\n".join(cases),
        COMMANDS=" ".join(command.name for command in commands),
        OPTIONS=" ".join(name for option in program.options for name in option.names),
        VALUES="\n".join(values),
        STAGES=" ".join(words["stages"]),
        BYTES=" ".join(words["bytes"]),
    )


# ---- zsh ----------------------------------------------------------------------------------------


def zsh_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("[", r"\[").replace("]", r"\]").replace(":", r"\:").replace("'", "'\\''")


def zsh_option(option: cli_help.Option) -> str:
    action = {
        "flag": "",
        "choices": f":value:({' '.join(option.choices)})",
        "plan": ":plan:_deepreduce_plan",
        "preset": ":preset:_deepreduce_presets",
        "file": f":{option.argument}:_files",
        "text": f":{option.argument}: ",
    }[kind(option)]
    name = option.names[-1]
    repeats = "*" if option.repeats else "(" + " ".join([*option.names, *option.excludes]) + ")"
    return f"        '{repeats}{name}[{zsh_text(option.help)}]{action}'"


def zsh(program: cli_help.Command, commands: List[cli_help.Command], words: Dict[str, List[str]]) -> str:
    cases = []
    for command in commands:
        lines = [zsh_option(option) for option in long_options(command)]
        if command is cli_help.HELP:
            lines.append("        '1:command:(" + " ".join(each.name for each in commands) + ")'")
        if command.positionals:
            lines.append(f"        '*:{command.positionals[0].names[0]}:_files'")
        cases.append(f"      {command.name})\n        _arguments -s \\\n  " + " \\\n  ".join(lines) + "\n        ;;")
    described = [f"    '{command.name}:{zsh_text(program.commands[command.name])}'" for command in commands]
    text = (HERE / "completion.zsh.in").read_text(encoding="utf-8")
    return fill(
        text,
        COMMANDS="\n".join(described),
        CASES="\n".join(cases),
        OPTIONS=" ".join(f"'{option.names[-1]}[{zsh_text(option.help)}]'" for option in program.options),
        STAGES=" ".join(words["stages"]),
        BYTES=" ".join(words["bytes"]),
        PRESETS=" ".join(words["presets"]),
    )


# ---- fish ---------------------------------------------------------------------------------------


def fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish_option(command: str, option: cli_help.Option) -> str:
    what = kind(option)
    line = f"complete -c deepreduce -n '__deepreduce_is {command}'"
    for name in option.names:
        line += f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
    line += {
        "flag": "",
        "choices": f" -x -a {fish_text(' '.join(option.choices))}",
        "plan": " -x -a '(__deepreduce_plan)'",
        "preset": " -x -a '(__deepreduce_presets)'",
        "file": " -r -F",
        "text": " -x",
    }[what]
    return line + f" -d {fish_text(option.help)}"


def fish(program: cli_help.Command, commands: List[cli_help.Command], words: Dict[str, List[str]]) -> str:
    lines = []
    for option in program.options:
        lines.append(fish_option("''", option).replace("'__deepreduce_is '''", "__deepreduce_no_command"))
    for command in commands:
        summary = fish_text(program.commands[command.name])
        lines.append(f"complete -c deepreduce -n __deepreduce_no_command -f -a {command.name} -d {summary}")
        if not command.positionals:
            lines.append(f"complete -c deepreduce -n '__deepreduce_is {command.name}' -f")
        if command is cli_help.HELP:
            names = " ".join(each.name for each in commands)
            lines.append(f"complete -c deepreduce -n '__deepreduce_is help' -f -a '{names}'")
        lines += [fish_option(command.name, option) for option in command.options]
    text = (HERE / "completion.fish.in").read_text(encoding="utf-8")
    return fill(
        text,
        COMMANDS=" ".join(command.name for command in commands),
        LINES="\n".join(lines),
        STAGES=" ".join(words["stages"]),
        BYTES=" ".join(words["bytes"]),
        PRESETS=" ".join(words["presets"]),
    )


def fill(text: str, **parts: str) -> str:
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def main() -> None:
    tool, folder = sys.argv[1], Path(sys.argv[2])
    program, *commands = cli_help.read_program(tool)
    stages, after_plus = plan_words(tool)
    words = {"stages": stages, "bytes": after_plus, "presets": cli_help.read_presets(tool)}
    for name, write in (("deepreduce", bash), ("_deepreduce", zsh), ("deepreduce.fish", fish)):
        (folder / name).write_text(write(program, commands, words), encoding="utf-8")


if __name__ == "__main__":
    main()
