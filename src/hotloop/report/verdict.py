"""Verdicts, ranked variants and baseline counters as text for a terminal and markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotloop._util.units import percent
from hotloop.analysis.findings import Estimate
from hotloop.analysis.ranking import RankedRow, RankedTable
from hotloop.analysis.verdict import ComponentVerdict, Decision, Verdict, interval_words
from hotloop.analysis.work_counters import CounterChange
from hotloop.report.pen import Pen, table
from hotloop.report.safe_text import words
from hotloop.report.text import gain

BY_CPU = (
    "(CPU): decided by the CPU time of the training thread, which hardly waits; its wall time was too noisy."
)
HOLM = "All `faster` and `slower` verdicts hold together (Holm)."
_STYLE = {"faster": "bold green", "slower": "bold red", "no_difference": "bold", "undecided": "bold yellow"}


def verdict_text(
    verdict: Verdict,
    pen: Pen | None = None,
    *,
    a: str = "A",
    b: str = "B",
    cpu: Verdict | None = None,
    components: Sequence[ComponentVerdict] = (),
    notes: Sequence[str] = (),
    machine_load: str = "",
) -> str:
    """The result of a comparison: the verdict, what it is based on, the noise floor, the parts.

    `a` and `b` name the two sides. `notes` are sentences on what else differs (work counters, failed runs).
    """
    pen = pen or Pen(unicode=False)
    lines = [pen.paint(line, _STYLE[verdict.word]) for line in pen.wrap(headline(verdict, a, b)).split("\n")]
    lines.append(pen.wrap(basis(verdict), "  "))
    if cpu is not None:
        lines.append(pen.wrap(f"CPU time: {headline(cpu, 'A', 'B')}", "  "))
    lines.append(pen.wrap(noise_floor_text(verdict), "  "))
    lines += [pen.wrap(note, "  ") for note in notes if note]
    if machine_load:
        lines.append(pen.wrap(f"machine: {machine_load}", "  "))
    if components:
        lines += ["", *component_lines(components, pen)]
    return "\n".join(lines)


def headline(verdict: Verdict, a: str = "A", b: str = "B") -> str:
    """`B is faster by 4.1 % [2.0, 6.2] than A (1.04x [1.02, 1.07] the speed)`."""
    if verdict.word in ("faster", "slower"):
        times = f" ({factor(verdict.speed_up)} the speed)" if verdict.speed_up else ""
        return f"{b} is {verdict.summary} than {a}{times}"
    if verdict.word == "no_difference":
        return f"{b} and {a}: {verdict.summary} ({change_text(verdict)})"
    return f"{b} against {a}: {verdict.summary} ({change_text(verdict)})"


def change_text(verdict: Verdict) -> str:
    """`time -0.4 % [-1.3, 0.6]`, or `no interval yet`."""
    return "no interval yet" if verdict.change is None else f"time {interval_words(verdict.change)}"


def factor(speed_up: Estimate | None) -> str:
    """`1.45x [1.38, 1.52]`; `-` for unknown."""
    return gain(speed_up) or "-"


def basis(verdict: Verdict) -> str:
    """What the verdict is based on, in one sentence."""
    made = f"{verdict.pairs} {'pair' if verdict.pairs == 1 else 'pairs'}"
    if verdict.method == "signed_rank":
        return f"Based on {made}; exact 95 % interval of the change in time (signed-rank test)."
    if verdict.method == "complete_separation":
        return (
            f"Based on {made}, too few for a signed-rank interval: the interval spans the smallest to the "
            "largest ratio of any B to any A."
        )
    if verdict.method == "rank_sum":
        return (
            f"Based on at most {made}, not run in alternation; the interval (rank-sum test) is exact only if "
            "the machine did not drift."
        )
    return f"Based on {made}, too few for an interval."


def floor(fraction: float) -> str:
    """A noise floor: `3.2 %`; from twice the time on, `4x`."""
    if fraction < 1:
        return percent(fraction)
    return f"{1 + fraction:.0f}x" if fraction < 9 else "more than 10x"


def noise_floor_text(verdict: Verdict) -> str:
    """The noise floor in one sentence."""
    if verdict.noise_floor is None or verdict.noise_sd is None:
        return "Noise floor: not known yet."
    return (
        f"Noise floor: {floor(verdict.noise_floor)} is the smallest difference this many pairs would "
        f"detect 4 times out of 5 (standard deviation of a pair: {percent(verdict.noise_sd)})."
    )


def component_lines(components: Sequence[ComponentVerdict], pen: Pen) -> list[str]:
    """A table of the parts: share of A, change with its interval, verdict."""
    rows = [("part", "share of A", "time", "verdict")]
    for part in components:
        cells = (percent(part.share_of_a), _change(part.verdict), short_verdict(part.verdict))
        rows.append((part.name, *cells))
    drawn = table(pen, rows)
    return [pen.paint(drawn[0], "dim"), *drawn[1:]]


def progress_line(decision: Decision, width: int = 80) -> str:
    """One line for a comparison under way: the interval so far and when it will be judged next."""
    verdict = decision.verdict
    made = f"{verdict.pairs} {'pair' if verdict.pairs == 1 else 'pairs'}"
    line = f"{made}: {change_text(verdict)}; {decision.reason}"
    return Pen(unicode=False).clean(line, width)


def ranked_text(found: RankedTable, pen: Pen | None = None, machine_load: str = "") -> str:
    """The ranked table of an investigation."""
    pen = pen or Pen(unicode=False)
    aside = f"against {found.baseline}, {found.blocks} {'block' if found.blocks == 1 else 'blocks'}"
    lines = [pen.heading("Variants", aside), pen.wrap(found.summary, "  "), ""]
    ordered = [*found.rows, *([found.combination] if found.combination else [])]
    rows = [("variant", "time", "verdict", "work", "learning")]
    for row in ordered:
        cells = (_change(row.verdict), short_verdict(row.verdict), work_text(row), learning_text(row))
        rows.append((row.name, *cells))
    drawn = table(pen, rows)
    lines += [pen.paint(drawn[0], "dim"), *drawn[1:]]
    for row in ordered:
        lines += [pen.wrap(remark, f"  {pen.clean(row.name, 24)}: ", "    ") for remark in _remarks(row)]
    if found.noise_floor is not None:
        lines += ["", pen.wrap(f"Noise floor: {floor(found.noise_floor)} at worst. {HOLM}", "  ")]
    if likely := likely_text(row.verdict for row in ordered):
        lines.append(pen.wrap(likely, "  "))
    if any(row.verdict.decided_by == "cpu_time" for row in ordered):
        lines.append(pen.wrap(BY_CPU, "  "))
    if machine_load:
        lines.append(pen.wrap(f"machine: {machine_load}", "  "))
    return "\n".join(lines)


def work_text(row: RankedRow) -> str:
    """`same`, `differs`, or `-` when nothing was counted."""
    return "-" if row.work is None else "differs" if row.work else "same"


def learning_text(row: RankedRow) -> str:
    """The verdict of the learning check, `-` without one."""
    return "-" if row.learning is None else words(row.learning.word)


def _remarks(row: RankedRow) -> list[str]:
    said = []
    if row.expected:
        said.append(f"expected {row.expected}.")
    if row.verdict.cpu_change is not None:
        said.append(f"CPU time {_cpu_change(row.verdict)}.")
    for work in row.work or ():
        said.append(f"{words(work.counter)}: {work.a:,.6g} in the baseline, {work.b:,.6g} here.")
    if row.learning is not None and row.learning.difference is not None:
        said.append(f"returns {row.learning.summary}.")
    return [*said, *([row.note] if row.note else [])]


def _change(verdict: Verdict) -> str:
    return "-" if verdict.change is None else interval_words(verdict.change)


def _cpu_change(verdict: Verdict) -> str:
    return "-" if verdict.cpu_change is None else interval_words(verdict.cpu_change)


def short_verdict(verdict: Verdict) -> str:
    """The verdict for a table that has the figures in another column."""
    if verdict.decided_by == "cpu_time":
        return f"{words(verdict.word)} (CPU)"
    if verdict.word == "no_difference":
        return verdict.summary
    if verdict.too_noisy:
        return "too noisy to tell"
    if verdict.word == "undecided" and verdict.more_pairs is not None:
        word = f"likely {leaning(verdict)}" if leaning(verdict) else "undecided"
        return f"{word}, ~{verdict.more_pairs} more"
    return words(verdict.word)


def leaning(verdict: Verdict) -> str:
    """`faster` or `slower` for an interval that excludes 0 and still decides nothing; else ""."""
    change = verdict.change
    if verdict.word != "undecided" or change is None or change.low * change.high <= 0:
        return ""
    return "faster" if change.value < 0 else "slower"


def likely_text(verdicts: Iterable[Verdict]) -> str:
    """What "likely" in a table means; "" if no verdict is."""
    if not any(leaning(verdict) for verdict in verdicts):
        return ""
    return (
        "Likely: the interval excludes 0, but several were tried at once or it was looked at more than once, "
        "so that alone is no proof. About that many more pairs would decide."
    )


def verdict_markdown(
    verdict: Verdict,
    *,
    a: str = "A",
    b: str = "B",
    components: Sequence[ComponentVerdict] = (),
    notes: Sequence[str] = (),
    machine_load: str = "",
) -> str:
    """The comparison for a pull-request comment."""
    lines = [f"**{_cell(headline(verdict, a, b))}**", ""]
    lines += ["| | share of A | time | verdict |", "| --- | ---: | ---: | --- |"]
    lines.append(f"| whole | 100 % | {_change(verdict)} | {short_verdict(verdict)} |")
    for part in components:
        figures = (percent(part.share_of_a), _change(part.verdict), short_verdict(part.verdict))
        lines.append(f"| {' | '.join((_cell(part.name), *figures))} |")
    machine = f"machine: {machine_load}" if machine_load else ""
    said = [basis(verdict), noise_floor_text(verdict), *notes, machine]
    return "\n".join([*lines, "", *(f"- {_cell(s)}" for s in said if s)]) + "\n"


def ranked_markdown(found: RankedTable) -> str:
    """The ranked table for a pull-request comment."""
    head = "| variant | expected | time | CPU time | verdict | work | learning |"
    lines = [f"**{_cell(found.summary)}**", "", head, "| --- | --- | ---: | ---: | --- | --- | --- |"]
    for row in [*found.rows, *([found.combination] if found.combination else [])]:
        learning = "-" if row.learning is None else row.learning.summary
        changes = (_change(row.verdict), _cpu_change(row.verdict))
        cells = (row.name, row.expected or "-", *changes, short_verdict(row.verdict))
        lines.append("| " + " | ".join(_cell(cell) for cell in (*cells, work_text(row), learning)) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text that cannot break a markdown table or start markup."""
    safe = Pen(unicode=True).clean(text)
    return "".join(f"\\{c}" if c in "\\|`*_<[" else c for c in safe)


