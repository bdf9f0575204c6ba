"""One small config of every ecosystem, and what the contract tests do with each of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan.configs import PatchStyle, RecipeChange, UserConfig, apply_patch, plan_patch, read_config
from memplan.recipe import Precision
from tests.contract import config_texts as texts

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from memplan.patches import ConfigPatch, ValueChange


@dataclass(frozen=True)
class Case:
    """One config of one ecosystem; the last file is the one the user names, behind those in ``named_before``."""

    name: str
    format_name: str
    files: dict[str, str]
    style: PatchStyle
    knob_keys: dict[str, str] = field(default_factory=dict)
    newline: str = "\n"
    final_newline: bool = True
    named_before: tuple[str, ...] = ()

    @property
    def length_key(self) -> str | None:
        """Where a length of 16000 stands; None where the ecosystem counts epochs alone."""
        return _LENGTHS.get(self.format_name, "training.max_iters")

    @property
    def rate(self) -> float | None:
        """The learning rate; None where the training code makes its own."""
        if self.name in ("ultralytics", "timm automatic rate crlf", "swin"):
            return None
        return 6e-5 if self.format_name in ("openmmlab-0.x", "mmengine", "detectron2-lazy") else 2e-4

    @property
    def is_layered(self) -> bool:
        """Whether it is made of several files, so that one of them can break another."""
        return len(self.files) > 1

    def write(self, folder: Path) -> Path:
        for name, text in self.files.items():
            shown = text if self.final_newline else text.removesuffix("\n")
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(shown.replace("\n", self.newline).encode())
        return folder / list(self.files)[-1]


_LENGTHS: dict[str, str | None] = {
    "openmmlab-0.x": "runner.max_iters",
    "mmengine": "train_cfg.max_iters",
    "huggingface": "max_steps",
    "llama-factory": "max_steps",
    "axolotl": "max_steps",
    "lightning-hydra": "trainer.max_steps",
    "lightning-cli": "trainer.max_steps",
    "detectron2": "SOLVER.MAX_ITER",
    "detectron2-lazy": "train.max_iter",
    "deepspeed": "scheduler.params.total_num_steps",
    "torchtitan": "training.steps",
    "torchtune": "lr_scheduler.num_warmup_steps",
    "plain-shell": "iters",
    "plain-argparse": "iters",
    **dict.fromkeys(("timm", "ultralytics", "swin", "launch-script", "argparse-script")),
}
_OWN_PRECISION = {"torchtitan": Precision.BF16, "torchtune": Precision.BF16_TRUE}  # which it knows beside fp32

MMSEG = {"base.py": texts.MMSEG_BASE, "leaf.py": texts.MMSEG_LEAF}
LAYERS = {"base.yaml": texts.LIGHTNING_CLI.replace("lr: 2.0e-4", "lr: 0.1"), "exp.yaml": texts.LIGHTNING_EXPERIMENT}
LAZY = {"base.py": texts.LAZY_BASE, "leaf.py": texts.LAZY_LEAF}
LAUNCHED = {"launch.yaml": texts.ACCELERATE, "args.yaml": texts.HF_YAML}
MMSEG_FLAT = {"leaf.py": texts.MMSEG_BASE}
CASES = (
    Case("mmseg child", "openmmlab-0.x", MMSEG, PatchStyle.CHILD),
    Case("mmseg child crlf", "openmmlab-0.x", MMSEG, PatchStyle.CHILD, newline="\r\n", final_newline=False),
    Case("mmseg in place crlf", "openmmlab-0.x", MMSEG_FLAT, PatchStyle.IN_PLACE, newline="\r\n", final_newline=False),
    Case(
        "mmengine child", "mmengine", {"base.py": texts.MMENGINE_BASE, "leaf.py": texts.MMENGINE_LEAF}, PatchStyle.CHILD
    ),
    Case("pure python child", "mmengine", {"base.py": texts.PURE_BASE, "leaf.py": texts.PURE_LEAF}, PatchStyle.CHILD),
    Case(
        "pure python",
        "mmengine",
        {"base.py": texts.PURE_BASE, "a-leaf.py": texts.PURE_LEAF},
        PatchStyle.IN_PLACE,
        {},
        "\r\n",
    ),
    Case("lazy child", "detectron2-lazy", LAZY, PatchStyle.CHILD),
    Case("lazy in place crlf", "detectron2-lazy", LAZY, PatchStyle.IN_PLACE, newline="\r\n", final_newline=False),
    Case("hf yaml", "huggingface", {"x.yaml": texts.HF_YAML}, PatchStyle.IN_PLACE),
    Case("hf section crlf", "huggingface", {"x.yaml": texts.HF_SECTION}, PatchStyle.IN_PLACE, {}, "\r\n", False),
    Case("hf json", "huggingface", {"x.json": texts.HF_JSON}, PatchStyle.IN_PLACE, final_newline=False),
    Case("lightning yaml", "lightning-hydra", {"x.yaml": texts.LIGHTNING_YAML}, PatchStyle.IN_PLACE),
    Case("lightning crlf", "lightning-hydra", {"x.yaml": texts.LIGHTNING_YAML}, PatchStyle.IN_PLACE, {}, "\r\n", False),
    Case("hydra experiment", "lightning-hydra", texts.HYDRA_TREE, PatchStyle.CHILD),
    Case("hydra groups in place", "lightning-hydra", texts.HYDRA_TREE, PatchStyle.IN_PLACE),
    Case("lightning cli", "lightning-cli", {"x.yaml": texts.LIGHTNING_CLI}, PatchStyle.CHILD),
    Case("lightning cli crlf", "lightning-cli", {"x.yaml": texts.LIGHTNING_CLI}, PatchStyle.CHILD, {}, "\r\n", False),
    Case("lightning cli in place", "lightning-cli", {"x.yaml": texts.LIGHTNING_CLI}, PatchStyle.IN_PLACE),
    Case("lightning cli layers", "lightning-cli", LAYERS, PatchStyle.CHILD, named_before=("base.yaml",)),
    Case("lightning cli last layer", "lightning-cli", LAYERS, PatchStyle.IN_PLACE, {}, "\r\n", False, ("base.yaml",)),
    Case("llama-factory", "llama-factory", {"x.yaml": texts.LLAMA_FACTORY}, PatchStyle.IN_PLACE),
    Case("axolotl", "axolotl", {"x.yml": texts.AXOLOTL}, PatchStyle.IN_PLACE),
    Case("timm", "timm", {"args.yaml": texts.TIMM}, PatchStyle.IN_PLACE),
    Case(
        "timm automatic rate crlf", "timm", {"args.yaml": texts.TIMM_AUTOMATIC}, PatchStyle.IN_PLACE, {}, "\r\n", False
    ),
    Case("ultralytics", "ultralytics", {"args.yaml": texts.ULTRALYTICS}, PatchStyle.IN_PLACE),
    Case("deepspeed", "deepspeed", {"x.json": texts.DEEPSPEED}, PatchStyle.IN_PLACE),
    Case(
        "detectron2",
        "detectron2",
        {"base.yaml": texts.DETECTRON2_BASE, "x.yaml": texts.DETECTRON2_LEAF},
        PatchStyle.CHILD,
    ),
    Case(
        "detectron2 in place crlf",
        "detectron2",
        {"x.yml": texts.DETECTRON2_BASE},
        PatchStyle.IN_PLACE,
        {},
        "\r\n",
        False,
    ),
    Case("swin", "swin", {"x.yaml": texts.SWIN}, PatchStyle.IN_PLACE),
    Case("torchtitan", "torchtitan", {"x.toml": texts.TORCHTITAN}, PatchStyle.IN_PLACE),
    Case("torchtune", "torchtune", {"x.yaml": texts.TORCHTUNE}, PatchStyle.IN_PLACE),
    Case("hf with accelerate", "huggingface", LAUNCHED, PatchStyle.IN_PLACE, named_before=("launch.yaml",)),
    Case("yaml", "plain-yaml", {"x.yaml": texts.PLAIN_YAML}, PatchStyle.IN_PLACE, texts.PLAIN_KNOBS),
    Case("yaml crlf", "plain-yaml", {"x.yml": texts.PLAIN_YAML}, PatchStyle.IN_PLACE, texts.PLAIN_KNOBS, "\r\n", False),
    Case(
        "json crlf", "plain-json", {"x.json": texts.PLAIN_JSON}, PatchStyle.IN_PLACE, texts.PLAIN_KNOBS, "\r\n", False
    ),
    Case("toml", "plain-toml", {"x.toml": texts.PLAIN_TOML}, PatchStyle.IN_PLACE, texts.PLAIN_KNOBS),
    Case(
        "toml crlf", "plain-toml", {"x.toml": texts.PLAIN_TOML}, PatchStyle.IN_PLACE, texts.PLAIN_KNOBS, "\r\n", False
    ),
    Case("launch script", "launch-script", {"x.sh": texts.LAUNCH_SCRIPT}, PatchStyle.IN_PLACE),
    Case("launch script crlf", "launch-script", {"x.sh": texts.LAUNCH_SCRIPT}, PatchStyle.IN_PLACE, {}, "\r\n", False),
    Case("accelerate script", "launch-script", {"x.sh": texts.ACCELERATE_SCRIPT}, PatchStyle.IN_PLACE),
    Case("hf script", "huggingface", {"x.sbatch": texts.HF_SCRIPT}, PatchStyle.IN_PLACE),
    Case("argparse", "argparse-script", {"x.py": texts.ARGPARSE}, PatchStyle.IN_PLACE),
    Case("shell", "plain-shell", {"x.sh": texts.PLAIN_SHELL}, PatchStyle.IN_PLACE, texts.FLAG_KNOBS),
    Case("plain argparse", "plain-argparse", {"x.py": texts.PLAIN_ARGPARSE}, PatchStyle.IN_PLACE, texts.FLAG_KNOBS),
    Case(
        "python crlf",
        "plain-python",
        {"x.py": texts.PLAIN_PYTHON},
        PatchStyle.IN_PLACE,
        texts.PLAIN_KNOBS,
        "\r\n",
        False,
    ),
)
BY_LINE = ("\n", "\r\n")


def for_cases(cases: Iterable[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", list(cases), ids=lambda each: each.name)


def one_of_each(kind: Callable[[Case], Hashable]) -> tuple[Case, ...]:
    """The first case of each kind."""
    return tuple({kind(each): each for each in reversed(CASES)}.values())


EVERY_CASE = for_cases(CASES)
# For what becomes of the texts of a patch, whatever ecosystem they are of.
EVERY_LAYOUT = for_cases(
    one_of_each(lambda case: (case.style, Path(list(case.files)[-1]).suffix, case.is_layered, case.final_newline))
)


def read(case: Case, path: Path) -> UserConfig:
    is_named = path.name == Path(list(case.files)[-1]).name
    before = [path.with_name(each) for each in (case.named_before if is_named else ())]
    return read_config(*before, path, knob_keys=case.knob_keys)


def wider(config: UserConfig) -> RecipeChange:
    """Three times the batch in half precision, an optimizer step over two passes where the ecosystem accumulates."""
    steps = 1 if config.format_name.startswith("detectron2") else 2
    start = config.original.recipe if config.original else config.recipe
    recipe = replace(
        start,
        micro_batch_size=start.micro_batch_size * 3,
        accumulation_steps=steps,
        precision=_OWN_PRECISION.get(config.format_name, Precision.FP16),
        learning_rate=None if start.learning_rate is None else float(f"{start.learning_rate * 3 * steps:.12g}"),
    )
    return RecipeChange(recipe=recipe, iteration_factor=Fraction(1, 3), optimizer_step_factor=Fraction(1, 3 * steps))


def own_changes(patch: ConfigPatch) -> tuple[ValueChange, ...]:
    """What changes in the config itself, without the files beside it."""
    return tuple(each for each in patch.changes if each.path == patch.files[0].path)


def applied(case: Case, folder: Path) -> tuple[UserConfig, ConfigPatch]:
    config = read(case, case.write(folder))
    patch = plan_patch(config, wider(config), style=case.style)
    apply_patch(patch)
    return config, patch
