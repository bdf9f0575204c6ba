from typing import Any, Unpack

import pytest

from memplan.errors import UsageError
from memplan.integrations.tuning import PlanOptions, refuse_unknown_options


def tune(settings: Any, *, data: Any = None, **options: Unpack[PlanOptions]) -> None:
    refuse_unknown_options(tune, options, elsewhere="the framework takes {name}=")


def test_options_of_a_plan_are_taken() -> None:
    tune({}, data=1, device="cpu", max_util=0.7)


@pytest.mark.parametrize(("name", "meant"), [("devise", "device"), ("dato", "data")])
def test_a_misspelt_option_is_told_what_it_resembles(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"tune takes no '{name}'; did you mean {meant}"):
        tune({}, **{name: None})  # type: ignore[misc]  # what is tested


def test_an_option_of_another_name_is_told_where_it_may_go() -> None:
    with pytest.raises(UsageError, match="tune takes no 'callbacks'; the framework takes callbacks="):
        tune({}, callbacks=None)  # type: ignore[call-arg]  # what is tested


def test_where_nothing_else_takes_options_all_there_are_are_named() -> None:
    with pytest.raises(UsageError, match=r"tune takes no 'callbacks'; use one of data, device, .*, observer"):
        refuse_unknown_options(tune, {"callbacks": None})