# -- work counters against a baseline ------------------------------------------------------------


def counters_headline(changes: Sequence[CounterChange], counters: int) -> str:
    """How many counters changed, in one sentence."""
    if not changes:
        return f"Work: all {counters} counters are exactly as in the baseline."
    return f"Work: {len(changes)} of {counters} counters changed."


def counters_text(
    changes: Sequence[CounterChange],
    counters: int,
    pen: Pen,
    time: Verdict | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The counters that changed, then the verdict on the time if there is one."""
    lines = [pen.paint(counters_headline(changes, counters), "bold")]
    if changes:
        rows = [("counter", "baseline", "now", "change"), *(_counter_cells(change) for change in changes)]
        drawn = table(pen, rows)
        lines += [pen.paint(drawn[0], "dim"), *drawn[1:]]
    if time is not None:
        lines += ["", pen.wrap(f"Time: {headline(time, 'the baseline', 'this')}")]
        lines.append(pen.wrap(noise_floor_text(time), "  "))
    return "\n".join([*lines, *(pen.wrap(note, "  ") for note in notes)])


def counters_markdown(
    changes: Sequence[CounterChange], counters: int, time: Verdict | None = None, notes: Sequence[str] = ()
) -> str:
    """The same for a pull-request comment."""
    lines = [f"**{counters_headline(changes, counters)}**", ""]
    if changes:
        lines += ["| counter | baseline | now | change |", "| --- | ---: | ---: | ---: |"]
        for change in changes:
            name, *figures = _counter_cells(change)
            lines.append(f"| {_cell(name)} | {' | '.join(figures)} |")
        lines.append("")
    if time is not None:
        lines += [f"**Time: {headline(time, 'the baseline', 'this')}**", "", f"- {noise_floor_text(time)}"]
    return "\n".join([*lines, *(f"- {note}" for note in notes)]) + "\n"


def _counter_cells(change: CounterChange) -> tuple[str, str, str, str]:
    by = "-" if change.change is None else f"{100 * change.change:+.2f} %"
    before, after = ("-" if v is None else f"{v:,.10g}" for v in (change.before, change.after))
    return change.name, before, after, by
