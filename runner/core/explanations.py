"""The explanations of error codes and causes: what happened, why, and how to get out.

They are the Markdown files of `runner/explanations`, one for each subject. Only `runner explain`
and `tools/error_reference.py` read all of them. An entry is a heading with its code, paragraphs
about what happened, a paragraph `Why: ...`, a list of ways out, each with its commands in indented
lines, and the section of the guide:

    ## R-RUN-AMBIGUOUS

    The text is the beginning of several run IDs.

    Why: A RUN may be abbreviated to a unique prefix.

    - Copy a whole ID:
        runner ps -a

    Guide: history.md#list-runs
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "explanations"
# The files, in the order of the page and of the list.
SUBJECTS = (
    *("command-line", "recipes", "runs", "groups", "sweeps", "pools", "services", "data"),
    *("models", "local", "cost", "exports", "page", "azure", "selftest", "causes"),
)
_GUIDES = "docs/guides"
_ENTRY = re.compile(r"^## (.+)$", re.MULTILINE)
_CODE_IN_TEXT = re.compile(r"\bR-[A-Z0-9]+(?:-[A-Z0-9]+)*")
_WHY, _GUIDE, _ITEM, _COMMAND = "Why: ", "Guide: ", "- ", "    "
_NEAR = 5  # number of similar codes


@dataclass(frozen=True, slots=True)
class Way:
    """One way out of a problem: a sentence, and commands that can be pasted."""

    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """One entry.

    Attributes:
        code: Code of an error, such as `R-RUN-UNKNOWN`, or name of a cause.
        subject: Title of the subject.
        happened: Paragraphs: what happened, and what was not done.
        why: Usual reasons.
        ways: Ways out, the most likely first.
        guide: Path below the repository with the section, such as `docs/cli.md#runner-ps`.
    """

    code: str
    subject: str
    happened: tuple[str, ...]
    why: str
    ways: tuple[Way, ...]
    guide: str

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=[.]) (?=[A-Z`])", self.happened[0])[0]


class EntryError(ValueError):
    """An entry does not have the form above."""


@cache
def load_explanations() -> Mapping[str, Explanation]:
    """Return all explanations by code, in the order of the page."""
    return {
        each.code: each
        for subject in SUBJECTS
        for each in parse_subject((FOLDER / f"{subject}.md").read_text(encoding="utf-8"))
    }


def is_explained(code: str) -> bool:
    """Return True if a code has an entry. Recipes may report codes of their own."""
    heading = f"\n## {code}\n"
    return any(heading in path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md"))


def parse_subject(text: str) -> Iterator[Explanation]:
    """Yield the entries of a file. Raise EntryError for an entry that is not complete."""
    head, *rest = _ENTRY.split(text)
    title = head.strip().removeprefix("# ")
    for code, body in zip(rest[::2], rest[1::2], strict=True):
        yield _parse_entry(code.strip(), title, body)


def _parse_entry(code: str, subject: str, body: str) -> Explanation:
    happened: list[str] = []
    why, guide, ways = "", "", list[Way]()
    for block in re.split(r"\n\s*\n", body.strip("\n")):
        if block.startswith(_ITEM):
            ways += _parse_ways(block)
        elif block.startswith(_WHY):
            why = _join(block.removeprefix(_WHY))
        elif block.startswith(_GUIDE):
            guide = posixpath.normpath(f"{_GUIDES}/{block.removeprefix(_GUIDE).strip()}")
        elif why or ways:
            raise EntryError(f"{code}: unexpected paragraph {block[:40]!r}")
        else:
            happened.append(_join(block))
    for name, part in (("text", happened), ("Why:", why), ("list", ways), ("Guide:", guide)):
        if not part:
            raise EntryError(f"{code}: missing {name}")
    return Explanation(code, subject, tuple(happened), why, tuple(ways), guide)


def _parse_ways(block: str) -> Iterator[Way]:
    for item in re.split(r"^- ", block, flags=re.MULTILINE)[1:]:
        lines = item.splitlines()
        commands = tuple(line.strip() for line in lines if line.startswith(_COMMAND))
        yield Way(_join(" ".join(x for x in lines if not x.startswith(_COMMAND))), commands)


def _join(text: str) -> str:
    return " ".join(text.split())


def find_code(text: str, known: Sequence[str]) -> str | None:
    """Return the known code that a text names, or None.

    Accepts lower case, a code without `R-`, and a line with an error in it.
    """
    names = {code.upper(): code for code in known}
    words = [text, *_CODE_IN_TEXT.findall(text.upper()), *text.split()[:1]]
    for word in words:
        plain = word.strip(" \t\"'`[]:.,").upper().replace("_", "-")
        found = names.get(plain) or names.get(f"R-{plain}")
        if found is not None:
            return found
    return None


def similar_codes(text: str, known: Sequence[str]) -> list[str]:
    """Return the codes that are most similar to a text, the nearest first."""
    import difflib  # noqa: PLC0415  only a mistake needs it

    found = _CODE_IN_TEXT.search(text.upper())
    wanted = (found[0] if found else text.upper()).removeprefix("R-").strip(" \"'`[]:.,")
    names = {code.upper().removeprefix("R-"): code for code in known}
    near = difflib.get_close_matches(wanted, names, n=_NEAR, cutoff=0.5)
    subject = wanted.partition("-")[0]
    near += [name for name in names if name.partition("-")[0] == subject and name not in near]
    return [names[name] for name in near[:_NEAR]]
