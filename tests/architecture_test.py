"""The walls between packages, and the house rules, read from the source itself.

A breach is mended in the module that it names; a wall is moved here, on purpose.
"""

import ast
import collections
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "mempo_jax"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70  # the docstring left out

SHARED = {"types", "settings"}  # arrays' names and config errors: anyone may
# Which parts of mempo_jax a part may import, itself and SHARED aside.
MAY_IMPORT = {
    "types": set(),
    "settings": set(),
    "engine_config": {"rollout"},
    "config": {
        "configs",  # the defaults, for fields that a saved config lacks
        "core",
        "engine_config",
        "envs",
        "memory",
        "models",
        "rollout",
    },
    "core": set(),
    "memory": set(),
    "envs": {"memory"},
    "models": set(),
    "rollout": {"models", "envs", "memory"},
    "distributed": {"models"},
    "runs": {"rollout", "distributed", "config"},
    "builders": {
        "core",
        "memory",
        "envs",
        "models",
        "rollout",
        "distributed",
        "config",
    },
    "evaluation": {
        "core",
        "memory",
        "envs",
        "models",
        "rollout",
        "distributed",
        "runs",
        "builders",
        "config",
    },
    "training": {
        "core",
        "memory",
        "envs",
        "models",
        "rollout",
        "distributed",
        "runs",
        "builders",
        "config",
        "evaluation",
    },
    "planning": {
        "core",
        "models",
        "rollout",
        "distributed",
        "builders",
        "config",
        "training",
    },
    "report": {"memory", "rollout", "evaluation", "runs", "doctor"},
    "doctor": {"runs"},
    "agent": {"memory", "envs", "rollout", "builders", "config"},
    "configs": set(),  # the way to the folder of that name, see its docstring
    "api": {
        "agent",
        "builders",
        "config",
        "evaluation",
        "report",
        "runs",
        "training",
    },
}
# Which outside packages a part must not import.
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}
EDGE = {"absl", "ml_collections", "experiments", "configs"}
FORBIDDEN = {
    "types": JAX | EDGE | {"numpy"},
    "settings": JAX | EDGE | {"numpy"},
    "memory": JAX,
    "envs": JAX,
    "doctor": JAX,
}
# Outside packages that one place alone may import (a folder or a file).
ONLY_IN = {
    "bm25s": f"{PACKAGE}/envs/search.py",
    "matplotlib": f"{PACKAGE}/evaluation/plots.py",
    "scann": f"{PACKAGE}/memory/index.py",
    "orbax": f"{PACKAGE}/training/checkpoints.py",
    "flax": f"{PACKAGE}/models/",
    "tensorboardX": f"{PACKAGE}/runs/metrics_writer.py",
    "wandb": f"{PACKAGE}/runs/metrics_writer.py",
    "sentence_transformers": f"{PACKAGE}/memory/embedding.py",
    "gymnasium": f"{PACKAGE}/envs/adapters/",
    "textarena": f"{PACKAGE}/envs/adapters/",
    "textworld_express": f"{PACKAGE}/envs/adapters/",
    "torch": "tests/",
    "trl": "tests/",
}
# The name in an import, where it is not the name in setup.py.
DISTRIBUTION = {
    "absl": "absl-py",
    "orbax": "orbax-checkpoint",
    "textworld_express": "textworld-express",
    "yaml": "PyYAML",
}


def sources(*folders):
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}


def package_sources():
    return sources(PACKAGE)


def all_sources():
    return sources(PACKAGE, "experiments", "configs", "tests", "benchmarks")


