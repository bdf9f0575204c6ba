"""What a number format changes compared with fp32 at the same setting, in words, and why it saves nothing if so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.recipe import Precision
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.recipe import Recipe
    from memplan.results import BreakdownBytes, Measurement

# A change of the allocated peak below this share is no saving.
_SAVING_SHARE = 0.03
_NOTABLE_SHARE = 0.25  # below, what stays in fp32 is not why the rest saves nothing
_KEPT_IN_FP32 = ("parameters", "gradients", "optimizer_state", "buffers")
_OF_TENSORS = ("activations", "temporaries", "workspaces", "inputs")
_NOTHING_IN_HALF = "its peak falls where nothing is stored in half"
# Of a training command, whose activations are not told from its temporaries.
_NOT_HEEDED = f"{_NOTHING_IN_HALF}, or the script does not heed its precision"
# torch.amp.GradScaler starts at 2**16 and loses half with every skipped step; below 1 it makes gradients smaller.
_COLLAPSED_BELOW = 1.0


def comparison_text(own: Measurement, other: Measurement, *, precision: Precision, setting: Recipe) -> str:
    """Say in one line what a precision costs or saves in memory and time, and how its loss scale behaved.

    Args:
        own: the run in the precision.
        other: the run it is compared with, on the same data and seed.
        precision: the number format of the first.
        setting: recipe of the second.
    """
    memory = own.peak_allocated_bytes / other.peak_allocated_bytes - 1
    speed = own.samples_per_s / other.samples_per_s
    percent = round(100 * abs(memory))
    change = f"{percent}% {'more' if memory > 0 else 'less'}" if percent else "as much"
    compared = f"{setting.precision} at micro-batch {setting.micro_batch_size}"
    said = [f"{change} tensor memory, {speed:.2f}x the speed of {compared}"]
    if memory > -_SAVING_SHARE:
        verdict = (
            "costs memory" if memory > _SAVING_SHARE else "saves next to none" if memory < 0 else "saves no memory"
        )
        said.append(f"{verdict} there, because {_why_no_saving(own.breakdown, other.breakdown, precision)}")
    said += _loss_scale_remarks(own)
    return "; ".join(said)


def _why_no_saving(own: BreakdownBytes, other: BreakdownBytes, precision: Precision) -> str:
    """Find in two breakdowns what stays as it is and what grew."""
    if precision is Precision.TF32:
        return "tf32 changes how fp32 is multiplied, not how it is stored"
    kept_bytes = sum(other[name] for name in _KEPT_IN_FP32)
    tensors_bytes = kept_bytes + sum(other[name] for name in _OF_TENSORS)
    reasons = []
    share = kept_bytes / tensors_bytes if tensors_bytes else 0.0
    if precision.is_autocast and share >= _NOTABLE_SHARE:
        reasons.append(f"weights, gradients and optimizer state stay fp32 and are {share:.0%} of the peak")
    grown = {name: own[name] - other[name] for name in (*_KEPT_IN_FP32, *_OF_TENSORS) if own[name] > other[name]}
    if grown:
        name = max(grown, key=lambda each: grown[each])
        copies = " (half-precision copies of the weights)" if _are_copies(grown[name], name, other, precision) else ""
        reasons.append(f"{name.replace('_', ' ')} grow by {format_bytes(grown[name])}{copies}")
    return " and ".join(reasons) or (_NOTHING_IN_HALF if own.activations else _NOT_HEEDED)


def _are_copies(grown_bytes: int, name: str, other: BreakdownBytes, precision: Precision) -> bool:
    """Whether what grew is about what autocast keeps of the weights: one copy of half their size (its weight cache)."""
    copies_bytes = other.parameters / 2
    is_place = name in ("activations", "temporaries")
    return precision.is_autocast and is_place and 0.5 * copies_bytes <= grown_bytes <= 1.5 * copies_bytes


def _loss_scale_remarks(own: Measurement) -> list[str]:
    if own.loss_scale is None or own.first_loss_scale is None:
        return []
    if not own.skipped_steps:
        return [f"the loss scale stays at {own.loss_scale:g}"]
    steps = "1 step" if own.skipped_steps == 1 else f"{own.skipped_steps} steps"
    moved = f"from {own.first_loss_scale:g} to {own.loss_scale:g} with {steps} skipped"
    if own.loss_scale < _COLLAPSED_BELOW:
        return [f"the loss scale collapses {moved}: gradients overflow whatever it is"]
    return [f"the loss scale settles {moved}"]
