"""The depth-layer segmentation example: its configs, its labels and its training script."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
skimage = pytest.importorskip("skimage", reason="the photographs come with scikit-image")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "depth_segmentation"
BASELINE = EXAMPLE / "configs" / "baseline" / "unet_small_motorcycle_256x256.py"
LAYER_EDGES = (20.0, 38.0, 50.0)
SMALL = [
    "data.samples_per_gpu=2",
    "model.backbone.base_channels=4",
    "model.backbone.num_stages=2",
    "runner.max_iters=3",
]

sys.path.insert(0, str(EXAMPLE))
from depthseg.config import load_config, merge, with_options  # noqa: E402
from depthseg.dataset import (  # noqa: E402
    IGNORED,
    build_dataset,
    build_loader,
    depth_layers,
    load_views,
    shift_to_right_view,
)
from depthseg.evaluation import confusion_matrix, mean_iou  # noqa: E402
from depthseg.optimization import learning_rate_at, read_step_settings  # noqa: E402
from depthseg.training import Trainer  # noqa: E402
from depthseg.workload import make_workload  # noqa: E402


def small_config(*options: str):
    config = with_options(load_config(BASELINE), [*SMALL, *options])
    config["data"]["train"]["pipeline"][0]["crop_size"] = (64, 64)
    config["data"]["val"]["tile_size"] = (64, 64)
    return config


def train(tmp_path: Path, *options: str):
    trainer = Trainer(small_config(*options), tmp_path, torch.device("cpu"))
    return trainer, trainer.run()


def test_the_leaf_inherits_what_it_does_not_set_itself():
    config = load_config(BASELINE)
    assert config["data"]["samples_per_gpu"] == 4
    assert config["data"]["train"]["type"] == "MotorcycleDepthLayers"
    assert config["evaluation"] == {"interval": 500, "metric": "mIoU"}


def test_delete_drops_the_inherited_dict():
    optimizer = load_config(BASELINE)["optimizer"]
    assert optimizer == {"type": "AdamW", "lr": 2e-4, "betas": (0.9, 0.999), "weight_decay": 0.01}


def test_merging_replaces_lists_whole():
    assert merge({"a": [1, 2], "b": {"c": 1, "d": 2}}, {"a": [3], "b": {"c": 4}}) == {"a": [3], "b": {"c": 4, "d": 2}}


def test_a_base_that_leads_back_to_its_child_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("_base_ = './b.py'\n")
    (tmp_path / "b.py").write_text("_base_ = ['./a.py']\n")
    with pytest.raises(ValueError, match="leads back to itself"):
        load_config(tmp_path / "a.py")


def test_a_key_that_two_bases_set_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("seed = 1\n")
    (tmp_path / "b.py").write_text("seed = 2\n")
    (tmp_path / "leaf.py").write_text("_base_ = ['./a.py', './b.py']\n")
    with pytest.raises(ValueError, match="seed is set by more than one file"):
        load_config(tmp_path / "leaf.py")


def test_a_larger_disparity_is_a_nearer_layer_and_an_unknown_one_is_ignored():
    disparity = np.array([[5.0, 20.0, 45.0, 55.0, np.inf, 0.0]])
    assert depth_layers(disparity, LAYER_EDGES).tolist() == [[0, 1, 2, 3, IGNORED, IGNORED]]


def test_in_the_right_view_the_nearer_of_two_pixels_hides_the_farther():
    labels = np.array([[0, 0, 0, 1]], dtype=np.uint8)
    disparity = np.array([[0.0, 0.0, 0.0, 2.0]])
    assert shift_to_right_view(labels, disparity).tolist() == [[0, 1, 0, IGNORED]]


def test_shifting_carries_the_left_photograph_onto_the_right_one():
    (left, left_labels), (right, _) = load_views(LAYER_EDGES)
    with np.load(Path(skimage.__file__).parent / "data" / "motorcycle_disp.npz") as archive:
        disparity = archive["arr_0"]
    grey = np.where(left_labels == IGNORED, IGNORED, left.min(axis=2).clip(max=IGNORED - 1)).astype(np.uint8)

    def distance(shifted):
        known = shifted != IGNORED
        return np.abs(shifted[known].astype(float) - right.min(axis=2)[known]).mean()

    assert distance(shift_to_right_view(grey, disparity)) < 10
    assert distance(grey) > 30


def test_both_views_show_every_layer_in_like_amounts():
    (_, left), (_, right) = load_views(LAYER_EDGES)
    shares = np.array([[(labels == layer).mean() for layer in range(4)] for labels in (left, right)])
    assert shares.min() > 0.15
    assert np.abs(shares[0] - shares[1]).max() < 0.05


def test_a_loader_yields_normalised_crops_with_their_labels():
    images, labels = next(iter(build_loader(load_config(BASELINE))))
    assert images.shape == (4, 3, 256, 256)
    assert images.dtype == torch.float32
    assert images.abs().max() < 3
    assert labels.shape == (4, 256, 256)
    assert set(labels.unique().tolist()) <= {0, 1, 2, 3, IGNORED}


def test_validation_tiles_are_the_same_every_time():
    tiles = build_dataset(load_config(BASELINE)["data"]["val"])
    assert len(tiles) == 4
    assert torch.equal(tiles[2][0], tiles[2][0])


def test_mean_iou_is_one_for_a_perfect_prediction_and_leaves_ignored_pixels_out():
    labels = torch.tensor([0, 1, 2, IGNORED])
    assert mean_iou(confusion_matrix(torch.tensor([0, 1, 2, 0]), labels, 3)) == 1.0
    # Class 0: 1 of 2 pixels in the union; class 1: 0 of 1; class 2: 1 of 1.
    assert mean_iou(confusion_matrix(torch.tensor([0, 0, 2, 0]), labels, 3)) == pytest.approx(0.5)


def test_the_learning_rate_warms_up_and_falls_to_its_floor():
    policy = {
        "policy": "poly",
        "power": 1.0,
        "min_lr": 0.0,
        "warmup": "linear",
        "warmup_iters": 10,
        "warmup_ratio": 0.1,
    }
    assert learning_rate_at(0, 1.0, 100, policy) == pytest.approx(0.1)
    assert learning_rate_at(50, 1.0, 100, policy) == pytest.approx(0.5)
    assert learning_rate_at(100, 1.0, 100, policy) == 0.0


def test_the_fp16_config_asks_for_half_precision_with_a_dynamic_scale():
    step = read_step_settings(load_config(EXAMPLE / "configs/fp16/unet_small_fp16_motorcycle_256x256.py"))
    assert (step.amp_dtype, step.loss_scale) == (torch.float16, "dynamic")
    assert step.grad_clip == {"max_norm": 35, "norm_type": 2}


@pytest.mark.parametrize(
    ("options", "dtype", "steps"),
    [
        ([], None, 1),
        (["amp.dtype=float32"], None, 1),
        (["amp.dtype=bfloat16"], torch.bfloat16, 1),
        (["amp=None", "fp16.loss_scale=512."], torch.float16, 1),
        (["optimizer_config.type=GradientCumulativeOptimizerHook", "optimizer_config.cumulative_iters=3"], None, 3),
        (
            [
                "amp=None",
                "optimizer_config.type=GradientCumulativeFp16OptimizerHook",
                "optimizer_config.cumulative_iters=2",
            ],
            torch.float16,
            2,
        ),
    ],
)
def test_step_settings_are_read_from_every_key_that_states_them(options, dtype, steps):
    step = read_step_settings(small_config(*options))
    assert (step.amp_dtype, step.cumulative_iters) == (dtype, steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["optimizer_config.type=NoSuchHook"], "NoSuchHook"),
        (["optimizer_config.cumulative_iters=2"], "no effect"),
        (["amp.dtype=int8"], "int8"),
        (["amp.dtype=bfloat16", "optimizer_config.type=Fp16OptimizerHook"], "keep one"),
    ],
)
def test_settings_that_would_not_be_honoured_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        read_step_settings(small_config(*options))


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["amp.dtype=bfloat16"],
        ["amp=None", "optimizer_config.type=Fp16OptimizerHook", "optimizer_config.loss_scale=dynamic"],
        ["optimizer_config.type=GradientCumulativeOptimizerHook", "optimizer_config.cumulative_iters=2"],
        ["model.backbone.with_cp=True"],
    ],
    ids=["fp32", "bf16", "fp16", "accumulation", "checkpointing"],
)
def test_training_runs_with_a_finite_loss(tmp_path, options):
    trainer, summary = train(tmp_path, *options)
    assert math.isfinite(summary["final_loss"])
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


def test_three_iterations_at_accumulation_two_take_two_optimizer_steps(tmp_path):
    trainer, _ = train(
        tmp_path, "optimizer_config.type=GradientCumulativeOptimizerHook", "optimizer_config.cumulative_iters=2"
    )
    assert {state["step"].item() for state in trainer.optimizer.state.values()} == {2.0}


def test_evaluation_and_checkpoints_come_at_their_intervals(tmp_path):
    _, summary = train(tmp_path, "evaluation.interval=3", "checkpoint_config.interval=2")
    assert 0 <= summary["mIoU"] <= 1
    assert [path.name for path in tmp_path.glob("*.pth")] == ["iter_2.pth"]
    restored, _ = train(tmp_path / "again", f"load_from={tmp_path / 'iter_2.pth'}", "runner.max_iters=1")
    assert restored.optimizer.state


def test_two_batches_accumulated_give_the_gradient_of_one_of_twice_the_size():
    workload = make_workload(small_config())
    torch.manual_seed(0)
    model = workload.model().double().eval()  # eval: batch normalisation would see other statistics in halves
    images, labels = workload.batch(4)
    labels[labels == IGNORED] = 0  # a mean over labelled pixels weighs both halves alike only with equally many
    whole = gradients(workload, model, [(images.double(), labels)])
    halves = gradients(workload, model, [(images[:2].double(), labels[:2]), (images[2:].double(), labels[2:])])
    # Scores pass through .float() before the loss: sums of 2**14 fp32 terms in another order differ by about 1e-7
    # relative; 1e-5 leaves a hundredfold room and is far below the halves' own difference.
    for one, other in zip(whole, halves, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def gradients(workload, model, batches):
    model.zero_grad()
    for batch in batches:
        (workload.loss(model, batch) / len(batches)).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_the_workload_makes_batches_of_the_size_asked_for_and_leaves_the_random_state_alone():
    workload = make_workload(small_config())
    before = torch.random.get_rng_state()
    images, labels = workload.batch(3)
    assert (len(images), len(labels)) == (3, 3)
    assert torch.equal(workload.batch(3)[0], images)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert workload.grad_clip_norm == 35


def test_the_script_prints_its_peak_and_writes_a_summary(tmp_path):
    command = [sys.executable, EXAMPLE / "tools/train.py", BASELINE, "--work-dir", tmp_path, "--max-iters", "2"]
    finished = subprocess.run(
        [*command, "--device", "cpu", "--options", *SMALL[:3]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1].startswith("peak resident ")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["samples_per_gpu"] == 2
    assert summary["peak_resident_bytes"] > 100 * 2**20  # torch alone takes more
