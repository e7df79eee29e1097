#!/usr/bin/env python3
"""No code outside lib/plan reads the text of a plan or a plan book: callers ask for stages (dr_plan_stage, Plan.stages) and lines (dr_book).

    plan_text.py TREE     prints each line that does, as file:line: sentence. Exit 1 if there is one, or if a planted one goes unnoticed

What counts as reading: a search, a comparison or a cut of a string by a stage's or a parameter's `name=`, and a cut of what is called a
plan. Writing a plan's text is fine. Exempt lines end with the comment `plan text: WHY`.
"""
import re
import sys
from pathlib import Path

# lib/plan is the reader; lib/pipeline binds what that has parsed. The lab (bench/results, …) reads its own tables.
ROOMS = ("bindings", "capi", "lib", "codecs", "tool")
READERS = ("lib/plan/",)
SUFFIXES = {".py", ".cpp", ".hpp", ".h", ".cu"}

ROLE = r"(?:sparsify|feedback|index|value|order|regather|bucket|merge|exchange|transform)="
PARAMETER = r"(?:clip|beta|gamma|momentum|inner|parts|rank|ratio|bits|error|fpr|policy|type|count)="
CUT = r"(?:split|rsplit|partition|rpartition|find|rfind|startswith|starts_with|endswith|ends_with|removeprefix|substr|fullmatch|match|search|sub|findall|finditer)"
PLAN = r"(?:str\((?:self\.)?_?\w*plan\w*(?:\([^()]*\))?\)|\b(?:self\.)?_?(?:plan|plans\[\w+\]|plan_text|\w+_plan|a_plan)|\bplan\(?\w*\)?\.text\(\)|\b(?:p|method|\w+)\.text\(\)|known\.plan)"
RULES = [
    (re.compile(rf"\.?\b{CUT}\(\(?(?:[^()\"']|\([^()]*\))*[rf]*[\"'][^\"']*(?:\b|\\b|^){ROLE}"), "cuts or searches a text by a stage"),
    (re.compile(rf"\.?\b{CUT}\(\(?(?:[^()\"']|\([^()]*\))*[rf]*[\"'][^\"']*(?:\b|\\b|^){PARAMETER}"), "cuts or searches a text by a parameter"),
    (re.compile(rf"[\"'] ?{ROLE}[^\"' ]*[\"'] (?:not )?in\b"), "looks for a stage in a text"),
    (re.compile(rf"\w+(?:\.text)? ?[!=]= ?[\"']{ROLE}[^\"' ]*[\"'](?! *\+)"), "compares a stage's text"),
    (re.compile(rf"{PLAN}\.{CUT}\("), "cuts a plan's text"),
    (re.compile(r"\bre\.\w+\(.*\b_?(?:stage|plan|feedback)\w*\b"), "a regular expression over a plan"),
    (re.compile(r"\bin f?[\"'] ?\{(?:self\.)?_?plan\}|\bin str\((?:self\.)?_?plan\w*\)"), "looks into a plan's text"),
    (re.compile(r"\bfnmatch(?:case)?\([^()]*pattern"), "matches a book's pattern"),
    (re.compile(r"\.rpartition\(\":\"\)|rfind\(':'\).*(?:pattern|book)"), "parses a line of a book"),
]
EXEMPT = re.compile(r"(?:#|//).*plan text: \w")


def without_comment(line):
    return re.sub(r"(?:^|\s)(?:#|//).*", "", line)


def faults(name, text):
    docstring = False
    for number, line in enumerate(text.split("\n"), 1):
        if name.endswith(".py"):
            quotes = line.count('"""')
            inside, docstring = docstring or quotes > 0, docstring ^ (quotes % 2 == 1)
            if inside:
                continue
        if EXEMPT.search(line):
            continue
        for rule, what in RULES:
            code = without_comment(line)
            if rule.search(re.sub(r'[rf]*"[^"]*"', '""', code) if what.startswith("a regular") else code):
                yield f"{name}:{number}: {what}; ask for its stages (dr_plan_stage, Plan.stages) or lines (dr_book): {line.strip()[:100]}"
                break


def check(root):
    for room in ROOMS:
        for path in sorted((root / room).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in SUFFIXES and path.is_file() and not name.startswith(READERS):
                yield from faults(name, path.read_text(encoding="utf-8"))


# What the readers of plan text looked like, in Python and C++.
PLANTS = [
    ("x.py", 'flat = info.sparsifies or " value=half" in f" {plan}"'),
    ("x.py", 'found = re.search(r"\\bclip=([^,)]+)", _stage(plan, "feedback"))'),
    ("x.py", 'return next((each for each in str(plan).split() if each.startswith(f"{role}=")), "")'),
    ("x.py", "stages = str(plan).split()"),
    ("x.py", "return plan.split()"),
    ("x.py", 'self.sparse = "index=all" not in str(sample).split()'),
    ("x.py", 'if self.keeps and "feedback=momentum" not in plan:'),
    ("x.py", 'return re.sub(r"\\([^)]*\\)", "", str(self.plan_for(1024)))'),
    ("x.py", 'if feedback.startswith(("feedback=dgc", "feedback=momentum")):'),
    ("x.py", "return next((plan for pattern, plan in self._pairs if fnmatch.fnmatchcase(name, pattern)), None)"),
    ("x.py", 'pattern, colon, plan = (part.strip(" ") for part in line.rpartition(":"))'),
    ("x.cpp", 'bool is_transform(const std::string& plan) { return plan.starts_with("transform="); }'),
    ("x.cpp", '    : library_(c), keeps_(p.text().find("feedback=") != std::string_view::npos) {'),
    ("x.cpp", '  if (const size_t at = stage.find("inner="); at != stage.npos)'),
    ("x.cpp", '  if (const size_t gamma = reading.feedback.find("gamma="); gamma != std::string::npos)'),
    ("x.cpp", '  const bool halves = value == "value=half" || value.starts_with("value=half(");'),
    ("x.cpp", '  const bool hosts = stage.starts_with("exchange=hierarchy");'),
    ("x.cpp", '  if (text_of(*row, "plan").find("exchange=") != std::string::npos)'),
    ("x.cpp", '  reading.regather = stages["regather"].text != "regather=off";'),
    ("x.cpp", "    const std::string stem = plan.substr(0, plan.find('('));"),
]
FINE = [
    ("x.py", 'plan = as_plan(f"{_EXACT} {feedback} index=all value=raw")'),
    ("x.py", '    """A stage, "feedback=residual" in a plan."""'),
    ("x.cpp", '  const plan all("sparsify=none " + feedback + " index=all value=raw");'),
    ("x.cpp", "  // plan.find('(') was here"),
]


def main():
    found = list(check(Path(sys.argv[1])))
    found += [f"plan_text.py: does not notice: {line}" for name, line in PLANTS if not list(faults(name, line))]
    found += [f"plan_text.py: refuses what is fine: {line}" for name, line in FINE if list(faults(name, line))]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
