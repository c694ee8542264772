"""Order of tasks, and its picture."""

from __future__ import annotations

import itertools
import random

import pytest

from runner.core.recipe.submit_file import draw_tree, order_tasks
from runner.protocol.groups import CyclicError


def test_tasks_follow_their_predecessors_in_file_order() -> None:
    assert order_tasks({"merge": ("a", "b"), "b": (), "a": ()}) == ("b", "a", "merge")
    assert order_tasks({}) == ()


def test_random_graphs_are_ordered_and_drawn_once_per_task() -> None:
    source = random.Random(7)
    for _ in range(200):
        names = [f"t{number}" for number in range(source.randint(1, 30))]
        after = {
            name: tuple(source.sample(names[:at], source.randint(0, min(at, 4))))
            for at, name in enumerate(names)
        }
        shuffled = dict(source.sample(sorted(after.items()), len(after)))
        order = order_tasks(shuffled)
        assert sorted(order) == sorted(names)
        assert all(order.index(b) < order.index(name) for name in names for b in after[name])
        lines = draw_tree(shuffled)
        drawn = [line.lstrip("│├└─ ").split("  ")[0] for line in lines]
        assert sorted(drawn) == sorted(names)


def test_cycle_is_printed_from_task_to_predecessor() -> None:
    after = {"a": ("c",), "b": ("a",), "c": ("b",), "d": ()}
    with pytest.raises(CyclicError) as caught:
        order_tasks(after)
    path = caught.value.path
    assert path[0] == path[-1]
    assert set(path) == {"a", "b", "c"}
    assert all(second in after[first] for first, second in itertools.pairwise(path))


def test_picture_is_a_tree_that_names_further_predecessors() -> None:
    after = {"prepare": (), "a": ("prepare",), "b": ("prepare",), "merge": ("a", "b"), "x": ()}
    assert draw_tree(after, {"merge": "queued"}) == (
        "prepare",
        "├─ a",
        "└─ b",
        "   └─ merge  queued  (also after a)",
        "x",
    )


def test_long_chain_is_drawn_without_recursion() -> None:
    after = {f"t{n}": (f"t{n - 1}",) if n else () for n in range(3000)}
    assert len(draw_tree(after)) == 3000


def test_picture_names_a_few_of_many_predecessors() -> None:
    after = {f"t{n}": () for n in range(99)} | {"merge": tuple(f"t{n}" for n in range(99))}
    assert draw_tree(after)[-1] == "└─ merge  (also after t0, t1 and 96 more)"
    after = {"a": (), "b": (), "c": (), "d": (), "merge": ("a", "b", "c", "d")}
    assert draw_tree(after)[-1] == "└─ merge  (also after a, b, c)"
