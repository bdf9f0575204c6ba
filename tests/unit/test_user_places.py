"""Where in the user's code something happened."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest
import torch

from memplan.user_places import error_of_user, place_in_dump, place_of_error

HERE = Path(__file__)


def error_of(function: object) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any error will do
        function()
    return caught.value


def line_in_this_file(error: BaseException, function: str) -> int | None:
    return next(frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.name == function)


def multiplies_what_does_not_fit() -> None:
    torch.nn.Linear(2, 3)(torch.ones(1, 5))


def test_an_error_inside_torch_is_placed_at_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE.parent)
    error = error_of(multiplies_what_does_not_fit)
    assert place_of_error(error) == f"{HERE.name}:{line_in_this_file(error, 'multiplies_what_does_not_fit')}"


def test_what_user_code_raised_is_told_with_its_place_and_its_traceback() -> None:
    raised = error_of(multiplies_what_does_not_fit)
    told = error_of_user("loading failed", raised, hint="look there")
    assert re.match("loading failed: RuntimeError: (addmm: )?mat1 and mat2", told.problem)  # named from torch 2.15 on
    assert (told.where, told.hint) == (place_of_error(raised), "look there")
    assert "in multiplies_what_does_not_fit" in (told.detail or "")


def test_a_file_outside_the_working_directory_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = place_of_error(error_of(multiplies_what_does_not_fit))
    assert place is not None
    assert place.startswith(f"{HERE}:")


DUMP = """\
said by the user's own code
Thread 0x00007f0000000001 (most recent call first):
  File "/project/elsewhere.py", line 1 in waits
Current thread 0x00007f0000000000 (most recent call first):
  File "{torch}/nn/modules/module.py", line 1779 in _call_impl
  File "/opt/lib/python3.12/site-packages/timm/vit.py", line 30 in forward
  File "/project/net.py", line 12 in forward
  File "/project/train.py", line 40 in main
"""


def test_a_stack_dump_is_placed_at_the_innermost_line_of_the_project() -> None:
    assert place_in_dump(DUMP.format(torch=Path(torch.__file__).parent)) == "/project/net.py:12"


def test_without_a_line_of_the_project_an_installed_package_is_named() -> None:
    inside = DUMP.partition('  File "/project/net.py"')[0].format(torch=Path(torch.__file__).parent)
    assert place_in_dump(inside) == "/opt/lib/python3.12/site-packages/timm/vit.py:30"


def test_a_text_without_a_dump_has_no_place() -> None:
    assert place_in_dump("nothing of the kind") is None
