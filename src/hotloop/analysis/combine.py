"""Which suspects to try together, once each of them has its verdict."""

from __future__ import annotations

from hotloop.analysis.comparison import Comparison, VariantComparison
from hotloop.capture.plan import Variant, apply_overrides


def best_combination(found: Comparison) -> Variant | None:
    """All that are clearly faster in one variant; None for fewer than two.

    Where two change the same setting the faster one is taken. Only what is an override or a variable of
    the base command can be combined. Runs that did other work, or learned worse, are left out: they
    are faster at something else.
    """
    base = found.baseline
    faster = [row for row in found.compared if row.verdict.word == "faster" and _fits(row, base)]
    faster.sort(key=lambda row: row.verdict.change.value if row.verdict.change else 0.0)
    chosen: list[Variant] = []
    touched: set[str] = set()
    for row in faster:
        settings = _settings(row.variant, base)
        if not settings & touched:
            chosen.append(row.variant)
            touched |= settings
    if len(chosen) < 2:
        return None
    overrides = tuple(word for v in chosen for word in v.overrides)
    variables = dict(base.environment)
    for variant in chosen:
        variables |= dict(variant.environment)
    return Variant(
        name=" + ".join(v.name for v in chosen),
        command=apply_overrides(base.command, overrides),
        overrides=overrides,
        environment=tuple(variables.items()),
        expected="at most what they gain one by one, multiplied",
        safety="semantic" if any(v.safety == "semantic" for v in chosen) else "safe",
    )


def _settings(variant: Variant, base: Variant) -> set[str]:
    """What a variant changes, so that no two of a combination change the same."""
    keys = {word.partition("=")[0].strip("-").replace("_", "-") for word in variant.overrides}
    known = dict(base.environment)
    return keys | {f"${name}" for name, value in variant.environment if known.get(name) != value}


def _fits(row: VariantComparison, base: Variant) -> bool:
    variant = row.variant
    hurt = row.learning is not None and row.learning.word == "worse"
    of_base = variant.command == apply_overrides(base.command, variant.overrides)
    return of_base and variant.revision == base.revision and not row.work and not hurt
