"""`hotloop completion`: what a shell needs to complete verbs, options and files."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

TAKES_VERBS = True


@dataclass(frozen=True)
class Arguments:
    """Print the completion for a shell.

    hotloop completion bash >> ~/.bashrc
    hotloop completion zsh >> ~/.zshrc
    hotloop completion fish > ~/.config/fish/completions/hotloop.fish
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """The shell."""
    verbs: tyro.conf.Suppress[Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    """Module of each verb, and what it does."""


BASH = """\
_hotloop() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" options=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{verbs}" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
        *) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}}
complete -o filenames -F _hotloop hotloop"""

ZSH = """\
autoload -U +X bashcompinit && bashcompinit
{bash}"""


def run(arguments: Arguments) -> int:
    options = {name: options_of(module) for name, (module, _) in arguments.verbs.items()}
    cases = "\n".join(f'        {name}) options="{" ".join(words)}" ;;' for name, words in options.items())
    bash = BASH.format(verbs=" ".join(options), cases=cases)
    if arguments.shell == "fish":
        print(fish({name: about for name, (_, about) in arguments.verbs.items()}, options))
    else:
        print(bash if arguments.shell == "bash" else ZSH.format(bash=bash))
    return 0


def options_of(module: str) -> list[str]:
    """The options of a verb; those of `train` and `tune` depend on the workload, and are left out."""
    verb = importlib.import_module(module)
    if hasattr(verb, "read"):
        return ["--help"]
    parser = tyro.extras.get_parser(verb.Arguments)
    words = [word for action in parser._actions for word in action.option_strings]
    return sorted(word for word in words if word.startswith("--"))


def fish(verbs: Mapping[str, str], options: Mapping[str, list[str]]) -> str:
    lines = []
    for name, about in verbs.items():
        what = about.replace("'", "")
        lines.append(f"complete -c hotloop -n __fish_use_subcommand -f -a {name} -d '{what}'")
        for word in options[name]:
            flag = word.removeprefix("--")
            lines.append(f"complete -c hotloop -n '__fish_seen_subcommand_from {name}' -l {flag}")
    return "\n".join(lines)
