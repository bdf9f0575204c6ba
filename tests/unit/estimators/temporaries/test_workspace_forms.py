"""What workspaces hold, by shapes that can be multiplied in the head."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.estimators.temporaries.convolutions import Convolution, Pass
from memplan.estimators.temporaries.fourier import fourier_bytes
from memplan.estimators.temporaries.workspace_forms import FORMS, Transform, WorkspaceForm, choice_figures
from memplan.units import MIB
from tests.convolution_calls import call

ALL_THREE = WorkspaceForm(image=True, weight=True, output=True)
IN_GROUPS_OF_THREE = call((64, 3, 8, 8), input_shape=(1, 192, 64, 64), output_shape=(1, 64, 64, 64))


def test_operands_are_copied_in_their_own_type() -> None:
    assert ALL_THREE.bytes_of(call()) == 3 * MIB
    assert ALL_THREE.bytes_of(call(dtype="bfloat16")) == 3 * MIB // 2
    assert WorkspaceForm(image=True).bytes_of(call()) == MIB
    assert WorkspaceForm().bytes_of(call()) == 0


def test_channels_are_filled_up_in_every_group() -> None:
    filled_up = WorkspaceForm(image=True, channel_step=4)
    assert filled_up.bytes_of(IN_GROUPS_OF_THREE) == 64 * 4 * 64 * 64 * 4
    assert replace(filled_up, image=False, weight=True).bytes_of(IN_GROUPS_OF_THREE) == 64 * 4 * 64 * 4
    of_each_group = replace(filled_up, image=False, output=True)  # one, which becomes four
    assert of_each_group.bytes_of(IN_GROUPS_OF_THREE) == 4 * MIB


def test_sums_are_in_single_precision_at_least() -> None:
    six = WorkspaceForm(sums=6)
    assert six.bytes_of(call()) == six.bytes_of(call(dtype="float16")) == 6 * MIB
    assert six.bytes_of(call(dtype="float64")) == 12 * MIB
    assert WorkspaceForm(sums_per_image=1).bytes_of(call().with_samples(5)) == 5 * MIB


def test_tiles_are_transformed_whatever_else() -> None:
    of_threes = call((64, 64, 3, 3))
    winograd = WorkspaceForm(transform=Transform.WINOGRAD)
    assert winograd.bytes_of(of_threes) == 36 * 4 * (64 * 64 + 16 * 16 * (64 + 64))
    assert WorkspaceForm(transform=Transform.FOURIER).bytes_of(of_threes) == fourier_bytes(of_threes)


@pytest.mark.parametrize("form", [ALL_THREE, *(WorkspaceForm(transform=each) for each in Transform)])
def test_eight_groups_at_a_time_take_what_eight_groups_take(form: WorkspaceForm) -> None:
    def in_groups(count: int) -> Convolution:
        image = (1, count * 4, 64, 64)
        return call((count * 4, 4, 3, 3), input_shape=image, output_shape=image)

    by_eight = replace(form, by_eight_groups=True)
    assert by_eight.bytes_of(in_groups(32)) == by_eight.bytes_of(in_groups(8)) == form.bytes_of(in_groups(8))
    assert form.bytes_of(in_groups(32)) == 4 * form.bytes_of(in_groups(8))
    assert by_eight.bytes_of(in_groups(3)) == form.bytes_of(in_groups(3))


@pytest.mark.parametrize(
    ("transform", "weight_shape", "images", "told"),
    [
        (Transform.FOURIER, (432, 48, 3, 3), ((64, 432, 21, 21), (64, 432, 21, 21)), 380829824),
        (Transform.FOURIER, (432, 48, 3, 3), ((256, 432, 28, 28), (256, 432, 14, 14)), 1321205888),
        (Transform.WINOGRAD, (1024, 32, 3, 3), ((128, 1024, 54, 54), (128, 1024, 54, 54)), 1850867712),
        (Transform.WINOGRAD, (1024, 32, 3, 3), ((128, 1024, 28, 28), (128, 1024, 28, 28)), 463601664),
    ],
)
def test_transforms_of_many_groups_take_what_cudnn_answers(
    transform: Transform, weight_shape: tuple[int, ...], images: tuple[tuple[int, ...], tuple[int, ...]], told: int
) -> None:
    """cuDNN 9.20, forward, 3 x 3 windows: on capability 12.0 the Fourier transforms, on 10.0 Winograd's."""
    convolution = call(weight_shape, input_shape=images[0], output_shape=images[1])
    found = WorkspaceForm(transform=transform, by_eight_groups=True).bytes_of(convolution)
    assert 0 <= told - found <= 128


def test_no_two_forms_are_the_same() -> None:
    assert len(set(FORMS)) == len(FORMS)
    assert max(form.channel_step for form in FORMS) == 64


@pytest.mark.parametrize("kernel", Pass)
def test_a_choice_follows_sizes_and_not_the_pass_or_the_type(kernel: Pass) -> None:
    assert choice_figures(call(kernel=kernel)) == choice_figures(call(dtype="float16"))
    assert choice_figures(call()) != choice_figures(call().with_samples(2))


def test_volumes_and_images_have_the_same_figures() -> None:
    volume = replace(
        call((64, 64, 1, 8, 8), input_shape=(1, 64, 1, 64, 64), output_shape=(1, 64, 1, 64, 64)),
        stride=(1, 1, 1),
        padding=(0, 0, 0),
        dilation=(1, 1, 1),
    )
    assert len(choice_figures(volume)) == len(choice_figures(call()))
    assert choice_figures(volume)[0] == 3
