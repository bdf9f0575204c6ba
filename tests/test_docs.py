"""README, the pages of docs and the command line say the same."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from memplan import cli
from memplan.configs.user_config import KnobName, MemplanOptions
from memplan.results import COMPONENTS
from tests.test_architecture import LAYERS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
COMMANDS = typer.main.get_command(cli.app).commands


def options_of(command: str) -> set[str]:
    spelled = (each for parameter in COMMANDS[command].params for each in (*parameter.opts, *parameter.secondary_opts))
    return {option for option in spelled if option.startswith("--")}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme_and_has_help(command: str) -> None:
    assert f"`memplan {command}" in README
    assert COMMANDS[command].help


def test_every_option_of_the_main_job_is_in_the_readme() -> None:
    missing = {option for option in options_of("probe") if option not in README}
    assert not missing


@pytest.mark.parametrize("text", [README, *PAGES.values()], ids=["README.md", *PAGES])
def test_every_option_that_is_named_exists(text: str) -> None:
    existing = set().union(*(options_of(command) for command in COMMANDS))
    own = re.sub(r'--command "[^"]*"', "--command", text)  # what is quoted there is for the user's script
    named = set(re.findall(r"--[a-z][a-z-]+", own))
    assert named <= existing


def test_every_option_of_every_command_is_told_somewhere() -> None:
    text = " ".join([README, *PAGES.values()])
    options = set().union(*(options_of(command) for command in COMMANDS)) - {"--help"}
    assert {each for each in options if not re.search(rf"{each}(?![\w-])", text)} == set()


def named_in(section: str) -> list[str]:
    """Names in the first column of a section's table on the page on configs."""
    table = PAGES["configs.md"].split(f"## {section}\n")[1].split("\n## ")[0]
    return [name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]


def test_the_page_on_configs_names_every_knob_and_every_option() -> None:
    assert named_in("Knobs") == [each.value for each in KnobName]
    options = [each.name for each in fields(MemplanOptions)]
    assert sorted(named_in("What a config or a project asks for")) == sorted(options)


def test_the_help_of_map_names_every_knob() -> None:
    (told,) = (each.help for each in COMMANDS["probe"].params if each.name == "knobs")
    assert [each.value for each in KnobName if each.value not in told] == []


def test_every_test_that_a_page_points_to_exists() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")]
    existing = {name for text in sources for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    named = {name for page in PAGES.values() for name in re.findall(r"`(test_\w+)`", page)}
    assert named
    assert named <= existing


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_linked_from_the_readme(page: str) -> None:
    assert f"(docs/{page})" in README


def test_the_page_on_estimates_explains_every_component() -> None:
    table = PAGES["estimates.md"].split("## What the components are")[1].split("##")[0]
    explained = [
        name.strip() for row in re.findall(r"^\| ([a-z, ]+) \|", table, re.MULTILINE) for name in row.split(",")
    ]
    assert explained == ["component", *(each.replace("_", " ") for each in COMPONENTS)]


def test_every_note_that_the_page_on_estimates_explains_is_one_of_memplans() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "memplan" / "estimators").rglob("*.py"))
    explained = re.findall(r"^\| \*(.+?)\* \|", PAGES["estimates.md"], re.MULTILINE)
    assert explained
    assert [phrase for phrase in explained if phrase not in sources] == []


def test_the_readme_names_every_exit_code() -> None:
    for code in cli.ExitCode:
        assert re.search(rf"\b{code.value}\b", README)


def test_the_page_on_the_architecture_draws_every_part_in_its_layer() -> None:
    drawing = PAGES["architecture.md"].split("```")[1]
    level = {part: depth for depth, parts in enumerate(LAYERS) for part in parts}
    drawn = [part for line in drawing.splitlines() for part in re.findall(r"\w+", line[:37])]
    assert sorted(drawn) == sorted(level)
    assert [level[part] for part in drawn] == sorted((level[part] for part in drawn), reverse=True)


def test_every_file_and_folder_that_the_page_on_the_architecture_names_is_there() -> None:
    named = re.findall(r"`([\w*-]+(?:/[\w*-]+)+(?:\.py)?|\w+\.py)`", PAGES["architecture.md"])
    assert named
    found = {each for each in named if list(ROOT.glob(each)) or list((ROOT / "memplan").rglob(each))}
    assert set(named) - found == set()
