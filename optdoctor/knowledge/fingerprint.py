"""A hash of what a rule decides by, so that a figure measured of another state of it is known."""

import ast
import hashlib
import io
import re
import tokenize
from functools import cache
from importlib import resources

_DECIDES = re.compile(r"^\s*from optdoctor\.((?:curves|knowledge)\.\w+) import", re.M)


@cache
def fingerprint(rule: str) -> str:
    """16 hexadecimal digits over the code of the rule of this name, limits included, and over that
    of the statistics and tables that it imports, directly or through others.

    Comments, docstrings and blank lines are no part of it; nor is the version of Python.

    Raises:
        FileNotFoundError: no such rule.
    """
    told, open_modules = {}, [f"rules.{rule.replace('-', '_')}"]
    while open_modules:
        name = open_modules.pop()
        if name not in told:
            source = _source(name)
            told[name] = meaning(source)
            open_modules += _DECIDES.findall(source)
    whole = "\n".join(f"{name}\n{told[name]}" for name in sorted(told))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


@cache
def _source(module: str) -> str:
    *folders, name = module.split(".")
    folder = resources.files("optdoctor").joinpath(*folders)
    path = folder.joinpath(f"{name}.py")
    return (path if path.is_file() else folder.joinpath(name, "__init__.py")).read_text("utf-8")


@cache
def meaning(source: str) -> str:
    """The source without comments, docstrings and blank lines."""
    kept = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and _is_text(node):
            last = node.end_lineno or node.lineno
            kept[node.lineno - 1 : last] = [""] * (last - node.lineno + 1)
    for token in tokenize.generate_tokens(io.StringIO("\n".join(kept)).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            kept[row - 1] = kept[row - 1][:column]
    return "\n".join(line.rstrip() for line in kept if line.strip())


def _is_text(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
