"""What convolutions take where cuDNN cannot be asked: by the table, by the rule, or by what is known of one engine."""

from __future__ import annotations

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolution_choices import chosen_form
from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Pass
from memplan.estimators.temporaries.engines_for_cards import depthwise_bytes
from tests.convolution_calls import call

HOPPER = Generation.HOPPER


def test_cards_that_cudnn_was_asked_about_follow_the_table() -> None:
    form = chosen_form(call(), Generation.HOPPER)
    assert form is not None
    assert workspace_bytes(call(), HOPPER) == form.bytes_of(call()) > 0


def test_older_cards_follow_the_rule() -> None:
    assert chosen_form(call(), Generation.VOLTA) is None
    assert workspace_bytes(call(), Generation.VOLTA) == 0


def test_an_engine_that_cudnn_names_on_a_card_only_comes_first() -> None:
    depthwise = call((64, 1, 3, 3), Pass.WEIGHT_GRADIENT, dtype="bfloat16", channels_last=True)
    known_bytes = depthwise_bytes(depthwise, Generation.HOPPER)
    assert known_bytes is not None
    assert workspace_bytes(depthwise, HOPPER) == known_bytes
