"""Reads place/transition nets from PNML files, the interchange format of Petri-net tools.

Supports places, transitions, arcs (inhibitor and reset arcs, too), initial markings, weights, capacities,
references between pages and one final marking. Names, graphics and tool-specific parts are ignored. Anything
else is an error, because it might change the net's behaviour: other types of nets, elements, attributes and
text, and whatever is given twice.

The P/T grammar has no inhibitor and reset arcs. Tools write them as `<arc type="inhibitor">`,
`<type value="inhibitor"/>` or `<arctype><text>inhibitor</text></arctype>` in the arc; all three are read.
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
_REPEATABLE = _PARTS | {"net", "marking"}
_HIGH_LEVEL = ("symmetricnet", "highlevelnet", "pt-hlpng", "hlnet")
# The last parts of the known types of P/T nets; a net without a type is taken for one.
_NET_TYPES = {
    "", "ptnet", "ptnetb", "t net", "pnmlcoremodel", "pnml", "epnml-1.1", "inhibitorptnet", "resetptnet",
    "resetinhibitorptnet",
}  # fmt: skip
_HARMLESS = {"id", "name", "lang", "space", "schemaLocation"}
_ATTRIBUTES = {
    "net": {"type", "active"},
    "page": set(),
    "place": set(),
    "transition": set(),
    "arc": {"source", "target", "type"},
    "referencePlace": {"ref"},
    "referenceTransition": {"ref"},
    "type": {"value"},
    "arctype": {"value"},
}
_ARC_TYPES = ("normal", "inhibitor", "reset")
_Weights = dict[str, dict[str, int]]  # of arcs, by transition and place
_Arcs = tuple[_Weights, _Weights, _Weights, _Weights]  # takes, puts, inhibitors, resets


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
        last = kind.lower().removesuffix(".pntd").removesuffix(".rng").strip("/ ").rpartition("/")[2]
        if last not in _NET_TYPES:
            raise self._wrong(f"is a net of the unknown type {kind!r}", "place/transition nets")
        self._check_content(root, {"net"})
        self._check_content(net, _PARTS | {"finalmarkings"})
        parts = list(self._parts(net))
        self._check_ids(parts)
        of_kind = {tag: [part for part in parts if part.tag == tag] for tag in _PARTS}
        self.places = {part.attrib["id"]: part for part in of_kind["place"]}
        self.transitions = {part.attrib["id"]: part for part in of_kind["transition"]}
        self.references = {
            part.attrib["id"]: part.get("ref", "")
            for part in of_kind["referencePlace"] + of_kind["referenceTransition"]
        }
        for part in of_kind["referencePlace"] + of_kind["referenceTransition"]:
            self._check_content(part, set())
            self._check_reference(part)
        arcs = self._arcs(of_kind["arc"])
        goals = self._goals(net)
        return Net(
            net.get("id") or "net",
            tuple(self._place(name, part, goals.get(name, 0)) for name, part in self.places.items()),
            tuple(self._transition(name, part, arcs) for name, part in self.transitions.items()),
        )

    def _parts(self, net: Element) -> Iterator[Element]:
        """Yield all elements on pages and nested pages, in file order."""
        waiting = list(reversed(net))
        while waiting:
            part = waiting.pop()
            if part.tag == "page":
                self._check_content(part, _PARTS)
                waiting += reversed(part)
            elif part.tag in _PARTS:
                yield part

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
        self._check_content(part, {"initialMarking", "capacity"})
        capacity = self._number(part, "capacity", 0, name)
        tokens = self._number(part, "initialMarking", 0, name)
        return Place(name, tokens=tokens or 0, capacity=capacity or None, goal=goal)

    def _transition(self, name: str, part: Element, arcs: _Arcs) -> Transition:
        self._check_content(part, set())
        takes, puts, inhibitors, resets = (weights.get(name, {}) for weights in arcs)
        return Transition(name, takes, puts, inhibited_by=inhibitors, resets=resets)

    def _arcs(self, arcs: list[Element]) -> _Arcs:
        takes: _Weights = {}
        puts: _Weights = {}
        inhibitors: _Weights = {}
        resets: _Weights = {}
        for arc in arcs:
            name = arc.attrib["id"]
            self._check_content(arc, {"inscription", "type", "arctype"})
            kind = self._arc_type(arc)
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
            if kind == "inhibitor":
                if side is puts:
                    raise self._wrong(
                        f"has inhibitor arc {name!r} to place {place!r}", "those to transitions"
                    )
                weights = inhibitors.setdefault(transition, {})
                weights[place] = min(weight, weights.get(place, weight))
            elif kind == "reset":
                if weight != 1:
                    raise self._wrong(
                        f"has reset arc {name!r} with weight {weight}", "reset arcs without one"
                    )
                resets.setdefault(transition, {})[place] = 1
            else:
                weights = side.setdefault(transition, {})
                weights[place] = weights.get(place, 0) + weight
        return takes, puts, inhibitors, resets

    def _arc_type(self, arc: Element) -> str:
        """Return the type from the attribute or a label; `normal` if there is none."""
        kinds = [arc.attrib["type"]] if "type" in arc.attrib else []
        for label in [child for child in arc if child.tag in ("type", "arctype")]:
            self._check_content(label, {"text", "value"})
            given = [label.attrib["value"]] if "value" in label.attrib else []
            given += [_text(label) or ""] if len(label) or not given else []
            kinds += given
        if len(set(kinds)) > 1:
            raise self._wrong(f"has arc {arc.get('id')!r} of types {' and '.join(kinds)}", "one type per arc")
        for kind in kinds:
            if kind not in _ARC_TYPES:
                raise self._wrong(
                    f"has arc {arc.get('id')!r} of type {kind!r}", ", ".join(_ARC_TYPES) + " arcs"
                )
        return kinds[0] if kinds else "normal"

    def _end(self, arc: Element, side: str) -> str:
        """Return the node at one end of an arc, following references."""
        return self._node(arc.get(side, ""))

    def _node(self, first: str) -> str:
        """Return the node that a name stands for, following references."""
        name = first
        for _ in range(len(self.references) + 1):
            if name not in self.references:
                return name
            name = self.references[name]
        raise self._wrong(f"has references that lead in a circle from {first!r}", "references to nodes")

    def _check_reference(self, part: Element) -> None:
        """Raise HotloopError unless it leads to a node of its kind."""
        name = part.attrib["id"]
        node, nodes = self._node(name), self.places if part.tag == "referencePlace" else self.transitions
        if node not in nodes:
            raise self._wrong(
                f"has <{part.tag}> {name!r} to {node!r}",
                "references of places to places and of transitions to transitions, all of which exist",
            )

    def _goals(self, net: Element) -> dict[str, int]:
        """Return the tokens in the final marking, by place."""
        finals = [final for final in net if final.tag == "finalmarkings"]
        markings = []
        for final in finals:
            self._check_content(final, {"marking"})
            markings += [marking for marking in final if marking.tag == "marking"]
        if len(markings) > 1:
            raise self._wrong(f"has {len(markings)} final markings", "at most one")
        goals: dict[str, int] = {}
        for marking in markings:
            self._check_content(marking, {"place"})
        for entry in [entry for marking in markings for entry in marking if entry.tag == "place"]:
            name = entry.get("idref", "")
            self._check_content(entry, {"text", "value"}, {"idref"})
            if name in goals:
                raise self._wrong(f"has two final markings of {name!r}", "one per place")
            if name not in self.places:
                raise self._wrong(f"has a final marking of {name!r}", "final markings of places that exist")
            goals[name] = self._whole(_text(entry), 0, f"final marking of {name!r}")
        return goals

    def _check_content(self, part: Element, allowed: set[str], attributes: set[str] | None = None) -> None:
        """Raise HotloopError for elements, attributes or text that might mean something, or come twice."""
        where = f"{part.tag} {part.get('id')!r}" if "id" in part.attrib else f"<{part.tag}>"
        known = _ATTRIBUTES.get(part.tag, set()) if attributes is None else attributes
        for name, value in part.attrib.items():
            if name not in known | _HARMLESS:
                raise self._wrong(f"has the attribute {name}={value!r} in {where}", "labels of P/T nets")
        once: set[str] = set()
        for child in part:
            if child.tag not in _LABELS | allowed:
                raise self._wrong(
                    f"holds <{child.tag}> in {where}", "places, transitions and arcs of P/T nets"
                )
            if child.tag in once:
                raise self._wrong(f"has two <{child.tag}> in {where}", "one of them")
            if child.tag in allowed and child.tag not in _REPEATABLE:
                once.add(child.tag)
        for text in (part.text, *(child.tail for child in part)):
            if text and text.strip():
                raise self._wrong(f"has the text {text.strip()[:40]!r} in {where}", "text in <text> only")

    def _number(self, part: Element, label: str, least: int, name: str) -> int | None:
        found = part.find(label)
        if found is None:
            return None
        self._check_content(found, {"text", "value"})
        return self._whole(_text(found), least, f"{label} of {name!r}")

    def _whole(self, text: str | None, least: int, what: str) -> int:
        if text is not None and text.isascii() and text.removeprefix("-").isdigit() and len(text) < 12:
            value = int(text)
            if least <= value <= LARGEST:
                return value
        if text is None:
            raise self._wrong(f"has the {what} not in one plain <text>", "one <text> with a number")
        raise self._wrong(f"has {what} {text!r}", f"a whole number from {least} to {LARGEST:,}")

    def _wrong(self, what: str, allowed: str) -> HotloopError:
        return HotloopError(f"{self.source} {what}; supported: {allowed}.")


def _text(label: Element) -> str | None:
    """Return the content of <text> (or <value>) under a label; None if it has both or anything inside."""
    found = [child for child in label if child.tag in ("text", "value")]
    if len(found) != 1 or len(found[0]) or found[0].attrib:
        return None
    return (found[0].text or "").strip()


def _tree(data: bytes | str, source: str) -> Element:
    """Parse to elements; only what is foreign keeps its namespace, so that nothing takes it for PNML's.

    Document types are refused, so entities are never expanded.
    """

    def refuse(*_: Any) -> None:
        raise HotloopError(
            f"{source} has a document type declaration, which could hide any amount of text; "
            "remove the <!DOCTYPE ...> first."
        )

    def start(tag: str, attributes: dict[str, str]) -> None:
        tags.append(local(tag))
        mine = {own(key): value for key, value in attributes.items()}
        builder.start(tags[-1], {key: value for key, value in mine.items() if key})

    def local(tag: str) -> str:
        """Return the name without its namespace, unless that is foreign and the element might be read."""
        namespace, _, name = tag.rpartition(" ")
        if not tags:
            known.add(namespace)  # the root's, whatever it is
        return name if namespace in known or "pnml" in namespace.lower() or name in _LABELS else tag

    def own(attribute: str) -> str:
        """Return the name without its namespace; if that is foreign, "" for harmless ones, or all of it."""
        namespace, _, name = attribute.rpartition(" ")
        if namespace in known or "pnml" in namespace.lower():
            return name
        return "" if name in _HARMLESS else attribute

    known = {""}
    tags: list[str] = []  # of the elements that are open
    builder = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: builder.end(tags.pop())
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise HotloopError(f"{source} is not well-formed XML: {error}; pass a PNML file.") from None
    return builder.close()
