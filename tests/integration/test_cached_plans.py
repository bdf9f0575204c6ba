"""A question that was answered before gets the same answer, and a changed one does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import MAPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.conftest import Ended

ASKED = ("--device", "24GiB", "--precision", "fp32", "--workload", "net:make_workload", *MAPS)


@pytest.mark.slow
def test_a_second_run_gives_the_stored_plan_until_the_model_changes(
    project: Path, command: Callable[..., Ended]
) -> None:
    first = command("probe", "config.yaml", *ASKED, "--json", cwd=project)
    again = command("probe", "config.yaml", *ASKED, cwd=project)
    assert first.document["plan"]["cached_from"] is None
    assert "Cached plan of 20" in again.out
    assert "Live trials" in again.out  # all of it, as usual
    assert f"+  batch_size: {first.document['plan']['recipe']['micro_batch_size']}" in again.out
    assert first.document["run_id"] in again.out

    net = project / "net.py"
    net.write_text(net.read_text().replace("torch.randn(micro_batch_size, 8192", "torch.randn(micro_batch_size, 16384"))
    changed = command("probe", "config.yaml", *ASKED, "--json", cwd=project)
    assert changed.document["plan"]["cached_from"] is None
    sizes = [each.document["plan"]["recipe"]["micro_batch_size"] for each in (first, changed)]
    assert sizes[1] < sizes[0]
