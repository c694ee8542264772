"""The classes between an option and run.json are few, and docs/architecture.md lists them."""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.unit.architecture_page import PAGE
from tests.unit.source_tree import ROOT, assert_none, parsed, sources, text_of

MOST_CLASSES = 10
# Other classes in the modules of the chain, or between two of its classes, each with the reason.
OTHERS = {
    "CheckedFile": "the runs of a group, each a CheckedRun; a single run has none",
    "Lookups": "asks the services, and knows nothing of a run",
    "Param": "a part of Recipe",
    "RepeatRequest": "the start of another way: a repetition has no options of a recipe",
    "Repetition": "the changes of a repetition, a part of RepeatRequest",
    "RunOption": "what a field of RunOptions declares",
    "StorageScopes": "what a task may do in storage, which no document contains",
}
# Modules with other classes of their own, in which nothing but the one of the chain is compared.
WIDE = ("runner/protocol/run_spec.py",)
# The packages in which a request becomes run.json.
FOLDERS = ("runner/core/recipe", "runner/core/planning", "runner/flows/submit")


def chain() -> list[list[str]]:
    """Return the cells of each row of the table: class, file and sentence."""
    section = text_of(PAGE).partition("\n## From an option to run.json\n")[2].partition("\n## ")[0]
    return [
        list(found) for found in re.findall(r"^\| `(\w+)` \| `(.+)` \| (.+) \|$", section, re.M)
    ]


def classes(file: str) -> dict[str, ast.ClassDef]:
    return {each.name: each for each in parsed(ROOT / file).body if isinstance(each, ast.ClassDef)}


def names_in(node: ast.AST | None) -> set[str]:
    """Return the names in an annotation, also in one that is text."""
    found: set[str] = set()
    for each in ast.walk(node) if node is not None else ():
        if isinstance(each, ast.Name):
            found.add(each.id)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            found.update(re.findall(r"\w+", each.value))
    return found


def functions_with_class(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, set[str]]]:
    """Yield the functions of a module; a method has the name of its class, others no name."""
    for each in tree.body:
        if isinstance(each, ast.FunctionDef):
            yield each, set()
        elif isinstance(each, ast.ClassDef):
            yield from ((one, {each.name}) for one in each.body if isinstance(one, ast.FunctionDef))


def conversions(trees: Iterable[ast.Module]) -> Iterator[tuple[str, str]]:
    """Yield (from, to) for each function that takes the one, and returns or creates the other."""
    for function, owner in itertools.chain.from_iterable(map(functions_with_class, trees)):
        given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        taken = owner.union(*(names_in(each.annotation) for each in given))
        calls = [each.func for each in ast.walk(function) if isinstance(each, ast.Call)]
        created = {each.id for each in calls if isinstance(each, ast.Name)}
        yield from itertools.product(taken, names_in(function.returns) | created)


def between(ends: set[str], trees: Sequence[ast.Module]) -> set[str]:
    """Return the classes of the modules that are made from one of `ends` and become one again."""
    ours = {each.name for tree in trees for each in tree.body if isinstance(each, ast.ClassDef)}
    onward: dict[str, set[str]] = defaultdict(set)
    back: dict[str, set[str]] = defaultdict(set)
    for one, other in conversions(trees):
        if {one, other} <= ours | ends:
            onward[one].add(other)
            back[other].add(one)
    return (reached(ends, onward) & reached(ends, back)) - ends


def reached(starts: set[str], edges: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(starts)
    while todo:
        new = edges.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


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


def test_no_other_class_stands_between_an_option_and_run_json() -> None:
    rows = chain()
    ends = {name for name, *_ in rows}
    files = {file for _, file, _ in rows if file not in WIDE}
    there = {name for file in files for name in classes(file)}
    there |= between(ends, [parsed(path) for path in sources(*FOLDERS)])
    assert_none(there - ends - OTHERS.keys(), "join it with a class of the chain, or say why not")
    assert_none(OTHERS.keys() - there, "no such class")


def test_a_class_between_two_of_the_chain_is_found_wherever_it_is() -> None:
    text = """
class Asked: ...
class Plan: ...
class Other: ...
class Mirror:
    def to_plan(self) -> Plan: ...
class Part: ...
class Hidden: ...
def mirror(asked: Asked, part: Part) -> list["Mirror"]: ...
def plan(asked: Asked) -> Plan: return from_hidden(Hidden(asked))
def from_hidden(hidden: Hidden) -> Plan: ...
def parts(plan: Plan) -> tuple[Other, ...]: ...
"""
    assert between({"Asked", "Plan"}, [ast.parse(text)]) == {"Mirror", "Hidden"}
