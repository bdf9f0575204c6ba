"""What both sides of a child process need to know about each other."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Self

REPLY_FD = "MEMPLAN_REPLY_FD"
LIFELINE_FD = "MEMPLAN_LIFELINE_FD"
TEMPLATE_FD = "MEMPLAN_TEMPLATE_FD"
# Names of modules, separated by spaces, that a template loads beside its own.
IMPORTS = "MEMPLAN_TEMPLATE_IMPORTS"
# Set in a child's environment, and so in that of whatever it starts.
MARK = "MEMPLAN_CHILD"
# Length of the pickled message that follows.
HEADER = struct.Struct("!Q")

# What a template and its owner say to each other, one packet each; the order to fork is the child's mark, and after a
# space the module that answers, where that is not the template's own.
READY = b"ready"
REAP = b"reap"
PACKET_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeEnds:
    """One side's ends of a child's four pipes, as descriptors.

    Args:
        request: the child's standard input.
        output: its standard output and error.
        reply: its messages.
        lifeline: closes when the parent ends.
    """

    request: int
    output: int
    reply: int
    lifeline: int

    @classmethod
    def pairs(cls) -> tuple[Self, Self]:
        """Make the pipes; return the parent's ends and the child's."""
        request_read, request_write = os.pipe()
        output_read, output_write = os.pipe()
        reply_read, reply_write = os.pipe()
        lifeline_read, lifeline_write = os.pipe()
        parents = cls(request=request_write, output=output_read, reply=reply_read, lifeline=lifeline_write)
        childs = cls(request=request_read, output=output_write, reply=reply_write, lifeline=lifeline_read)
        return parents, childs

    def close(self) -> None:
        """Close all four."""
        for descriptor in (self.request, self.output, self.reply, self.lifeline):
            os.close(descriptor)
