"""`runner explain`: what an error code or a cause means, and how to get out."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_error_code
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.cli.ui.terminal import is_terminal, styled
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.core.explanations import Explanation

_WIDTH = 80
_MAX_WIDTH = 100


def explain(
    code: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CODE]",
            help="Code of an error such as R-RUN-UNKNOWN, a line with one, or a cause of "
            "`runner why`.",
            show_default="list all codes",
            autocompletion=complete_error_code,
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Explain the code of an error, or a cause: what happened, why, and what to do."""
    from runner.core.explanations import find_code, load_explanations

    out, known = Output(output), load_explanations()
    if not code:
        _list(out, list(known.values()))
        return
    text = " ".join(code)
    found = find_code(text, list(known))
    if found is None:
        raise _unknown(text, list(known))
    if out.document(_document(known[found])):
        return
    for line in _lines(known[found]):
        out.text(line)


def _unknown(text: str, known: Sequence[str]) -> RunnerError:
    from runner.core.explanations import similar_codes

    near = similar_codes(text, known)
    return RunnerError(
        "R-EXPLAIN-UNKNOWN",
        f"unknown code {text!r}",
        why=f"similar codes: {', '.join(near)}" if near else "no code is similar",
        fix=f"runner explain {near[0]}" if near else "runner explain",
    )


def _document(found: Explanation) -> dict[str, Any]:
    return {
        "code": found.code,
        "subject": found.subject,
        "what": "\n\n".join(found.happened),
        "why": found.why,
        "ways": [{"text": way.text, "commands": list(way.commands)} for way in found.ways],
        "guide": found.guide,
    }


def _lines(found: Explanation) -> Iterator[str]:
    """Yield the lines of an entry for a terminal."""
    yield f"{_heading(found.code)}  {found.subject}"
    for title, texts in (("What happened", found.happened), ("Why", (found.why,))):
        yield ""
        yield _heading(title)
        for text in texts:
            yield from _wrapped(text, "  ")
    yield ""
    yield _heading("What to do")
    for way in found.ways:
        yield from _wrapped(way.text, "  - ", "    ")
        for command in way.commands:
            yield f"      {styled(command, 'cyan', sys.stdout)}"
    yield ""
    yield _heading("Guide")
    yield f"  {found.guide}"


def _heading(text: str) -> str:
    return styled(text, "bold", sys.stdout)


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, _width(), initial_indent=first, subsequent_indent=first if rest is None else rest,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _width() -> int:
    if not is_terminal(sys.stdout):
        return _WIDTH
    return min(shutil.get_terminal_size((_WIDTH, 24)).columns, _MAX_WIDTH)


def _list(out: Output, found: Sequence[Explanation]) -> None:
    if not out.as_text:
        rows: list[Mapping[str, str]] = [
            {"code": each.code, "subject": each.subject, "what": each.summary} for each in found
        ]
        out.rows(rows, ("code", "subject", "what"))
        return
    longest = max(len(each.code) for each in found)
    for subject, entries in groupby(found, lambda each: each.subject):
        out.text(_heading(subject))
        for each in entries:
            out.text(f"  {each.code:<{longest}}  {_shortened(each.summary, longest + 4)}")
        out.text()
    out.note("to read one: runner explain CODE")


def _shortened(text: str, indent: int) -> str:
    """Return the text, cut at the width of the terminal."""
    room = _width() - indent
    if not is_terminal(sys.stdout) or len(text) <= room:
        return text
    return f"{text[: max(room - 1, 0)].rstrip()}…"
