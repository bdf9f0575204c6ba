"""What is compared, and what of it is traced ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.devices.cards import find_card
from memplan.planning.candidate_precisions import candidate_precisions, settings_to_trace
from memplan.recipe import Precision, Recipe
from tests.making import config_of, patched_text, question, subject

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.planning.question import Question

ABSENT = find_card("a100-40gb")
PRESENT = replace(ABSENT, live_index=0)
CURRENT = Recipe(micro_batch_size=4, precision=Precision.BF16)


def traced(asked: Question) -> list[str]:
    return [f"{each.recipe.precision} x {each.recipe.accumulation_steps}" for each in settings_to_trace(asked)]


def test_on_a_device_that_is_here_others_are_compared_with_the_current_precision() -> None:
    asked = question(subject(CURRENT), device=PRESENT, precisions=(Precision.FP16,))
    assert list(candidate_precisions(asked)) == [Precision.BF16, Precision.FP16]
    assert list(candidate_precisions(replace(asked, device=ABSENT))) == [Precision.FP16]


def test_what_a_device_has_no_units_for_is_refused_unless_it_is_the_current_precision() -> None:
    turing = replace(find_card("t4"), live_index=0)
    wanted = (Precision.TF32, Precision.FP16)
    found = candidate_precisions(question(subject(CURRENT), device=turing, precisions=wanted))
    assert found == {Precision.BF16: None, Precision.TF32: "t4 has no tf32 units", Precision.FP16: None}


def test_every_usable_precision_is_traced_ahead_the_current_one_first() -> None:
    asked = question(subject(CURRENT), device=ABSENT)
    assert traced(asked) == ["bf16 x 1", "fp32 x 1", "tf32 x 1", "fp16 x 1"]
    turing = find_card("t4")
    assert traced(replace(asked, device=turing)) == ["bf16 x 1", "fp32 x 1", "fp16 x 1"]


def test_accumulation_is_traced_ahead_where_it_will_be_tried() -> None:
    alone = question(subject(CURRENT), precisions=(Precision.FP32,))
    assert traced(alone) == ["bf16 x 1", "fp32 x 1", "bf16 x 2"]
    held = replace(alone, request=replace(alone.request, global_batch_size=8))
    assert traced(held) == ["bf16 x 1", "fp32 x 1", "bf16 x 2", "fp32 x 2"]


def test_a_config_that_memplan_has_changed_may_be_settled_by_its_own_recipe(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batch_size: 4\nprecision: bf16\n")
    assert len(traced(question(subject(CURRENT, config)))) > 1
    text = patched_text(config, replace(config.recipe, micro_batch_size=8))
    changed = config_of(tmp_path, text)
    assert traced(question(subject(changed.recipe, changed))) == ["bf16 x 1"]
