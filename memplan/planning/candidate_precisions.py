"""Which precisions a plan compares, and what of them it will ask the traces about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.estimators import TracedSetting
from memplan.recommend.number_formats import precisions_of, why_unsupported

if TYPE_CHECKING:
    from memplan.planning.question import Question
    from memplan.recipe import Precision


def candidate_precisions(question: Question) -> dict[Precision, str | None]:
    """Return what is compared, in order, and why it cannot be used; None where it can, as the current precision always.

    On a device that is present the current precision is compared whatever is asked for: the others are judged by it.
    """
    current = question.subject.current
    wanted = question.request.precisions or (current.precision, *precisions_of(question.device))
    compared = (current.precision, *wanted) if question.device.is_here else wanted
    return {each: _obstacle(each, question) for each in dict.fromkeys(compared)}


def _obstacle(precision: Precision, question: Question) -> str | None:
    subject, device = question.subject, question.device
    if precision is subject.current.precision:
        return None
    recipe = replace(subject.current, precision=precision)
    return why_unsupported(precision, device) or subject.obstacle(recipe, on_cpu=device.kind is DeviceKind.CPU)


def settings_to_trace(question: Question) -> tuple[TracedSetting, ...]:
    """Return the kinds of step that a plan will ask about, the current recipe's first.

    What a config that memplan has changed will be asked about is known only once its recipe has run: it may be settled.
    """
    subject = question.subject
    if subject.config is not None and subject.config.original is not None:
        return (TracedSetting(recipe=subject.current),)
    usable = [each for each, obstacle in candidate_precisions(question).items() if obstacle is None]
    recipes = [subject.current, *(replace(subject.current, precision=each) for each in usable)]
    tried_once = recipes[:1] if question.device.is_here else []  # with what is chosen, most often the current precision
    accumulated = tried_once if question.request.global_batch_size is None else recipes
    recipes += [replace(each, accumulation_steps=2) for each in accumulated]  # any number above 1 keeps the gradients
    return tuple(TracedSetting(recipe=each) for each in dict.fromkeys(recipes))
