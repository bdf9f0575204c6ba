"""The packages with which programs load their configs read a patch too, where they are installed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from memplan.configs import RecipeChange, apply_patch, plan_patch, read_config
from memplan.configs.packages.judgement import judgement_on
from memplan.configs.packages.messages import PackageAnswer, PackageRefusal, PackageRequest
from memplan.configs.packages.readers import Reading
from memplan.configs.writing.verification import OWN_READER, verify
from memplan.errors import PatchError
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs.documents import SourceFile
    from memplan.patches import ConfigPatch

LAUNCH = """\
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
mixed_precision: 'no'
num_processes: 2
deepspeed_config:
  gradient_accumulation_steps: 1
"""
AXOLOTL = "base_model: net\nmicro_batch_size: 4\nlearning_rate: 1e-4\nbf16: false\nseen: 2026-11-21\n"
LLAMA_FACTORY = """\
stage: sft
do_train: true
finetuning_type: lora
output_dir: out
report_to: none
per_device_train_batch_size: 4
learning_rate: 1e-4
"""
CLI = "seed_everything: 1\ntrainer: {{max_epochs: 3, callbacks: [one]}}\ndata:\n  class_path: m.D\n{arguments}"
needs = {
    each: pytest.mark.skipif(importlib.util.find_spec(each) is None, reason=f"{each} is not installed")
    for each in ("accelerate", "jsonargparse", "omegaconf", "transformers")
}


def doubled(*paths: Path, **knobs: str) -> ConfigPatch:
    config = read_config(*paths, knob_keys=knobs)
    recipe = replace(config.recipe, micro_batch_size=config.recipe.micro_batch_size * 2, precision="bf16")
    return plan_patch(config, RecipeChange(recipe=recipe))


@needs["accelerate"]
def test_accelerate_reads_its_launch_file(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("micro_batch_size: 4\noutput_dir: out\naccelerate_config: acc.yaml\n")
    (tmp_path / "acc.yaml").write_text(LAUNCH.format(kind="MULTI_GPU"))
    assert f"accelerate {version('accelerate')} (acc.yaml)" in doubled(tmp_path / "args.yaml").verified_by


@needs["accelerate"]
def test_a_launch_file_that_accelerate_refuses_is_left_to_memplans_reader(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("micro_batch_size: 4\noutput_dir: out\naccelerate_config: acc.yaml\n")
    (tmp_path / "acc.yaml").write_text(LAUNCH.format(kind="MULTI_GPU") + "of_ours: 1\n")
    assert "does not load the file as it is: ValueError" in doubled(tmp_path / "args.yaml").verified_by


@needs["accelerate"]
def test_a_patch_that_accelerate_refuses_is_not_offered(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(LAUNCH.format(kind="MULTI_GPU"))
    (tmp_path / "y.yaml").write_text(LAUNCH.format(kind="MULTI_GPU") + "of_ours: 1\n")
    document, text = read_config(tmp_path / "x.yaml", knob_keys=BATCH).document, (tmp_path / "y.yaml").read_text()
    expected = read_config(tmp_path / "y.yaml", knob_keys=BATCH).values
    with pytest.raises(PatchError, match=r"accelerate .* would not load the patched config"):
        verify(document.path, {str(document.path): text}, expected, document=document, packages=("accelerate",))


BATCH = {"micro_batch_size": "num_processes"}


def test_axolotls_files_are_read_with_pyyaml_as_axolotl_does(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text(AXOLOTL)
    assert doubled(tmp_path / "x.yml").verified_by == f"PyYAML {version('PyYAML')}"


@needs["omegaconf"]
@needs["transformers"]
def test_llama_factorys_files_are_read_with_omegaconf_and_the_parser_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(LLAMA_FACTORY)
    expected = f"omegaconf {version('omegaconf')} and transformers {version('transformers')}"
    assert doubled(tmp_path / "x.yaml").verified_by == expected


@pytest.mark.parametrize(
    ("own", "wanted"), [("callbacks: [one]", ["one", "two"]), ("callbacks+: one", ["one", "two"]), ("x: 1", ["two"])]
)
def test_what_is_appended_in_a_later_file_comes_behind_what_is_there(
    tmp_path: Path, own: str, wanted: list[str]
) -> None:
    (tmp_path / "a.yaml").write_text(
        f"seed_everything: 1\ntrainer: {{max_epochs: 3, {own}}}\ndata: {{batch_size: 4}}\n"
    )
    (tmp_path / "b.yaml").write_text("trainer:\n  callbacks+: two\n")
    patch = doubled(tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert read_config(tmp_path / "a.yaml", tmp_path / "b.yaml").values["trainer"]["callbacks"] == wanted
    if importlib.util.find_spec("jsonargparse") is not None:
        assert patch.verified_by == f"jsonargparse {version('jsonargparse')}"


@pytest.mark.parametrize("section", ["init_args", "dict_kwargs"])
def test_an_overlay_of_lightnings_command_line_is_laid_over_by_jsonargparse(tmp_path: Path, section: str) -> None:
    (tmp_path / "a.yaml").write_text(CLI.format(arguments=f"  {section}:\n    batch_size: 4\n"))
    (tmp_path / "b.yaml").write_text("trainer:\n  callbacks+: [two]\n")
    patch = doubled(tmp_path / "a.yaml", tmp_path / "b.yaml")
    apply_patch(patch)
    values = read_config(*(tmp_path / each for each in ("a.yaml", "b.yaml", "b_memplan.yaml"))).values
    assert values["trainer"] == {"max_epochs": 3, "callbacks": ["one", "two"], "precision": "bf16-mixed"}
    assert values["data"][section] == {"batch_size": 8}
    if importlib.util.find_spec("jsonargparse") is not None:
        assert patch.verified_by == f"jsonargparse {version('jsonargparse')}"
    else:
        assert patch.verified_by == OWN_READER


@needs["jsonargparse"]
def test_an_overlay_that_jsonargparse_reads_otherwise_is_not_offered(tmp_path: Path) -> None:
    document = config_of(tmp_path, CLI.format(arguments="  init_args: {batch_size: 4}\n"), name="a.yaml").document
    text = 'data:\n  init_args:\n    batch_size: "8"\n# memplan: {"over": "a.yaml"}\n'
    expected = {**document.values, "data": {"class_path": "m.D", "init_args": {"batch_size": "8"}}}
    path = tmp_path / "a_memplan.yaml"
    assert verify(path, {str(path): text}, expected, document=document, packages=()).loaders == OWN_READER
    with pytest.raises(PatchError, match=r"would set data.init_args.batch_size to 8 where '8' is intended"):
        verify(path, {str(path): text}, expected, document=document, packages=("jsonargparse",))


def answered(path: Path, original: dict[str, object], parsed: dict[str, object], text: str) -> object:
    """Ask a package that makes ``original`` of the file as it is and ``parsed`` of a text ``a: 2``."""
    readings = iter(
        [Reading(own={"a": 1, "b": "1"}, package=original), Reading(own={"a": 2, "b": "1"}, package=parsed)]
    )

    def read(_files: tuple[SourceFile, ...]) -> Reading:
        return next(readings)

    path.write_text("a: 1\nb: '1'\n")
    return judgement_on(PackageRequest(package="yaml", path=str(path), text=text), read=read, loader="PyYAML 6")


@pytest.mark.parametrize(
    ("original", "parsed", "values", "unjudged"),
    [
        ({"a": 1, "b": "1"}, {"a": 2, "b": "1", "c": 9}, {"a": 2, "b": "1"}, ()),  # a default of its own says nothing
        ({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 2, "b": "1"}, ()),  # it had read the text as a number before
        ({"a": 1, "b": "1"}, {"a": 1, "b": "1"}, {"a": 1, "b": "1"}, ()),  # the change does not arrive
        ({"a": 1, "b": "1"}, {"a": 2, "b": "7"}, {"a": 2, "b": "7"}, ()),  # something else changes
        ({}, {}, {"a": 2, "b": "1"}, ("a",)),  # it does not know the key
    ],
)
def test_a_packages_word_counts_where_it_left_the_original_as_it_was(
    tmp_path: Path, original: dict[str, object], parsed: dict[str, object], values: object, unjudged: tuple[str, ...]
) -> None:
    answer = answered(tmp_path / "x.yaml", original, parsed, "a: 2\nb: '1'\n")
    assert isinstance(answer, PackageAnswer)
    assert (answer.values, answer.unjudged) == (values, unjudged)


def test_a_package_that_fails_refuses_and_says_which_of_the_two(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: 1\n")

    def read(files: tuple[SourceFile, ...]) -> Reading:
        if "2" in files[-1].text:
            raise ValueError("two is too many")
        return Reading(own={}, package={})

    request = PackageRequest(package="yaml", path=str(tmp_path / "x.yaml"), text="a: 2\n")
    problem = "ValueError: two is too many"
    refusal = PackageRefusal(loader="PyYAML 6", problem=problem, of_original=False)
    assert judgement_on(request, read=read, loader="PyYAML 6") == refusal
