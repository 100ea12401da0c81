# SPDX-License-Identifier: MIT
"""Shell completion and man(1) pages, both generated from the commands' parsers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from hybrid import __version__
from hybrid.commands.parser import Parser
from hybrid.errors import UsageError

_COMPLETION = """\
# For bash and zsh: source <(python -m hybrid completion)
if [ -n "${ZSH_VERSION-}" ]; then
    type compdef >/dev/null || { autoload -Uz compinit && compinit; }
    autoload -Uz bashcompinit && bashcompinit
fi
_hybrid() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=
    local each part= prefix=
    if [ "$word" = = ]; then word=; elif [ "$before" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
    case $word in --*=*) before=${word%%%%=*} word=${word#*=} prefix=$before= ;; esac
    for each in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do
        case $each in -*) ;; *) part=$each && break ;; esac
    done
    case ${COMP_WORDS[0]##*/}/$part:$before in
%s
    esac
    COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$word"))
}
complete -o default -F _hybrid %s
"""


def parser_of(name: str) -> Parser:
    parser: Parser = import_module(f"hybrid.commands.{name}").build_parser()
    return parser


def completion(names: list[str]) -> str:
    """A script for bash and zsh that completes options, their values, and names of files."""
    cases = [line for name in names for line in _cases(name)]
    return _COMPLETION % ("\n".join(f"        {line}" for line in cases), " ".join(f"hybrid-{name}" for name in names))


def _cases(name: str) -> Iterator[str]:
    """The script's cases for a command. Those of its subcommands come first: after a subcommand only its options are offered.

    For each option with a value its choices (none for files and numbers, which the shell completes as files); for each parser
    last the words that may appear anywhere.
    """
    whole, *parts = parser_of(name).parts()
    for parser in (*parts, whole):
        part, words = parser.prog.split()[-1] if parser is not whole else "*", list[str]()
        for action in parser._actions:
            values = [str(value) for value in action.choices or parser.offered.get(action.dest, ())]
            words += [option for option in action.option_strings if option.startswith("--")]
            if not action.option_strings:
                words += values
            elif action.nargs != 0:
                pattern = "|".join(f"hybrid-{name}/{part}:{option}" for option in action.option_strings)
                yield f'{pattern}) words="{" ".join(values)}" ;;'
        yield f'hybrid-{name}/{part}:*) words="{" ".join(dict.fromkeys(words))}" ;;'


def write_manual(folder: str, names: list[str]) -> list[Path]:
    """Write a page in man(7) markup for each command, hybrid-NAME.1, to this existing folder: its help verbatim, and the other
    commands. Returns the files."""
    from hybrid.host.files import write_text

    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}  # for argparse
    if not Path(folder).is_dir():
        raise UsageError(f"{folder} is no folder", code="file-missing")
    pages = {name: Path(folder) / f"hybrid-{name}.1" for name in names}
    for name, page in pages.items():
        parser = parser_of(name)
        summary = (parser.description or "").splitlines()[0].rstrip(".")
        helps = _text("\n".join(part.format_help() for part in parser.parts()))
        helps = re.sub(r"\\-\\-\w(?:\w|\\-\w)*", r"\\fB\g<0>\\fR", helps)  # options are bold
        seen = ", ".join(f"\\fBhybrid\\-{other}\\fR(1)" for other in names if other != name)
        lines = [
            f'.TH HYBRID\\-{name.upper()} 1 "" "hybrid\\-runner {__version__}" "User Commands"',
            *(".SH NAME", f"hybrid\\-{name} \\- {_text(summary)}"),
            *(".SH SYNOPSIS", f".B hybrid\\-{name}", "[OPTION...] ..."),
            *(".SH DESCRIPTION", "The same as", f'.BR "{_text(parser.prog)}" .', ".PP", ".nf", helps, ".fi"),
            *(".SH SEE ALSO", seen, ""),
        ]
        write_text(str(page), "\n".join(lines))
    return list(pages.values())


def _text(text: str) -> str:
    """The text, escaped for troff."""
    marked = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", marked, flags=re.MULTILINE)
