"""The mode of fake tensors that a step is traced on: torch's, made right for sparse tensors and faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from memplan.estimators.fake_tensors.dense_parts import dense_parts, sparse_of
from memplan.estimators.fake_tensors.random_draws import RandomDraws
from memplan.estimators.fake_tensors.result_cache import ResultCache, fake_from, metadata_of

if TYPE_CHECKING:
    from torch._ops import OpOverload


class TraceFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch leaves dispatch modes untyped
    """Fake tensors beside real ones; sparse ones keep their number of elements, which torch 2.13 makes none.

    Args:
        results: what operators returned before; runs of the same step share it.
        draws: answers for lone random numbers.
    """

    def __init__(self, results: ResultCache | None = None, draws: RandomDraws | None = None) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._results = results or ResultCache()
        self.draws = draws or RandomDraws()

    def run(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on fake tensors."""
        return self._results.run(operator, args, kwargs, self)

    def from_tensor(self, tensor: torch.Tensor, **settings: Any) -> FakeTensor:
        """Make a fake tensor of a real one."""
        if tensor.layout is not torch.sparse_coo:
            return super().from_tensor(tensor, **settings)
        with torch.no_grad():
            parts = [super(TraceFakeMode, self).from_tensor(each, **settings) for each in dense_parts(tensor)]
            with self:
                made = sparse_of(*parts, shape=list(tensor.shape), is_coalesced=tensor.is_coalesced())
        return cast("FakeTensor", made)

    def from_parameter(self, parameter: nn.Parameter) -> nn.Parameter:
        """Make a fake parameter of a real one that is simple, with a storage of its own."""
        fake = fake_from(metadata_of(parameter), self).requires_grad_(parameter.requires_grad)
        fake._is_param = True  # noqa: SLF001 - as nn.Parameter says it of fake tensors
        return cast("nn.Parameter", fake)

    def from_number(self, number: torch.Tensor) -> FakeTensor:
        """Make a fake tensor of at most one number that code has written down, as torch does: it stays known."""
        with torch._C._DisableTorchDispatch():  # noqa: SLF001 - public under no other name
            constant = number.clone()
        fake = fake_from(metadata_of(constant), self, constant=constant)
        self.fake_tensor_converter.add_constant_storage_mapping(fake)
        return fake


def is_simple(parameter: torch.Tensor) -> bool:
    """Whether a parameter is a plain one of its own storage, which its shape and type tell all of."""
    return (
        type(parameter) is nn.Parameter
        and parameter.layout is torch.strided
        and parameter.is_contiguous()
        and parameter.device.type == "cpu"
        and not parameter.is_quantized
    )
