"""The direction of imports, and who may import what."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PACKAGE = Path(__file__).parents[1] / "memplan"

# A part of the package (a module or package at its top) imports only parts above it in this list, and parts on its own
# line without cycles.
LAYERS = (
    (
        "crossings",
        "units",
        "errors",
        "json_documents",
        "late_imports",
        "notebooks",
        "torch_releases",
        "user_places",
        "version",
    ),
    ("recipe", "torch_settings", "workload", "results", "training_checks", "patches", "run_names"),
    ("children", "devices", "launchers", "process_identity", "textfiles", "worst_case"),
    ("configs",),
    ("recommend",),
    ("plans", "progress"),
    ("training",),
    ("estimators",),
    ("probe",),
    ("report",),
    ("planning",),
    ("planner",),
    ("api",),
    ("watching",),
    ("integrations",),
    ("cli",),
)
# The same for the parts of configs.
LAYERS_OF_CONFIGS = (
    ("attribute_dict", "keys", "object_access", "precision_words", "project_folders", "workload_targets"),
    ("sharding_remarks",),
    ("languages",),
    ("documents",),
    ("missing_workload",),
    ("user_config",),
    ("assignments", "options", "originals", "workloads"),
    ("evaluation", "knob_changes", "knobs"),
    ("packages",),
    ("layout",),
    ("ecosystems",),
    ("companions", "replicas"),
    ("several_files",),
    ("reading",),
    ("objects",),
    ("writing",),
)
# And within estimators.
LAYERS_OF_ESTIMATORS = (
    ("allocators", "sample_loops"),
    ("temporaries",),
    ("step_trace",),
    ("cudnn",),
    ("tracing",),
    ("fake_tensors",),
    ("absent_card",),
    ("lowering",),
    ("recorder",),
    ("breakdown",),
    ("figures",),
    ("drawn_steps", "reserved_peak"),
    ("answers",),
    ("step_snapshot",),
)
# And within planning.
LAYERS_OF_PLANNING = (
    ("digests", "options"),
    ("subject",),
    ("commands", "line_to_run", "question"),
    ("candidate_precisions", "command_notes", "evaluation_peak", "fingerprints", "target", "traces"),
    ("micro_batch_cap", "recommendation", "savings"),
    ("trials",),
    ("writing",),
    ("absent", "estimating", "launched", "present", "recall"),
    ("stored_runs",),
)
INNER_LAYERS = {"configs": LAYERS_OF_CONFIGS, "estimators": LAYERS_OF_ESTIMATORS, "planning": LAYERS_OF_PLANNING}
ROOTS = ("__init__", "__main__")  # the lazy public names and `python -m memplan` reach everything

# Foreign package -> the parts, or single files, that may import it.
GATEWAYS = {
    "pynvml": {"devices/nvml.py"},
    "typer": {"cli"},
    "rich": {"cli", "report"},
    "torch": {"estimators", "integrations", "probe", "training"},
    "lightning": {"integrations"},
    "transformers": {"integrations"},
    "mmengine": {"integrations"},
    "subprocess": {"children"},
    "sqlite3": {"probe/journal.py", "probe/journal_file.py", "probe/journal_run.py"},
}


@functools.cache
def sources() -> tuple[Path, ...]:
    return tuple(sorted(PACKAGE.rglob("*.py")))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imported_modules(path: Path) -> frozenset[str]:
    return frozenset(chain.from_iterable(map(modules_of, ast.walk(tree_of(path)))))


def imported_at_run_time(path: Path) -> set[str]:
    """What is imported elsewhere than under ``if TYPE_CHECKING``."""
    found: set[str] = set()
    pending: list[ast.AST] = [tree_of(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        found.update(modules_of(node))
        pending += ast.iter_child_nodes(node)
    return found


def modules_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module == "memplan":
        return [f"memplan.{alias.name}" for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def offences(find: Callable[[Path], Iterable[str]]) -> list[str]:
    """What is wrong with any file, one line each."""
    return [f"{path.relative_to(PACKAGE)} {each}" for path in sources() for each in find(path)]


def levels(layers: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    return {name: depth for depth, names in enumerate(layers) for name in names}


def test_what_a_module_imports_is_found_and_when() -> None:
    tree = ast.parse(
        "import os.path\nfrom memplan import units\nif TYPE_CHECKING:\n    import torch\nelse:\n    import numpy\n"
        "def late():\n    from a.b import c\n"
    )
    path = Path("of this test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "tree_of", {path: tree}.__getitem__)
        assert imported_modules(path) == {"os.path", "memplan.units", "torch", "numpy", "a.b"}
        assert imported_at_run_time(path) == {"os.path", "memplan.units", "numpy", "a.b"}


def test_imports_go_downwards_only() -> None:
    level = levels(LAYERS)

    def upward(path: Path) -> Iterator[str]:
        part = part_of(path)
        if part in ROOTS:
            return
        if part not in level:
            yield "has no place in LAYERS"
        for module in imported_modules(path):
            if module.split(".")[0] != "memplan":
                continue
            other = module.removeprefix("memplan.").split(".")[0]
            if other not in level:
                yield f"imports {module} from the root, not from the part it lies in"
            elif level[other] > level.get(part, 0):
                yield f"imports {module}, which lies above it"

    assert offences(upward) == []


def test_imports_within_the_large_packages_go_downwards_too() -> None:
    def upward(path: Path) -> Iterator[str]:
        parts = path.relative_to(PACKAGE).parts
        layers = INNER_LAYERS.get(parts[0])
        if layers is None or (part := parts[1].removesuffix(".py")) in ROOTS:
            return
        level = levels(layers)
        if part not in level:
            yield f"has no place among the layers of {parts[0]}"
        for module in imported_modules(path):
            if module.startswith(f"memplan.{parts[0]}.") and level[module.split(".")[2]] > level.get(part, 0):
                yield f"imports {module}, which lies above it"

    assert offences(upward) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in sources()}
    imports = {name: imported_modules(path) & set(modules) for name, path in modules.items()}
    assert len(list(TopologicalSorter(imports).static_order())) == len(modules)  # raises where there is a circle


def test_foreign_systems_have_one_gateway_each() -> None:
    def around_gateways(path: Path) -> Iterator[str]:
        place = path.relative_to(PACKAGE)
        for module in imported_at_run_time(path):
            gateways = GATEWAYS.get(module.split(".")[0])
            if gateways is not None and not {str(place), place.parts[0]} & gateways:
                yield f"imports {module}"

    assert offences(around_gateways) == []


def test_no_module_is_a_grab_bag_and_none_is_too_long() -> None:
    def unclear(path: Path) -> Iterator[str]:
        if path.stem in {"utils", "util", "common", "helpers", "misc"}:
            yield "has a name that says nothing"
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400:
            yield f"has {lines} lines"

    assert offences(unclear) == []


PURE_MODULES = (
    "memplan",
    "memplan.cli",
    "memplan.planner",
    "memplan.api",
    "memplan.configs",
    "memplan.estimators",
    "memplan.estimators.allocators.caching_allocator",
    "memplan.probe",
    "memplan.probe.search",
    "memplan.probe.commands.trial",
    "memplan.probe.commands.hook",
    "memplan.recommend",
    "memplan.report",
)


@pytest.mark.parametrize("module", PURE_MODULES)
def test_the_module_loads_without_torch(module: str) -> None:
    check = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_help_loads_no_torch_and_no_driver_library() -> None:
    check = (
        "import sys\n"
        "from memplan.cli import main\n"
        "sys.argv = ['memplan', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code\n"
        "sys.exit(bool({'torch', 'pynvml', 'pandas'} & set(sys.modules)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", check], check=False, capture_output=True)
    assert ended.returncode == 0, ended.stderr
