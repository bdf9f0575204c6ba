"""Which environment variables code is taken to read."""

from __future__ import annotations

import pytest

from memplan.planning.digests.named_variables import named_variables, steady_variables


def test_variables_are_those_whose_names_stand_in_the_text() -> None:
    code = b'width = int(os.environ["NET_WIDTH"])\n# $MODEL\n'
    environment = {"NET_WIDTH": "8", "MODEL": "vit", "WIDTH": "4", "MODELS": "2", "_": "/bin/sh"}
    assert named_variables(code, steady_variables(environment)) == ["MODEL=vit", "NET_WIDTH=8"]
    assert named_variables(code, {}) == []


@pytest.mark.parametrize(
    "name", ["PWD", "COLUMNS", "SLURM_JOB_ID", "MASTER_PORT", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"]
)
def test_those_of_one_session_or_run_are_left_out(name: str) -> None:
    assert named_variables(name.encode(), steady_variables({name: "1"})) == []
