"""Nets and PNML files: what is read, and what is refused with one clear sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.cluster_tool import cluster_tool
from hotloop.rl.envs.petri.counting import count_states
from hotloop.rl.envs.petri.net import Net, Place, Transition
from hotloop.rl.envs.petri.pnml import parse_pnml, read_pnml

PTNET = "http://www.pnml.org/version-2009/grammar/ptnet"


def pnml(
    body: str, *, kind: str = PTNET, head: str = "", space: str = ' xmlns="http://www.pnml.org/a"'
) -> str:
    return f'<?xml version="1.0"?>{head}<pnml{space}><net id="n" type="{kind}">{body}</net></pnml>'


def node(tag: str, name: str, inner: str = "") -> str:
    return f'<{tag} id="{name}"><name><text>shown</text></name>{inner}</{tag}>'


def arc(name: str, source: str, target: str, inner: str = "", more: str = "") -> str:
    return f'<arc id="{name}" source="{source}" target="{target}"{more}>{inner}</arc>'


def number(label: str, value: object) -> str:
    return f'<{label}><graphics><offset x="0" y="0"/></graphics><text> {value} </text></{label}>'


SMALL = (
    node("place", "a", number("initialMarking", 3))
    + node("place", "b")
    + node("transition", "t")
    + arc("a1", "a", "t", number("inscription", 2))
    + arc("a2", "t", "b")
)


def test_a_net_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "small.pnml"
    path.write_text(pnml(f'<name><text>N</text></name><page id="g">{SMALL}</page>'))
    net = read_pnml(path)
    assert (net.name, net.place_names, net.transition_names) == ("n", ("a", "b"), ("t",))
    assert net.initial == (3, 0)
    pre, post = net.matrices()
    assert pre.tolist() == [[2], [0]]
    assert post.tolist() == [[0], [1]]
    assert count_states(net).markings == 2


def test_parts_for_people_or_tools_are_ignored() -> None:
    units = '<toolspecific tool="nupn" version="1.1"><structure><place id="a"/></structure></toolspecific>'
    drawn = '<graphics><position x="1" y="2"/></graphics>'
    body = f'<page id="g"><page id="h">{SMALL}{units}</page>{drawn}</page>{units}'
    assert parse_pnml(pnml(body)) == parse_pnml(pnml(SMALL)) == parse_pnml(pnml(SMALL, space=""))


def test_whose_an_element_is_does_not_matter_where_it_is_ignored() -> None:
    drawn = '<toolspecific xmlns="urn:e" tool="e" version="1"><place id="a"/></toolspecific>'
    other = SMALL.replace("<graphics>", '<graphics xmlns:s="urn:s"><s:shape/>')
    assert parse_pnml(pnml(other + drawn)) == parse_pnml(pnml(SMALL))
    inside = f'<pnml><net xmlns="http://www.pnml.org/a" id="n" type="{PTNET}">{SMALL}</net></pnml>'
    assert (
        parse_pnml(inside)
        == parse_pnml(inside.replace("http://www.pnml.org/a", ""))
        == parse_pnml(pnml(SMALL))
    )


def test_an_id_of_somebody_else_is_not_the_id() -> None:
    for name in ("e:id", "xml:id"):
        other = SMALL.replace('<place id="a"', f'<place id="a" {name}="b"')
        assert other != SMALL
        assert parse_pnml(pnml(other).replace("<pnml", '<pnml xmlns:e="urn:e"')) == parse_pnml(pnml(SMALL))


def test_final_markings_hold_references_not_places() -> None:
    final = '<finalmarkings><marking><place idref="b"><text>1</text></place></marking></finalmarkings>'
    net = parse_pnml(pnml(SMALL + final))
    assert net.place_names == ("a", "b")
    assert [place.goal for place in net.places] == [0, 1]


def test_arcs_between_the_same_two_add_up_and_references_are_followed() -> None:
    body = SMALL + '<page id="g2"><referencePlace id="r" ref="q"/><referencePlace id="q" ref="b"/></page>'
    net = parse_pnml(pnml(body + arc("a3", "t", "r", number("inscription", 4))))
    assert net.matrices()[1].tolist() == [[0], [5]]


@pytest.mark.parametrize("kind", ["inhibitor", "reset"])
@pytest.mark.parametrize("form", [' type="{}"', '<type value="{}"/>', "<arctype><text>{}</text></arctype>"])
def test_inhibitor_and_reset_arcs_are_read_in_all_forms(kind: str, form: str) -> None:
    more, inner = (form.format(kind), "") if form.startswith(" ") else ("", form.format(kind))
    if kind == "inhibitor":
        inner += number("inscription", 3)
    transition = parse_pnml(pnml(SMALL + arc("x", "b", "t", inner, more))).transitions[0]
    expected = ((("b", 3),), ()) if kind == "inhibitor" else ((), ("b",))
    assert (transition.inhibited_by, transition.resets) == expected
    assert (transition.takes, transition.puts) == ((("a", 2),), (("b", 1),))


def test_of_two_inhibitor_arcs_the_smaller_weight_counts() -> None:
    arcs = arc("x", "b", "t", number("inscription", 3), ' type="inhibitor"')
    arcs += arc("y", "b", "t", number("inscription", 2), ' type="inhibitor"')
    assert parse_pnml(pnml(SMALL + arcs)).inhibitors == (((1, 2),),)


@pytest.mark.parametrize(
    "kind",
    [
        "http://www.pnml.org/version-2009/grammar/ptnet",
        "http://www.pnml.org/version-2009/grammar/pnmlcoremodel",
        "http://www.pnml.org/version-2009/extensions/resetinhibitorptnet.pntd",
        "http://www.informatik.hu-berlin.de/top/pntd/ptNetb",
        "P/T net",
        "",
    ],
)
def test_known_types_of_nets_are_read(kind: str) -> None:
    assert parse_pnml(pnml(SMALL, kind=kind)).initial == (3, 0)


def test_capacities_are_read_and_zero_means_none() -> None:
    body = SMALL.replace("</place>", number("capacity", 5) + "</place>", 1)
    body = body.replace('<place id="b">', '<place id="b"><capacity><value>0</value></capacity>')
    assert [place.capacity for place in parse_pnml(pnml(body)).places] == [5, None]


BAD = {
    "not XML": ("<pnml><net>", "not well-formed XML"),
    "empty": ("", "not well-formed XML"),
    "another root": ("<html/>", r"root <html> with 0 nets"),
    "two nets": ("<pnml><net id='a'/><net id='b'/></pnml>", "with 2 nets"),
    "nothing in it": (pnml(""), "0 places and 0 transitions"),
    "no place id": (pnml(SMALL + "<place/>"), "a <place> without an id"),
    "no arc id": (pnml(SMALL + '<arc source="a" target="t"/>'), "<arc> without an id"),
    "an id twice": (pnml(SMALL + node("place", "a")), "the id 'a' twice"),
    "negative weight": (
        pnml(SMALL + arc("x", "a", "t", number("inscription", -2))),
        "inscription of 'x' '-2'",
    ),
    "weight 0": (pnml(SMALL + arc("x", "a", "t", number("inscription", 0))), "inscription of 'x' '0'"),
    "weight in words": (pnml(SMALL + arc("x", "a", "t", number("inscription", "two"))), "'two'"),
    "huge weight": (pnml(SMALL + arc("x", "a", "t", number("inscription", "9" * 30))), "9999"),
    "negative tokens": (pnml(node("place", "p", number("initialMarking", -1))), "initialMarking of 'p' '-1'"),
    "no number": (
        pnml(node("place", "p", "<initialMarking/>")),
        "the initialMarking of 'p' not in one plain <text>",
    ),
    "unknown arc": (pnml(SMALL + arc("x", "a", "t", more=' type="transport"')), "of type 'transport'"),
    "unknown label": (pnml(SMALL + arc("x", "a", "t", '<type value="read"/>')), "of type 'read'"),
    "unknown text": (pnml(SMALL + arc("x", "a", "t", number("arctype", "test"))), "of type 'test'"),
    "two arc types": (
        pnml(SMALL + arc("x", "a", "t", '<type value="reset"/>', ' type="normal"')),
        "arc 'x' of types normal and reset",
    ),
    "inhibitor to a place": (
        pnml(SMALL + arc("x", "t", "b", more=' type="inhibitor"')),
        "inhibitor arc 'x' to place 'b'",
    ),
    "two types in one label": (
        pnml(SMALL + arc("x", "a", "t", '<type value="inhibitor"><text>reset</text></type>')),
        "arc 'x' of types inhibitor and reset",
    ),
    "a marking of somebody else": (
        pnml(node("place", "p", '<e:initialMarking xmlns:e="urn:e"><text>3</text></e:initialMarking>')),
        "holds <urn:e initialMarking> in place 'p'",
    ),
    "a place of somebody else": (pnml(SMALL + '<place xmlns="urn:e" id="p"/>'), "holds <urn:e place>"),
    "a reference to nothing": (
        pnml(SMALL + '<referencePlace id="r" ref="q"/>'),
        "<referencePlace> 'r' to 'q'",
    ),
    "a reference to another kind": (
        pnml(SMALL + '<referenceTransition id="r" ref="a"/>'),
        "<referenceTransition> 'r' to 'a'",
    ),
    "a circle without arcs": (
        pnml(SMALL + '<referencePlace id="r" ref="r"/>'),
        "references that lead in a circle from 'r'",
    ),
    "reset with a weight": (
        pnml(SMALL + arc("x", "a", "t", number("inscription", 2), ' type="reset"')),
        "reset arc 'x' with weight 2",
    ),
    "marking as attribute": (
        pnml(SMALL + '<place id="p" initialMarking="5"/>'),
        "the attribute initialMarking='5' in place 'p'",
    ),
    "weight as attribute": (
        pnml(SMALL + arc("x", "a", "t", more=' weight="3"')),
        "the attribute weight='3' in arc 'x'",
    ),
    "attributes of somebody else": (
        pnml(SMALL + arc("x", "a", "t", more=' xmlns:e="urn:e" e:type="inhibitor"')),
        "the attribute urn:e type='inhibitor' in arc 'x'",
    ),
    "marking twice": (
        pnml(node("place", "p", 2 * number("initialMarking", 1))),
        "two <initialMarking> in place 'p'",
    ),
    "text twice": (
        pnml(node("place", "p", "<capacity><text>1</text><text>2</text></capacity>")),
        "two <text> in <capacity>",
    ),
    "text and value": (
        pnml(node("place", "p", "<capacity><text>1</text><value>2</value></capacity>")),
        "the capacity of 'p' not in one plain",
    ),
    "more in a text": (
        pnml(node("place", "p", "<capacity><text>1<b/>2</text></capacity>")),
        "the capacity of 'p' not in one plain",
    ),
    "loose text": (pnml(SMALL + "<place id='p'>5</place>"), "the text '5' in place 'p'"),
    "loose text in a label": (
        pnml(node("place", "p", "<initialMarking>5<text>1</text></initialMarking>")),
        "the text '5' in <initialMarking>",
    ),
    "loose text in the net": (pnml("7" + SMALL), "the text '7' in net 'n'"),
    "unknown type": (pnml(SMALL, kind="http://x/tpn"), "net of the unknown type 'http://x/tpn'"),
    "almost a type": (pnml(SMALL, kind="colouredptnet"), "net of the unknown type 'colouredptnet'"),
    "beside the net": (pnml(SMALL).replace("</pnml>", "<queries/></pnml>"), "holds <queries> in <pnml>"),
    "final twice": (
        pnml(
            SMALL
            + "<finalmarkings><marking>"
            + 2 * '<place idref="b"><text>1</text></place>'
            + "</marking></finalmarkings>"
        ),
        "two final markings of 'b'",
    ),
    "colours": (pnml(node("place", "p", "<hlinitialMarking/>")), "<hlinitialMarking> in place 'p'"),
    "guard": (pnml(node("transition", "u", "<condition/>")), "<condition> in transition 'u'"),
    "high-level": (pnml(SMALL, kind="http://x/symmetricnet"), "is a high-level net"),
    "unknown part": (pnml(SMALL + "<monitor/>"), "holds <monitor>"),
    "arc to nowhere": (pnml(SMALL + arc("x", "a", "z")), "arc 'x' from 'a' to 'z'"),
    "place to place": (pnml(SMALL + arc("x", "a", "b")), "arc 'x' from 'a' to 'b'"),
    "circle": (
        pnml(SMALL + '<referencePlace id="r" ref="r"/>' + arc("x", "r", "t")),
        "lead in a circle from 'r'",
    ),
    "final of nothing": (
        pnml(
            SMALL
            + '<finalmarkings><marking><place idref="z"><text>1</text></place></marking></finalmarkings>'
        ),
        "final marking of 'z'",
    ),
    "two finals": (pnml(SMALL + "<finalmarkings><marking/><marking/></finalmarkings>"), "2 final markings"),
}


@pytest.mark.parametrize("text_and_word", BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_one_clear_error(text_and_word: tuple[str, str]) -> None:
    text, word = text_and_word
    with pytest.raises(HotloopError, match=word) as caught:
        parse_pnml(text, source="bad.pnml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_are_never_expanded(encoding: str) -> None:
    bomb = '<!DOCTYPE pnml [<!ENTITY a "x"><!ENTITY b "&a;&a;&a;&a;">]>'
    text = pnml(node("place", "p", "<name><text>&b;</text></name>"), head=bomb)
    with pytest.raises(HotloopError, match="document type declaration"):
        parse_pnml(text.replace('"1.0"', f'"1.0" encoding="{encoding}"').encode(encoding))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(HotloopError, match=r"nowhere\.pnml cannot be read"):
        read_pnml("nowhere.pnml")


P, T = Place("p"), Transition("t", ["p"], ["p"])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Place("p", tokens=-1), "tokens of place 'p' is -1"),
        (lambda: Place("p", tokens=True), "tokens of place 'p' is True"),
        (lambda: Place("p", capacity=0), "capacity of place 'p' is 0"),
        (lambda: Place("p", tokens=3, capacity=2), "starts with 3 tokens"),
        (lambda: Place("p", goal=3, capacity=2), "goal 3"),
        (lambda: Place("p", holding_s=1.5), "holding_s of place 'p' is 1.5"),  # type: ignore[arg-type]
        (lambda: Place("p", residence_s=-1), "residence_s of place 'p' is -1"),
        (lambda: Place("p", kind="oven"), "kind 'oven'"),  # type: ignore[arg-type]
        (lambda: Transition("t", {"p": 0}, []), "weight of the arc between 'p' and 't' is 0"),
        (lambda: Transition("t", ["p", "p"], []), "names one place twice in what it takes"),
        (lambda: Transition("t", [], [], firing_s=-5), "firing_s of transition 't' is -5"),
        (
            lambda: Transition("t", [], [], inhibited_by={"p": 0}),
            "weight of the arc between 'p' and 't' is 0",
        ),
        (lambda: Transition("t", [], [], resets=["p", "p"]), "one place twice in what it resets"),
        (lambda: Net("n", (P,), (Transition("t", [], [], resets=["q"]),)), "an arc to 'q'"),
        (lambda: Net("n", (P,), (Transition("t", [], [], inhibited_by=["q"]),)), "an arc to 'q'"),
        (lambda: Net("n", (), (T,)), "0 places and 1 transitions"),
        (lambda: Net("n", (P, P), (T,)), "two places named 'p'"),
        (lambda: Net("n", (P,), (T, T)), "two transitions named 't'"),
        (lambda: Net("n", (P,), (Transition("t", ["q"], []),)), "an arc to 'q', which is not a place"),
        (lambda: Net("n", (P,), (T,), wait_s=0), "wait_s of net 'n' is 0"),
        (lambda: cluster_tool(0), "wafers=0 is out of range"),
    ],
)
def test_a_bad_net_is_one_clear_error(make: object, word: str) -> None:
    with pytest.raises(HotloopError, match=word):
        make()


def test_the_cluster_tool_is_the_one_described() -> None:
    net = cluster_tool(4)
    chambers = {p.name: (p.capacity, p.holding_s, p.residence_s) for p in net.places if p.name[0] == "s"}
    assert chambers == {
        "s1": (2, 70, 15),
        "s2": (1, 0, None),
        "s3": (2, 300, 15),
        "s4": (1, 70, 15),
        "s5": (2, 70, 15),
    }
    assert (len(net.places), len(net.transitions), net.wait_s) == (15, 12, 5)
    assert {transition.firing_s for transition in net.transitions} == {5}
    pre, post = net.matrices()
    wafers = np.array([place.is_tracked for place in net.places])
    assert (pre[wafers].sum(axis=0) == 1).all()
    assert (post[wafers].sum(axis=0) == 1).all()
    assert net.initial[net.place_index["LP"]] == 4
