"""CuDNN's answers, from the library itself where it is installed, and traces with and without them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memplan.children import ChildEnding
from memplan.estimators.cudnn import answered_traces, asking, with_cudnns_answers
from memplan.estimators.cudnn.asking import CudnnAnswers, CudnnQuestions, ask, library_folders
from memplan.estimators.cudnn.heuristics import check_known, strides_of
from memplan.estimators.cudnn.library import CudnnError
from memplan.estimators.step_trace import DrawnBatches, StepTrace, Timeline
from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Convolution, GrowingConvolution, Pass, Workspaces
from memplan.estimators.temporaries.varying_workspaces import varying_workspaces
from memplan.recipe import Recipe
from memplan.results import Component
from memplan.units import MIB
from tests.making import step_trace

needs_cudnn = pytest.mark.skipif(not library_folders(), reason="cuDNN is not installed")

BLACKWELL, HOPPER, AMPERE = (10, 0), (9, 0), (8, 6)
IMAGE = (16, 64, 32, 32)  # 4 MiB in single precision
CALL = Convolution(
    kernel=Pass.INPUT_GRADIENT,
    input_shape=IMAGE,
    weight_shape=(64, 64, 3, 3),
    output_shape=IMAGE,
    dtype="float32",
    channels_last=False,
    stride=(1, 1),
    padding=(1, 1),
    dilation=(1, 1),
)


def answers_for(
    *calls: Convolution, capability: tuple[int, int] = AMPERE, sm_count: int | None = None
) -> tuple[int | None, ...]:
    found = ask(CudnnQuestions(capability=capability, sm_count=sm_count, convolutions=calls))
    assert isinstance(found, CudnnAnswers), found
    return found.workspace_bytes


def test_strides_follow_the_layout() -> None:
    assert strides_of((2, 3, 4, 5), channels_last=False) == (60, 20, 5, 1)
    assert strides_of((2, 3, 4, 5), channels_last=True) == (60, 1, 15, 3)
    assert strides_of((2, 3, 4, 5, 6), channels_last=True) == (360, 1, 90, 18, 3)


@needs_cudnn
def test_of_turing_the_number_of_multiprocessors_decides_and_of_ampere_it_does_not() -> None:
    halved = replace(
        CALL,
        kernel=Pass.FORWARD,
        input_shape=(384, 256, 10, 10),
        weight_shape=(512, 256, 3, 3),
        output_shape=(384, 512, 5, 5),
        dtype="float16",
        stride=(2, 2),
    )
    of_t4, of_2070, of_2080_ti = (answers_for(halved, capability=(7, 5), sm_count=count) for count in (40, 36, 68))
    assert of_t4 == of_2070 != of_2080_ti
    assert answers_for(halved, sm_count=28) == answers_for(halved, sm_count=82)


@needs_cudnn
def test_windows_of_one_pixel_are_matrix_products_also_where_another_engine_takes_less() -> None:
    wide, narrow = (8, 1152, 7, 7), (8, 192, 7, 7)
    product = replace(CALL, input_shape=wide, weight_shape=(192, 1152, 1, 1), output_shape=narrow, padding=(0, 0))
    forward, of_weight = replace(product, kernel=Pass.FORWARD), replace(product, kernel=Pass.WEIGHT_GRADIENT)
    assert answers_for(forward, of_weight, capability=HOPPER) == (0, 8 * 1152 * 192 * 4)


@needs_cudnn
def test_cudnn_converts_input_weight_and_output_for_the_tensor_cores() -> None:
    weight_bytes = 64 * 64 * 9 * 4
    (found,) = answers_for(CALL, capability=HOPPER)
    assert found is not None
    assert 0 <= found - (8 * MIB + weight_bytes) < MIB // 8  # and a little of its own


@needs_cudnn
def test_half_precision_channels_last_needs_no_conversion() -> None:
    (found,) = answers_for(replace(CALL, dtype="float16", channels_last=True))
    assert found is not None
    assert found < MIB // 8


@needs_cudnn
def test_what_cudnn_leaves_out_without_a_card_is_worked_out() -> None:
    depthwise = replace(
        CALL, kernel=Pass.WEIGHT_GRADIENT, weight_shape=(64, 1, 7, 7), dtype="bfloat16", channels_last=True
    )
    assert answers_for(depthwise) == (8 * 16 * 64 * 49 * 4,)


@needs_cudnn
def test_where_heuristics_propose_nothing_the_first_of_the_fallbacks_is_run() -> None:
    (found,) = answers_for(replace(CALL, dtype="bfloat16", channels_last=True), capability=BLACKWELL)
    assert found is not None


@needs_cudnn
def test_refused_algorithms_are_passed_over() -> None:
    with_tensor_cores, without = answers_for(CALL, replace(CALL, with_tf32=False), capability=HOPPER)
    assert with_tensor_cores is not None
    assert without not in (None, with_tensor_cores)


@needs_cudnn
def test_on_hopper_the_parts_are_those_that_a_card_takes() -> None:
    """What VGG-16 took on an H100 with cuDNN 9.19: 214,368,935 bytes, where 207,290,579 are told."""
    image = (16, 128, 112, 112)
    of_weight = replace(
        CALL, kernel=Pass.WEIGHT_GRADIENT, input_shape=image, weight_shape=(128, 128, 3, 3), output_shape=image
    )
    (found,) = answers_for(of_weight, capability=HOPPER)
    assert found is not None
    assert abs(found - 214_368_935) < MIB


@needs_cudnn
def test_a_search_takes_as_much_as_any_algorithm_that_is_proposed() -> None:
    """On stubs of an H200, PyTorch 2.13 takes 4,912 MiB for this one in benchmark mode."""
    image = (64, 64, 224, 224)
    of_weight = replace(CALL, kernel=Pass.WEIGHT_GRADIENT, input_shape=image, output_shape=image)
    found = ask(CudnnQuestions(capability=HOPPER, convolutions=(of_weight,), searched=(of_weight, CALL)))
    assert isinstance(found, CudnnAnswers), found
    (first_bytes,), (search_bytes, _) = found.workspace_bytes, found.search_bytes
    assert None not in {first_bytes, search_bytes}
    assert (search_bytes or 0) // MIB == 4912 > 3 * (first_bytes or 0) // MIB


@needs_cudnn
def test_a_search_for_what_cannot_be_has_no_answer() -> None:
    impossible = replace(CALL, weight_shape=(64, 64, 99, 99))
    found = ask(CudnnQuestions(capability=AMPERE, convolutions=(), searched=(impossible,)))
    assert isinstance(found, CudnnAnswers), found
    assert found.search_bytes == (None,)


@needs_cudnn
def test_a_window_wider_than_the_image_has_no_answer() -> None:
    impossible = replace(CALL, weight_shape=(64, 64, 99, 99))
    assert answers_for(impossible, CALL)[0] is None


@needs_cudnn
def test_volumes_are_answered_too() -> None:
    volume = replace(
        CALL,
        input_shape=(2, 16, 8, 32, 32),
        weight_shape=(16, 16, 3, 3, 3),
        output_shape=(2, 16, 8, 32, 32),
        stride=(1, 1, 1),
        padding=(1, 1, 1),
        dilation=(1, 1, 1),
    )
    assert answers_for(volume)[0] is not None


def test_without_cudnn_the_reason_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "library_folders", tuple)
    found = ask(CudnnQuestions(capability=AMPERE, convolutions=(CALL,)))
    assert found == "cuDNN is not installed here (`pip install 'memplan[cudnn]'` lets memplan ask it)"


def test_what_cudnn_said_when_it_ended_its_process_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    log = "Cannot load symbol cublasLtCreate\nFatal Python error: Aborted\n\nCurrent thread (most recent call first):\n"
    ending = ChildEnding(messages=(), return_code=-6, stop_reason=None, log_tail=log, duration_s=1.0)
    monkeypatch.setattr(asking, "library_folders", lambda: (Path("lib"),))
    monkeypatch.setattr(asking, "run_child", lambda *_, **__: ending)
    found = ask(CudnnQuestions(capability=AMPERE, convolutions=(CALL,)))
    assert found == "cuDNN ended its process (status -6: Cannot load symbol cublasLtCreate)"


def trace_of(capability: tuple[int, int] | None, *calls: GrowingConvolution) -> StepTrace:
    """A step that takes one block of 1 MiB, the workspace of its convolution, and gives it back."""
    workspaces = Workspaces(
        blocks=np.arange(len(calls), dtype=np.int32),
        numbers=np.arange(len(calls), dtype=np.int32),
        convolutions=calls,
        has_others=not calls,
    )
    timeline = Timeline(
        event_blocks=np.array([0, 0], dtype=np.int32),
        event_allocates=np.array([True, False]),
        event_phases=np.array([0, 0], dtype=np.int8),
        step_starts=np.array([0], dtype=np.int32),
        size_terms=np.array([[MIB], [0], [0]], dtype=np.float64),
        components=np.array([Component.TEMPORARIES], dtype=np.int8),
        modules=np.array([0], dtype=np.int32),
        operators=np.array([0], dtype=np.int32),
        module_names=("",),
        operator_names=("inside aten.convolution",),
        workspaces=workspaces,
    )
    return step_trace(timeline, recipe=Recipe(micro_batch_size=10), compute_capability=capability)


def growing_call() -> GrowingConvolution:
    return GrowingConvolution(convolution=CALL.with_samples(0), samples_at_zero=0, samples_per_item=1)


def test_for_hopper_it_is_said_that_a_rule_adds_to_what_cudnn_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        answered_traces,
        "ask",
        lambda questions: CudnnAnswers(version="9.19.0", workspace_bytes=(0,) * len(questions.convolutions)),
    )
    notes = [with_cudnns_answers(trace_of(each, growing_call())).notes for each in (AMPERE, (9, 0))]
    assert [any("Hopper" in note for note in found) for found in notes] == [False, True]


def test_answers_take_the_place_of_what_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice_a_mib_a_sample(questions: CudnnQuestions) -> CudnnAnswers:
        sizes = tuple(2 * MIB * call.samples for call in questions.convolutions)
        return CudnnAnswers(version="9.19.0", workspace_bytes=sizes)

    monkeypatch.setattr(answered_traces, "ask", twice_a_mib_a_sample)
    found = with_cudnns_answers(trace_of(AMPERE, growing_call()))
    assert [int(found.timelines[0].block_bytes(size)[0]) // MIB for size in (1, 10, 100, 2000)] == [2, 20, 200, 4000]
    assert found.notes == ("workspaces of convolutions are what cuDNN 9.19.0 answers for compute capability 8.6",)
    assert found.uncounted == ()


def test_in_benchmark_mode_the_first_block_of_each_call_is_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_mib_and_five_a_sample(questions: CudnnQuestions) -> CudnnAnswers:
        return CudnnAnswers(
            version="9.19.0",
            workspace_bytes=tuple(MIB * call.samples for call in questions.convolutions),
            search_bytes=tuple(5 * MIB * call.samples for call in questions.searched),
        )

    monkeypatch.setattr(answered_traces, "ask", one_mib_and_five_a_sample)
    searching = replace(trace_of(AMPERE, growing_call()), is_in_benchmark_mode=True)
    found = with_cudnns_answers(searching)
    assert found.timelines[0].searches is not None
    assert [found.timelines[0].searches.block_bytes(size).tolist() for size in (10, 40)] == [[50 * MIB], [200 * MIB]]
    assert found.timelines[0].block_bytes(10).tolist() == [10 * MIB]
    assert found.uncounted == ()


def test_sizes_that_shall_be_exact_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    def more_than_in_proportion(questions: CudnnQuestions) -> CudnnAnswers:
        return CudnnAnswers(
            version="9.19.0",
            workspace_bytes=tuple(call.samples**2 for call in questions.convolutions),
            search_bytes=tuple(call.samples**2 for call in questions.searched),
        )

    monkeypatch.setattr(answered_traces, "ask", more_than_in_proportion)
    searching = replace(trace_of(AMPERE, growing_call()), is_in_benchmark_mode=True)
    for exact_sizes, is_exact in (((), False), ((20,), True)):
        (timeline,) = with_cudnns_answers(searching, exact_sizes=exact_sizes).timelines
        assert timeline.searches is not None
        found = (timeline.block_bytes(20).tolist(), timeline.searches.block_bytes(20).tolist())
        assert (found == ([400], [400])) is is_exact


def test_batches_of_each_size_that_is_drawn_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_byte_a_row(questions: CudnnQuestions) -> CudnnAnswers:
        return CudnnAnswers(
            version="9.19.0", workspace_bytes=tuple(call.input_shape[2] for call in questions.convolutions)
        )

    monkeypatch.setattr(answered_traces, "ask", a_byte_a_row)
    smaller = replace(CALL, input_shape=(0, 64, 16, 16), output_shape=(0, 64, 16, 16))
    typical = replace(growing_call(), convolution=smaller)
    trace = trace_of(AMPERE, growing_call())
    drawn = DrawnBatches(
        timeline=trace.timelines[0],
        handed_on=np.zeros((2, 0), dtype=np.int32),
        share_terms=np.zeros((3, 1)),
        sample_shares=np.array([0.25, 1.0]),
        workspaces=varying_workspaces(
            trace.timelines[0].workspaces, replace(trace.timelines[0].workspaces, convolutions=(typical,)), 0.25
        ),
    )
    answered = with_cudnns_answers(replace(trace, drawn=drawn, recipe=Recipe(micro_batch_size=1))).drawn
    assert answered is not None
    assert answered.workspaces.shares == (0.25, 1.0)
    assert answered.workspaces.bytes_at_shares.tolist() == [[16.0, 32.0]]


def test_where_cudnn_was_not_asked_its_search_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answered_traces, "ask", lambda _: "it is not there")
    _, uncounted = with_cudnns_answers(replace(trace_of(AMPERE, growing_call()), is_in_benchmark_mode=True)).uncounted
    assert uncounted.startswith("cuDNN's search for algorithms (benchmark mode)")


def test_calls_that_cudnn_proposes_nothing_for_take_what_is_expected_and_are_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def up_to_a_thousand_samples(questions: CudnnQuestions) -> CudnnAnswers:
        sizes = tuple(2 * MIB if call.samples < 1024 else None for call in questions.convolutions)
        return CudnnAnswers(version="9.19.0", workspace_bytes=sizes)

    monkeypatch.setattr(answered_traces, "ask", up_to_a_thousand_samples)
    found = with_cudnns_answers(trace_of(AMPERE, growing_call()))
    assert [found.timelines[0].block_bytes(size).tolist() for size in (10, 1024)] == [[2 * MIB], [expected_bytes(1024)]]
    assert found.notes == ("workspaces of convolutions are what cuDNN 9.19.0 answers for compute capability 8.6",)
    (uncounted,) = found.uncounted
    assert uncounted.endswith(": cuDNN 9.19.0 proposes nothing for some of them")


def expected_bytes(samples: int) -> int:
    return workspace_bytes(CALL.with_samples(samples), Generation.AMPERE)


@pytest.mark.parametrize(
    ("capability", "calls", "sized_bytes", "reason"),
    [
        (AMPERE, [growing_call()], expected_bytes(10), "it is not there"),
        (AMPERE, [], MIB, "their batches are no linear function of the micro-batch"),
        (None, [growing_call()], MIB, "of the card only the size is known"),
    ],
)
def test_without_answers_what_is_expected_stays_and_the_reason_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int] | None,
    calls: list[GrowingConvolution],
    sized_bytes: int,
    reason: str,
) -> None:
    monkeypatch.setattr(answered_traces, "ask", lambda _: "it is not there")
    found = with_cudnns_answers(trace_of(capability, *calls))
    assert found.timelines[0].block_bytes(10).tolist() == [sized_bytes]
    (uncounted,) = found.uncounted
    assert uncounted == f"workspaces that cuDNN chooses for convolutions, beyond what memplan expects: {reason}"


def test_later_versions_are_not_asked_about_cards_before_turing() -> None:
    check_known((7, 0), "9.10.2")
    check_known((7, 5), "9.11.0")
    with pytest.raises(CudnnError, match=re.escape("9.11.0 knows cards from Turing on; 9.10 is the last")):
        check_known((7, 0), "9.11.0")


def test_what_is_expected_need_not_lie_on_the_line_through_the_traced_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answered_traces, "ask", lambda _: "it is not there")
    monkeypatch.setattr(answered_traces, "workspace_bytes", lambda call, _: MIB if call.samples > 16 else 0)
    found = with_cudnns_answers(trace_of((7, 5), growing_call())).timelines[0]
    assert [found.block_bytes(size).tolist() for size in (16, 24)] == [[0], [MIB]]


def test_a_trace_without_convolutions_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answered_traces, "ask", lambda _: pytest.fail("cuDNN was asked"))
    trace = trace_of(AMPERE)
    plain = replace(trace, timelines=(replace(trace.timelines[0], workspaces=Workspaces()),))
    assert with_cudnns_answers(plain) is plain
