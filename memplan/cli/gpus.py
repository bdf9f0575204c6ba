"""`memplan gpus`: the cards of this machine."""

from __future__ import annotations

import typer

from memplan.cli.options import AsJson
from memplan.cli.terminal import show
from memplan.errors import NoDriverError


def gpus(as_json: AsJson = False) -> None:
    """List the NVIDIA cards of this machine and who uses them."""
    from memplan.devices.card_readings import CardReading
    from memplan.devices.driver import read_cards
    from memplan.json_documents import json_document
    from memplan.report.cards import cards_view

    cards: tuple[CardReading, ...] = ()
    no_driver = None
    try:
        cards = read_cards()
    except NoDriverError as error:
        no_driver = str(error)
    if as_json:
        typer.echo(json_document({"cards": cards, "no_driver": no_driver}))
    elif no_driver is not None:
        typer.echo(no_driver)
    else:
        show(cards_view(cards))
