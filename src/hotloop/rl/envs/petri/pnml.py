"""Reads place/transition nets from PNML files, the interchange format of Petri-net tools.

Supports places, transitions, arcs, initial markings, weights, capacities, references between pages and one
final marking. Labels, graphics and tool-specific parts are ignored. Anything else that would change the
net's behaviour (inhibitor arcs, colours, times) is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from hotloop._util.errors import HotloopError
from hotloop._util.read_files import Reader as FileReader
from hotloop.rl.envs.petri.net import LARGEST, Net, Place, Transition

_FILE = FileReader(64 << 20, remedy="pass a PNML file")
_LABELS = {"name", "graphics", "toolspecific"}
_PARTS = {"page", "place", "transition", "arc", "referencePlace", "referenceTransition"}
_HIGH_LEVEL = ("symmetricnet", "highlevelnet", "pt-hlpng", "hlnet")


def read_pnml(path: str | os.PathLike[str]) -> Net:
    """Read an untimed net from a PNML file; places and transitions are named by their ids."""
    return parse_pnml(_FILE.read_bytes(Path(path)), source=os.fspath(path))


def parse_pnml(data: bytes | str, *, source: str = "this PNML") -> Net:
    """Read a net from the text of a PNML file; error messages call it `source`."""
    return _Reader(source).read(_tree(data, source))


class _Reader:
    def __init__(self, source: str):
        self.source = source

    def read(self, root: Element) -> Net:
        nets = [child for child in root if child.tag == "net"]
        if root.tag != "pnml" or len(nets) != 1:
            raise self._wrong(f"has root <{root.tag}> with {len(nets)} nets", "one <net> in a <pnml>")
        net = nets[0]
        kind = net.get("type", "")
        if any(word in kind.lower() for word in _HIGH_LEVEL):
            raise self._wrong(f"is a high-level net ({kind})", "place/transition nets")
        parts = list(self._parts(net))
        self._check_ids(parts)
        of_kind = {tag: [part for part in parts if part.tag == tag] for tag in _PARTS}
        self.places = {part.attrib["id"]: part for part in of_kind["place"]}
        self.transitions = {part.attrib["id"]: part for part in of_kind["transition"]}
        self.references = {
            part.attrib["id"]: part.get("ref", "")
            for part in of_kind["referencePlace"] + of_kind["referenceTransition"]
        }
        takes, puts = self._arcs(of_kind["arc"])
        goals = self._goals(net)
        return Net(
            net.get("id") or "net",
            tuple(self._place(name, part, goals.get(name, 0)) for name, part in self.places.items()),
            tuple(self._transition(name, part, takes, puts) for name, part in self.transitions.items()),
        )

    def _parts(self, net: Element) -> Iterator[Element]:
        """Yield all elements on pages and nested pages, in file order."""
        waiting = list(reversed(net))
        while waiting:
            part = waiting.pop()
            if part.tag == "page":
                waiting += reversed(part)
            elif part.tag in _PARTS:
                yield part
            elif part.tag not in _LABELS and part.tag != "finalmarkings":
                raise self._wrong(f"holds <{part.tag}>", "places, transitions and arcs of P/T nets")

    def _check_ids(self, parts: list[Element]) -> None:
        seen = set()
        for part in parts:
            name = part.get("id")
            if not name:
                raise self._wrong(f"has a <{part.tag}> without an id", "an id for every node and arc")
            if name in seen:
                raise self._wrong(f"uses the id {name!r} twice", "ids that differ")
            seen.add(name)

    def _place(self, name: str, part: Element, goal: int) -> Place:
        self._check_children(part, {"initialMarking", "capacity"})
        capacity = self._number(part, "capacity", 0, name)
        tokens = self._number(part, "initialMarking", 0, name)
        return Place(name, tokens=tokens or 0, capacity=capacity or None, goal=goal)

    def _transition(self, name: str, part: Element, takes: _Weights, puts: _Weights) -> Transition:
        self._check_children(part, set())
        return Transition(name, takes.get(name, {}), puts.get(name, {}))

    def _arcs(self, arcs: list[Element]) -> tuple[_Weights, _Weights]:
        takes: _Weights = {}
        puts: _Weights = {}
        for arc in arcs:
            name = arc.attrib["id"]
            self._check_children(arc, {"inscription", "type", "arctype"})
            self._check_normal(arc)
            inscription = self._number(arc, "inscription", 1, name)
            weight = 1 if inscription is None else inscription
            source, target = self._end(arc, "source"), self._end(arc, "target")
            if source in self.places and target in self.transitions:
                place, transition, side = source, target, takes
            elif source in self.transitions and target in self.places:
                place, transition, side = target, source, puts
            else:
                raise self._wrong(
                    f"has arc {name!r} from {source!r} to {target!r}",
                    "arcs between a place and a transition that exist",
                )
            weights = side.setdefault(transition, {})
            weights[place] = weights.get(place, 0) + weight
        return takes, puts

    def _check_normal(self, arc: Element) -> None:
        kinds = [arc.get("type")]
        for label in [child for child in arc if child.tag in ("type", "arctype")]:
            kinds.append(label.get("value") or _text(label) or "")
        for kind in kinds:
            if kind not in (None, "normal"):
                raise self._wrong(f"has arc {arc.get('id')!r} of type {kind!r}", "normal arcs")

    def _end(self, arc: Element, side: str) -> str:
        """Return the node at one end of an arc, following references."""
        name = arc.get(side, "")
        for _ in range(len(self.references) + 1):
            if name not in self.references:
                return name
            name = self.references[name]
        raise self._wrong(
            f"has references that lead in a circle from {arc.get(side)!r}", "references to nodes"
        )

    def _goals(self, net: Element) -> dict[str, int]:
        """Return the tokens in the final marking, by place."""
        markings = [
            marking for final in net.iter("finalmarkings") for marking in final if marking.tag == "marking"
        ]
        if len(markings) > 1:
            raise self._wrong(f"has {len(markings)} final markings", "at most one")
        goals = {}
        for entry in [entry for marking in markings for entry in marking if entry.tag == "place"]:
            name = entry.get("idref", "")
            if name not in self.places:
                raise self._wrong(f"has a final marking of {name!r}", "final markings of places that exist")
            goals[name] = self._whole(_text(entry), 0, f"final marking of {name!r}")
        return goals

    def _check_children(self, part: Element, allowed: set[str]) -> None:
        for child in part:
            if child.tag not in _LABELS | allowed:
                raise self._wrong(f"holds <{child.tag}> in {part.tag} {part.get('id')!r}", "plain P/T nets")

    def _number(self, part: Element, label: str, least: int, name: str) -> int | None:
        found = part.find(label)
        return None if found is None else self._whole(_text(found), least, f"{label} of {name!r}")

    def _whole(self, text: str | None, least: int, what: str) -> int:
        if text is not None and text.isascii() and text.removeprefix("-").isdigit() and len(text) < 12:
            value = int(text)
            if least <= value <= LARGEST:
                return value
        raise self._wrong(f"has {what} {text!r}", f"a whole number from {least} to {LARGEST:,}")

    def _wrong(self, what: str, allowed: str) -> HotloopError:
        return HotloopError(f"{self.source} {what}; supported: {allowed}.")


_Weights = dict[str, dict[str, int]]


def _text(label: Element) -> str | None:
    """Return the content of <text> (or <value>) under a label."""
    for tag in ("text", "value"):
        found = label.find(tag)
        if found is not None:
            return (found.text or "").strip()
    return None


def _tree(data: bytes | str, source: str) -> Element:
    """Parse to elements without namespaces. Document types are refused, so entities are never expanded."""

    def refuse(*_: Any) -> None:
        raise HotloopError(
            f"{source} has a document type declaration, which could hide any amount of text; "
            "remove the <!DOCTYPE ...> first."
        )

    def start(tag: str, attributes: dict[str, str]) -> None:
        builder.start(tag.rpartition(" ")[2], {key.rpartition(" ")[2]: v for key, v in attributes.items()})

    builder = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda tag: builder.end(tag.rpartition(" ")[2])
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise HotloopError(f"{source} is not well-formed XML: {error}; pass a PNML file.") from None
    return builder.close()
