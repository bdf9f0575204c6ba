"""Runs the code that Inductor wrote for a graph on traced tensors.

Its buffers are made, handed on and freed as the code has it. Calls of libraries run as recorded operators; kernels do
nothing, because nothing is known of values.

When a kernel of which there are several variants runs for the first time, Inductor times each on the kernel's own
buffers, or on copies of those that it changes, and overwrites the card's cache in between by a buffer of its size
(``CachingAutotuner.bench`` and ``InductorBenchmarker.benchmark_gpu`` in ``torch/_inductor/runtime``, torch 2.13). A run
that finds such timings on disk repeats none.
"""

from __future__ import annotations

import ast
import functools
import re
from contextlib import ExitStack, nullcontext
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._inductor.select_algorithm import extern_kernels

from memplan.estimators.absent_card.card_answers import always
from memplan.estimators.lowering.kernel_variants import timed_kernel
from memplan.estimators.recorder.capture_context import module_path_of
from memplan.estimators.recorder.cuda_graphs import CudaGraphs, GraphPart, Pass
from memplan.estimators.temporaries.timed_copies import TimedCopy
from memplan.results import Component

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import fx

    from memplan.estimators.lowering.inductor_code import InductorCode
    from memplan.estimators.recorder.module_paths import ModulePaths
    from memplan.estimators.recorder.operator_recorder import OperatorRecorder
    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.recorder.storages import StorageLedger

_RANDOM_STATE_BYTES = 16  # a seed and an offset, as CUDA's generators have them
_MAKES = "memplan_makes"  # what the code calls before it makes a buffer
_BUFFER = re.compile(r"buf\d+")


