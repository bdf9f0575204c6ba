"""Settings of one process, read and applied in another."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from memplan.configs.workloads import load_workload
from memplan.planning.subject import subject_of_workload
from memplan.recipe import Recipe
from memplan.torch_settings import TorchSettings, apply_torch_settings, read_torch_settings
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator


DEFAULTS = TorchSettings(
    default_dtype="float32",
    cudnn_benchmark=False,
    cudnn_deterministic=False,
    cudnn_allow_tf32=True,
    float32_matmul_precision="highest",
    deterministic_debug_mode=0,
    attention_kernels=("flash", "mem_efficient", "math", "cudnn"),
)


@pytest.fixture
def present() -> Iterator[TorchSettings]:
    """PyTorch's defaults, whatever earlier tests left; this process's settings are the same again afterwards."""
    found = read_torch_settings()
    assert found is not None
    apply_torch_settings(DEFAULTS)
    yield DEFAULTS
    apply_torch_settings(found)


def test_a_new_process_has_pytorchs_defaults() -> None:
    asked = "import torch; from memplan.torch_settings import read_torch_settings; print(read_torch_settings())"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert said == f"{DEFAULTS}\n"


def test_nothing_is_set_where_torch_is_not_loaded() -> None:
    asked = "from memplan.torch_settings import read_torch_settings; print(read_torch_settings())"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout == "None\n"


@pytest.mark.parametrize(
    "setting",
    [
        {"default_dtype": "float64"},
        {"cudnn_benchmark": True},
        {"cudnn_deterministic": True},
        {"cudnn_allow_tf32": False},
        {"float32_matmul_precision": "high"},
        {"deterministic_debug_mode": 2},
        {"attention_kernels": ("math",)},
    ],
)
def test_what_is_set_in_one_process_is_set_in_another(present: TorchSettings, setting: dict[str, Any]) -> None:
    wanted = replace(present, **setting)
    assert wanted != present
    apply_torch_settings(pickle.loads(pickle.dumps(wanted)))
    assert read_torch_settings() == wanted


def test_a_workload_made_in_this_process_takes_its_settings_along(present: TorchSettings) -> None:
    torch.backends.cudnn.benchmark = True
    workload = Workload(model=nn.Identity, batch=torch.ones, loss=lambda model, batch: model(batch), optimizer=SGD)
    source = subject_of_workload(workload, Recipe(micro_batch_size=4), ()).source
    apply_torch_settings(present)
    load_workload(source)
    assert torch.backends.cudnn.benchmark
