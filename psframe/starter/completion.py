"""Command ``psframe completion SHELL``: print a completion script (:func:`main`)."""

import sys
from collections.abc import Iterator, Sequence

import msgspec

from psframe.bench.__main__ import BENCHES
from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.config import schema
from psframe.errors import UserError, nearest
from psframe.starter import COMMANDS

SHELLS = ("bash", "zsh", "fish")
USAGE = f"psframe completion {'|'.join(SHELLS)}"
EXAMPLE = "source <(psframe completion bash)"

BASH = """\
_psframe() {{
    local word=${{COMP_WORDS[COMP_CWORD]}}
    case "$COMP_CWORD:${{COMP_WORDS[1]}}" in
        1:*) COMPREPLY=($(compgen -W "{commands}" -- "$word")) ;;
        2:bench) COMPREPLY=($(compgen -W "{benches}" -- "$word")) ;;
        2:completion) COMPREPLY=($(compgen -W "{shells}" -- "$word")) ;;
        *)
            compopt -o nospace
            COMPREPLY=($(compgen -f -- "$word") $(compgen -S = -W "{keys}" -- "$word"))
            ;;
    esac
}}
complete -o filenames -F _psframe psframe
"""
FISH = """\
complete -c psframe -n __fish_use_subcommand -f -a "{commands}"
complete -c psframe -n "__fish_seen_subcommand_from bench" -a "{benches}"
complete -c psframe -n "__fish_seen_subcommand_from completion" -f -a "{shells}"
complete -c psframe -n "not __fish_use_subcommand" -a "{keys}"
"""


def main(argv: Sequence[str]) -> int:
    """Print the script; return the exit status."""
    parser = Parser(USAGE, "Print a script that completes commands, benchmarks and keys of a config.", EXAMPLE)
    parser.add_argument("shell", nargs="?", help=" or ".join(SHELLS))
    arguments = parser.parse_args(argv)
    if arguments.shell not in SHELLS:
        raise UserError(f"a shell must be named, got {arguments.shell!r}; {nearest(arguments.shell, SHELLS)}")
    print(script(arguments.shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    words = {
        "commands": " ".join(COMMANDS),
        "benches": " ".join(BENCHES),
        "shells": " ".join(SHELLS),
        "keys": " ".join(keys()),
    }
    if shell == "fish":
        return FISH.format(**words)
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + BASH.format(**words)


def keys() -> Iterator[str]:
    """Yield every key of a config, as the command line takes it, sections of strategies by their name."""
    for field in msgspec.structs.fields(schema.Config):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from (f"{field.name}.{inner.name}" for inner in msgspec.structs.fields(field.type))
        elif field.name != "versions":
            yield field.name
    yield from schema.IN_STRATEGIES


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
