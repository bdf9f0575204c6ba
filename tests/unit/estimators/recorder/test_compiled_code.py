"""What is recorded of code as Inductor writes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from memplan.devices.cards import find_card
from memplan.estimators.lowering.target_device import kernels_of
from memplan.estimators.recorder.module_paths import ModulePaths
from memplan.estimators.recorder.operator_recorder import OperatorRecorder
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.size_fits import fit_timeline
from memplan.estimators.recorder.storages import StorageLedger
from memplan.units import KIB

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method:DeprecationWarning"
)  # of what Inductor imports

KERNEL = """
@triton_heuristics.pointwise(
    size_hints={{'x': {size}}}, filename=__file__,
    triton_meta={{'device': DeviceProperties('cuda', 0, 108, 80, major=8, warp_size=32)}},
    inductor_meta={{'mutated_arg_names': {mutated}, 'optimize_mem': {within_peak}}},
)
@triton.jit
def kernel(in_out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
"""
CODE = """
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
from torch._inductor.runtime.runtime_utils import assert_tensor_metadata  # from torch 2.14 on
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
kernel = async_compile.triton('kernel', '''{kernel}''', device_str='cuda')
async_compile.wait(globals())


class Runner:
    def call(self, args):
        x, = args
        args.clear()
        assert_size_stride(x, (16, 16), (16, 1))
        assert_tensor_metadata(x, (16, 16), (16, 1), torch.float32, 'aten.mm')
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            buf0 = empty_strided_cuda((256, ), (1, ), torch.float32)
            kernel.run(buf0, 256, stream=get_raw_stream(0))
            buf1 = reinterpret_tensor(buf0, (16, 16), (16, 1), 0); del buf0  # reuse
            buf2 = empty_strided_cuda((16, 16), (16, 1), torch.float32)
            extern_kernels.mm(buf1, reinterpret_tensor(x, (16, 16), (1, 16), 0), out=buf2)
            del buf1
            kernel.run(buf2, 256, stream=get_raw_stream(0))
        return (buf2, )


call = Runner().call
"""
BUFFER_BYTES = 256 * 4
CACHE_BYTES = 5 * BUFFER_BYTES
TIMED_ON_A_COPY = [BUFFER_BYTES, -BUFFER_BYTES, CACHE_BYTES, BUFFER_BYTES, -BUFFER_BYTES, -CACHE_BYTES]
CUBLAS_BYTES = 2 * 4096 * KIB + 8 * 16 * KIB  # PyTorch's default, but for Hopper's


class Recorder:
    """Runs code on one tensor of as many bytes as its buffers have, and tells what it allocated."""

    def __init__(self) -> None:
        from memplan.estimators.recorder.compiled_code import CodeRunner  # noqa: PLC0415 - imports Inductor

        self.recording = Recording(micro_batch_size=1)
        self.ledger = StorageLedger(self.recording)
        paths = ModulePaths(nn.Module())
        self.operators = OperatorRecorder(
            self.recording, self.ledger, paths, kernels=kernels_of(find_card("a100-80gb")), host_copies=None, fakes=None
        )
        self.runner = CodeRunner(self.recording, self.operators, self.ledger, paths, cache_bytes=CACHE_BYTES)

    def load(self, *, size: int = 256, changes: bool = False, within_peak: bool = False) -> Any:
        from memplan.estimators.lowering.inductor_code import InductorCode  # noqa: PLC0415 - imports Inductor

        mutated = ["in_out_ptr0"] if changes else []
        kernel = KERNEL.format(size=size, mutated=mutated, within_peak=within_peak)
        return self.runner.loaded(InductorCode(source=CODE.format(kernel=kernel), makers={}))

    def run(self, call: Any, *, is_recorded: bool = True) -> list[int]:
        """Return the bytes that a run allocates, in order, negative where it frees them; copies only where they fit."""
        before = len(self.recording.event_blocks)
        with self.operators:
            results = call([torch.ones(256)], is_recorded=is_recorded)
            del results
        events = zip(self.recording.event_blocks[before:], self.recording.event_allocates[before:], strict=True)
        sizes = fit_timeline([self.recording]).block_bytes(1).tolist()
        return [sizes[block] if allocates else -sizes[block] for block, allocates in events if sizes[block]]


MADE = [BUFFER_BYTES] * 2  # what the code is given, and its first buffer
REST = [
    BUFFER_BYTES,
    CUBLAS_BYTES,
    *[-BUFFER_BYTES] * 3,
]  # its second, and the workspace of the product; frees come last


def test_buffers_are_made_handed_on_and_freed_as_the_code_has_it() -> None:
    recorder = Recorder()
    assert recorder.run(recorder.load(size=16)) == [*MADE, *REST]


@pytest.mark.parametrize(
    ("changes", "within_peak", "timed"),
    [
        pytest.param(False, False, [CACHE_BYTES, -CACHE_BYTES], id="on the kernel's own buffer"),
        pytest.param(True, False, TIMED_ON_A_COPY, id="on a copy of what it changes"),
        pytest.param(
            True,
            True,
            [CACHE_BYTES, -CACHE_BYTES, *TIMED_ON_A_COPY],
            id="on what it changes where a copy were a new peak, which that for the second variant is not",
        ),
    ],
)
def test_variants_of_a_kernel_are_timed_with_a_buffer_as_large_as_the_cards_cache(
    changes: bool, within_peak: bool, timed: list[int]
) -> None:
    recorder = Recorder()
    assert recorder.run(recorder.load(changes=changes, within_peak=within_peak)) == [*MADE, *timed, *REST]


def test_a_kernel_is_timed_once_and_code_that_is_loaded_later_finds_the_timings() -> None:
    recorder = Recorder()
    first = recorder.load()
    assert CACHE_BYTES in recorder.run(first)
    assert CACHE_BYTES not in recorder.run(first)
    assert CACHE_BYTES not in recorder.run(recorder.load())


def test_runs_that_only_capture_are_not_recorded() -> None:
    recorder = Recorder()
    code = recorder.load()
    with recorder.operators.set_aside():
        assert recorder.run(code, is_recorded=False) == []
    assert CACHE_BYTES in recorder.run(code)
