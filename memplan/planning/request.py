"""What a plan is made of: the subject that is trained, and what is wanted of the device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle

from memplan.cards import DeviceKind
from memplan.configs import expressible
from memplan.errors import UsageError
from memplan.recommend.scaling import LearningRateRule
from memplan.results import plain
from memplan.workload import PickledWorkload, WorkloadReference

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from memplan.cards import DeviceSpec
    from memplan.configs import PatchStyle, UserConfig
    from memplan.recipe import Precision, Recipe
    from memplan.workload import Workload, WorkloadSource

LARGEST_MICRO_BATCH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is wanted of the device.

    Args:
        device: card name, size, ``cuda:0``, ``cpu`` or ``auto``.
        budget_bytes: what the step may use; None for all the device offers.
        max_utilisation: upper edge of the band.
        min_utilisation: lower edge of the band.
        precisions: number formats to compare; None for those that the device has and the config can express.
        global_batch_size: samples per optimizer step to hold by accumulation; None leaves it free.
        learning_rate_rule: how the learning rate follows the global batch.
        micro_batch_cap: largest micro-batch that is tried.
        patch_style: how a change is written; None for the ecosystem's default.
        store: folder of the trial journal.

    Raises:
        UsageError: a value is out of range.
    """

    device: str = "auto"
    budget_bytes: int | None = None
    max_utilisation: float = 0.8
    min_utilisation: float = 0.6
    precisions: tuple[Precision, ...] | None = None
    global_batch_size: int | None = None
    learning_rate_rule: LearningRateRule = LearningRateRule.LINEAR
    micro_batch_cap: int = LARGEST_MICRO_BATCH
    patch_style: PatchStyle | None = None
    store: Path = Path(".memplan")

    def __post_init__(self) -> None:
        if self.budget_bytes is not None and self.budget_bytes < 1:
            raise UsageError(f"budget {self.budget_bytes} must be at least 1 byte")
        if self.global_batch_size is not None and self.global_batch_size < 1:
            raise UsageError(f"global-batch {self.global_batch_size} must be at least 1")

    def facts(self) -> dict[str, Any]:
        """Return what decides the answer, as JSON-ready data; two requests with equal facts ask the same."""
        facts = {
            "device": self.device,
            "budget_bytes": self.budget_bytes,
            "max_utilisation": self.max_utilisation,
            "min_utilisation": self.min_utilisation,
            "precisions": None if self.precisions is None else [str(each) for each in self.precisions],
            "global_batch_size": self.global_batch_size,
            "learning_rate_rule": str(self.learning_rate_rule),
        }
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is trained.

    Args:
        source: how child processes get hold of the workload.
        current: the recipe it has now.
        config: the user's config; None for a workload handed over in Python.
        label: what to call it before it has been built.
    """

    source: WorkloadSource
    current: Recipe
    config: UserConfig | None
    label: str

    @property
    def unwritable(self) -> str | None:
        """Why no change at all can be written into the config; None where one can, or where there is no config."""
        return None if self.config is None else expressible(self.config, self.current)

    def obstacle(self, recipe: Recipe) -> str | None:
        """Say why the config cannot express a recipe; None where it can, or where there is nothing to write."""
        if self.config is None or self.unwritable is not None:
            return None
        return expressible(self.config, recipe)

    def fingerprint(self, request: PlanRequest, device: DeviceSpec, versions: Mapping[str, str]) -> str:
        """Digest of what decides the outcome of a trial, so that an interrupted run can be resumed.

        Not counted: code outside of the folders in which the workload is looked for, and data.
        """
        facts = (
            _source_facts(self.source),
            plain(self.current),
            request.facts(),
            plain(device) if device.kind is DeviceKind.CUDA else str(device.kind),
            dict(versions),
        )
        return hashlib.sha256(_canonical(facts).encode()).hexdigest()


def subject_of_config(config: UserConfig) -> Subject:
    """Take the workload and the recipe from a config."""
    return Subject(source=config.workload, current=config.recipe, config=config, label=str(config.path.name))


def subject_of_workload(workload: Workload, recipe: Recipe, search_path: tuple[str, ...]) -> Subject:
    """Take a workload made in this process; its callables travel to children with cloudpickle.

    Raises:
        UsageError: a callable cannot be pickled.
    """
    try:
        payload = cloudpickle.dumps(workload)
    except Exception as error:
        raise UsageError(
            f"the workload cannot be handed to a child process: {type(error).__name__}: {error}",
            hint="its callables must not hold open files, locks or CUDA tensors",
        ) from error
    source = PickledWorkload(payload=payload, fingerprint=hashlib.sha256(payload).hexdigest(), search_path=search_path)
    return Subject(source=source, current=recipe, config=None, label=workload.name or "workload")


def _source_facts(source: WorkloadSource) -> tuple[object, ...]:
    if isinstance(source, PickledWorkload):
        return (source.fingerprint,)
    return (source.target, source.config, _code_digest(source))


def _code_digest(source: WorkloadReference) -> str | None:
    """Digest of the Python files beside the workload's module, its package included; None where it is not found."""
    top, *rest = source.target.partition(":")[0].split(".")
    for folder in map(Path, source.search_path):
        module = folder / f"{top}.py"
        if not rest and module.is_file():
            return _digest_of(folder.glob("*.py"))
        if (folder / top).is_dir():
            return _digest_of((folder / top).rglob("*.py"))
    return None


def _digest_of(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(str(path).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _canonical(value: object) -> str:
    """Write nested data the same way whatever the order and the types of its keys."""
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{key!r}:{_canonical(each)}" for key, each in value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_canonical(each) for each in value) + "]"
    return repr(value)
