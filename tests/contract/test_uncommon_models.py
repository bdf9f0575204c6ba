"""Models that are not all plain modules with dense weights: the same figures, by whichever way they are traced.

Layers are 512 x 512 without bias, 1 MiB of weights, and batches of 512 rows are 1 MiB too. Figures are MiB.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.errors import WorkloadError
from memplan.estimators import StepTrace, estimate
from memplan.results import Component
from memplan.units import GIB, MIB
from memplan.workload import Workload
from tests.contract.tracing import traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CARD = DeviceSpec(name="rtx-3090", kind=DeviceKind.CUDA, total_bytes=24 * GIB, compute_capability=(8, 6))
FAKES = "fake-tensor trace"


def trace(
    model: Callable[[], nn.Module],
    batch: Callable[[int], Any] = lambda count: torch.zeros(count, 512),
    loss: Callable[[nn.Module, Any], torch.Tensor] = lambda model, batch: model(batch).sum(),
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = torch.optim.Adagrad,
) -> StepTrace:
    return traced(Workload(model=model, batch=batch, loss=loss, optimizer=optimizer), CARD)


def held(trace: StepTrace) -> tuple[float, float, float]:
    """Return parameters, gradients and optimizer state at the peak of 512 rows."""
    parts = estimate(trace, micro_batch_size=512, device=CARD).breakdown
    return parts.parameters / MIB, round(parts.gradients / MIB, 2), round(parts.optimizer_state / MIB, 2)


def layer() -> nn.Module:
    return nn.Linear(512, 512, bias=False)


def looping(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A loss by whose size a loop ends, for which the step is computed."""
    return halved(model(batch).sum())


def halved(loss: torch.Tensor) -> torch.Tensor:
    while loss > 1:
        loss = loss / 2
    return loss


def test_a_lazy_layer_learns_its_shape_from_the_batch() -> None:
    found = trace(lambda: nn.LazyLinear(512, bias=False))
    assert (found.method, held(found)) == (FAKES, (1, 1, 1))
    computed = trace(lambda: nn.LazyLinear(512, bias=False), loss=looping)
    assert "computed on the CPU" in computed.notes[-1]
    assert held(computed) == (1, 1, 1)


def test_compiled_torchscript_is_computed() -> None:
    found = trace(lambda: torch.jit.script(layer()))
    assert "TorchScript runs on real tensors only" in found.notes[-1]
    assert held(found) == (1, 1, 1)


def replaced() -> nn.Module:
    model = layer()
    before = model.forward
    model.forward = lambda batch: 2 * before(batch)  # type: ignore[method-assign]  # what it shows
    return model


def test_a_method_replaced_by_a_closure_trains_the_model_that_is_traced() -> None:
    assert held(trace(replaced)) == (1, 1, 1)


def test_a_loss_of_another_model_is_refused() -> None:
    other = layer()
    with pytest.raises(WorkloadError, match=r"depends on no parameter of the model it was given; compute"):
        trace(layer, loss=lambda _model, batch: other(batch).sum())


def test_an_optimizer_of_another_model_is_refused() -> None:
    others = [nn.Parameter(torch.zeros(4))]
    with pytest.raises(WorkloadError, match=r"has none of the model's parameters; make it of the parameters that"):
        trace(layer, optimizer=lambda _parameters: torch.optim.SGD(others, lr=0.1))


def test_an_optimizer_of_master_weights_is_not_taken_for_one_of_another_model() -> None:
    def masters(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        own = list(parameters)
        copies = [each.detach().clone().requires_grad_() for each in own]
        optimizer = torch.optim.SGD(copies, lr=0.1)

        def take_gradients(*_: object) -> None:
            for each, copy in zip(own, copies, strict=True):
                copy.grad = each.grad

        optimizer.register_step_pre_hook(take_gradients)
        return optimizer

    assert held(trace(layer, optimizer=masters))[0] == 1


def test_sparse_gradients_hold_the_rows_that_the_batch_names() -> None:
    words = nn.Embedding(2048, 512, sparse=True)
    found = trace(lambda: words, torch.arange, loss=lambda model, batch: model(batch).square().sum())
    (timeline,) = found.timelines
    gradients = timeline.block_bytes(512)[timeline.components == Component.GRADIENTS]
    assert (found.method, set(gradients)) == (FAKES, {MIB, 512 * 8})


class Neighbours(nn.Module):
    """Sums rows over a sparse matrix that is kept beside the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()
        links = torch.arange(1 << 15).repeat(2, 1)
        values = torch.ones(1 << 15)
        self.register_buffer("links", torch.sparse_coo_tensor(links, values, (1 << 15, 1 << 15), check_invariants=True))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the layer; the matrix is only kept."""
        return self.layer(batch)


def test_a_sparse_buffer_counts_with_its_indices_and_values() -> None:
    parts = estimate(trace(Neighbours), micro_batch_size=512, device=CARD).breakdown
    assert parts.buffers == 2**15 * (2 * 8 + 4)


class SumsNeighbours(Neighbours):
    """Multiplies by the sparse matrix, forward and backward."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the layer and sum what is linked."""
        return torch.sparse.mm(self.links, self.layer(batch[0].expand(1 << 15, -1)))


def test_what_products_of_sparse_matrices_take_inside_is_told_not_to_be_counted() -> None:
    told = [each for each in trace(SumsNeighbours).uncounted if "products of sparse matrices" in each]
    assert len(told) == 1
    assert not any("sparse" in each for each in trace(Neighbours).uncounted)


def masked(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A loss on targets that NumPy picks by computed positions, as detectors pick the masks of their boxes."""
    scores = model(batch)
    masks = np.ones((8, 1, 512), dtype=np.float32)
    picked = masks[(scores.sum(1).to(torch.int32) % 8).cpu().numpy()]
    targets = (torch.from_numpy(picked).to(scores.device).flatten(1) > 0).cpu().numpy()
    return nn.functional.binary_cross_entropy_with_logits(scores, torch.from_numpy(targets).float().to(scores.device))


def masked_and_looping(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return halved(masked(model, batch))


def counted(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A loss on as many rows as NumPy finds among computed numbers."""
    scores = model(batch)
    return scores[: int((scores.sum(1).to(torch.int32) % 8).cpu().numpy().max()) + 1].sum()


def test_computed_positions_pass_through_numpy_and_counts_do_not() -> None:
    found, computed = trace(layer, loss=masked), trace(layer, loss=masked_and_looping)
    assert found.method == FAKES
    assert "handed to NumPy" in " ".join(found.notes)
    assert "computed on the CPU" in computed.notes[-1]
    peaks = [estimate(each, micro_batch_size=512, device=CARD).peak_allocated_bytes for each in (found, computed)]
    assert peaks[0] == pytest.approx(peaks[1], abs=512)  # the loss that the loop halves
    assert "computed on the CPU" in trace(layer, loss=counted).notes[-1]
