"""What the recorder makes of operators on fake tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from memplan.estimators.absent_card.cached_memory import empty_cache
from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.lowering import library_workspaces
from memplan.estimators.lowering.kernel_rules import cuda_kernels, host_kernels
from memplan.estimators.lowering.temporary_bytes import TemporaryBytes
from memplan.estimators.recorder.module_paths import ModulePaths
from memplan.estimators.recorder.operator_recorder import OperatorRecorder
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.storages import StorageLedger
from memplan.estimators.step_trace import PHASES
from memplan.results import Component, Phase
from memplan.torch_releases import release_of
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    Taken = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Session:
    """A recorder on fake tensors, as a step has it."""

    def __init__(self, capability: tuple[int, int] | None = None) -> None:
        kernels = host_kernels() if capability is None else cuda_kernels(capability, 108)
        self.recording = Recording(micro_batch_size=2)
        self.ledger = StorageLedger(self.recording)
        self.fakes = TraceFakeMode()
        self.recorder = OperatorRecorder(
            self.recording, self.ledger, ModulePaths(nn.Identity()), kernels=kernels, host_copies=None, fakes=self.fakes
        )


def test_a_storage_is_a_block_from_the_operator_that_makes_it_until_its_last_view_dies() -> None:
    session = Session()
    with session.fakes, session.recorder:
        whole = torch.empty(512, 512)
        part = whole[0]
        del whole
        assert session.recording.event_allocates == [True]
        del part
    assert session.recording.event_allocates == [True, False]
    assert session.recording.block_bytes == [MIB]


def test_of_a_subclass_only_what_it_wraps_is_counted_and_what_runs_on_that() -> None:
    session = Session()
    with session.fakes, session.recorder:
        pair = TwoTensor(torch.empty(512, 512), torch.empty(512, 512))
        doubled = pair + pair
    assert session.recording.block_bytes == 4 * [MIB]
    assert session.ledger.blocks_of([doubled]) == {2, 3}


def test_what_is_on_the_meta_device_makes_no_block() -> None:
    session, outside = Session(), torch.empty(512, 512, device="meta")
    with session.fakes, session.recorder:
        made = torch.empty(512, 512, device="meta").softmax(-1) @ outside
    assert made.shape == (512, 512)
    assert session.recording.block_bytes == []


def test_what_only_writes_values_makes_no_block() -> None:
    session = Session()
    with session.fakes, session.recorder:
        tensor = torch.empty(512, 512)
        assert tensor.mul_(2).add_(1) is tensor
    assert len(session.recording.block_bytes) == 1


def test_what_is_written_must_fit_where_it_is_written_to() -> None:
    session = Session()
    with session.fakes, session.recorder:
        torch.empty(512, 512).add_(torch.empty(512, 1))
        with pytest.raises(RuntimeError, match="should be broadcastable"):
            torch.empty(512, 512).add_(torch.empty(256))


def test_gradients_that_meet_are_added_in_place() -> None:
    session = Session()
    with session.fakes, session.recorder:
        weight = torch.empty(512, 512, requires_grad=True)
        loss = (weight.relu() + weight.sigmoid()).sum()
        session.recording.phase = Phase.BACKWARD
        loss.backward()
        session.recorder.resolve_pending_reuse()
        made_by = [name for name in session.recording.operator_names if "add" in name]
    # weight, the two saved results, one slope of each branch; the sum of the two slopes lives in the first
    assert session.recording.peak_bytes < 6 * MIB
    assert weight.grad is not None
    assert len(made_by) == 1  # the one of the forward pass


@pytest.mark.parametrize(
    "taken",
    [
        lambda weight, places: weight[places],
        lambda weight, places: weight.index_select(0, places),
        lambda weight, places: weight.gather(0, places.expand(512, 512)),
        lambda weight, places: weight.max(dim=1)[0],
    ],
    ids=["index", "index_select", "gather", "max"],
)
def test_derivatives_of_what_is_taken_by_index_are_written_into_one_block_of_zeros(taken: Taken) -> None:
    session = Session(capability=(8, 6))
    with session.fakes, session.recorder:
        weight = torch.empty(512, 512, requires_grad=True)
        result = taken(weight, torch.zeros(512, dtype=torch.long))
        before = len(session.recording.block_bytes)
        session.recording.phase = Phase.BACKWARD
        result.backward(torch.empty_like(result))
        session.recorder.resolve_pending_reuse()
    assert weight.grad is not None
    made = [size for size in session.recording.block_bytes[before:] if size == MIB]
    assert len(made) == 1 + (result.numel() == weight.numel())  # the slope that was given, and the zeros
    events = zip(session.recording.event_blocks, session.recording.event_allocates, strict=True)
    freed = [block for block, allocates in events if not allocates]
    assert len(freed) == len(set(freed))
    assert max(freed) < len(session.recording.block_bytes)


def test_nothing_is_added_into_a_gradient_that_is_a_view_of_another_tensor() -> None:
    session = Session()
    with session.fakes, session.recorder:
        weight = torch.empty(512, 512, requires_grad=True)
        loss = (weight.relu() + weight.t().sigmoid()).sum()
        session.recording.phase = Phase.BACKWARD
        loss.backward()
        session.recorder.resolve_pending_reuse()
    sums = session.recording.operators.count(session.recording.operator_names["aten.add"])
    assert sums == 2  # that of the forward pass, and that of the slopes


def test_gradients_that_are_differentiated_again_are_added_out_of_place() -> None:
    session = Session()
    with session.fakes, session.recorder:
        weight = torch.empty(512, 512, requires_grad=True)
        loss = (weight.relu() + weight.sigmoid()).sum()
        torch.autograd.grad(loss, weight, create_graph=True)
    sums = session.recording.operators.count(session.recording.operator_names["aten.add"])
    assert sums == 2  # that of the forward pass, and that of the slopes


@pytest.fixture
def kept_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch keeps them until 2.14."""
    monkeypatch.setattr(library_workspaces, "TORCH_RELEASE", (2, 14))


