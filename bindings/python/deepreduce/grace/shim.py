"""Modules named grace_dl, over deepreduce.grace: see deepreduce_grace.shim.

    import deepreduce.grace.shim
    deepreduce.grace.shim.install()

    python -m deepreduce.grace.shim script.py …      runs an unchanged script so
"""

import sys

from deepreduce_grace.shim import install, installed, main, uninstall

__all__ = ["install", "installed", "main", "uninstall"]

if __name__ == "__main__":
    main(sys.argv[1:])
