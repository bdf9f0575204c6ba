"""What a command line says of a script's arguments, and the line with other values."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.configs.languages.argparse_line import values_said, with_value

SCRIPT = """
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--lr", "--learning-rate", type=float, default=0.1)
parser.add_argument("-j", "--workers", default=4)
parser.add_argument("--momentum", default=0.9)
parser.add_argument("--mode")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
parser.add_argument("--steps", nargs="+", type=int)
parser.add_argument("--seed", action="store", type=make_seed)
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("--lr 1e-3", {"lr": 0.001}, id="the next word"),
        pytest.param("--lr=1e-3", {"lr": 0.001}, id="joined by a sign"),
        pytest.param("--learning-rate 1", {"lr": 1.0}, id="another flag, and the declared type"),
        pytest.param("--learn 1", {"lr": 1.0}, id="the beginning of a flag"),
        pytest.param("-j 1", {"workers": 1}, id="a short flag, and the type of the default"),
        pytest.param("-j0", {"workers": 0}, id="joined to a short flag"),
        pytest.param("--lr 1 --lr 2", {"lr": 2.0}, id="the last one"),
        pytest.param("--mode fast", {"mode": "fast"}, id="a word"),
        pytest.param("--amp", {"amp": True}, id="a switch"),
        pytest.param("--no-compile", {"compile": False}, id="a switch turned off"),
        pytest.param("-b {micro_batch_size}", {"batch_size": None}, id="left open"),
        pytest.param("--steps 1 2", {"steps": None}, id="several words"),
        pytest.param("--seed 1", {"seed": None}, id="a type of the script's own"),
        pytest.param("--lr high", {"lr": None}, id="no number"),
        pytest.param("--mo 1", {}, id="the beginning of two"),
        pytest.param("-0.5 --other 1", {}, id="no flags of the script"),
        pytest.param("--lr", {}, id="without a value"),
    ],
)
def test_values_are_those_that_the_parser_would_make(line: str, said: dict[str, Any]) -> None:
    assert values_said(SCRIPT, f"python train.py {line}") == said


@pytest.mark.parametrize(
    ("line", "key", "value", "changed"),
    [
        ("t --lr 0.1 -b 4", "lr", 0.2, "t --lr 0.2 -b 4"),
        ("t --lr=0.1 -b 4", "lr", 0.2, "t --lr=0.2 -b 4"),
        ("t -j4", "workers", 0, "t -j0"),
        ("t --lr 0.1 --lr 0.3 | tee log", "lr", 0.2, "t --lr 0.1 --lr 0.2 | tee log"),
        ("t -b 4", "lr", 0.2, "t -b 4"),
        ("t --amp", "amp", False, "t --amp"),
    ],
)
def test_a_value_changes_where_the_line_says_it(line: str, key: str, value: Any, changed: str) -> None:
    assert with_value(SCRIPT, line, key, value) == changed
