"""The fake tensor mode of a trace: torch's, with a result cache and correct sparse tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from memplan.estimators.fake_tensors.random_draws import RandomDraws
from memplan.estimators.fake_tensors.result_cache import ResultCache, fake_from, metadata_of
from memplan.torch_releases import release_of
from memplan.training.dense_parts import dense_parts, sparse_of

if TYPE_CHECKING:
    from torch._ops import OpOverload

_COLLECTIVES_ARE_KNOWN = release_of(torch.__version__) >= (2, 11)  # to FakeTensorMode; 2.10 was not tried


class TraceFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch leaves dispatch modes untyped
    """A fake tensor mode that caches results and keeps the element count of sparse tensors, which torch 2.13 drops.

    Args:
        results: the cache, shared by runs of the same step.
        draws: replaces scalar random numbers.
    """

    def __init__(self, results: ResultCache | None = None, draws: RandomDraws | None = None) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._results = results or ResultCache()
        self.draws = draws or RandomDraws()
        self.kept_by_libraries: dict[str, torch.Tensor] = {}  # from the first use to the end of the process

    def run(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on fake tensors."""
        if not _COLLECTIVES_ARE_KNOWN and operator.namespace == "c10d":
            return _done_at_once(operator, args)
        return self._results.run(operator, args, kwargs, self)

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> int | torch.SymInt:
        """Return the size of a dimension of nested tensors in which samples differ; it alone needs a ``ShapeEnv``."""
        if self.shape_env is None:
            from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: PLC0415 - imports sympy

            self.shape_env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        return super().create_symbolic_nested_int(nt_tensor_id=nt_tensor_id)

    def from_tensor(self, tensor: torch.Tensor, **settings: Any) -> FakeTensor:
        """Return a fake copy of a real tensor."""
        if tensor.layout is not torch.sparse_coo:
            return super().from_tensor(tensor, **settings)
        with torch.no_grad():
            parts = [super(TraceFakeMode, self).from_tensor(each, **settings) for each in dense_parts(tensor)]
            with self:
                made = sparse_of(*parts, shape=list(tensor.shape), is_coalesced=tensor.is_coalesced())
        return cast("FakeTensor", made)

    def from_parameter(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return a fake copy of a parameter that :func:`is_simple`."""
        fake = fake_from(metadata_of(parameter), self).requires_grad_(parameter.requires_grad)
        fake._is_param = True  # noqa: SLF001 - as nn.Parameter marks fake tensors
        return cast("nn.Parameter", fake)

    def from_number(self, number: torch.Tensor) -> FakeTensor:
        """Return a fake copy of a literal of at most one element, whose value torch keeps."""
        with torch._C._DisableTorchDispatch():  # noqa: SLF001 - public under no other name
            constant = number.clone()
        fake = fake_from(metadata_of(constant), self, constant=constant)
        self.fake_tensor_converter.add_constant_storage_mapping(fake)
        return fake


def _done_at_once(operator: OpOverload, args: tuple[Any, ...]) -> Any:
    """Return what a collective does: what it writes to, where it tells that, and what one waits for, where one may."""
    returned = len(operator._schema.returns)  # noqa: SLF001 - public under no other name
    if returned == 0:
        return None
    done = FakeWork().boxed()
    return done if returned == 1 else (args[0], done)


def is_simple(parameter: torch.Tensor) -> bool:
    """Whether shape and dtype describe the parameter completely."""
    return (
        type(parameter) is nn.Parameter
        and parameter.layout is torch.strided
        and parameter.is_contiguous()
        and parameter.device.type == "cpu"
        and not parameter.is_quantized
    )
