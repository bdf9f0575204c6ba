"""Values for tests, with sizes that can be added up in the head."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from memplan.children.pickling import pickled
from memplan.configs import RecipeChange, UserConfig, plan_patch, read_config
from memplan.devices.cards import ContextSize, DeviceKind, DeviceSpec
from memplan.estimators.step_trace import StepTrace
from memplan.estimators.temporaries.convolutions import Convolution, Pass
from memplan.planning.question import Question
from memplan.planning.subject import Subject
from memplan.plans import Plan, PlanRequest
from memplan.probe.commands.events import StepEnded
from memplan.probe.journal import Journal
from memplan.probe.trials import TrialRequest
from memplan.recipe import Recipe
from memplan.recommend.band import Band
from memplan.results import BreakdownBytes, ContextBasis, Estimate, Measurement, Outcome, OutcomeKind, Phase, Trial
from memplan.units import MIB
from memplan.workload import PickledWorkload, TrainingCommand, Workload, WorkloadReference

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.estimators.lowering.temporary_bytes import Blocks
    from memplan.estimators.step_trace import Timeline

CPU = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=1000 * MIB)
CARD = DeviceSpec(name="card", kind=DeviceKind.CUDA, total_bytes=1000 * MIB, live_index=0)
WORKLOAD = Workload(model=list, batch=range, loss=len, optimizer=list)  # for tests in which nothing is trained
SOURCE = PickledWorkload(payload=b"", fingerprint="f", search_path=())  # of which no child process gets to see anything
BAND = Band(total_bytes=CPU.total_bytes, min_utilisation=0.6, max_utilisation=0.8)
REQUEST = TrialRequest(
    source=SOURCE,
    recipe=Recipe(micro_batch_size=4),
    device=CPU,
    budget_bytes=CPU.total_bytes,
)


def context(size_mib: int, basis: ContextBasis = ContextBasis.FIRST_TRIAL) -> ContextSize:
    return ContextSize(size_bytes=size_mib * MIB, basis=basis)


def sizes(blocks: Blocks) -> tuple[Any, ...]:
    """The temporaries of a kernel by their bytes, scopes as tuples, without those that are not needed."""
    found = [
        sizes(each) if isinstance(each, tuple) else each if isinstance(each, int) else each.size_bytes
        for each in blocks
    ]
    return tuple(filter(None, found))


def measurement(peak_mib: int, *, samples_per_s: float = 10.0, losses: tuple[float, ...] = (2.0, 1.0)) -> Measurement:
    """A CPU reading whose process peak is a context of 100 MiB and tensors for the rest."""
    tensors_bytes = (peak_mib - 100) * MIB
    return Measurement(
        peak_allocated_bytes=tensors_bytes,
        peak_reserved_bytes=None,
        peak_process_bytes=peak_mib * MIB,
        peak_device_bytes=peak_mib * MIB,
        breakdown=BreakdownBytes(activations=tensors_bytes, context=100 * MIB),
        step_times_s=(0.5, 0.5, 0.5),
        samples_per_s=samples_per_s,
        losses=losses,
    )


def estimate(peak_mib: int, recipe: Recipe) -> Estimate:
    tensors_bytes = (peak_mib - 100) * MIB
    return Estimate(
        workload_name="net",
        recipe=recipe,
        device_name="cpu",
        device_total_bytes=1000 * MIB,
        peak_requested_bytes=tensors_bytes,
        peak_allocated_bytes=tensors_bytes,
        peak_reserved_bytes=tensors_bytes,
        peak_process_bytes=peak_mib * MIB,
        breakdown=BreakdownBytes(activations=tensors_bytes, context=100 * MIB),
        peak_phase=Phase.BACKWARD,
        method="fake-tensor trace",
        context_basis=ContextBasis.FIRST_TRIAL,
    )


def trial(
    micro_batch_size: int,
    peak_mib: int | None,
    *,
    number: int = 1,
    purpose: str = "confirm",
    precision: str = "fp32",
    accumulation_steps: int = 1,
    samples_per_s: float = 10.0,
    losses: tuple[float, ...] = (2.0, 1.0),
    kind: OutcomeKind = OutcomeKind.FITS,
    evidence: str = "",
    estimated_mib: int | None = None,
) -> Trial:
    """A trial against a budget of 1000 MiB, so that MiB read as per mille of the budget."""
    recipe = Recipe(micro_batch_size=micro_batch_size, precision=precision, accumulation_steps=accumulation_steps)
    return Trial(
        number=number,
        purpose=purpose,
        recipe=recipe,
        device_name="cpu",
        budget_bytes=1000 * MIB,
        outcome=Outcome(
            kind=kind,
            evidence=evidence,
            duration_s=4.0,
            measurement=None if peak_mib is None else measurement(peak_mib, samples_per_s=samples_per_s, losses=losses),
        ),
        estimate=None if estimated_mib is None else estimate(estimated_mib, recipe),
    )


def plan(current: Recipe, recipe: Recipe, *, peak_mib: int = 700, **fields: Any) -> Plan:
    """A plan for the CPU in a band of 600 to 800 of 1000 MiB, whose recipe was seen at ``peak_mib``."""
    chosen = replace(trial(recipe.micro_batch_size, peak_mib), recipe=recipe)
    values: dict[str, Any] = {
        "run_id": "run-1",
        "workload_name": "net",
        "device_name": "cpu",
        "device_total_bytes": 1000 * MIB,
        "min_utilisation": 0.6,
        "max_utilisation": 0.8,
        "chosen": chosen,
        "estimate": None,
        "trials": (chosen,),
        "precisions": (),
        "reasons": (),
        "config_patch": None,
    }
    return Plan(current=current, recipe=recipe, **{**values, **fields})


def step_trace(*timelines: Timeline, **fields: Any) -> StepTrace:
    """A trace of two micro-batches on a card of which only the size is known."""
    values: dict[str, Any] = {
        "workload_name": "net",
        "recipe": Recipe(micro_batch_size=2),
        "device_kind": DeviceKind.CUDA,
        "compute_capability": None,
        "traced_batch_sizes": (2, 3),
        "uses_batch_norm": False,
        "optimizer_name": "SGD",
        "method": "fake-tensor trace",
    }
    return StepTrace(timelines=timelines, **{**values, **fields})


def ended_step(**facts: Any) -> StepEnded:
    """The first step of a command's process, on the host."""
    usual = StepEnded(
        pid=7,
        step=1,
        duration_s=None,
        passes=1,
        is_loss_finite=True,
        skipped=0,
        optimizers=1,
        resident_peak_bytes=1,
        resident_file_bytes=0,
        card=None,
        loaders=(),
    )
    return replace(usual, **facts)


