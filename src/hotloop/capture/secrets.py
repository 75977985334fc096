"""What a capture says about its command, without the secrets in it."""

from __future__ import annotations

from typing import Any

from hotloop._util.redact import redact, redact_settings

REDACTED = "redacted"  # key of capture.json: names of the arguments and settings without their values


def facts_without_secrets(facts: dict[str, Any]) -> dict[str, Any]:
    """The content of a capture.json whose command and config hold no secrets; `redacted` names them."""
    command = redact(facts.get("command", ()))
    names = [*facts.get(REDACTED, ()), *command.names]
    config = redact_settings(facts.get("config", {}), names)
    if not names:
        return facts
    return facts | {"command": list(command.words), "config": config, REDACTED: list(dict.fromkeys(names))}


def describe(names: list[str]) -> str:
    """A sentence that says whose values are missing."""
    return f"values are not stored because they look like secrets: {', '.join(names)}"