@pytest.mark.usefixtures("kept_workspaces")
def test_the_first_matrix_product_of_each_thread_takes_a_cublas_workspace() -> None:
    session = Session(capability=(8, 6))
    with session.fakes, session.recorder:
        weight = torch.empty(8, 8, requires_grad=True)
        made = [0, 0, 0]
        for call in range(3):
            slope = (weight @ weight).sum() if call < 2 else torch.autograd.grad((weight @ weight).sum(), weight)
            made[call] = session.recording.components.count(Component.WORKSPACES)
        del slope
    assert made == [1, 1, 2]  # autograd runs on a thread of its own, in the loss as well
    workspaces = {
        size
        for size, component in zip(session.recording.block_bytes, session.recording.components, strict=True)
        if component is Component.WORKSPACES
    }
    assert workspaces == {8_519_680}  # 2 * 4 MiB + 8 * 16 KiB


def test_from_torch_2_15_on_every_product_takes_a_workspace_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_workspaces, "TORCH_RELEASE", (2, 15))
    session = Session(capability=(8, 6))
    with session.fakes, session.recorder:
        weight = torch.empty(8, 8)
        products = [weight @ weight, torch.addmm(weight[0], weight, weight)]
    recording = session.recording
    # the matrix, then each product, what cuBLAS or cuBLASLt takes beside it, and the end of that
    assert recording.block_bytes == [256, 256, 8_519_680, 256, MIB]
    assert list(zip(recording.event_blocks, recording.event_allocates, strict=True)) == [
        (0, True), (1, True), (2, True), (2, False), (3, True), (4, True), (4, False)
    ]  # fmt: skip
    assert len(products) == 2


@pytest.mark.usefixtures("kept_workspaces")
def test_a_workspace_of_cublas_is_allocated_beside_the_copies_of_operands() -> None:
    session = Session(capability=(8, 6))
    with session.fakes, session.recorder:
        every_second, plain = torch.empty(512, 2, 1024)[:, 0, ::2], torch.empty(512, 512)
        product = every_second @ plain
        copy, workspace = session.recording.block_bytes[-2:]
        assert (copy, workspace) == (MIB, 8_519_680)
        assert session.recording.event_allocates[-3:] == [True, True, False]
        assert product.shape == (512, 512)


def test_a_grid_of_affine_transforms_is_a_product() -> None:
    session = Session(capability=(8, 6))
    with session.fakes, session.recorder:
        grid = torch.nn.functional.affine_grid(torch.empty(2, 2, 3), [2, 3, 64, 64], align_corners=False)
        assert grid.shape == (2, 64, 64, 2)
        made = session.recording.components.count(Component.WORKSPACES)
    assert made == 1


def test_it_is_recorded_when_the_cache_is_returned() -> None:
    session = Session(capability=(8, 6))
    with session.fakes, session.recorder:
        kept = [torch.empty(512, 512)]
        empty_cache()
        kept.append(torch.empty(512, 512))
        empty_cache()
    assert session.recording.cache_returns == [1, 2]


def test_nothing_is_recorded_while_paused() -> None:
    session = Session()
    with session.fakes, session.recorder, session.recorder.paused():
        torch.empty(512, 512)
    assert session.recording.block_bytes == []


def test_a_sparse_gradient_counts_with_its_indices_and_values_and_once() -> None:
    session = Session()
    with session.fakes, session.recorder:
        words = torch.empty(512, dtype=torch.long)
        weight = torch.empty(2048, 512, requires_grad=True)  # 4 MiB
        loss = (torch.nn.functional.embedding(words, weight, sparse=True) * 2).sum()
        session.recording.phase = Phase.BACKWARD
        loss.backward()
        assert weight.grad is not None
        assert weight.grad._nnz() == 512
        assert len(session.ledger.blocks_of([weight.grad])) == 2
    backward = session.recording.event_phases.index(PHASES.index(Phase.BACKWARD))
    made = [each for each in session.recording.event_blocks[backward:] if session.recording.block_bytes[each] == MIB]
    assert len(set(made)) == 1


