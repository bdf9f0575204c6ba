"""What makes two questions the same: everything that decides the answer, and nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from memplan.configs import PatchStyle
from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.planning.fingerprints import fingerprint_of, read_surroundings
from memplan.planning.subject import Subject, subject_of_config
from memplan.recipe import Recipe
from tests.making import command, config_of, context, question, reference

if TYPE_CHECKING:
    from pathlib import Path

CPU = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=1)
CARD = DeviceSpec(
    name="rtx-3090", kind=DeviceKind.CUDA, total_bytes=24, compute_capability=(8, 6), driver_version="580", live_index=0
)
VERSIONS = {"memplan": "1", "torch": "2.13.0"}


def subject(folder: Path, **config: object) -> Subject:
    source = reference("net:make", folder, **config)
    return Subject(source=source, current=Recipe(micro_batch_size=1), config=None, label="net")


def digest(of: Subject, *, device: DeviceSpec = CPU, versions: dict[str, str] = VERSIONS, **options: Any) -> str:
    return fingerprint_of(question(of, device=device, **options), versions)


def all_differ(digests: list[str]) -> bool:
    return len(set(digests)) == len(digests)


def test_the_same_subject_and_wishes_have_the_same_digest(tmp_path: Path) -> None:
    assert digest(subject(tmp_path, a=1, b=2)) == digest(subject(tmp_path, b=2, a=1))


def test_a_config_with_keys_of_several_types_has_a_digest(tmp_path: Path) -> None:
    assert digest(subject(tmp_path, palette={0: "road", "ignore": 255}))


def test_config_wishes_and_recipe_each_change_the_digest(tmp_path: Path) -> None:
    of = subject(tmp_path, a=1)
    assert all_differ([
        digest(of),
        digest(subject(tmp_path, a=2)),
        digest(of, max_utilisation=0.7),
        digest(of, world_size=4),
        digest(of, patch_style=PatchStyle.IN_PLACE),
        digest(replace(of, current=Recipe(micro_batch_size=2))),
    ])  # fmt: skip


def test_torch_driver_and_card_each_change_the_digest(tmp_path: Path) -> None:
    of = subject(tmp_path)
    assert all_differ([
        digest(of),
        digest(of, versions={**VERSIONS, "torch": "2.14.0"}),
        digest(of, versions={**VERSIONS, "memplan": "2"}),
        digest(of, device=CARD),
        digest(of, device=replace(CARD, driver_version="590")),
        digest(of, device=replace(CARD, name="a100-40gb", compute_capability=(8, 0))),
        digest(of, device=replace(CARD, total_bytes=25)),
    ])  # fmt: skip


def test_what_a_trial_found_out_about_a_present_card_does_not_change_it(tmp_path: Path) -> None:
    measured = replace(CARD, context=context(400))
    assert digest(subject(tmp_path), device=CARD) == digest(subject(tmp_path), device=measured)
    planned_for, known = (replace(each, live_index=None) for each in (CARD, measured))
    assert digest(subject(tmp_path), device=planned_for) != digest(subject(tmp_path), device=known)


def test_the_memory_that_happens_to_be_free_does_not_change_it(tmp_path: Path) -> None:
    assert digest(subject(tmp_path)) == digest(subject(tmp_path), device=replace(CPU, total_bytes=2))


def test_the_workloads_module_and_its_neighbours_change_the_digest(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("x = 1")
    before = digest(subject(tmp_path))
    (tmp_path / "net.py").write_text("x = 2")
    changed = digest(subject(tmp_path))
    (tmp_path / "layers.py").write_text("beside it")
    assert all_differ([before, changed, digest(subject(tmp_path))])


@pytest.mark.parametrize(
    "line", ["import common.blocks as blocks", "from common.blocks import Block", "import os, common"]
)
def test_a_package_elsewhere_that_the_workload_imports_changes_the_digest(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere" / "common"
    project.mkdir()
    elsewhere.mkdir(parents=True)
    (project / "net.py").write_text(f"{line}\n")
    (elsewhere / "__init__.py").touch()
    (elsewhere / "blocks.py").write_text("width = 1")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    before = digest(subject(project))
    (elsewhere / "blocks.py").write_text("width = 2")
    assert digest(subject(project)) != before


def test_an_installed_package_counts_by_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages"
    (installed / "zoo").mkdir(parents=True)
    (installed / "zoo" / "__init__.py").touch()
    information = installed / "zoo-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: zoo\nVersion: 1.0\n")
    (tmp_path / "net.py").write_text("import zoo\n")
    monkeypatch.syspath_prepend(str(installed))
    before = digest(subject(tmp_path))
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: zoo\nVersion: 2.0\n")
    assert digest(subject(tmp_path)) != before


def test_a_module_that_only_the_config_names_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "net.py").touch()
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "__init__.py").touch()
    (tmp_path / "zoo" / "models.py").write_text("width = 1")
    before = digest(subject(tmp_path, model={"_target_": "zoo.models.Net"}))
    (tmp_path / "zoo" / "models.py").write_text("width = 2")
    assert digest(subject(tmp_path, model={"_target_": "zoo.models.Net"})) != before


def test_a_framework_counts_by_its_version_and_so_does_what_its_config_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    for name in ("mmengine", "zoo"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(installed)
    source = reference("memplan.integrations.mmengine:make_workload", tmp_path / "own", default_scope="zoo")
    of = Subject(source=source, current=Recipe(micro_batch_size=1), config=None, label="x.py")
    digests = [digest(of)]
    for name in ("mmengine", "zoo"):
        (installed / f"{name}-9.0.dist-info").mkdir()
        (installed / f"{name}-9.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 9.0\n")
        digests.append(digest(of))
    assert all_differ(digests)


def test_a_file_that_the_config_names_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "stage2.json").write_text("{}")
    before = digest(subject(tmp_path, deepspeed="stage2.json"))
    (tmp_path / "stage2.json").write_text('{"a": 1}')
    assert digest(subject(tmp_path, deepspeed="stage2.json")) != before


def test_two_configs_that_say_the_same_are_two_questions_since_each_has_its_own_patch(tmp_path: Path) -> None:
    found = []
    for name in ("x.yaml", "y.yaml"):
        config = config_of(
            tmp_path, "batch_size: 4\n", name=name, knob_keys={"micro_batch_size": "batch_size"}, workload_target="a:b"
        )
        found.append(digest(subject_of_config(config)))
    assert all_differ(found)


def test_comments_and_layout_of_a_config_do_not_change_it(tmp_path: Path) -> None:
    found = set()
    for text in ("batch_size: 4\n", "# ours\nbatch_size:   4\n"):
        config = config_of(tmp_path, text, knob_keys={"micro_batch_size": "batch_size"}, workload_target="a:b")
        found.add(digest(subject_of_config(config)))
    assert len(found) == 1


def test_values_that_are_new_each_time_a_config_is_run_do_not_change_it(tmp_path: Path) -> None:
    found = set()
    for width in (8, 8, 16):
        text = f"import uuid\nbatch_size = 4\nwidth = {width}\nwork_dir = f'runs/{{uuid.uuid4()}}'\n"
        knob_keys = {"micro_batch_size": "batch_size"}
        config = config_of(tmp_path, text, name="x.py", knob_keys=knob_keys, workload_target="a:b")
        found.add(digest(subject_of_config(config)))
    assert len(found) == 2


def of_command(folder: Path, template: str) -> Subject:
    return Subject(source=command(template, folder), current=Recipe(micro_batch_size=1), config=None, label="train")


def test_variables_that_a_command_or_its_code_names_change_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import net\n")
    (tmp_path / "net.py").write_text("import os\nwidth = os.environ.get('NET_WIDTH')\n")
    (tmp_path / "run.sh").write_text("python train.py $MODEL\n")
    by_python, by_shell = (of_command(tmp_path, f"{each} {{micro_batch_size}}") for each in ("train.py", "sh run.sh"))
    before = digest(by_python), digest(by_shell)
    monkeypatch.setenv("NET_DEPTH", "2")
    assert (digest(by_python), digest(by_shell)) == before
    monkeypatch.setenv("NET_WIDTH", "8192")
    monkeypatch.setenv("MODEL", "large")
    assert digest(by_python) != before[0]
    assert digest(by_shell) != before[1]
    assert digest(of_command(tmp_path, "train $MODEL")) != digest(of_command(tmp_path, "train $NET_DEPTH"))


def test_files_that_a_script_of_a_command_names_change_the_digest(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python train.py --config=net.yaml\n")
    (tmp_path / "net.yaml").write_text("width: 1\n")
    before = digest(of_command(tmp_path, "sh run.sh {micro_batch_size}"))
    (tmp_path / "other.yaml").write_text("width: 1\n")
    assert digest(of_command(tmp_path, "sh run.sh {micro_batch_size}")) == before
    (tmp_path / "net.yaml").write_text("width: 2\n")
    assert digest(of_command(tmp_path, "sh run.sh {micro_batch_size}")) != before


def test_names_and_values_that_are_not_utf_8_have_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "net.py").write_text("import os; os.environ['NET_WIDTH']")
    digests = [digest(subject(folder))]
    for value in (b"\xe9", b"\xe8"):
        monkeypatch.setenv("NET_WIDTH", os.fsdecode(value))
        digests.append(digest(subject(folder)))
    assert all_differ(digests)


def test_settings_of_allocators_and_threads_are_surroundings_and_others_are_not() -> None:
    environment = {"PYTORCH_ALLOC_CONF": "a", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "HOME": "/root"}
    found = read_surroundings(CPU, environment)
    assert {"PYTORCH_ALLOC_CONF", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX"} <= set(found)
    assert "HOME" not in found
    assert found["torch"]
    assert found["processor"]
