"""The classes between an option and run.json are few, and docs/architecture.md lists them."""

from __future__ import annotations

import ast
import re

from tests.unit.architecture_page import PAGE
from tests.unit.source_tree import ROOT, assert_none, parsed, text_of

MOST_CLASSES = 10
# Other classes in the modules of the chain, each with the reason.
OTHERS = {
    "Param": "a part of Recipe",
    "RepeatRequest": "the start of another way: a repetition has no options of a recipe",
    "RunOption": "what a field of RunOptions declares",
    "StorageScopes": "what a task may do in storage, which no document contains",
}
# Modules with other classes of their own, in which nothing but the one of the chain is compared.
WIDE = ("runner/protocol/run_spec.py",)


def chain() -> list[list[str]]:
    """Return the cells of each row of the table: class, file and sentence."""
    section = text_of(PAGE).partition("\n## From an option to run.json\n")[2].partition("\n## ")[0]
    return [
        list(found) for found in re.findall(r"^\| `(\w+)` \| `(.+)` \| (.+) \|$", section, re.M)
    ]


def classes(file: str) -> dict[str, ast.ClassDef]:
    return {each.name: each for each in parsed(ROOT / file).body if isinstance(each, ast.ClassDef)}


def first_sentence(node: ast.ClassDef) -> str:
    text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", text, maxsplit=1)[0]


def test_at_most_ten_classes_stand_between_an_option_and_run_json() -> None:
    rows = chain()
    assert rows[-1][0] == "RunSpec"
    assert len({name for name, *_ in rows}) == len(rows) <= MOST_CLASSES


def test_every_class_says_what_the_page_says() -> None:
    found = [
        f"{name}: {said}"
        for name, file, sentence in chain()
        if (said := first_sentence(classes(file)[name])) != sentence
    ]
    assert_none(found, "the first sentence of the class and the page differ")


def test_modules_of_the_chain_have_no_other_class() -> None:
    rows = chain()
    files = {file for _, file, _ in rows if file not in WIDE}
    known = {*(name for name, *_ in rows), *OTHERS}
    there = {name for file in files for name in classes(file)}
    assert_none(there - known, "join it with a class of the chain, or give the reason")
    assert_none(OTHERS.keys() - there, "no such class")
