"""Takes secrets out of command lines before they are stored or shown.

A value is a secret if the name of its argument says so (`--api-key VALUE`, `password=VALUE`), or if it looks
like a well-known kind of token. Users add regular expressions: in HOTLOOP_REDACT, separated by blanks, or as
`redact` in the settings of their project, which set that variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotloop._util.errors import HotloopError

PLACEHOLDER = "<redacted>"
VARIABLE = "HOTLOOP_REDACT"

# Words in a name. The last word tells: `--key-size` and `--token-limit` are no secrets.
_ALWAYS = {"password", "passwd", "pwd", "passphrase", "secret", "secrets", "credential", "credentials"}
_AT_THE_END = {"token", "apikey", "auth", "bearer"}
_BEFORE_KEY = {"api", "access", "private", "secret", "auth", "service", "account", "deploy", "signing", "ssh"}
_HARMLESS = re.compile(r"[a-z_./-]{1,16}|[0-9]{1,4}")  # as in --sort-key reward
_TOKENS = re.compile(
    r"""
    \b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}            # OpenAI, Anthropic, Stripe
    | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,} | \bglpat-[\w-]{16,}
    | \bhf_[A-Za-z0-9]{20,}                         # Hugging Face
    | \bxox[a-z]-[\w-]{10,}                         # Slack
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b                 # AWS
    | \bAIza[\w-]{30,}                              # Google
    | \bnpm_[A-Za-z0-9]{30,} | \bpypi-[\w-]{30,} | \bdop_v1_[0-9a-f]{30,}
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*             # JSON web tokens
    | (?<=Bearer\s)[\w.~+/=-]{8,}
    | (?<=://)[^/\s:@]*:[^/\s@]+(?=@)               # user:password@ in a URL
    | -----BEGIN[ A-Z]*PRIVATE[ ]KEY-----.*
    """,
    re.VERBOSE | re.DOTALL,
)
_ASSIGNED = re.compile(r"(?P<name>[+-]{0,3}[A-Za-z_][\w.-]*)=(?P<value>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Redacted:
    """Words without secrets."""

    words: tuple[str, ...]
    # Of the arguments whose values were taken out; `argument 3` for one without a name.
    names: tuple[str, ...]
    values: tuple[str, ...]  # what was taken out


def redact(words: Iterable[str]) -> Redacted:
    """The words of a command line with a placeholder for each secret."""
    patterns = _patterns()
    kept: list[str] = []
    names: list[str] = []
    values: list[str] = []
    flag = ""  # the one that the next word may be the value of
    for place, word in enumerate(words):
        if flag and not re.match(r"--|-[A-Za-z]$", word):
            shown, name, found = _named(flag, word, patterns)
        else:
            shown, name, found = _one_word(word, place, patterns)
        pieces = re.split(r"(\s+)", shown)
        if len(pieces) > 1:  # a command line in a word, such as that of bash -c
            inside = redact(pieces[::2])
            spaces = [*pieces[1::2], ""]
            shown = "".join(part + space for part, space in zip(inside.words, spaces, strict=True))
            found += inside.values
        kept.append(shown)
        names += [name] * bool(found)
        values += found
        flag = word if word.startswith("-") and "=" not in word and says_secret(word, patterns) else ""
    return Redacted(tuple(kept), tuple(dict.fromkeys(names)), tuple(values))


def _named(name: str, value: str, patterns: Sequence[re.Pattern[str]]) -> tuple[str, str, list[str]]:
    """What to show of the value of an argument, the name, and what was taken out."""
    if value != PLACEHOLDER and is_secret(name, value, patterns):
        return PLACEHOLDER, name, [value]
    return value, name, []


def _one_word(word: str, place: int, patterns: Sequence[re.Pattern[str]]) -> tuple[str, str, list[str]]:
    assigned = _ASSIGNED.fullmatch(word)
    if assigned is not None:
        name, value = assigned.groups()
        shown, _, found = _named(name, value, patterns)
        if found:
            return f"{name}={shown}", name, found
    name = assigned["name"] if assigned is not None else f"argument {place}"
    mine = [pattern for pattern in patterns if not pattern.fullmatch(word)] if word[:1] == "-" else patterns
    found = [match[0] for pattern in (_TOKENS, *mine) for match in pattern.finditer(word)]
    found = [text for text in found if text and PLACEHOLDER not in text]
    return hide(word, found, least=1), name, found


def redact_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with a placeholder for each secret."""
    words = redact(f"{name}={value}" for name, value in variables.items()).words
    return {name: word.partition("=")[2] for name, word in zip(variables, words, strict=True)}


def redact_settings(settings: Any, names: list[str], where: str = "config") -> Any:
    """Settings as JSON values, with a placeholder for each secret; `names` gets their names."""
    if isinstance(settings, Mapping):
        return {key: _redact_setting(key, value, names, where) for key, value in settings.items()}
    if isinstance(settings, (list, tuple)):
        return [redact_settings(value, names, where) for value in settings]
    if isinstance(settings, str):
        found = redact([settings])
        names += [where] * bool(found.names)
        return found.words[0]
    return settings


def _redact_setting(key: Any, value: Any, names: list[str], where: str) -> Any:
    if isinstance(value, str) and _named(str(key), value, _patterns())[2]:
        names.append(f"{where}.{key}")
        return PLACEHOLDER
    return redact_settings(value, names, f"{where}.{key}")


def hide(text: str, values: Sequence[str], least: int = 4) -> str:
    """Text, such as an error message, without these values; those shorter than `least` are too common."""
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= least:
            text = text.replace(value, PLACEHOLDER)
    return text


def is_redacted(words: Iterable[str]) -> bool:
    """Whether a placeholder stands for a value, so that these words cannot be run."""
    return any(PLACEHOLDER in word for word in words)


def says_secret(name: str, patterns: Sequence[re.Pattern[str]] = ()) -> bool:
    """Whether the name of an argument or a variable says that its value may be secret."""
    parts = _parts(name)
    return _by_user(name, patterns) or (
        bool(parts) and (not _ALWAYS.isdisjoint(parts) or parts[-1] in {*_AT_THE_END, "key"})
    )


def is_secret(name: str, value: str, patterns: Sequence[re.Pattern[str]] = ()) -> bool:
    """Whether a value is secret by the name of its argument."""
    if not value or not says_secret(name, patterns):
        return False
    parts = _parts(name)
    some_key = parts[-1:] == ["key"] and len(parts) > 1 and _BEFORE_KEY.isdisjoint(parts)
    return _by_user(name, patterns) or not (some_key and _HARMLESS.fullmatch(value))


def _parts(name: str) -> list[str]:
    """The words of a name: `--wandbApiKey` -> wandb, api, key."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", " ", name).lower().split()


def _by_user(name: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    return any(pattern.fullmatch(one) for pattern in patterns for one in (name, name.lstrip("-+")))


def compile_patterns(texts: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Regular expressions of the user; raises HotloopError for an invalid one."""
    found = []
    for text in texts:
        try:
            found.append(re.compile(text))
        except re.error as error:
            raise HotloopError(
                f"The pattern {text!r} of secrets is no regular expression ({error}); fix it."
            ) from None
    return tuple(found)


def _patterns() -> tuple[re.Pattern[str], ...]:
    texts = os.environ.get(VARIABLE, "").split()
    try:
        return compile_patterns(texts)
    except HotloopError:  # a recording must not fail, and what was meant is better than nothing
        return tuple(re.compile(re.escape(text)) for text in texts)
