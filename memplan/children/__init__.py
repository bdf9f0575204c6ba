"""The one gateway to child processes: start one, hand it a request, watch it, and say how it ended.

A child is ``python -m <module>`` in a session of its own, or a fork of a template that has loaded that module's imports
before. It receives one request and answers with any number of messages over a private pipe, so nothing that user code
prints can be mistaken for an answer. Its output is kept as a bounded tail. A child never outlives its parent, and
whatever it started goes with it.

Linux only. Messages are pickled values of memplan's own plain types.
"""

from memplan.children.early_imports import installed_modules
from memplan.children.forks import Forks
from memplan.children.running import LOG_TAIL_BYTES, ChildEnding, run_child, stop_after
from memplan.children.serving import serve
from memplan.children.shell import become_shell_command
from memplan.children.template import Template

__all__ = [
    "LOG_TAIL_BYTES",
    "ChildEnding",
    "Forks",
    "Template",
    "become_shell_command",
    "installed_modules",
    "run_child",
    "serve",
    "stop_after",
]
