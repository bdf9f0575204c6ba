"""A process that owns a child, to be killed by the tests: prints the pids of everything below it, then waits.

``child_owner.py PYTHONPATH started|forked``.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from memplan.children import Template, run_child


def own_a_child() -> None:
    with Template("child_acts") as template:
        run_child(
            "child_acts",
            ("leave_children", "and wait"),
            on_message=lambda pids: os.write(1, " ".join(map(str, pids)).encode() + b"\n"),
            environment={"PYTHONPATH": sys.argv[1]},
            template=template if sys.argv[2] == "forked" else None,
        )


def main() -> None:
    try:
        own_a_child()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.write(1, b"interrupted, and still there\n")
        time.sleep(600)


if __name__ == "__main__":
    main()
