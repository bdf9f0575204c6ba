"""A workload made in Python is known again in another process, and told from one that differs anywhere."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from memplan.planning.digests.value_digest import value_digest

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys
from memplan.planning.digests.value_digest import value_digest

class Net:
    kinds = {"conv", "norm", "act", "pool"}
    def __init__(self, width): self.width = width
    def forward(self, x): return x * self.width * SCALE

SCALE = 2
settings = {"name": "net", "sizes": (1, 2)}

def make(width=4):
    net = Net(width)
    return lambda b: [net.forward(each) for each in range(b)] + list(settings)

print(value_digest([make(), Net, Net(3)]).sha256)
"""


def digest(value: object) -> str:
    return value_digest(value).sha256


def adding(number: int) -> Any:
    return lambda x: x + number


class Holder:
    def __init__(self, value: object) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def run(folder: Path, text: str, *, seed: str) -> str:
    (folder / "script.py").write_text(text)
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=True, env=environment
    )
    return ended.stdout


def test_two_processes_agree_on_classes_closures_and_sets_of_a_script(tmp_path: Path) -> None:
    assert run(tmp_path, SCRIPT, seed="1") == run(tmp_path, SCRIPT, seed="2")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * self.width", "x + self.width"),
        ("SCALE = 2", "SCALE = 3"),
        ("width=4", "width=5"),
        ('"act"', '"gelu"'),
        ("(1, 2)", "(1, 3)"),
        ("Net(3)", "Net(2)"),
    ],
    ids=["method", "global", "default", "class attribute", "global read by a closure", "state"],
)
def test_a_change_anywhere_is_seen(tmp_path: Path, old: str, new: str) -> None:
    assert old in SCRIPT
    assert run(tmp_path, SCRIPT, seed="0") != run(tmp_path, SCRIPT.replace(old, new), seed="0")


def test_where_a_function_stands_in_its_file_does_not_matter(tmp_path: Path) -> None:
    moved = SCRIPT.replace("def make", "# a remark\n\ndef make")
    assert run(tmp_path, SCRIPT, seed="0") == run(tmp_path, moved, seed="0")


def test_closures_differ_by_what_they_hold() -> None:
    assert digest(adding(1)) == digest(adding(1))
    assert digest(adding(1)) != digest(adding(2))
    assert digest(functools.partial(adding, 1)) != digest(functools.partial(adding, 2))


def test_numbers_and_texts_of_the_same_spelling_differ() -> None:
    assert len({digest(each) for each in (1, 1.0, True, "1", b"1", [1], (1,), {1: 1})}) == 8


def test_a_value_that_holds_itself_has_a_digest() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    assert digest(circle) == digest(circle)


def test_something_nested_too_deeply_is_never_taken_for_another() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert digest(deep) != digest(deep)


def test_arrays_and_tensors_differ_by_shape_type_and_content() -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    values = [
        numpy.zeros(4), numpy.ones(4), numpy.zeros((2, 2)), numpy.zeros(4, dtype="float32"),
        torch.zeros(4), torch.ones(4), torch.zeros(4, dtype=torch.bfloat16), torch.ones(4, dtype=torch.bfloat16),
        torch.zeros(2, 2).t(),
    ]  # fmt: skip
    assert len({digest(each) for each in values}) == len(values)
    assert digest(torch.arange(4)) == digest(torch.arange(4))


def test_an_array_of_objects_is_told_by_what_it_holds_and_not_by_where_that_lies() -> None:
    numpy = pytest.importorskip("numpy")

    def made(last: str) -> Any:
        return numpy.array([str(10**9), last], dtype=object)  # the first is a new object each time

    assert digest(made("c")) == digest(made("c")) != digest(made("d"))
    long = numpy.array([str(each) for each in range(50_000)], dtype=object)
    assert digest(long) == digest(long.copy()) != digest(long[::-1])


def test_a_module_that_a_function_comes_from_is_counted_by_its_source() -> None:
    import json  # noqa: PLC0415 - as user code has it at hand

    assert "json" in value_digest(json.dumps).modules
    assert __name__ in value_digest(adding(1)).modules


def test_what_cannot_be_taken_apart_counts_by_its_kind() -> None:
    assert digest(Holder(1)) == digest(Holder(2)) != digest(adding(1))
