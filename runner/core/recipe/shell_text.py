"""Text that a shell reads: syntax in a command that runs without one, and scripts with CRLF.

Commands run without a shell, so `cd src; python train.py` would start a program `cd` with three
arguments. `find_shell_syntax` finds what only a shell understands, and `in_shell` returns the
command that runs the same text in one. `refuse_unreadable_scripts` finds shell scripts that cannot
run because of their line endings.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from runner.protocol.commands import code_words
from runner.protocol.errors import RunnerError

_OPERATOR = re.compile(r"(?:\d?>&\d|[;|&<>]+)")
_EXPANSION = re.compile(r"\$(?:\(|\{(?![A-Za-z_]\w*\})|[@*#?!0-9-])", re.ASCII)
# `part-?.csv` and `data/[ab].csv`; not `[64,32]` and `https://host/?a=b`.
_FILE_GLOB = re.compile(r"[\w./-]*(?:\?|\[[^\]\s]+\])[\w./?-]*\.[A-Za-z]\w*", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII | re.DOTALL)
# Builtins and keywords of a shell that are no programs, or change only the shell.
_BUILTINS = frozenset(
    {
        *("cd", "export", "source", ".", "set", "unset", "alias", "eval", "exec", "trap", "ulimit"),
        *("umask", "pushd", "popd", "if", "for", "while", "until", "case", "{", "[[", "!"),
    }
)
SHELL_OPERATORS = frozenset({"&&", "||", ">>", "2>&1"})
_PROGRAM = re.compile(r"(?:\bpython[\d.]*\b|[\w./-]*\.py\b|\btorchrun\b)[^;|&<>\n]*")
_ACTIVATION = re.compile(
    r"^\s*(?:(?:(?:source|\.)\s+\S*activate\S*|(?:source\s+|conda\s+|mamba\s+)?activate)(?:\s+[\w./-]+)?"
    r"|conda\s+init\b[^;&]*)\s*(?:;|&&)\s*"
)
_POSITIONAL = re.compile(r"\$(?:[@*#1-9]|\{[@*#1-9])|\bshift\b")
_SHELL_NAME = re.compile(r"(?:ba|da|z|k|a)?sh")
_SHELL_FILE = re.compile(r".*\.(?:sh|bash|zsh|ksh)")
_SHELL_LINE = re.compile(rb"#!.*\b(?:ba|da|z|k|a)?sh\b")
_WORD = re.compile(r"[\w./+@-]+")
_BOM = b"\xef\xbb\xbf"
_MAX_SCRIPTS = 50
_MAX_BYTES = 1 << 20


def join_lines(text: str) -> str:
    """Return the text with its lines joined where a shell continues one: after a backslash.

    A line that begins with an option continues the one before, too.
    """
    return re.sub(r"[ \t]*\\?\n[ \t]*(?=-)", " ", text.replace("\\\n", " ")).strip()


def find_shell_syntax(text: str) -> str | None:
    """Return what only a shell understands in the text of a command, or None.

    Text in single quotes is plain, and so are operators and globs in double quotes.
    """
    quote, position = "", 0
    while position < len(text):
        char = text[position]
        if quote == "'":
            quote = "" if char == "'" else quote
        elif char == "\\" or text[position : position + 2] == "$$":
            position += 1
        elif char in "\"'" and quote in ("", char):
            quote = "" if quote else char
        elif char == "`":
            return "`"
        elif expansion := _EXPANSION.match(text, position):
            return "$(" if expansion[0] == "$(" else expansion[0]
        elif not quote and (found := _unquoted(text, position)):
            return found
        position += 1
    return None


def _unquoted(text: str, position: int) -> str | None:
    """Return the syntax that begins at an unquoted character, or None."""
    char, before = text[position], text[position - 1 : position]
    if char == "\n":
        return "a second line"
    if operator := _OPERATOR.match(text, position):
        return operator[0]
    if char == "*":
        return "*"
    is_start = not before.strip()
    if is_start and char == "~" and re.match(r"~[\w-]*(?:/|\s|$)", text[position:]):
        return "~"
    if is_start and (glob := _FILE_GLOB.match(text, position)):
        rest = text[glob.end() : glob.end() + 1]
        return "?" if not rest.strip() and "?" in glob[0] else "[" if not rest.strip() else None
    return None


def find_shell_word(words: Sequence[str]) -> str | None:
    """Return the word of a command, given as a list, that only a shell understands, or None."""
    first = words[0]
    if first in _BUILTINS or _ASSIGNMENT.fullmatch(first):
        return first
    return next((word for word in words if word in SHELL_OPERATORS), None)


def in_shell(text: str, syntax: str) -> str:
    """Return the `command` for train.yaml that does what a shell does with the text.

    Parameters become arguments of the last program if that is possible.
    """
    if (plain := _plain(text)) is not None:
        return f"command: {plain}"
    words = text.split()
    if _ASSIGNMENT.fullmatch(syntax):
        rest = [word for word in words if not _ASSIGNMENT.fullmatch(word)]
        if rest and rest[0] not in _BUILTINS and find_shell_syntax(text) is None:
            return f"command: env {text}"
    if syntax == "~" and find_shell_syntax(text.replace("~/", "$HOME/")) is None:
        return f"command: {text.replace('~/', '$HOME/')}"
    if "&" in syntax and (url := next((w for w in words if "://" in w and "&" in w), None)):
        quoted = text.replace(url, f'"{url}"')
        if find_shell_syntax(quoted) is None:
            return f"command: {quoted}"
    if syntax.startswith("$") and not syntax.startswith(("$(", "${")):
        plain = re.sub(r"\s*\"?\$[@*]\"?\s*$", "", text)
        if find_shell_syntax(plain) is None:
            return f"command: {plain}"
    code = _with_arguments(text)
    quoted = "'" + code.replace("'", "''") + "'" if "\n" not in code else _in_double_quotes(code)
    return f"command: [bash, -eo, pipefail, -c, {quoted}, train]"


def _plain(text: str) -> str | None:
    """Return the command without what is not needed on a node, if it then needs no shell.

    That is the activation of an environment, and `nohup COMMAND &`, which would end the run while
    the command goes on.
    """
    plain = _ACTIVATION.sub("", text)
    plain = re.sub(r"(?:\s*(?:\d|&)?>+\s*(?:\S+|&\d))*\s*&\s*$", "", plain)
    plain = plain if plain == text else plain.removeprefix("nohup ").strip()
    is_plain = plain != text and plain and find_shell_syntax(plain) is None
    return plain if is_plain and find_shell_word(plain.split()) is None else None


def _with_arguments(text: str) -> str:
    """Return the text with `"$@"` after the arguments of its last Python program."""
    found = list(_PROGRAM.finditer(text))
    if not found or _POSITIONAL.search(text):
        return text
    program = found[-1][0].rstrip()
    if text[found[-1].end() : found[-1].end() + 1] in ("<", ">"):  # `2>log`
        program = re.sub(r"\s\d$", "", program).rstrip()
    end = found[-1].start() + len(program)
    before = text[:end]
    is_open = any(before.count(quote) % 2 for quote in "'\"`") or (
        before.count("(") != before.count(")")
    )
    return text if is_open else f'{before} "$@"{text[end:]}'


def ignored_arguments(command: Sequence[str], words: int) -> tuple[str, ...]:
    """Return the arguments that the code of `sh -c` ignores, because it has no `"$@"` or `$1`.

    Args:
        command: the whole command.
        words: the number of words that the recipe has; arguments follow.
    """
    code = min(code_words(command), default=len(command))
    is_shell = code < words and _SHELL_NAME.fullmatch(command[0].rpartition("/")[2])
    if not is_shell or _POSITIONAL.search(command[code]):
        return ()
    return tuple(command[words:])


def _in_double_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def refuse_unreadable_scripts(folder: Path, command: Sequence[str], prepare: str | None) -> None:
    """Raise RunnerError for a shell script that cannot run because of its line endings.

    Checked are the scripts that the command and `prepare` name, and those that they name. Of
    other programs, only the `#!` line of the one that the command executes directly matters.

    Raises:
        RunnerError: R-RECIPE-CRLF, with the command that corrects the file.
    """
    pending = [*command, prepare or ""]
    seen: set[str] = set()
    while pending and len(seen) < _MAX_SCRIPTS:
        text = pending.pop(0)
        for name in dict.fromkeys(word.removeprefix("./") for word in _WORD.findall(text)):
            content = b"" if name in seen else _read(folder, name)
            if not content:
                continue
            seen.add(name)
            first = content.partition(b"\n")[0]
            is_shell = bool(_SHELL_FILE.fullmatch(name) or _SHELL_LINE.match(first.strip(_BOM)))
            is_program = bool(command) and command[0].removeprefix("./") == name
            if is_shell or is_program:
                _refuse_unreadable(folder, name, content if is_shell else first)
            if is_shell:
                pending.append(content.decode(errors="replace"))


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    with suppress(OSError, ValueError):
        is_below = not Path(name).is_absolute() and path.is_file()
        if is_below and path.stat().st_size <= _MAX_BYTES:
            return path.read_bytes()
    return b""


def _refuse_unreadable(folder: Path, name: str, content: bytes) -> None:
    path = shlex.quote(str(folder / name))
    edit = "sed -i" if sys.platform.startswith("linux") else "perl -pi -e"
    if content.startswith(_BOM + b"#!"):
        what, why = "begins with a byte order mark", "Linux then does not see its `#!` line"
        fix = rf"{edit} '1s/^\xEF\xBB\xBF//' {path}"
    elif b"\r\n" in content or content.endswith(b"\r"):
        what = "has Windows line endings (CRLF)"
        why = "a shell on Linux reads the carriage return as part of each command"
        fix = rf"{edit} 's/\r$//' {path}"
    else:
        return
    raise RunnerError("R-RECIPE-CRLF", f"{name} {what}", why=why, fix=fix)
