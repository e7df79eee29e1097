#!/usr/bin/env python3
"""Draws the Python package: its rooms and its modules by floors, and who imports whom.

    python_rooms.py [PACKAGE]      bindings/python/deepreduce

A room is what stands at the package's top level: a folder with all that is in it, or a module. First the rooms are drawn, then the modules.
A module stands one floor above the highest module that it imports; those that import one another in a circle share a floor, and the circle is
listed. So it is with rooms. Imports within functions count, those for type checkers only do not. `__init__.py` of the package itself, which only
hands names on, is left out, and so are imports of it.
The last lines: rooms, floors, arrows, circles; modules, lines, floors, arrows, circles, public names (`__all__` of the package and its public
modules), uses of Any.
"""
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def modules(package):
    """dotted name within the package: file. A folder is the module of its __init__.py."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        words = list(path.relative_to(package).with_suffix("").parts)
        if words[-1] == "__init__":
            words.pop()
        if words:
            found[".".join(words)] = path
    return found


class Imports(ast.NodeVisitor):
    def __init__(self, package, name, path, known):
        self.package, self.known, self.found = package, known, set()
        self.here = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]  # what a leading dot means

    def visit_If(self, node):
        if "TYPE_CHECKING" not in ast.dump(node.test):
            self.generic_visit(node)

    def add(self, words):
        while words and ".".join(words) not in self.known:
            words = words[:-1]
        if words:
            self.found.add(".".join(words))

    def visit_Import(self, node):
        for alias in node.names:
            if alias.name.startswith(self.package + "."):
                self.add(alias.name.split(".")[1:])

    def visit_ImportFrom(self, node):
        words = node.module.split(".") if node.module else []
        if node.level:
            words = [*self.here[: len(self.here) - node.level + 1], *words]
        elif words[:1] == [self.package]:
            words = words[1:]
        else:
            return
        for alias in node.names:
            self.add([*words, alias.name])


def arrows(package):
    known = modules(package)
    seen = {}
    for name, path in known.items():
        visitor = Imports(package.name, name, path, known)
        visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
        seen[name] = visitor.found - {name}
    return seen


def circles(sees):
    """Sets of modules that reach one another (Tarjan), those of one module too, each after what it imports."""
    index, low, stack, out = {}, {}, [], []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(sees[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            out.append(stack[at:])
            del stack[at:]

    for name in sorted(sees):
        if name not in index:
            visit(name)
    return out


def rooms(sees):
    """room: the rooms that its modules import."""
    found = {name.split(".")[0]: set() for name in sees}
    for name, others in sees.items():
        room = name.split(".")[0]
        found[room] |= {other.split(".")[0] for other in others} - {room}
    return found


def floors(sees):
    """module: its floor; 1 is the ground."""
    floor = {}
    for group in circles(sees):
        below = {other for name in group for other in sees[name]} - set(group)
        for name in group:
            floor[name] = 1 + max((floor[other] for other in below), default=0)
    return floor


def public_names(package, known):
    count = 0
    for path in [package / "__init__.py", *(path for name, path in known.items() if not any(word.startswith("_") for word in name.split(".")))]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__" and isinstance(node.value, (ast.List, ast.Tuple)):
                count += len(node.value.elts)
    return count


def draw(sees, sizes):
    """Prints the floors from the highest down; returns how many, the arrows and the circles."""
    floor = floors(sees)
    for number in range(max(floor.values()), 0, -1):
        print(f"floor {number}")
        for name in sorted(name for name in floor if floor[name] == number):
            print(f"  {name} {sizes[name]}: {' '.join(sorted(sees[name], key=lambda other: (-floor[other], other))) or '-'}")
    tied = [sorted(group) for group in circles(sees) if len(group) > 1]
    for group in tied:
        print(f"circle: {' '.join(group)}")
    return f"{max(floor.values())} floors, {sum(map(len, sees.values()))} arrows, {len(tied)} circles"


def main():
    package = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "bindings" / "python" / "deepreduce"
    known, sees = modules(package), arrows(package)
    texts = {name: path.read_text(encoding="utf-8") for name, path in known.items()}
    sizes = {name: len(text.splitlines()) for name, text in texts.items()}
    inside = rooms(sees)
    print("rooms")
    of_rooms = draw(inside, {room: sum(size for name, size in sizes.items() if name.split(".")[0] == room) for room in inside})
    print("modules")
    of_modules = draw(sees, sizes)
    anys = sum(len(re.findall(r"\bAny\b", text)) for text in texts.values())
    print(f"{len(inside)} rooms, {of_rooms}")
    print(f"{len(known)} modules, {sum(sizes.values())} lines, {of_modules}, {public_names(package, known)} public names, {anys} times Any")


if __name__ == "__main__":
    main()
