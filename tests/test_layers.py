"""Who may import whom, and which files may name a heavy library; read from the syntax trees."""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import optdoctor

PACKAGE = Path(optdoctor.__file__).parent

LAYERS = [
    ["errors", "channels", "findings", "store", "trace", "rule", "synthetic"],
    ["curves/*"],
    ["knowledge/*"],
    ["rules/*"],
    ["settings", "attribution", "engine", "compare"],
    ["reading/*"],
    ["readers/*"],
    ["analysis"],
    ["report/*"],
    ["optimizers/*"],
    ["sinks/*"],
    ["treatments/*"],
    ["live/*"],
    ["advise/*"],
    ["adapters/*"],
    ["demo/*"],
    ["follow"],
    ["cli/*"],
    ["__main__"],
]
"""A module imports only from lines above its own, or from modules to its left on the same line;
those of one folder import each other without a circle, but rules do not."""

HEAVY = {
    "torch": {
        "optimizers/*",
        "treatments/*",
        "live/*",
        "adapters/*",
        "sinks/tensorboard.py",
        "demo/*",
    },
    "transformers": {"adapters/huggingface.py", "demo/huggingface.py"},
    "accelerate": {"adapters/huggingface.py"},
    "lightning": {"adapters/lightning.py", "demo/lightning.py"},
    "pytorch_lightning": {"adapters/lightning.py"},
    "wandb": {"sinks/wandb.py"},
    "tensorboard": {"sinks/tensorboard.py"},
    "mlflow": {"sinks/mlflow.py"},
    "trackio": {"sinks/trackio.py"},
    "fsspec": {"reading/remote.py"},
    "pyarrow": {
        "reading/table_rows.py",
        "reading/unpack.py",
        "readers/run_record.py",
        "reading/uniform_rows.py",
        "sinks/record.py",
        "report/table.py",
    },
    "tqdm": {"sinks/console.py"},
    "pandas": set(),
    "scipy": set(),
    "sklearn": set(),
    "matplotlib": set(),
}
"""{library: files that may import it, anywhere in them}."""

RULES_MAY_IMPORT = {
    "optdoctor.rule",
    "optdoctor.findings",
    "optdoctor.curves",
    "optdoctor.store",
    "optdoctor.synthetic",
    "optdoctor.trace",
    "optdoctor.knowledge",
    "numpy",
}
STANDARD = {"collections", "dataclasses", "functools", "itertools", "math", "re", "typing"}

FILES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
each_file = pytest.mark.parametrize("file", FILES)


def source_of(file: str) -> str:
    return FILES[file].read_text(encoding="utf-8")


def imports(source: str) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether it is imported with the module) of everything imported anywhere."""
    tree = ast.parse(source)
    inside = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from ((f"{node.module}.{alias.name}", node not in inside) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield name.value, node not in inside


def own_modules(source: str) -> dict[str, bool]:
    """{module of ours, "live/run": whether it is imported with the module}."""
    found: dict[str, bool] = {}
    for name, at_once in imports(source):
        package, *parts = name.split(".")
        if package != "optdoctor":
            continue
        for end in (len(parts), len(parts) - 1):
            path = "/".join(parts[: max(end, 0)])
            if path and (f"{path}.py" in FILES or f"{path}/__init__.py" in FILES):
                found[path] = found.get(path, False) or at_once
                break
    return found


def place(module: str) -> tuple[int, int]:
    """Line and position of a module in `LAYERS`."""
    for line, entries in enumerate(LAYERS):
        for position, entry in enumerate(entries):
            if fnmatch(module, entry) or module == entry.removesuffix("/*"):
                return line, position
    raise AssertionError(f"{module} has no place in LAYERS")


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__")


def violations(file: str, source: str) -> list[str]:
    """What a file with this source imports against the order."""
    module = module_of(file)
    wrong = []
    if file != "__init__.py":
        line, position = place(module)
        for other in own_modules(source):
            there = place(other)
            same_folder = there == (line, position) and not module.startswith("rules/")
            if there >= (line, position) and not same_folder:
                wrong.append(other)
    for name, _ in imports(source):
        library = name.partition(".")[0]
        if not any(fnmatch(file, pattern) for pattern in HEAVY.get(library, {"*"})):
            wrong.append(library)
        if module.startswith("rules/") and not is_for_rules(name):
            wrong.append(name)
    return wrong


def is_for_rules(name: str) -> bool:
    return name.partition(".")[0] in STANDARD or any(
        f"{name}.".startswith(f"{allowed}.") for allowed in RULES_MAY_IMPORT
    )


@each_file
def test_a_module_imports_only_what_lies_before_it(file: str) -> None:
    assert violations(file, source_of(file)) == []


def test_modules_import_each_other_without_a_circle() -> None:
    graph = {
        module_of(file): {m for m, at_once in own_modules(source_of(file)).items() if at_once}
        for file in FILES
        if file != "__init__.py"
    }
    TopologicalSorter({module: others - {module} for module, others in graph.items()}).prepare()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert {name.partition(".")[0] for name, at_once in imports(source_of("__init__.py"))} <= (
        STANDARD | {"importlib", "optdoctor"}
    )


SABOTAGE = [
    ("rules/nan_pulse.py", "import torch"),
    ("rules/nan_pulse.py", "from torch import Tensor"),
    ("rules/nan_pulse.py", "def check():\n    import torch.nn"),
    ("rules/nan_pulse.py", "import importlib\nimportlib.import_module('torch')"),
    ("rules/nan_pulse.py", "import scipy"),
    ("rules/nan_pulse.py", "import os"),
    ("rules/nan_pulse.py", "from optdoctor.rules.epsilon_below_precision import RULE"),
    ("rules/nan_pulse.py", "from optdoctor.rules import epsilon_below_precision"),
    ("rules/nan_pulse.py", "from optdoctor.rules import RULES"),
    ("rules/nan_pulse.py", "from optdoctor.engine import diagnose"),
    ("rules/nan_pulse.py", "from optdoctor import readers"),
    ("rules/nan_pulse.py", "from optdoctor.channels import CHANNELS"),
    ("trace.py", "from optdoctor.engine import diagnose"),
    ("trace.py", "from optdoctor import rule"),
    ("channels.py", "from optdoctor.findings import Finding"),
    ("findings.py", "import torch"),
    ("settings.py", "from optdoctor.engine import diagnose"),
    ("engine.py", "from optdoctor.report import text"),
    ("readers/csv_table.py", "import pandas"),
    ("readers/csv_table.py", "def read():\n    import pyarrow"),
    ("report/text.py", "from optdoctor.live.doctor import Doctor"),
    ("live/doctor.py", "from optdoctor.adapters.huggingface import OptDoctorCallback"),
    ("live/doctor.py", "import transformers"),
    ("cli/analyze.py", "import torch"),
]


@pytest.mark.parametrize(("file", "line"), SABOTAGE)
def test_an_import_against_the_order_is_caught(file: str, line: str) -> None:
    assert violations(file, f"{source_of(file)}\n\n{line}\n")