class CodeRunner:
    """Runs the code of graphs.

    Args:
        recording: where events go.
        operators: records the calls of libraries.
        ledger: blocks of the storages.
        paths: path of the running module.
        cache_bytes: size of the card's second cache.
    """

    def __init__(
        self,
        recording: Recording,
        operators: OperatorRecorder,
        ledger: StorageLedger,
        paths: ModulePaths,
        *,
        cache_bytes: int,
    ) -> None:
        self._recording = recording
        self._operators = operators
        self._ledger = ledger
        self._paths = paths
        self._cache_bytes = cache_bytes
        self.graphs = CudaGraphs(recording, operators, ledger)
        self._is_recorded = True
        self._timed: set[str] = set()  # kernels, of which code that is loaded later finds timings on disk
        self._timings = count()
        self._maker: fx.Node | None = None
        self._place = ExitStack()

    def loaded(
        self, code: InductorCode, kind: Pass = Pass.INFERENCE, static_inputs: Collection[int] = ()
    ) -> Callable[..., Any]:
        """Return what runs code on a list of inputs, which it empties, and whether that is recorded.

        Args:
            code: the code.
            kind: what it computes.
            static_inputs: numbers of the inputs that lie in the same place in every step, as weights do.
        """
        names = self._names(code)
        body = [_noting_makers(each) for each in ast.parse(code.source).body if not _is_given(each, names)]
        module = ast.fix_missing_locations(ast.Module(body=body, type_ignores=[]))
        exec(compile(module, "<code of Inductor>", "exec"), names)  # noqa: S102 - as PyTorch runs it
        if code.parts:
            wrap = functools.partial(self._as_graph, kind=kind, static_inputs=static_inputs, code=code)
            names["recursively_apply_fns"]([functools.partial(wrap, given=given) for given in code.parts])

        def run(inputs: list[Any], *, is_recorded: bool) -> Any:
            self._is_recorded = is_recorded
            if is_recorded and kind is Pass.BACKWARD:
                self.graphs.note_backward()
            try:
                return names["call"](inputs)
            finally:
                self._place.close()

        return run

    def _as_graph(
        self,
        run: Callable[[list[Any]], Any],
        *,
        given: Sequence[int | None],
        kind: Pass,
        static_inputs: Collection[int],
        code: InductorCode,
    ) -> Callable[[list[Any]], Any]:
        part = GraphPart(
            run=run,
            kind=kind,
            static_inputs={at for at, number in enumerate(given) if number in static_inputs},
            changed_inputs=frozenset(at for at, number in enumerate(given) if number in code.changed_inputs),
        )
        return lambda inputs: self.graphs.run(part, inputs) if self._is_recorded else run(inputs)

    def _names(self, code: InductorCode) -> dict[str, Any]:
        """Return what the code finds under its names."""

        def makes(name: str) -> None:
            self._place.close()
            self._maker = next(reversed(code.makers.get(name, ())), None)
            if self._maker is not None:
                self._place.enter_context(self._paths.inside(module_path_of(self._maker)))

        return {
            "torch": _TORCH,
            "aten": torch.ops.aten,
            "extern_kernels": extern_kernels,
            "empty_strided_cuda": self._empty,
            "empty_strided_cpu": torch.empty_strided,
            "reinterpret_tensor": _reinterpreted,
            "async_compile": SimpleNamespace(triton=self._kernel, wait=always(None)),
            "get_raw_stream": always(None),
            "assert_size_stride": always(None),
            "assert_alignment": always(None),
            "assert_tensor_metadata": always(None),
            _MAKES: makes,
        }

    def _empty(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        with self._operators.paused():
            made = torch.empty_strided(shape, strides, dtype=dtype)
        if self._is_recorded:
            target = "" if self._maker is None else self._maker.target
            self._ledger.track(made, Component.TEMPORARIES, module=self._paths.current, operator=f"compiled {target}")
        return made

    def _kernel(self, _name: str, source: str, **_: Any) -> SimpleNamespace:
        timed = None if source in self._timed else timed_kernel(source)

        def run(*args: Any, **_: Any) -> None:
            nonlocal timed
            if timed is None or not self._is_recorded:
                return
            changed = [cast("torch.Tensor", args[each]) for each in timed.changed]
            changed_bytes = [each.numel() * each.element_size() for each in changed]
            for _variant in range(timed.variant_count if changed and timed.within_peak else 1):
                self._time(changed_bytes, within_peak=timed.within_peak)
            self._timed.add(source)
            timed = None

        return SimpleNamespace(run=run)

    def _time(self, changed_bytes: Sequence[int], *, within_peak: bool) -> None:
        timing = next(self._timings)

        def taken(size_bytes: int, copy: TimedCopy | None = None) -> int:
            return self._recording.allocate(
                size_bytes,
                Component.WORKSPACES,
                module="",
                operator="timing of compiled kernels",
                kernel_call=copy if within_peak else None,
            )

        def copied() -> list[int]:
            return [taken(each, TimedCopy(timing=timing, place=place)) for place, each in enumerate(changed_bytes)]

        for block in reversed(copied()):  # it runs once before the cache is overwritten
            self._recording.free(block)
        for block in reversed([taken(self._cache_bytes), *copied()]):
            self._recording.free(block)


def _is_given(statement: ast.stmt, names: dict[str, Any]) -> bool:
    """Whether a statement imports, or gives a name to what is there under it."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return True
    return isinstance(statement, ast.Assign) and any(
        isinstance(each, ast.Name) and each.id in names for each in statement.targets
    )


def _noting_makers(tree: ast.stmt) -> ast.stmt:
    """Let code say which buffer it makes before it does so."""
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                setattr(node, name, [each for statement in body for each in (*_note_of(statement), statement)])
    return tree


def _note_of(statement: ast.stmt) -> tuple[ast.stmt, ...]:
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return ()
    (target, *_) = statement.targets
    if not isinstance(target, ast.Name) or not _BUFFER.fullmatch(target.id):
        return ()
    call = ast.Call(func=ast.Name(id=_MAKES, ctx=ast.Load()), args=[ast.Constant(target.id)], keywords=[])
    return (ast.Expr(call),)


def _reinterpreted(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    return torch.as_strided(tensor, shape, strides, tensor.storage_offset() + offset)


def _run_and_save_random_state(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return torch.empty(_RANDOM_STATE_BYTES, dtype=torch.uint8), operator(*args, **kwargs)


def _run_with_random_state(_state: torch.Tensor, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


class _Instead:
    """Stands for a module, some of whose attributes are others."""

    def __init__(self, module: Any, **others: Any) -> None:
        self.__dict__.update(others)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


_TORCH = _Instead(
    torch,
    cuda=_Instead(torch.cuda, _DeviceGuard=nullcontext, set_device=always(None), synchronize=always(None)),
    ops=_Instead(
        torch.ops,
        higher_order=_Instead(
            torch.ops.higher_order,
            # what the partitioner puts around random operators that it recomputes (torch/_prims/rng_prims.py)
            run_and_save_rng_state=_run_and_save_random_state,
            run_with_rng_state=_run_with_random_state,
        ),
    ),
)