@pytest.mark.parametrize("copied", [torch.Tensor.clone, torch.Tensor.coalesce])
def test_copies_of_sparse_tensors_keep_their_elements(copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
    session = Session()
    with session.fakes, session.recorder, torch.sparse.check_sparse_tensor_invariants(enable=False):
        sparse = torch.sparse_coo_tensor(torch.empty(1, 512, dtype=torch.long), torch.empty(512, 512), (2048, 512))
        assert copied(sparse)._nnz() == 512
    assert max(session.recording.block_bytes) == MIB


def test_images_folded_from_columns_take_the_memory_of_the_columns() -> None:
    session = Session()
    with session.fakes, session.recorder:
        columns = torch.empty(1, 4 * 9, 64, 64).flatten(2)
        images = torch.nn.functional.fold(columns, (64, 64), 3, padding=1)
        assert images.shape == (1, 4, 64, 64)
    assert [each // 1024 for each in session.recording.block_bytes] == [576, 576]


def test_blocks_of_a_scope_are_freed_before_the_next_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(capability=(8, 0))
    blocks = TemporaryBytes(throughout=(1,), around_results=(2, (3, 4), 5), after_results=(6, 7), before_return=(8,))
    kernels = replace(cuda_kernels((8, 0), 108), temporary_bytes=lambda *_: blocks)
    monkeypatch.setattr(session.recorder, "_kernels", kernels)
    with session.fakes, session.recorder:
        made = torch.empty(9, dtype=torch.int8)
    del made
    recording = session.recording
    sizes = [
        recording.block_bytes[block] * (1 if allocates else -1)
        for block, allocates in zip(recording.event_blocks, recording.event_allocates, strict=True)
    ]
    assert sizes == [1, 2, 3, 4, -3, -4, 5, 9, -2, -5, 6, 7, -6, -7, -1, 8, -8, -9]


def test_the_mask_of_dropout_is_allocated_before_its_result() -> None:
    session = Session((8, 0))
    with session.fakes, session.recorder:
        kept = torch.ops.aten.native_dropout(torch.empty(512, 512), 0.5, True)
    assert session.recording.block_bytes == [MIB, MIB // 4, MIB]
    assert session.ledger.block_of(kept[0]) == 2


@pytest.mark.parametrize(("dimensions", "weight_comes_first"), [(1, True), (2, True), (3, False)])
def test_a_depthwise_gradient_of_the_weight_is_allocated_before_that_of_the_image(
    dimensions: int, weight_comes_first: bool
) -> None:
    session = Session((8, 0))
    sides, window, steps = (64,) * dimensions, (1,) * dimensions, [1] * dimensions
    with session.fakes, session.recorder:
        image, weight = torch.empty(2, 2, *sides), torch.empty(2, 1, *window)
        made = torch.ops.aten.convolution_backward(
            image, image, weight, None, steps, [0] * dimensions, steps, False, [0] * dimensions, 2, [True, True, False]
        )
    places = [session.ledger.block_of(each) for each in made[:2]]
    assert places == ([3, 2] if weight_comes_first else [2, 3])


@pytest.mark.parametrize(
    ("call", "count"),
    [
        # from 2.14 on also of numbers that equal a bound, and none of them in place
        pytest.param(lambda x, y: x.clamp(y, y), 8 if release_of(torch.__version__) >= (2, 14) else 2, id="clamp"),
        pytest.param(lambda x, _y: x.max(), 2, id="max"),
    ],
)
def test_masks_of_a_derivative_are_joined_in_place(call: Taken, count: int) -> None:
    session = Session()
    with session.fakes, session.recorder:
        values = torch.empty(512, 512, requires_grad=True)
        result = call(values, torch.empty(512, 512)).sum()
        session.recording.phase = Phase.BACKWARD
        result.backward()
        session.recorder.resolve_pending_reuse()
    masks = [size for size in session.recording.block_bytes if size == MIB // 4]
    assert len(masks) == count


@pytest.mark.parametrize(
    ("maximum", "count"), [(torch.maximum, 2), (torch.fmax, 2 if release_of(torch.__version__) >= (2, 14) else 1)]
)
def test_gradients_of_a_maximum_are_two_numbers_for_each(maximum: Taken, count: int) -> None:
    session = Session()
    with session.fakes, session.recorder:
        values = torch.empty(512, 512, requires_grad=True)
        result = maximum(values, torch.empty(512, 512)).sum()
        session.recording.phase = Phase.BACKWARD
        before = len(session.recording.block_bytes)
        result.backward()
        session.recorder.resolve_pending_reuse()
    # half of the gradient, and the gradient itself, filled in place where the other was larger
    assert session.recording.block_bytes[before:].count(MIB) == count


def test_the_dimension_of_a_stable_sort_is_read_by_name() -> None:
    session = Session(capability=(8, 0))
    with session.fakes, session.recorder:
        kept = torch.sort(torch.empty(4, 8192), dim=0, stable=True)
    assert len(kept) == 2
    assert max(session.recording.block_bytes) == 4 * 8192 * 8  # along four elements nothing but the results is made
