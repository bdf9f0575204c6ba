"""What the kernels of a device take beside their results: on the CPU, or on the card that is traced for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.cuda_temporaries import cuda_temporary_bytes, has_rule
from memplan.estimators.lowering.cudnn_convolution import convolution_rules
from memplan.estimators.lowering.host_temporaries import host_temporary_bytes
from memplan.estimators.lowering.library_workspaces import cublas_workspace_bytes
from memplan.estimators.lowering.operator_rules import is_chosen_on_card, is_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    from memplan.estimators.lowering.temporary_bytes import TemporaryBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Rules of one device.

    Args:
        temporary_bytes: operator without overload, its arguments and its result -> what the kernel takes inside.
        are_known: operator, with and without overload -> whether a rule counts its kernel or it needs none.
        blas_workspace_bytes: what each thread's first matrix product takes and keeps; 0 where nothing is kept.
    """

    temporary_bytes: Callable[[str, tuple[Any, ...], Any], TemporaryBytes]
    are_known: Callable[[OpOverload, str], bool]
    blas_workspace_bytes: int


def host_kernels() -> Kernels:
    """Return the rules of the CPU."""
    return Kernels(
        temporary_bytes=host_temporary_bytes, are_known=lambda _operator, _name: True, blas_workspace_bytes=0
    )


def cuda_kernels(capability: tuple[int, int]) -> Kernels:
    """Return the rules of a card of a compute capability."""
    convolutions = convolution_rules(capability)

    def temporary_bytes(operator: str, args: tuple[Any, ...], result: Any) -> TemporaryBytes:
        rule = convolutions.get(operator)
        return cuda_temporary_bytes(operator, args, result) if rule is None else rule(args, result)

    def are_known(operator: OpOverload, name: str) -> bool:
        return not is_chosen_on_card(name) and (name in convolutions or has_rule(name) or is_plain(operator))

    return Kernels(
        temporary_bytes=temporary_bytes, are_known=are_known, blas_workspace_bytes=cublas_workspace_bytes(capability)
    )
