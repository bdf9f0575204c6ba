"""A plan's remarks on the loader, from the settings the config spells out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.cards import DeviceKind, DeviceSpec
from memplan.configs import read_config
from memplan.planning.loader_notes import loader_notes
from memplan.units import GIB

if TYPE_CHECKING:
    from pathlib import Path

CARD = DeviceSpec(name="a-card", kind=DeviceKind.CUDA, total_bytes=24 * GIB)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.yaml", "per_device_train_batch_size: 4\noutput_dir: o\ndataloader_num_workers: 0\n"),
        ("x.yaml", "model: net\nopt: sgd\nsched: cosine\nbatch_size: 4\nworkers: 0\n"),
        ("x.yaml", "trainer: {devices: 1}\ndata: {batch_size: 4, num_workers: 0}\n"),
        ("x.py", "data = dict(samples_per_gpu=4, workers_per_gpu=0)\n"),
        (
            "x.py",
            "train_dataloader = dict(batch_size=4, num_workers=0)\noptim_wrapper = dict(optimizer=dict(lr=1e-3))\n",
        ),
        ("x.sh", "python t.py --batch_size 4 --num_workers 0\n"),
    ],
)
def test_the_settings_are_found_where_each_ecosystem_keeps_them(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    notes = loader_notes(read_config(tmp_path / name), CARD, None)
    assert [each[:21] for each in notes] == ["with 0 loader workers"]


def test_a_declared_knob_counts_too(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("b: 4\nloader: {n: 0, keep: true}\n")
    keys = {"micro_batch_size": "b", "loader_workers": "loader.n", "persistent_workers": "loader.keep"}
    notes = loader_notes(read_config(tmp_path / "x.yaml", knob_keys=keys), CARD, None)
    assert "torch refuses that" in notes[0]


def test_without_a_config_there_is_nothing_to_say() -> None:
    assert loader_notes(None, CARD, None) == ()