def ignore(event: object) -> None:
    """Observe nothing."""
    del event


def write_files(folder: Path, texts: dict[str, str]) -> None:
    """Write files by their paths below a folder, with the folders that these need."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def config_of(folder: Path, text: str, *, name: str = "x.yaml", **options: Any) -> UserConfig:
    """Write a config file and read it."""
    (folder / name).write_text(text, encoding="utf-8")
    return read_config(folder / name, **options)


def patched_text(config: UserConfig, change: RecipeChange | Recipe, **options: Any) -> str:
    """What a config's file, or its child, says after a change."""
    change = change if isinstance(change, RecipeChange) else RecipeChange(recipe=change)
    return plan_patch(config, change, **options).files[0].patched_text


def subject(current: Recipe, config: UserConfig | None = None) -> Subject:
    """What is trained, without a workload behind it."""
    return Subject(source=SOURCE, current=current, config=config, label="net")


def question(of: Subject, *, device: DeviceSpec = CPU, band: Band = BAND, **wishes: Any) -> Question:
    return Question(subject=of, request=PlanRequest(**wishes), device=device, band=band)


def command(template: str, folder: Path | str = "/", *, steps: int = 3) -> TrainingCommand:
    return TrainingCommand(template=template, steps=steps, config_path=None, working_folder=str(folder))


def reference(target: str, folder: Path, **config: object) -> WorkloadReference:
    """A workload that a child process imports from a folder."""
    return WorkloadReference(target=target, config=config, config_path=None, search_path=(str(folder),))


def stored(folder: Path, made: Plan) -> Plan:
    """The plan as it is once its run is in the journal of a folder."""
    with Journal(folder).open_run("f", {}) as run:
        made = replace(made, run_id=run.run_id, request=PlanRequest(store=folder))
        run.finish(made)
    return made


def rendered(*parts: object, width: int = 100, **options: Any) -> str:
    """What a terminal of that width shows."""
    console = Console(file=io.StringIO(), width=width, **options)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def source_of(workload: Workload) -> PickledWorkload:
    """How a child process gets hold of a workload that a test has made."""
    return PickledWorkload(payload=pickled(workload), fingerprint="test", search_path=())


def convolution(samples: int = 1, channels: int = 4) -> Convolution:
    """The forward pass of windows of 3 x 3 over images of 8 x 8 pixels, four channels out."""
    return Convolution(
        kernel=Pass.FORWARD,
        input_shape=(samples, channels, 8, 8),
        weight_shape=(4, channels, 3, 3),
        output_shape=(samples, 4, 6, 6),
        dtype="float32",
        channels_last=False,
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
    )
