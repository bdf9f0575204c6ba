"""The hook, in real processes: what it counts as a step, and that a script without torch does not notice it.

Most scripts run in forks of one process that has imported torch before the hook came, as a ``.pth`` file may have.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memplan.probe.commands import hook_figures
from memplan.probe.commands.trial import install_hook

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOP = """
import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def backward():
    net(torch.ones(2, 4)).sum().backward()
"""

# Runs script.py of each folder that it is told, in a fork with that folder's hook; says with which status it ended.
RUNS_SCRIPTS = """
import gc, importlib, json, os, runpy, sys
import torch._dynamo, torch.utils.data  # the first optimizer imports the former

gc.freeze()
for line in sys.stdin:
    folder, observing = json.loads(line)
    pid = os.fork()
    if not pid:
        os.chdir(folder)
        for place, name in ((0, os.devnull), (1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), place)
        os.environ["MEMPLAN_OBSERVE"] = observing
        sys.argv[:] = ["script.py"]
        sys.path[:0] = [folder, os.path.join(folder, "hook")]
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
        runpy.run_path("script.py", run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the hook in it and a file for its events."""
    (tmp_path / "hook").mkdir()
    install_hook(tmp_path / "hook")
    (tmp_path / "events").touch()
    return tmp_path


def observing(folder: Path, steps: int) -> str:
    return json.dumps({"events_path": str(folder / "events"), "steps": steps})


def events_in(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "events").read_text().splitlines()]


@pytest.fixture
def started(folder: Path):
    """Run a script with the hook before it, in a new Python; return its process and the events it told."""

    def run(script: str, *, path: str = "") -> tuple[subprocess.CompletedProcess[str], list[Any]]:
        (folder / "script.py").write_text(script)
        hook = str(folder / "hook")
        ended = subprocess.run(
            [sys.executable, "script.py"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([hook, path] if path else [hook]),
                "MEMPLAN_OBSERVE": observing(folder, steps=3),
            },
        )
        return ended, events_in(folder)

    return run


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    """The process whose forks run scripts."""
    with subprocess.Popen(
        [sys.executable, "-c", RUNS_SCRIPTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def hooked(folder: Path, forking: subprocess.Popen[str]):
    """Run a script with the hook before it, in a fork; return its process and the events it told."""

    def run(script: str, *, steps: int = 3) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
        assert forking.stdin is not None
        assert forking.stdout is not None
        (folder / "script.py").write_text(script)
        forking.stdin.write(json.dumps([str(folder), observing(folder, steps)]) + "\n")
        forking.stdin.flush()
        status = int(forking.stdout.readline())
        out, err = ((folder / name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess(["script.py"], status, out, err), events_in(folder)

    return run


def told(events: list[Any], name: str) -> list[Any]:
    return [event for event in events if event["event"] == name]


def test_a_process_ends_after_its_steps_and_runs_nothing_behind_them(started) -> None:
    ended, events = started(
        LOOP + "for _ in range(99):\n    backward()\n    optimizer.step()\n    print('stepped')\nprint('trained')\n"
    )
    assert ended.returncode == 0
    assert ended.stdout == "stepped\nstepped\n"  # the third step does not return
    assert [event["step"] for event in told(events, "step")] == [1, 2, 3]
    assert told(events, "finished")[0]["is_finite"]


def test_accumulation_is_told_in_backward_passes_and_not_in_steps(hooked) -> None:
    _, events = hooked(LOOP + "for _ in range(99):\n    backward()\n    backward()\n    optimizer.step()\n")
    assert [(event["step"], event["passes"]) for event in told(events, "step")] == [(1, 2), (2, 2), (3, 2)]


BY_HAND = """
import torch
net = torch.nn.Linear(512, 512, bias=False)
def step():
    net.weight.grad = None
    net(torch.ones(1, 512)).sum().backward()
    with torch.no_grad():
        net.weight -= 0.1 * net.weight.grad
"""


def test_where_torch_has_no_optimizer_each_backward_pass_counts_as_a_step(hooked) -> None:
    ended, events = hooked(BY_HAND + "for number in range(99):\n    step()\n    print(number)\n")
    assert [(event["step"], event["passes"], event["optimizers"]) for event in told(events, "step")] == [
        (1, 1, 0),
        (2, 1, 0),
        (3, 1, 0),
    ]
    assert all(event["duration_s"] > 0 for event in told(events, "step"))
    assert ended.stdout.split()[-1] == "4"  # three passes to wait for an optimizer; the sixth ends the third step
    held = told(events, "held")[-1]
    assert (held["parameters_bytes"], held["optimizers"]) == (1 << 20, [])
    assert told(events, "finished")[0]["is_finite"]


def test_an_optimizer_that_is_made_after_many_backward_passes_is_the_one_that_counts(hooked) -> None:
    _, events = hooked(
        BY_HAND + "for _ in range(5):\n    step()\noptimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(99):\n    step()\n    optimizer.step()\n",
        steps=4,
    )
    assert [event["step"] for event in told(events, "step")] == [1, 2, 1, 2, 3, 4]
    assert [event["event"] for event in events].index("built") < 3
    assert len(told(events, "built")) == 2
    by_optimizer = told(events, "step")[2:]
    assert [(event["passes"], event["optimizers"]) for event in by_optimizer] == [(1, 1)] * 4
    assert by_optimizer[0]["duration_s"] is None


def test_a_pass_on_the_meta_device_is_none_of_training(hooked) -> None:
    _, events = hooked(
        LOOP + "torch.nn.Linear(4, 1, device='meta')(torch.ones(2, 4, device='meta')).sum().backward()\n"
        "for _ in range(99):\n    backward()\n    optimizer.step()\n"
    )
    assert [(event["passes"], event["is_loss_finite"]) for event in told(events, "step")] == [(1, True)] * 3
    assert not told(events, "failed")


def test_steps_whose_losses_cannot_be_read_are_steps_all_the_same(hooked) -> None:
    script = "torch.isfinite = lambda loss: 'NaN' if loss is None else [][0]\n"  # raises as it is asked
    _, events = hooked(LOOP + script + "for _ in range(99):\n    backward()\n    optimizer.step()\n")
    assert [(event["step"], event["is_loss_finite"]) for event in told(events, "step")] == [
        (1, None),
        (2, None),
        (3, None),
    ]
    assert "IndexError" in told(events, "failed")[0]["text"]


def test_two_optimizers_that_step_in_turn_count_once_an_iteration(hooked) -> None:
    _, events = hooked(
        LOOP + "other = torch.optim.Adam(net.parameters())\n"
        "for _ in range(99):\n    backward()\n    optimizer.step()\n    other.step()\n"
    )
    assert [event["step"] for event in told(events, "step")] == [1, 2, 3]
    assert told(events, "held")[-1]["optimizers"] == ["Adam", "SGD"]


def test_a_step_that_the_gradient_scaler_leaves_out_is_none(hooked) -> None:
    _, events = hooked(
        LOOP + "scaler = torch.amp.GradScaler('cpu')\n"
        "for number in range(99):\n"
        "    optimizer.zero_grad()\n"
        "    factor = float('inf') if number == 1 else 1.0\n"
        "    scaler.scale(net(torch.ones(2, 4)).sum() * factor).backward()\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n"
    )
    assert [(event["step"], event["skipped"]) for event in told(events, "step")] == [(1, 0), (2, 1), (3, 0)]
    assert told(events, "finished")[0]["loss_scale"] == 32768.0  # 2 ** 16, halved once


def test_passes_of_one_step_of_a_closure_are_of_one_batch(hooked) -> None:
    script = LOOP.replace("SGD(net.parameters(), lr=0.1)", "LBFGS(net.parameters(), max_iter=4)")
    script += "def closure():\n    optimizer.zero_grad()\n    loss = net(torch.ones(2, 4)).square().sum()\n"
    script += "    loss.backward()\n    return loss\nfor _ in range(99):\n    backward()\n    optimizer.step(closure)\n"
    _, events = hooked(script)
    assert [event["passes"] for event in told(events, "step")] == [2, 2, 2]  # one before the step, and the closure's


def test_a_closure_that_holds_the_whole_step_counts_once(hooked) -> None:
    _, events = hooked(
        LOOP + "def closure():\n    optimizer.zero_grad()\n    backward()\n"
        "for _ in range(99):\n    optimizer.step(closure)\n"
    )
    assert [(event["step"], event["passes"]) for event in told(events, "step")] == [(1, 1), (2, 1), (3, 1)]


LOADER = """
from torch.utils.data import DataLoader, TensorDataset
def batches(samples, **options):
    return DataLoader(TensorDataset(torch.ones(samples, 4)), batch_size=4, **options)
def ahead(loader):
    fetching = iter(loader)
    batch = next(fetching)
    for following in fetching:
        yield batch
        batch = following
    yield batch
def train(epoch):
    for _ in epoch:
        backward()
        optimizer.step()
"""


def uses_of(events: list[Any]) -> list[list[tuple[int, bool, int]]]:
    return [
        [(use["number"], use["begun"], use["fetched"]) for use in event["loaders"]] for event in told(events, "step")
    ]


@pytest.mark.parametrize(
    ("epoch", "fetched"),
    [("loader", [1, 1, 1]), ("ahead(loader)", [2, 1, 0])],
)
def test_what_each_step_has_of_a_loader_is_told(hooked, epoch: str, fetched: list[int]) -> None:
    script = f"loader = batches(10, num_workers=1)\nfor _ in range(2):\n    train({epoch})\n"
    _, events = hooked(LOOP + LOADER + script, steps=6)
    expected = [(0, place == 0, count) for place, count in enumerate(fetched)] * 2
    assert [uses[0] if uses else (0, False, 0) for uses in uses_of(events)] == expected
    facts = told(events, "step")[0]["loaders"][0]
    assert (facts["asked"], facts["available"], facts["batches"], facts["drops_last"]) == (4, 10, 3, False)
    assert facts["since_first_s"] > 0


def test_a_step_of_the_batches_of_two_epochs_has_no_first_one(hooked) -> None:
    script = (
        "loader = batches(12)\nfor _ in range(3):\n    for place, _ in enumerate(loader):\n        backward()\n"
        "        if place == 1:\n            optimizer.step()\n"
    )
    _, events = hooked(LOOP + LOADER + script)
    assert uses_of(events) == [[(0, True, 2)], [(0, True, 3)], [(0, True, 3)]]
    times = [event["loaders"][0]["since_first_s"] for event in told(events, "step")]
    assert times[0] > 0
    assert times[1:] == [None, None]


def test_loaders_are_told_apart_and_workers_that_stay_begin_again(hooked) -> None:
    script = (
        "training, checking = batches(4, num_workers=1, persistent_workers=True), batches(3)\n"
        "for _ in range(3):\n    next(iter(checking))\n    train(training)\n"
    )
    _, events = hooked(LOOP + LOADER + script)
    assert uses_of(events) == [[(0, True, 1), (1, True, 1)]] * 3


def test_a_loader_that_does_not_say_is_told_by_its_batches(hooked) -> None:
    script = "loader = DataLoader(TensorDataset(torch.ones(3, 4)), batch_size=None)\ntrain(loader)\n"
    _, events = hooked(LOOP + LOADER + script)
    assert uses_of(events) == [[(0, True, 1)], [(0, False, 1)], [(0, False, 1)]]
    assert told(events, "step")[0]["loaders"][0]["asked"] is None


@pytest.mark.parametrize(("options", "count"), [("", 0), (", drop_last=True", 1)])
def test_data_that_do_not_fill_the_only_batch_are_told(hooked, options: str, count: int) -> None:
    _, events = hooked(LOOP + LOADER + f"train(batches(3{options}))\n")
    assert [(event["asked"], event["available"]) for event in told(events, "short")] == [(4, 3)] * count


@pytest.mark.parametrize(
    ("schedule", "rate", "taken"),
    [
        ("", 0.1, 0.1),
        ("torch.optim.lr_scheduler.LinearLR(optimizer, 0.5)", 0.1, 0.05),
        ("torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.25, total_steps=99)", 0.25, 0.01),
        ("optimizer.param_groups[0].update(lr=0.001)", 0.1, 0.001),  # as some loops set it in each step
    ],
)
def test_rates_that_are_told_are_the_schedules_highest_and_that_of_the_steps(
    hooked, schedule: str, rate: float, taken: float
) -> None:
    _, events = hooked(LOOP + f"{schedule}\nfor _ in range(9):\n    backward()\n    optimizer.step()\n")
    held = told(events, "held")[-1]
    assert (held["learning_rate"], held["highest_rate_taken"]) == (rate, pytest.approx(taken))


def test_what_the_optimizer_holds_is_told_to_the_byte(hooked) -> None:
    _, events = hooked(
        "import torch\nnet = torch.nn.Linear(512, 512, bias=False)\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9)\n"
        "for _ in range(99):\n    net(torch.ones(1, 512)).sum().backward()\n    optimizer.step()\n"
    )
    held = told(events, "held")[-1]
    sizes = (held["parameters_bytes"], held["gradients_bytes"], held["optimizer_state_bytes"])
    assert sizes == (1 << 20, 1 << 20, 1 << 20)


def test_frozen_parameters_are_held_too_and_those_elsewhere_are_not(hooked) -> None:
    _, events = hooked(
        "import torch\nfrozen = torch.nn.Linear(512, 512, bias=False).requires_grad_(False)\n"
        "elsewhere = torch.nn.Linear(512, 512, device='meta')\nnet = torch.nn.Linear(512, 512, bias=False)\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(99):\n    net(frozen(torch.ones(1, 512))).sum().backward()\n    optimizer.step()\n"
    )
    assert told(events, "built")[0]["parameters_bytes"] == 2 << 20
    held = told(events, "held")[-1]
    assert (held["parameters_bytes"], held["gradients_bytes"]) == (2 << 20, 1 << 20)


def test_parameters_that_are_not_finite_are_told(hooked) -> None:
    _, events = hooked(
        LOOP + "optimizer.param_groups[0]['lr'] = float('inf')\n"
        "for _ in range(9):\n    backward()\n    optimizer.step()\n"
    )
    assert not told(events, "finished")[0]["is_finite"]


def test_an_uncaught_exception_is_told_with_the_users_line_and_printed_as_always(hooked) -> None:
    ended, events = hooked("import torch\nraise ValueError('no such backbone')\n")
    assert ended.returncode == 1
    assert "ValueError: no such backbone" in ended.stderr
    raised = told(events, "raised")[0]
    assert raised["chain"][0] == {
        "types": ["ValueError", "Exception", "BaseException", "object"],
        "text": "no such backbone",
    }
    assert raised["place"].endswith("script.py:2")


def test_the_users_line_is_told_where_pythons_own_library_raised(hooked) -> None:
    _, events = hooked("import torch\nfrom pathlib import Path\nPath('/no/such/data').read_text()\n")
    assert told(events, "raised")[0]["place"].endswith("script.py:3")


def test_of_a_backward_pass_that_fails_the_users_line_is_told(hooked) -> None:
    _, events = hooked(LOOP + "loss = net(torch.ones(2, 4)).sum()\nloss.backward()\nloss.backward()\n")
    assert told(events, "raised")[0]["place"].endswith("script.py:9")


def test_of_a_console_script_the_line_of_the_package_is_told_and_not_its_starter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts, package = tmp_path / "bin", tmp_path / "site-packages" / "trainer"
    scripts.mkdir()
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def main():\n    check({})\n\ndef check(data):\n    return data['train']\n")
    (scripts / "train").write_text("from trainer import main\n\nmain()\n")
    monkeypatch.setattr(hook_figures, "_SCRIPT_FOLDERS", (str(scripts), str(Path(__file__).parent)))
    monkeypatch.syspath_prepend(str(package.parent))
    with pytest.raises(KeyError) as raised:
        runpy.run_path(str(scripts / "train"))
    assert hook_figures.place_of(raised.value) == f"{package / '__init__.py'}:5"


def test_a_script_without_torch_runs_as_always(started) -> None:
    ended, events = started("import sys\nprint('torch' in sys.modules, sys.modules['sitecustomize'].__name__)\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False sitecustomize\n", "")
    assert [event["event"] for event in events] == ["started"]


def test_an_existing_sitecustomize_still_runs(started, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.came_first = 'the site speaks'\n")
    ended, events = started("import sitecustomize\nprint(came_first, sitecustomize.__file__)\n", path=str(own))
    assert ended.stdout == f"the site speaks {own / 'sitecustomize.py'}\n"
    assert told(events, "started")


def test_a_forked_process_counts_its_own_steps(hooked) -> None:
    _, events = hooked(
        LOOP + "import os\nbackward()\noptimizer.step()\n"
        "if os.fork() == 0:\n    for _ in range(9):\n        optimizer.step()\nos.wait()\n"
    )
    steps = told(events, "step")
    assert [event["step"] for event in steps] == [1, 1, 2, 3]
    assert len({event["pid"] for event in steps}) == 2


def test_a_data_loaders_workers_do_not_step_and_do_not_end_the_run(hooked) -> None:
    _, events = hooked(
        LOOP + "loader = torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=2, num_workers=2)\n"
        "for batch in loader:\n    net(batch).sum().backward()\n    optimizer.step()\n"
    )
    assert len({event["pid"] for event in told(events, "step")}) == 1
    assert told(events, "finished")
