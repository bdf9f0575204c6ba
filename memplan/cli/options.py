"""Arguments and options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from memplan.errors import UsageError
from memplan.textfiles import require_place_for

T = TypeVar("T")


def writable_path(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before doing the work whose result it is for."""
    if path is not None:
        require_place_for(path)
    return path


def whole_number(option: str) -> Callable[[str], int]:
    """Return a parser of whole numbers that names the option or argument where it refuses a text."""
    return _parser(option, int, "a whole number")


def _share(option: str) -> Callable[[str], float]:
    return _parser(option, float, "a number", hint="write it like 0.8")


def _parser(option: str, read: Callable[[str], T], what: str, *, hint: str | None = None) -> Callable[[str], T]:
    def number(text: str) -> T:  # its name is what the help shows for a value
        try:
            return read(text)
        except ValueError:
            raise UsageError(f"{option} {text!r} is not {what}", hint=hint) from None

    return number


_CONFIG = typer.Argument(
    help="Your training config; several, in the order of your command, where it takes several.",
    metavar="CONFIG",
    show_default=False,
)
Configs = Annotated[list[Path], _CONFIG]
ConfigsIfAny = Annotated[list[Path] | None, _CONFIG]
Device = Annotated[
    str | None, typer.Option(help="Card such as rtx-3090, size such as 24GiB, cuda:0, cpu; default: auto.")
]
MaxUtil = Annotated[
    float | None,
    typer.Option("--max-util", parser=_share("max-util"), help="Upper edge of the utilisation band; default: 0.8."),
]
MinUtil = Annotated[
    float | None,
    typer.Option("--min-util", parser=_share("min-util"), help="Lower edge of the utilisation band; default: 0.6."),
]
Budget = Annotated[str | None, typer.Option(help="Memory the step may use, e.g. 10GiB; default: the whole device.")]
Precisions = Annotated[str | None, typer.Option("--precision", help="Precisions to compare, e.g. fp32,fp16,bf16.")]
GlobalBatch = Annotated[
    int | None,
    typer.Option(
        "--global-batch",
        parser=whole_number("global-batch"),
        help="Samples per optimizer step to keep by accumulation.",
    ),
]
MaxBatch = Annotated[
    int | None,
    typer.Option(
        "--max-batch",
        parser=whole_number("max-batch"),
        help="Largest micro-batch to consider; default: 4096, or 8 times the original.",
    ),
]
LrRule = Annotated[
    str | None,
    typer.Option("--lr-rule", help="Learning-rate scaling: linear (default), sqrt or none; none with --global-batch."),
]
WorkloadName = Annotated[
    str | None, typer.Option("--workload", help="package.module:function, or file.py:function, making the workload.")
]
_KNOBS = (
    "micro_batch_size, accumulation_steps, global_batch_size, precision, amp_dtype, learning_rate, min_learning_rate, "
    "activation_checkpointing, iterations, optimizer_steps, loader_workers, pin_memory, prefetch_factor, "
    "persistent_workers"
)  # written out, since help is to be there at once
KnobMap = Annotated[
    list[str] | None,
    typer.Option("--map", help=f"Where a knob is, e.g. learning_rate=optimizer.lr. Knobs: {_KNOBS}."),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="Kind of config, such as mmengine or plain-yaml, if it is not recognised correctly."),
]
WorldSize = Annotated[
    int | None,
    typer.Option(
        "--world-size",
        parser=whole_number("world-size"),
        help="Data-parallel replicas; default: the launcher's or config's.",
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Plan anew instead of using a cached plan.")]
_RUN = typer.Argument(
    help="Name of the run, the beginning of it, or `last` for the last one.", metavar="RUN", show_default=False
)
Run = Annotated[str, _RUN]
Store = Annotated[Path, typer.Option(help="Folder of the trial journal.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; everything else on stderr.")]
TraceLimit = Annotated[
    str | None, typer.Option("--trace-limit", help="Longest time for one trace, e.g. 30min; default: 10min.")
]
TrialLimit = Annotated[
    str | None,
    typer.Option(
        "--trial-limit", help="Longest time to a trial's first step, and for its steps, e.g. 2h; default: 30min, 15min."
    ),
]
