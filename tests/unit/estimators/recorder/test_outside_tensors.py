"""Which tensors of an operator come from outside of the step, and how long they are held."""

from __future__ import annotations

import torch
from torch import nn

from memplan.estimators.absent_card.host_copies import HostCopies
from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.recorder.outside_tensors import OutsideTensors
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.storages import StorageLedger
from memplan.estimators.step_trace import PHASES
from memplan.results import Component, Phase
from memplan.units import MIB

ADD, INDEX, LIFT = torch.ops.aten.add.Tensor, torch.ops.aten.index.Tensor, torch.ops.aten.lift_fresh.default


class Session:
    """What takes tensors in, in the first step."""

    def __init__(self, host_copies: HostCopies | None = None) -> None:
        self.recording = Recording(micro_batch_size=2)
        self.ledger = StorageLedger(self.recording)
        self.fakes = TraceFakeMode()
        self.outside = OutsideTensors(self.ledger, host_copies, self.fakes)
        self.recording.step_starts, self.recording.phase = [0], Phase.FORWARD
        self.on_card = self.fakes.from_tensor(torch.ones(512, 512))
        self.ledger.track(self.on_card, Component.INPUTS, module="", operator="batch")

    def take(self, *args: object, operator: object = ADD) -> None:
        self.outside.take_in(operator, args, module="layer")


def weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(512, 512))


def test_a_parameter_is_one_block_since_before_the_first_step() -> None:
    session, parameter = Session(HostCopies()), weight()
    session.take(parameter)
    session.take([parameter], parameter[0])
    assert session.recording.block_bytes == [MIB, MIB]
    assert session.recording.event_blocks == [1, 0]
    assert session.recording.event_phases == [PHASES.index(each) for each in (Phase.SETUP, Phase.FORWARD)]
    assert session.recording.step_starts == [1]
    assert session.recording.components[1] is Component.PARAMETERS


def test_views_that_operators_make_of_it_are_of_the_same_block() -> None:
    session, parameter = Session(HostCopies()), weight()
    session.take(parameter)
    with session.fakes, torch.no_grad():
        view = parameter.t()
    assert session.ledger.block_of(view) == 1


def test_a_tensor_is_freed_when_the_user_and_the_step_hold_it_no_longer() -> None:
    session, made = Session(), torch.ones(512, 512)
    session.take(made)
    with session.fakes:
        view = made[0]
    del made
    assert session.ledger.is_live(1)
    del view
    assert not session.ledger.is_live(1)


def test_a_tensor_is_on_the_host_until_it_is_used_on_the_card() -> None:
    copies, table = HostCopies(), torch.ones(512, 512)
    session = Session(copies)
    session.take(table, table)
    assert copies.holds(table)
    assert len(session.recording.block_bytes) == 1
    session.take(session.on_card, table)
    assert not copies.holds(table)
    assert session.recording.components[1] is Component.BUFFERS


def test_a_table_that_is_indexed_may_be_on_the_host() -> None:
    session, table, places = Session(HostCopies()), torch.ones(512, 512), torch.zeros(4, dtype=torch.int64)
    places = session.fakes.from_tensor(places)
    session.ledger.track(places, Component.TEMPORARIES, module="", operator="aten.randint")
    session.take(table, [places], operator=INDEX)
    assert len(session.recording.block_bytes) == 2


def test_what_was_made_on_the_card_is_there() -> None:
    copies, table = HostCopies(), torch.ones(512, 512)
    copies.note_on_card(table)
    session = Session(copies)
    session.take(table)
    assert session.recording.block_bytes == [MIB, MIB]


def test_numbers_written_in_the_code_are_not_taken_in() -> None:
    session = Session()
    session.take(torch.ones(4), operator=LIFT)
    assert len(session.recording.block_bytes) == 1
