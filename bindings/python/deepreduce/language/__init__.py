"""A codec in twenty lines: the language of docs/LANGUAGE.md, and its compiler."""

from ._build import build, program_of, source_of
from ._syntax import LanguageError

__all__ = ["LanguageError", "build", "program_of", "source_of"]
