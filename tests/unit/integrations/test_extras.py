"""Without its framework an integration says which extra to install."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from memplan.errors import MissingExtraError
from memplan.integrations.extras import needs_extra

PACKAGES = {
    "lightning": ("lightning", "lightning.pytorch", "pytorch_lightning"),
    "transformers": ("transformers",),
    "mmengine": ("mmengine",),
}


@pytest.mark.parametrize("extra", PACKAGES)
def test_the_import_names_the_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in PACKAGES[extra]:
        monkeypatch.setitem(sys.modules, package, None)  # what makes an import fail as if it were not installed
    for module in (f"memplan.integrations.{extra}", f"memplan.integrations.{extra}_step"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingExtraError, match=rf"pip install 'memplan\[{extra}\]'") as caught:
        importlib.import_module(f"memplan.integrations.{extra}")
    assert isinstance(caught.value, ImportError)


def test_pytorch_lightning_is_enough_for_lightning() -> None:
    script = """
import sys
sys.modules["lightning"] = None
import pytorch_lightning
from memplan.integrations import lightning, lightning_stand_in
assert lightning.FSDPStrategy is pytorch_lightning.strategies.FSDPStrategy
print(lightning_stand_in.trainer_stand_in({}).state.stage.value)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stdout == "train\n", ended.stderr


def test_a_package_that_is_there_but_broken_speaks_for_itself() -> None:
    with pytest.raises(ModuleNotFoundError, match="_broken"), needs_extra("lightning", "lightning"):
        importlib.import_module("_broken")
