"""Cards and batch in OpenMMLab's file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from memplan.configs import RecipeChange, apply_patch, for_replicas, plan_patch, read_config, reference_world_size
from memplan.configs.ecosystems.openmmlab import cards_named_in, remark_on_name
from memplan.recipe import Recipe
from tests.making import config_of


@pytest.mark.parametrize(
    ("name", "batch", "cards"),
    [
        ("segformer_mit-b0_8xb2-160k_ade20k-512x512", 2, 8),
        ("mask2former_r50_8xb2-90k_cityscapes-512x1024", 2, 8),
        ("segformer_mit-b0_8x1_1024x1024_160k_cityscapes", 1, 8),
        ("pspnet_r50-d8_512x1024_40k_cityscapes", 2, None),
        ("unet_s5-d16_4x4_512x1024", 4, 4),
        ("convnext-base_32xb128_in1k", 64, 32),
        ("resnet18", 2, None),
    ],
)
def test_the_cards_are_told_from_image_sizes(name: str, batch: int, cards: int | None) -> None:
    assert cards_named_in(Path(f"{name}.py"), batch) == cards


def test_a_batch_that_is_not_the_one_in_the_name_is_pointed_out() -> None:
    remark = remark_on_name(Path("x_8xb2.py"), 4)
    assert str(remark).startswith("the file is named for 8 cards, of 2 samples each where the config says 4: ")
    assert remark_on_name(Path("x_1xb2.py"), 2) is None


def test_a_config_and_its_child_know_the_number_they_are_named_for(tmp_path: Path) -> None:
    text = "data = dict(samples_per_gpu=2)\noptimizer = dict(lr=0.1)\n"
    config = config_of(tmp_path, text, name="net_4xb2.py")
    assert reference_world_size(config) == 4
    assert any("--world-size 4" in each for each in for_replicas(config, None).notes)
    apply_patch(plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=0.4))))
    child = read_config(tmp_path / "net_4xb2_memplan.py")
    assert reference_world_size(child) == 4
    assert not any("where the config says" in each for each in for_replicas(child, None).notes)
