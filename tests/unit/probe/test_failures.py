"""What exceptions inside a trial mean; texts are those that PyTorch, cuBLAS, cuDNN, NCCL and oneDNN really print."""

from __future__ import annotations

import errno
import runpy
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from memplan.errors import NoDriverError, WorkloadError
from memplan.probe.failures import UserCodeError, blamed_on_user, classify_failure, told_in_one_line
from memplan.probe.trials import TrialVerdict
from memplan.results import OutcomeKind

if TYPE_CHECKING:
    from pathlib import Path

TYPED_OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.12 GiB is "
    "free. Process 12 has 22.56 GiB memory in use. Of the allocated memory 21.90 GiB is allocated by PyTorch."
)

DEVICE_MEMORY = [
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "NCCL error in: NCCLUtils.hpp:77, unhandled cuda error\nLast error:\nFailed to CUDA calloc async 608 bytes",
    "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
]
DEVICE_MEMORY_WHERE_FULL = [
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "Unable to find an engine to execute this computation",
    "GET was unable to find an engine to execute this computation",
    "Expected mha_graph.execute(handle, variant_pack, workspace_ptr.get()).is_good() to be true, but got false.",
]
KERNEL_FAILURES = [
    "CUDA error: invalid configuration argument\nCUDA kernel errors might be asynchronously reported",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: too many resources requested for launch",
    "CUDA error: device-side assert triggered",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k, &alpha, a, lda)`",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
]
HOST_MEMORY = [
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: Error code 12",
    "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allocate 16 bytes.",
    "std::bad_alloc",
    "unable to mmap 4096 bytes from file </torch_1_2_3>: Cannot allocate memory (12)",
]
USERS_OWN = [
    "mat1 and mat2 shapes cannot be multiplied (8x10 and 512x512)",
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "out of memory of the game we played",
    "element 0 of tensors does not require grad and does not have a grad_fn",
]


def classified(error: BaseException, *, memory_is_full: bool = False) -> TrialVerdict:
    """Classify an error that the user's code raised."""
    with pytest.raises((UserCodeError, WorkloadError)) as caught, blamed_on_user():
        raise error
    return classify_failure(caught.value, memory_is_full=memory_is_full)


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


def test_the_typed_error_is_memory_of_the_device_whatever_it_says() -> None:
    for text in (TYPED_OOM, "something new"):
        assert classified(torch.OutOfMemoryError(text)).kind is OutcomeKind.DEVICE_OUT_OF_MEMORY


@pytest.mark.parametrize("text", DEVICE_MEMORY)
@pytest.mark.parametrize("kind", [RuntimeError, torch.AcceleratorError])
def test_libraries_that_ran_out_of_device_memory_are_understood(kind: type[Exception], text: str) -> None:
    assert classified(kind(text)).kind is OutcomeKind.DEVICE_OUT_OF_MEMORY


@pytest.mark.parametrize("text", DEVICE_MEMORY_WHERE_FULL)
def test_texts_with_several_meanings_count_as_memory_only_where_it_is_full(text: str) -> None:
    assert classified(RuntimeError(text), memory_is_full=True).kind is OutcomeKind.DEVICE_OUT_OF_MEMORY
    assert classified(RuntimeError(text)).kind in (OutcomeKind.KERNEL_FAILURE, OutcomeKind.USER_ERROR)


@pytest.mark.parametrize("text", KERNEL_FAILURES)
@pytest.mark.parametrize("kind", [RuntimeError, torch.AcceleratorError])
@pytest.mark.parametrize("memory_is_full", [True, False])
def test_a_failed_kernel_never_counts_as_memory(kind: type[Exception], text: str, memory_is_full: bool) -> None:
    verdict = classified(kind(text), memory_is_full=memory_is_full)
    assert verdict.kind is OutcomeKind.KERNEL_FAILURE
    assert verdict.evidence == f"{kind.__name__}: {text.splitlines()[0]}"


@pytest.mark.parametrize("text", HOST_MEMORY)
def test_the_cpu_allocator_out_of_memory_is_memory_of_the_host(text: str) -> None:
    assert classified(RuntimeError(text)).kind is OutcomeKind.HOST_OUT_OF_MEMORY


def test_errors_of_python_and_numpy_about_memory_are_memory_of_the_host() -> None:
    with pytest.raises(MemoryError) as caught:
        np.ones(1 << 55)
    for error in (MemoryError(), caught.value, OSError(errno.ENOMEM, "Cannot allocate memory")):
        assert classified(error).kind is OutcomeKind.HOST_OUT_OF_MEMORY


def test_a_real_refusal_of_the_cpu_allocator_is_memory_of_the_host() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert classified(caught.value).kind is OutcomeKind.HOST_OUT_OF_MEMORY


def test_a_primitive_that_cannot_be_made_is_memory_only_where_it_is_full() -> None:
    error = RuntimeError("could not create a primitive")
    assert classified(error, memory_is_full=True).kind is OutcomeKind.HOST_OUT_OF_MEMORY
    assert classified(error).kind is OutcomeKind.KERNEL_FAILURE


@pytest.mark.parametrize("text", USERS_OWN)
@pytest.mark.parametrize("memory_is_full", [True, False])
def test_other_runtime_errors_are_the_users_own(text: str, memory_is_full: bool) -> None:
    assert classified(RuntimeError(text), memory_is_full=memory_is_full).kind is OutcomeKind.USER_ERROR


def test_one_sample_in_batch_norm_is_not_taken_for_memory() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        torch.nn.BatchNorm1d(4)(torch.ones(1, 4))
    assert classified(caught.value, memory_is_full=True).kind is OutcomeKind.USER_ERROR


def test_memory_errors_that_user_code_wraps_are_still_memory() -> None:
    wrapped = raised(ValueError("bad batch"), torch.OutOfMemoryError("CUDA out of memory."))
    assert classified(wrapped).kind is OutcomeKind.DEVICE_OUT_OF_MEMORY


def test_a_users_error_names_the_line_to_look_at() -> None:
    verdict = classified(raised(KeyError("lr")))
    assert verdict.kind is OutcomeKind.USER_ERROR
    assert verdict.evidence.startswith("KeyError: 'lr' (")
    assert "test_failures.py:" in verdict.evidence


def test_a_line_of_the_users_own_is_named_and_not_one_of_a_package_that_it_calls(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "nets.py"
    package.parent.mkdir()
    package.write_text("raise KeyError('lr')\n")
    (tmp_path / "train.py").write_text(f"import runpy\nrunpy.run_path({str(package)!r})\n")
    with pytest.raises(KeyError) as caught:
        runpy.run_path(str(tmp_path / "train.py"))
    assert classified(caught.value).evidence.endswith("/train.py:2)")


def test_a_users_project_in_a_folder_called_memplan_or_torch_keeps_its_frames(tmp_path: Path) -> None:
    for name in ("memplan", "torch"):
        program = tmp_path / name / "train.py"
        program.parent.mkdir()
        program.write_text("raise KeyError('lr')\n")
        with pytest.raises(KeyError) as caught:
            runpy.run_path(str(program))
        assert classified(caught.value).evidence.endswith(f"/{name}/train.py:1)")


@pytest.mark.parametrize(
    ("error", "evidence"),
    [
        (NoDriverError("this machine has no NVIDIA driver"), "memplan: this machine has no NVIDIA driver"),
        (AssertionError("Torch not compiled with CUDA enabled"), "memplan: AssertionError: Torch not compiled with"),
        (AttributeError("no experimental_event_tree"), "memplan: AttributeError: no experimental_event_tree"),
    ],
)
def test_what_nobody_but_memplan_raised_is_a_crash_and_not_the_users(error: Exception, evidence: str) -> None:
    verdict = classify_failure(error, memory_is_full=False)
    assert verdict.kind is OutcomeKind.CRASH
    assert verdict.evidence.startswith(evidence)


def test_memplans_own_words_about_a_workload_are_kept() -> None:
    verdict = classified(WorkloadError("the loss is no tensor", hint="return one"))
    assert verdict == TrialVerdict(kind=OutcomeKind.USER_ERROR, evidence="the loss is no tensor; return one")


def test_evidence_is_one_line_of_bounded_length() -> None:
    evidence = classified(RuntimeError("first line " + "x" * 10_000 + "\nsecond line")).evidence
    assert len(evidence) < 400
    assert "second" not in evidence


def test_a_line_that_announces_the_cause_is_told_with_it() -> None:
    evidence = classified(RuntimeError("cannot import x because of the following error:\n\nno libc\nmore")).evidence
    assert evidence.startswith("RuntimeError: cannot import x because of the following error: no libc")
    assert "more" not in evidence


def test_what_a_worker_of_a_data_loader_raised_is_told_and_not_that_it_did() -> None:
    class Unreadable(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            raise FileNotFoundError("no samples.bin")

    with pytest.raises(FileNotFoundError) as raised:
        next(iter(torch.utils.data.DataLoader(Unreadable(), num_workers=1)))
    assert told_in_one_line(raised.value) == "FileNotFoundError: no samples.bin"
