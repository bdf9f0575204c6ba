"""The direction of imports, and who may import what."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

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


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path, *, at_run_time_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    if at_run_time_only:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped.update(inner for statement in node.body for inner in ast.walk(statement))
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "memplan":
            found.update(f"memplan.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downwards_only(path: Path) -> None:
    part = part_of(path)
    if part in ROOTS:
        return
    level = {name: depth for depth, names in enumerate(LAYERS) for name in names}
    assert part in level, f"{part} has no place in LAYERS"
    for module in imported_modules(path):
        if module.split(".")[0] == "memplan":
            other = module.removeprefix("memplan.").split(".")[0]
            assert other in level, f"{path.name} imports {module} from the root, not from the part it lies in"
            assert level[other] <= level[part], f"{path.name} imports {module}, which lies above it"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_within_the_large_packages_go_downwards_too(path: Path) -> None:
    parts = path.relative_to(PACKAGE).parts
    layers = INNER_LAYERS.get(parts[0])
    if layers is None or parts[1].removesuffix(".py") in ROOTS:
        return
    level = {name: depth for depth, names in enumerate(layers) for name in names}
    part = parts[1].removesuffix(".py")
    assert part in level, f"{part} has no place among the layers of {parts[0]}"
    for module in imported_modules(path):
        if module.startswith(f"memplan.{parts[0]}."):
            assert level[module.split(".")[2]] <= level[part], f"{path.name} imports {module}, which lies above it"


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in sources()}
    imports = {name: imported_modules(path) & set(modules) for name, path in modules.items()}
    assert len(list(TopologicalSorter(imports).static_order())) == len(modules)  # raises where there is a circle


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_foreign_systems_have_one_gateway_each(path: Path) -> None:
    place = path.relative_to(PACKAGE)
    for module in imported_modules(path, at_run_time_only=True):
        gateways = GATEWAYS.get(module.split(".")[0])
        if gateways is not None:
            assert {str(place), place.parts[0]} & gateways, f"{place} imports {module}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_is_a_grab_bag_and_none_is_too_long(path: Path) -> None:
    assert path.stem not in {"utils", "util", "common", "helpers", "misc"}
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


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
