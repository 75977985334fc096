"""What a search of `hotloop tune` saw, as plain values and as a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop.machine.facts import machine_facts
from hotloop.tuning.search import Searched
from hotloop.tuning.space import Settings


def write_search(place: Path, target: str, searched: Searched) -> None:
    """What the search saw, as a file: kept however the rest goes."""
    data = {
        "schema_version": 1,
        "kind": "hotloop tuning",
        "target": target,
        "machine": machine_facts(),
        **search_json(searched),
    }
    try:
        write_atomically(place / "tuning.json", json.dumps(data, indent=1) + "\n")
    except OSError as error:
        raise HotloopError(f"{place} cannot be written ({error.strerror}); choose another place.") from error


def search_json(searched: Searched) -> dict[str, Any]:
    """The search as plain values."""
    model = searched.model
    table = finalists_table(searched)
    return {
        "current": dict(searched.space.current),
        "best": dict(searched.best),
        "best_safe": dict(searched.best_safe),
        "legal": searched.legal,
        "too_large": searched.too_large,
        "spent_s": searched.spent_s,
        "interrupted": searched.interrupted,
        "probes": [dataclasses.asdict(p) | {"settings": dict(p.settings)} for p in searched.probes],
        "finalists": [
            {"settings": dict(s), "predicted_s_per_unit": predicted, "measured_s_per_unit": seen}
            for s, predicted, seen in table
        ],
        "model": None
        if model is None
        else {
            "error_fraction": model.error_fraction,
            "inference": model.inference,
            "phases": {p.name: dict(zip(p.terms, p.weights, strict=True)) for p in model.phases},
        },
    }


def finalists_table(searched: Searched) -> list[tuple[Settings, float | None, float | None]]:
    """Settings that met in turns, what was predicted of each before, what was measured; fastest first."""
    rows = [(s, searched.predicted_s.get(s), searched.measured_s(s)) for s in searched.finalists]
    return sorted(rows, key=lambda row: row[2] or float("inf"))
