"""Fixtures of several unit tests: a machine with NVIDIA cards, and replicas, that are not there."""

from __future__ import annotations

import importlib
from typing import Any

import pynvml
import pytest

from memplan.devices import driver, nvml
from tests.fake_driver import FakeCard, FakeDriver


@pytest.fixture
def closed_library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every test opens the library anew, and none leaves it open."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    nvml.library.cache_clear()
    yield
    nvml.library.cache_clear()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, closed_library: None) -> Any:
    """Put a stand-in for the driver in place, with these cards."""

    def put_in_place(*cards: FakeCard, **answers: Any) -> FakeDriver:
        stand_in = FakeDriver(cards=list(cards), **answers)
        monkeypatch.setattr(pynvml, "nvmlLib", stand_in)
        return stand_in

    return put_in_place


@pytest.fixture
def in_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_sees_host_pids", lambda: False)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_sees_host_pids", lambda: True)


@pytest.fixture
def no_replica_is_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a test join replicas that are not there."""
    mesh = pytest.importorskip("torch.distributed.device_mesh").DeviceMesh
    wrapper = importlib.import_module("torch.distributed.fsdp").FullyShardedDataParallel
    for replaced_by_joining in (mesh, wrapper):
        monkeypatch.setattr(replaced_by_joining, "__init__", replaced_by_joining.__init__)
    yield
    importlib.import_module("torch.distributed").destroy_process_group()
