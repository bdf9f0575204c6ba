"""A process that owns a child, to be killed by the tests: prints the pids of everything below it, then waits."""

from __future__ import annotations

import os
import sys

from memplan.children import run_child


def main() -> None:
    run_child(
        "child_acts",
        ("leave_children", "and wait"),
        on_message=lambda pids: os.write(1, " ".join(map(str, pids)).encode() + b"\n"),
        environment={"PYTHONPATH": sys.argv[1]},
    )


if __name__ == "__main__":
    main()
