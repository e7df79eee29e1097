"""Python runs this in every program that `deepreduce capture` starts, since its folder is the first on PYTHONPATH.

When torch.optim is imported, it starts to record gradients (deepreduce.recording). The machine's own sitecustomize runs, too.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_OPTIMIZER = "torch.optim.optimizer"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch's optimizer module by the other finders, and makes its loader start the recording."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _OPTIMIZER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def run_and_start(module: Any) -> None:
                run(module)
                _start(module)

            loader.exec_module = run_and_start
        return spec


def _start(module: Any) -> None:
    try:
        from deepreduce import recording

        recording.start(module)
    except Exception as error:  # the program continues
        print(f"deepreduce: capture: nothing is recorded: {error!r}", file=sys.stderr)


def _run_the_next() -> None:
    """Runs the sitecustomize that this one hides."""
    paths = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("DEEPREDUCE_CAPTURE"):
    sys.meta_path.insert(0, _Finder())
_run_the_next()
