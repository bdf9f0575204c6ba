"""What a command line says of a script's arguments, and the line with other values."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.configs.languages.argparse_line import Unsaid, runs_another_script, values_said, with_value

SCRIPT = """
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--lr", "--learning-rate", type=float, default=0.1)
parser.add_argument("-j", "--workers", default=4)
parser.add_argument("--momentum", default=0.9)
parser.add_argument("--mode")
parser.add_argument("--amp", action="store_true")
parser.add_argument("-c", "--compile", action=argparse.BooleanOptionalAction)
parser.add_argument("--shuffle", type=bool, default=True)
parser.add_argument("--pin", type=to_bool, default=True)
parser.add_argument("--decay", type=lambda text: float(text), default=0.5)
parser.add_argument("--steps", nargs="+", type=int)
parser.add_argument("--seed", action="store", type=make_seed)
"""


def said_by(line: str) -> dict[str, Any]:
    return values_said(SCRIPT, line, script="train.py")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("--lr 1e-3", {"lr": 0.001}, id="the next word"),
        pytest.param("--lr=1e-3", {"lr": 0.001}, id="joined by a sign"),
        pytest.param("--lr '1e-3'", {"lr": 0.001}, id="quoted"),
        pytest.param("--learning-rate 1", {"lr": 1.0}, id="another flag, and the declared type"),
        pytest.param("--learn 1", {"lr": 1.0}, id="the beginning of a flag"),
        pytest.param("-j 1", {"workers": 1}, id="a short flag, and the type of the default"),
        pytest.param("-j0", {"workers": 0}, id="joined to a short flag"),
        pytest.param("--lr 1 --lr 2", {"lr": 2.0}, id="the last one"),
        pytest.param("--mode fast", {"mode": "fast"}, id="a word"),
        pytest.param("--amp", {"amp": True}, id="a switch"),
        pytest.param("--no-compile", {"compile": False}, id="a switch turned off"),
        pytest.param("-c", {"compile": True}, id="a short switch that works both ways"),
        pytest.param("--no-comp", {"compile": False}, id="the beginning of a flag that turns off"),
        pytest.param("--shuffle no", {"shuffle": True}, id="every word is true to a bool"),
        pytest.param("--pin no", {"pin": False}, id="a word for off"),
        pytest.param("--decay 1", {"decay": 1.0}, id="a type of the script's own, by the default"),
        pytest.param("-b {micro_batch_size}", {"batch_size": Unsaid.OPEN}, id="left open"),
        pytest.param("--lr ${LR}", {"lr": Unsaid.UNKNOWN}, id="made by the shell"),
        pytest.param("--steps 1 2", {"steps": Unsaid.UNKNOWN}, id="several words"),
        pytest.param("--seed 1", {"seed": Unsaid.UNKNOWN}, id="a type of the script's own"),
        pytest.param("--lr high", {"lr": Unsaid.UNKNOWN}, id="no number"),
        pytest.param("--mo 1", {}, id="the beginning of two"),
        pytest.param("-0.5 --other 1", {}, id="no flags of the script"),
        pytest.param("--lr", {}, id="without a value"),
        pytest.param("-- --lr 1", {}, id="behind the end of flags"),
        pytest.param("--mode 'try --lr 3'", {"mode": "try --lr 3"}, id="within quotes"),
    ],
)
def test_values_are_those_that_the_parser_would_make(line: str, said: dict[str, Any]) -> None:
    assert said_by(f"python train.py {line}") == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("python prepare.py --lr 3 && python train.py --lr 1", {"lr": 1.0}),
        ("python train.py --lr 1 && python evaluate.py --lr 3", {"lr": 1.0}),
        ("python train.py --lr 1; echo done", {"lr": 1.0}),
        ("python train.py --lr 1 2>&1 | tee log", {"lr": 1.0}),
        ("python train.py --lr 1 # or --lr 3", {"lr": 1.0}),
        ("nice -j 5 torchrun --lr 3 src/train.py \\\n  --lr 1", {"lr": 1.0}),
        ("python -m package.train --lr 1", {"lr": 1.0}),
        ("python -m package.main --lr 1", {"lr": 1.0}),
        ("python main.py --lr 1", {"lr": 1.0}),  # whose arguments are declared in the script
        ("trainer --lr 1", {"lr": 1.0}),
        ("python one.py --lr 1 && python two.py --lr 3", {}),
        ("bash -c 'python train.py --lr 1'", {}),
    ],
)
def test_words_are_those_of_the_script_alone(line: str, said: dict[str, Any]) -> None:
    assert said_by(line) == said


@pytest.mark.parametrize(
    ("line", "key", "value", "changed"),
    [
        ("train.py --lr 0.1 -b 4", "lr", 0.2, "train.py --lr 0.2 -b 4"),
        ("train.py --lr=0.1 -b 4", "lr", 0.2, "train.py --lr=0.2 -b 4"),
        ('train.py --lr "0.1" --mode "--lr 3"', "lr", 0.2, 'train.py --lr 0.2 --mode "--lr 3"'),
        ("train.py -j4", "workers", 0, "train.py -j0"),
        ("train.py --lr 0.1 --lr 0.3 | tee log", "lr", 0.2, "train.py --lr 0.1 --lr 0.2 | tee log"),
        ("a.py --lr 0.1; train.py --lr 0.1; b", "lr", 0.2, "a.py --lr 0.1; train.py --lr 0.2; b"),
        ("train.py -b 4", "lr", 0.2, "train.py -b 4"),
        ("train.py --amp", "amp", False, "train.py --amp"),
    ],
)
def test_a_value_changes_where_the_line_says_it(line: str, key: str, value: Any, changed: str) -> None:
    assert with_value(SCRIPT, line, key, value, script="train.py") == changed


def test_a_line_that_runs_scripts_of_other_names_alone_is_told() -> None:
    assert runs_another_script("python main.py -b 4", "train.py")
    assert not runs_another_script("python main.py; python train.py", "train.py")
    assert not runs_another_script("trainer -b 4", "train.py")