def imports(name, source):
    """Dotted names imported anywhere in a file: (line, name); functions included."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split("/")[: -node.level]
                base = ".".join([*parts, base] if base else parts)
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def part_of(name):
    """The part of the package that a file belongs to; None for its __init__."""
    part = pathlib.PurePosixPath(name).parts[1].removesuffix(".py")
    return None if part == "__init__" else part


def wall_breaches(name, source):
    breaches = []
    part = part_of(name)
    for line, target in imports(name, source):
        top, *rest = target.split(".")
        where = f"{name}:{line} imports {target}"
        if top in EDGE:
            breaches.append(f"{where}: launchers and configs only may")
        elif top in FORBIDDEN.get(part, ()):
            breaches.append(f"{where}: {part} must not")
        elif top == PACKAGE and part is not None and rest and is_part(rest[0]):
            allowed = MAY_IMPORT.get(part, set()) | SHARED | {part}
            if rest[0] not in allowed:
                breaches.append(f"{where}: {part} may import {sorted(allowed)}")
    return breaches


def is_part(name):
    return name in MAY_IMPORT


def place_breaches(name, source):
    return [
        f"{name}:{line} imports {target}: only {ONLY_IN[target.split('.')[0]]} may"
        for line, target in imports(name, source)
        if not name.startswith(ONLY_IN.get(target.split(".")[0], ""))
    ]


def rule_breaches(name, source):
    breaches = []
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        breaches.append(f"{name}: {lines} lines, at most {MAX_FILE_LINES}; split it")
    if pathlib.PurePosixPath(name).stem in {"utils", "util", "helpers", "misc"}:
        breaches.append(f"{name}: name the file after what it holds")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            breaches.append(f"{name}:{node.lineno}: bare except; name the exception")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1 - docstring_lines(node)
            is_table = name.startswith("configs/")  # a config is a table of values
            if length > MAX_FUNCTION_LINES and not is_table:
                breaches.append(
                    f"{name}:{node.lineno}: {node.name} has {length} lines, at most"
                    f" {MAX_FUNCTION_LINES}; split it"
                )
    return breaches


def docstring_lines(node):
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is None:
        return 0
    return first.end_lineno - first.lineno + 1


def print_breaches(name, source):
    return [
        f"{name}:{node.lineno}: print; return or raise it, launchers print"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]


def breaches_of(check, files):
    return [each for name, source in files.items() for each in check(name, source)]


def assert_none(breaches):
    assert not breaches, "\n" + "\n".join(breaches)


def test_every_part_has_a_wall():
    parts = {part_of(name) for name in package_sources()} - {None}
    assert parts, "no source was read"
    assert parts <= set(MAY_IMPORT), "a new part needs a row in MAY_IMPORT"


def test_every_folder_of_modules_is_a_package():
    """A folder without ``__init__.py`` is imported in a checkout, and left out of a
    wheel."""
    folders = {pathlib.PurePosixPath(name).parent for name in package_sources()}
    bare = [str(f) for f in folders if not (ROOT / f / "__init__.py").is_file()]
    assert bare == []


def test_walls_between_packages():
    assert_none(breaches_of(wall_breaches, package_sources()))


def test_some_packages_are_imported_in_one_place():
    files = sources(PACKAGE, "experiments", "configs")
    assert_none(breaches_of(place_breaches, files))


def test_house_rules():
    assert_none(breaches_of(rule_breaches, all_sources()))


def test_only_launchers_and_benchmarks_print():
    files = sources(PACKAGE, "configs", "tests")
    assert_none(breaches_of(print_breaches, files))


def test_what_is_imported_is_required_by_setup_py():
    setup = (ROOT / "setup.py").read_text()
    required = set(re.findall(r'"\{?([A-Za-z0-9_-]+)[>=\[]', setup)) | {"scann"}
    missing = []
    for name, source in package_sources().items():
        for line, target in imports(name, source):
            top = target.split(".")[0]
            if top in sys.stdlib_module_names or top == PACKAGE:
                continue
            if DISTRIBUTION.get(top, top) not in required:
                missing.append(f"{name}:{line}: {top} is not in setup.py")
    assert_none(missing)


def test_host_packages_start_without_jax():
    code = (
        "import sys, mempo_jax.memory, mempo_jax.envs;"
        "import mempo_jax.doctor, mempo_jax.runs;"
        "print(*sorted({'jax', 'flax', 'scann'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("mempo_jax/core/x.py", "from mempo_jax.models import decoder"),
        ("mempo_jax/core/x.py", "from mempo_jax import memory"),
        ("mempo_jax/core/x.py", "from ..memory import bank"),
        ("mempo_jax/memory/x.py", "def f():\n    import jax.numpy as jnp"),
        ("mempo_jax/envs/x.py", "from mempo_jax.rollout.engine import Engine"),
        ("mempo_jax/envs/x.py", "import jax"),
        ("mempo_jax/models/x.py", "import mempo_jax.core.masking"),
        ("mempo_jax/rollout/x.py", "import mempo_jax.training"),
        ("mempo_jax/training/x.py", "import configs.base"),
        ("mempo_jax/training/x.py", "from mempo_jax.configs import base"),
        ("mempo_jax/training/x.py", "from ml_collections import ConfigDict"),
        ("mempo_jax/training/x.py", "from absl import flags"),
        ("mempo_jax/settings.py", "import numpy as np"),
        ("mempo_jax/doctor/x.py", "import jax"),
        ("mempo_jax/doctor/x.py", "from mempo_jax.training import metrics"),
        ("mempo_jax/runs/x.py", "from mempo_jax.doctor import examine"),
    ],
)
def test_a_breach_of_a_wall_is_seen(name, source):
    assert len(wall_breaches(name, source)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("mempo_jax/core/x.py", "from mempo_jax.types import Kind\nimport jax"),
        ("mempo_jax/envs/x.py", "from mempo_jax.memory import Bank\nimport numpy"),
        ("mempo_jax/training/x.py", "from mempo_jax.rollout import engine"),
        ("mempo_jax/__init__.py", "from mempo_jax.agent import Agent"),
    ],
)
def test_what_the_walls_allow_is_no_breach(name, source):
    assert wall_breaches(name, source) == []


@pytest.mark.parametrize(
    ("check", "name", "source"),
    [
        (place_breaches, "mempo_jax/memory/bank.py", "import scann"),
        (place_breaches, "mempo_jax/training/state.py", "import orbax.checkpoint"),
        (place_breaches, "mempo_jax/rollout/x.py", "from flax import nnx"),
        (place_breaches, "mempo_jax/models/hf.py", "import torch"),
        (rule_breaches, "a/x.py", "\n" * 601),
        (rule_breaches, "a/utils.py", ""),
        (rule_breaches, "a/x.py", "try:\n    pass\nexcept:\n    pass"),
        (rule_breaches, "a/x.py", "def f():\n" + "    pass\n" * 70),
        (print_breaches, "mempo_jax/x.py", "def f():\n    print(1)"),
    ],
)
def test_a_breach_of_a_rule_is_seen(check, name, source):
    assert len(check(name, source)) == 1


def test_a_long_docstring_is_no_long_function():
    source = 'def f():\n    """Says\n' + "    more\n" * 90 + '    """\n    return 1\n'
    assert rule_breaches("a/x.py", source) == []


def test_no_modules_import_each_other_in_a_circle():
    graph = module_graph(package_sources())
    assert circles(graph) == []


def test_a_circle_is_seen():
    files = {
        "mempo_jax/a.py": "from mempo_jax.b import x",
        "mempo_jax/b.py": "def f():\n    from mempo_jax import c",
        "mempo_jax/c.py": "from mempo_jax import a",
        "mempo_jax/d.py": "from mempo_jax import a",
    }
    expected = [["mempo_jax.a", "mempo_jax.b", "mempo_jax.c"]]
    assert circles(module_graph(files)) == expected


def module_graph(files):
    """Imports between the modules of ``files``, those inside functions included."""
    named = {module_name(name): (name, source) for name, source in files.items()}
    graph = {}
    for module, (name, source) in named.items():
        targets = [target for _, target in imports(name, source)]
        # ``from a.b import c`` names the module a.b.c if there is one, else a.b.
        near = [t if t in named else t.rpartition(".")[0] for t in targets]
        graph[module] = sorted({t for t in near if t in named and t != module})
    return graph


def module_name(path):
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def circles(graph):
    """Sets of modules that reach each other, each sorted."""
    reach = {module: reached_from(graph, module) for module in graph}
    found = {
        tuple(sorted(m for m in reach[module] if module in reach[m]))
        for module in graph
        if module in reach[module]
    }
    return sorted(list(each) for each in found)


def reached_from(graph, start):
    seen, todo = set(), list(graph[start])
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += graph[module]
    return seen


def test_no_file_name_and_no_public_class_name_stands_twice():
    """One name, one thing: a search for it finds one place."""
    files, classes = collections.Counter(), collections.Counter()
    for name, source in package_sources().items():
        file = pathlib.PurePosixPath(name).name
        files[file] += file != "__init__.py"
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
    twice = [name for name, count in (files + classes).items() if count > 1]
    assert twice == []
