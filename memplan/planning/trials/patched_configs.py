"""The copy of a config that a trial of a training command reads, changed to the recipe that is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs import PatchStyle
from memplan.plans.changes import change_to, original_recipe, patch_of
from memplan.probe.commands.template import PlaceholderName, parse_template
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from memplan.planning.question import Question
    from memplan.recipe import Recipe
    from memplan.workload import WorkloadSource

_WHY = "is tried"


def source_of_trial(question: Question, recipe: Recipe) -> WorkloadSource:
    """Return what a trial of a recipe runs: the subject's source, a command with the text of the config that it reads.

    Raises:
        PatchError: the config cannot express the recipe.
    """
    subject = question.subject
    source, config = subject.source, subject.config
    if not isinstance(source, TrainingCommand) or config is None:
        return source
    if not parse_template(source.template).has(PlaceholderName.PATCHED_CONFIG):
        return source
    request = replace(question.request, patch_style=PatchStyle.IN_PLACE)
    original = original_recipe(config, subject.current, request)
    patch = patch_of(config, change_to(subject.as_written(recipe), original, request, why=_WHY), request)
    text = config.document.source.text if patch is None else patch.files[0].patched_text
    return replace(source, config_text=text)
