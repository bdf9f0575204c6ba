"""The dispatch mode that records the allocations of every operator of a step."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.distributed.tensor import _sharding_prop
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memplan.estimators.absent_card.cached_memory import EMPTY_CACHE
from memplan.estimators.absent_card.cuda_emulation import emulation_resumed
from memplan.estimators.fake_tensors.fake_results import corrected_result
from memplan.estimators.fake_tensors.known_values import is_known, run_with_known_values
from memplan.estimators.fake_tensors.presumed_values import PresumedReads, differ_in_shape, reads_condition
from memplan.estimators.fake_tensors.replaced import replaced
from memplan.estimators.fake_tensors.value_writes import only_writes
from memplan.estimators.lowering.kernel_rules import KEYWORDS_READ
from memplan.estimators.lowering.library_workspaces import CUBLAS_OPERATORS
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES
from memplan.estimators.recorder.custom_operators import body_of, divides_batch
from memplan.estimators.recorder.in_place_formulas import InPlaceFormulas, is_in_backward, joins_masks
from memplan.estimators.recorder.outside_tensors import OutsideTensors
from memplan.estimators.recorder.recording import INSIDE
from memplan.estimators.temporaries.convolutions import ConvolutionWorkspace
from memplan.estimators.temporaries.ruled_blocks import RuledBlock
from memplan.results import Component, Phase
from memplan.training.dense_parts import dense_parts, is_on_meta, wraps_others

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from memplan.estimators.absent_card.host_copies import HostCopies
    from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
    from memplan.estimators.fake_tensors.presumed_choices import PresumedChoices
    from memplan.estimators.fake_tensors.random_draws import RandomDraws
    from memplan.estimators.lowering.kernel_rules import KernelRules
    from memplan.estimators.lowering.library_workspaces import ProductWorkspace
    from memplan.estimators.lowering.temporary_bytes import Blocks
    from memplan.estimators.recorder.module_paths import ModulePaths
    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.recorder.storages import StorageLedger
    from memplan.estimators.temporaries.convolutions import Convolution

# Nested tensors run these below autograd, where the dispatcher does not take them apart.
_COMPOSED = (torch.ops.aten.linear.default, torch.ops.aten.matmul.default)
_NESTED = "operators on nested tensors"
_PRODUCTS = CUBLAS_OPERATORS | {"aten._sparse_addmm"}
_DEVICE_QUERY = torch.ops.prim.device.default
_COPY_OUT = "fsdp.split_with_sizes_copy"  # writes the parameters that FSDP has gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingReuse:
    """A result of the backward pass that autograd would write over its first operand, if that is freed.

    Holds no reference to the tensor, because autograd copies a gradient that it does not own alone.
    """

    result: torch.UntypedStorage
    operand_block: int


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves dispatch modes untyped
    """Records the storages that each operator returns, and the temporaries of its kernel on the target device.

    Args:
        recording: where events go.
        ledger: blocks of the storages.
        paths: path of the running module.
        kernels: temporaries of the device's kernels.
        host_copies: which tensors lie on the host and are not recorded; None if the device is the host.
        fakes: the fake tensor mode, under which operators that only write values are skipped; None if all is computed.
        draws: replaces scalar random numbers, if all is computed.
        choices: replaces unknown values; None if these end the trace.
    """

    def __init__(
        self,
        recording: Recording,
        ledger: StorageLedger,
        paths: ModulePaths,
        *,
        kernels: KernelRules,
        host_copies: HostCopies | None,
        fakes: TraceFakeMode | None,
        draws: RandomDraws | None = None,
        choices: PresumedChoices | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves dispatch modes untyped
        self._recording = recording
        self._ledger = ledger
        self._paths = paths
        self._kernels = kernels
        self._host_copies = host_copies
        self.unknown_calls: Counter[str] = Counter()
        self.presumed = PresumedReads()
        self.divides_batch = False
        self._fakes = fakes
        self._draws = draws
        self._choices = choices
        self._paused = False
        self._is_set_aside = False
        self._is_in_body = False
        self._pending: _PendingReuse | None = None
        self._kept_workspaces: dict[tuple[bool, int, str], int] = {}  # by backward pass or not, stream, library
        self._formulas = InPlaceFormulas()
        self._outside = OutsideTensors(ledger, host_copies, fakes)

    def paused(self) -> AbstractContextManager[None]:
        """Record nothing while the context is open."""
        return replaced(self, "_paused", True)

    def set_aside(self) -> AbstractContextManager[None]:
        """Take no part in what runs while the context is open, where other modes trace it."""
        return replaced(self, "_is_set_aside", True)

    def free_workspaces(self) -> None:
        """Free what products keep, in all threads and for all streams (``_cuda_clearCublasWorkspaces``)."""
        self._free(self._kept_workspaces.values())
        self._kept_workspaces.clear()

    @contextmanager
    def paused_for_whole_shapes(self) -> Iterator[None]:
        """Record nothing of what sharded tensors ask operators on whole ones, to learn the shape of a result."""
        propagator_class = _sharding_prop.ShardingPropagator
        ask = propagator_class._propagate_tensor_meta_non_cached  # noqa: SLF001 - the only place where they do

        def paused(propagator: Any, schema: Any) -> Any:
            with self.paused():
                return ask(propagator, schema)

        def open_mode() -> Any:
            """Return the trace's own mode, as PyTorch does itself in 2.11, though not in 2.9: modes do not mix."""
            return self._fakes or FakeTensorMode()

        with (
            replaced(propagator_class, ask.__name__, paused),
            replaced(_sharding_prop, "FakeTensorMode", open_mode),
        ):
            yield

    def resolve_pending_reuse(self) -> None:
        """Let the last operator's result reuse the block of its first operand, if that has just been freed.

        Where gradients join at a branch, autograd adds into the first of them if it alone owns it and its storage,
        which is never so for a view, because that keeps its base. Under a dispatch mode it adds out of place
        (``can_accumulate_inplace`` in ``torch/csrc/autograd/input_buffer.cpp``).
        """
        pending, self._pending = self._pending, None
        if pending is not None and not self._ledger.is_live(pending.operand_block):
            self._ledger.reuse_block(pending.result, pending.operand_block)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard would double the cost of recording

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let Dynamo run where this takes no part."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator and record the storages that are new among its results."""
        if self._is_set_aside:
            return func(*args, **(kwargs or {}))
        if func is _DEVICE_QUERY and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if any(map(wraps_others, types)):
            return NotImplemented  # the subclass dispatches operators on the tensors it wraps
        if func in _COMPOSED and not any(map(_is_nested, args)):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        body = body_of(func, "cpu" if self._host_copies is None else "cuda")
        if body is not None and not self._kernels.are_known(func, str(func.overloadpacket)):
            self.divides_batch |= divides_batch(func)
            # where it cannot run on fake tensors, the operator is recorded as one whose inside is not counted
            with suppress(Exception), self, emulation_resumed(), replaced(self, "_is_in_body", True):
                return body(*args, **(kwargs or {}))
        # no function mode need see what follows, which is no user code
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - public under no other name
            return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._pending is not None:
            self.resolve_pending_reuse()
        if func is EMPTY_CACHE:
            return self._recording.return_cache()
        if not self._paused:
            self._outside.take_in(func, args, module=self._paths.current)
        if self._fakes is not None and only_writes(func, args) and not is_known(args[0]):
            return args[0] if func._schema.returns else None  # noqa: SLF001 - in no public attribute
        if self._fakes is not None and joins_masks(func):
            return args[0]
        operand_block = self._reusable_block(func, args)
        try:
            result = self._run_or_presume(func, args, kwargs)
        except DataDependentOutputException:
            answer = self._presumed_answer(func, args)
            if answer is None:
                raise
            return answer
        if not self._paused:
            self._record(func, args, kwargs, result)
            if operand_block is not None:
                storage = dense_parts(result)[-1].untyped_storage()
                self._pending = _PendingReuse(result=storage, operand_block=operand_block)
        return result

    def _presumed_answer(self, func: Any, args: tuple[Any, ...]) -> bool | float | None:
        """Presume the value that an operator reads; None where a model decides by it, and nothing may be presumed."""
        if differ_in_shape(func, args):
            return False
        if self._choices is not None and self._draws is not None and reads_condition(func, args):
            return self._choices.decide(self._draws, self._paths.current)
        is_answered = not self._paths.is_inside and self.presumed.can_answer(func, args)
        return self.presumed.answer(args[0]) if is_answered else None

    def read_number(self) -> float | None:
        """Return what stands for a number that a module reads; None outside of all modules, or if none may."""
        if self._choices is None or self._draws is None or not self._paths.is_inside:
            return None
        return self._choices.read(self._draws, self._paths.current)

    def _run_or_presume(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._choices is None:
            return self._run(func, args, kwargs)
        self._choices.write_most(func, args)
        try:
            result = self._run(func, args, kwargs)
        except DynamicOutputShapeException:
            result = self._choices.most(func, args, kwargs, run=self._run)
            if result is None:
                raise
        self._choices.choose(func, args, kwargs, result)
        if self._recording.phase is Phase.OPTIMIZER_STEP:
            self._choices.compare(func, args, result)
        return result

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._fakes is None:
            result = func(*args, **kwargs)
            return result if self._draws is None else self._draws.replace_scalar(result, func, args)
        made = corrected_result(func, args, on_host=self._host_copies is None)
        if made is not None:
            return made
        return run_with_known_values(func, args, kwargs, fakes=self._fakes)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if _ran_on_meta(result) or (self._host_copies is not None and self._host_copies.keep(args, result)):
            return
        operator = str(func.overloadpacket)
        if kwargs and operator in KEYWORDS_READ:
            args = (*args, *(kwargs[name] for name in KEYWORDS_READ[operator] if name in kwargs))
        unseen = _runs_unseen(operator, args, result)
        temporaries = NO_TEMPORARIES if unseen == _NESTED else self._kernels.temporary_bytes(operator, args, result)
        if unseen is not None or not self._kernels.are_known(func, operator):
            self.unknown_calls[unseen or operator] += 1
        between = temporaries.between_results
        until_return = self._hold(temporaries.until_return, operator)
        throughout = self._hold(temporaries.throughout, operator)
        around = self._hold(temporaries.around_results, operator)
        self._free(self._hold(temporaries.before_results, operator))
        results = [result] if isinstance(result, torch.Tensor) else tree_leaves(result)
        if temporaries.second_first:
            results[:2] = results[1::-1]
        for value in results[: len(results) - temporaries.results_on_host]:
            if isinstance(value, torch.Tensor) and not self._is_on_host(value):
                self._ledger.track(value, Component.TEMPORARIES, module=self._paths.current, operator=operator)
                self._free(self._hold(between, operator))
                between = ()
        self._attribute_gathered(kwargs.get("out", ()) if operator == _COPY_OUT else ())
        if operator in CUBLAS_OPERATORS:
            around += self._hold(temporaries.after_results, operator)
            for each in self._kernels.product_workspaces(operator, args):
                self._take_workspace(each)
            self._free(around)
        else:
            self._free(around)
            self._free(self._hold(temporaries.after_results, operator))
        self._free(throughout)
        self._free(self._hold(temporaries.before_return, operator))
        self._free(until_return)

    def _attribute_gathered(self, parameters: Iterable[torch.Tensor]) -> None:
        for block in self._ledger.blocks_of(parameters):
            self._recording.attribute(block, Component.PARAMETERS, module=self._paths.current)

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        return self._host_copies is not None and self._host_copies.holds(tensor)

    def _reusable_block(self, func: Any, args: tuple[Any, ...]) -> int | None:
        is_users = self._is_in_body or bool(self._paths.current)
        operand = self._formulas.written_operand(func, args, in_users_code=is_users)
        return None if operand is None else self._ledger.block_of(operand)

    def _hold(self, blocks: Blocks, operator: str) -> list[int]:
        """Allocate blocks in order, and free those of each scope at its end; return the numbers of the rest."""
        held: list[int] = []
        for each in blocks:
            if isinstance(each, tuple):
                self._free(self._hold(each, operator))
            elif each != 0:
                held.append(self._allocate_temporary(each, operator))
        return held

    def _allocate_temporary(self, block: int | ConvolutionWorkspace | RuledBlock, operator: str) -> int:
        """Allocate a block; one that a call decides is recorded even of 0 bytes, since it may grow with the batch."""
        return self._recording.allocate(
            block if isinstance(block, int) else block.size_bytes,
            Component.TEMPORARIES,
            module=self._paths.current,
            operator=f"{INSIDE}{operator}",
            kernel_call=_kernel_call(block),
        )

    def _free(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._recording.free(block)

    def _take_workspace(self, workspace: ProductWorkspace) -> None:
        """Allocate a product's workspace, which its thread may keep for the stream; the backward pass has a thread."""
        kept = (is_in_backward(), self._recording.stream_number(), workspace.library)
        if kept in self._kept_workspaces:
            return
        module = "" if workspace.is_kept else self._paths.current
        taken = self._recording.allocate(
            workspace.size_bytes, Component.WORKSPACES, module=module, operator="cuBLAS workspace"
        )
        if workspace.is_kept:
            self._kept_workspaces[kept] = taken
        else:
            self._recording.free(taken)


def _is_nested(value: Any) -> bool:
    """Whether a value is a nested tensor of strided layout, whose operators run others that are not seen."""
    return isinstance(value, torch.Tensor) and value.is_nested


def _runs_unseen(operator: str, args: tuple[Any, ...], result: Any) -> str | None:
    """Name what an operator does inside that no rule counts, whatever is known of it for other operands."""
    if _is_nested(result) or any(map(_is_nested, args)):
        return _NESTED
    tensors = (each for each in args if isinstance(each, torch.Tensor))
    is_sparse = operator in _PRODUCTS and any(each.layout is not torch.strided for each in tensors)
    return "products of sparse matrices" if is_sparse else None  # which are converted and transposed


def _ran_on_meta(result: Any) -> bool:
    results = [result] if isinstance(result, torch.Tensor) else tree_leaves(result)
    return any(isinstance(each, torch.Tensor) and is_on_meta(each) for each in results)


def _kernel_call(block: int | ConvolutionWorkspace | RuledBlock) -> Convolution | RuledBlock | None:
    if isinstance(block, ConvolutionWorkspace):
        return block.call
    return block if isinstance(block, RuledBlock) else None
