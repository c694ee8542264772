"""Whatever the text is: an answer, or the service's error, soon and in bounded memory."""

from __future__ import annotations

import re
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_emulator.autoscale.dialect import DIALECTS
from batch_emulator.autoscale.parser import parse, tokens
from batch_emulator.autoscale.values import FormulaSyntaxError, FormulaTooLongError
from tests.unit.emulator.autoscale.formulas import PUBLISHED, history, run

DAY = history(2880, ActiveTasks=5, CPUPercent=0.5)
CODES = {"AutoScalingFormulaEvaluationError", "InsufficientSampleData"}

WORDS = st.sampled_from(
    [*"+-*/!<>=?:;,.()", "==", "&&", "||", "x", "$y", "1", "2.5", '"s"', "time()", "requeue",
     "$ActiveTasks", ".GetSample(", "TimeInterval_Day", "avg(", "vec(", "stop()", "//", "\n",
     "$TargetDedicatedNodes=", "val(", "rand()", ".hour", "GetSamplePercent("]
)  # fmt: skip


def is_answered(text: str, dialect: str) -> bool:
    """Return True if a formula gives a result or an error of the service. Others are raised."""
    try:
        done = run(text, DAY, DIALECTS[dialect])
    except (FormulaSyntaxError, FormulaTooLongError) as err:
        return err.detail(text).startswith("Line ")  # most texts are not formulas
    coded = done.problem is None or done.problem.code in CODES
    return coded and done.dedicated >= 0 and done.results.startswith("$TargetDedicatedNodes=")


def holds_for(
    *drawn: st.SearchStrategy[Any], examples: tuple[int, int]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Check a property of all that is drawn; the second number of examples is for slow tests."""
    few, many = examples

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])
        def run(count: int) -> None:
            settings(max_examples=count, deadline=None)(given(*drawn)(check))()

        return run

    return decorate


@holds_for(st.text(max_size=200), st.sampled_from(sorted(DIALECTS)), examples=(100, 300))
def test_any_text_evaluates_or_fails_with_an_error(text: str, dialect: str) -> None:
    assert is_answered(text, dialect)


@holds_for(st.lists(WORDS, max_size=40), st.sampled_from(sorted(DIALECTS)), examples=(100, 1000))
def test_any_tokens_evaluate_or_fail_with_an_error(words: list[str], dialect: str) -> None:
    assert is_answered(" ".join(words), dialect)


@holds_for(
    st.sampled_from(sorted(PUBLISHED)),
    st.integers(0, 2000),
    st.text(max_size=3),
    examples=(150, 500),
)
def test_damaged_formula_evaluates_or_fails_with_an_error(
    name: str, place: int, instead: str
) -> None:
    text = PUBLISHED[name]
    place %= len(text)
    assert is_answered(text[:place] + instead + text[place + 1 :], "default")


@given(st.text(max_size=100))
@settings(deadline=None)
def test_tokens_are_the_text_without_blanks(text: str) -> None:
    try:
        found = tokens(text)
    except FormulaSyntaxError:
        return
    assert all(text[t.at : t.at + len(t.text)] == t.text for t in found[:-1])


NUMBERS = st.integers(0, 99)


@st.composite
def sums(draw: st.DrawFn, depth: int = 0) -> str:
    """Return an expression that has the same value in C, Python and the formula language."""
    if depth > 4 or draw(st.booleans()):
        return str(draw(NUMBERS))
    sign = draw(st.sampled_from(["+", "-", "*"]))
    left, right = draw(sums(depth + 1)), draw(sums(depth + 1))
    text = f"{left}{sign}{right}"
    return f"({text})" if draw(st.booleans()) else text


@pytest.mark.slow
@holds_for(sums(), examples=(100, 300))
def test_arithmetic_equals_that_of_python(text: str) -> None:
    doubles = re.sub(r"\d+", r"\g<0>.0", text)
    wanted = f"{eval(doubles):.6g}"  # digits, signs and parentheses only
    assert run(f"x={text}").results.endswith(f";x={wanted}")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 8000,
        "x=" + "(" * 4000 + "1" + ")" * 4000,
        "x=" + "-" * 8000 + "1",
        "x=" + "!(" * 3000,
        "x=" + "1?" * 4000,
        "x=" + "a.b" * 2500,
        "x=" + "avg(" * 2000,
        "x=" + "1||1&&1==1<1+1*(" * 500,
    ],
)  # fmt: skip
def test_deep_nesting_is_a_syntax_error(text: str) -> None:
    with pytest.raises(FormulaSyntaxError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("x=" + "1+" * 4000 + "1", "x=4001"),
        ("x=" + "0?1:" * 2000 + "7", "x=7"),
        ("x=" + "0||" * 2500 + "3", "x=1"),
        ("x=len(" + "1," * 4000 + "1)", "x=4001"),
    ],
)
def test_long_chains_are_not_nesting(text: str, result: str) -> None:
    assert run(text).results.endswith(result)


def test_deepest_formula_uses_little_stack() -> None:
    part = "1||1&&1==1<1+1*(-"
    text = "x=0+" + part * 24 + "1" + ")" * 24
    limit = sys.getrecursionlimit()
    assert limit >= 1000
    assert run(text).problem is None


@pytest.mark.parametrize(
    "text",
    [
        "x=$ActiveTasks.GetSample(2880);" + "x=vec(x,x,x,x);" * 99,
        "x=$ActiveTasks.GetSample(2880);y=" + "x+" * 4000 + "x",
        "x=$ActiveTasks.GetSample(2880);y=vec(" + "x," * 4000 + "x)",
        "x=vec(1);" + "x=vec(x,x);" * 99,
        "x=$ActiveTasks.GetSample(2880);" + "y=std(x)+norm(x)+percentile(x,50)+std(x);" * 99,
        "x=1e300;" + "x=x*x;" * 99,
        "x=TimeInterval_Year;" + "x=x*1e9;" * 99,
    ],
)
def test_work_and_memory_are_bounded(text: str) -> None:
    tracemalloc.start()
    begin = time.thread_time()
    done = run(text, DAY)
    spent = time.thread_time() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.problem is not None
    assert spent < 10.0  # takes hours without the bounds
    assert peak < 100_000_000


@pytest.mark.parametrize(
    "text",
    [
        "$TargetDedicatedNodes=percentile(vec(-1.7e308,1.7e308),50)",
        "$TargetLowPriorityNodes=val(vec(1.7e308)+1.7e308,0)",
        "$TargetDedicatedNodes=std(-1.7e308,1.7e308)",
        "$TargetDedicatedNodes=range(-1.7e308,1.7e308)",
        "$TargetDedicatedNodes=1.7e308*10",
    ],
)
def test_non_finite_numbers_are_evaluation_errors(text: str) -> None:
    done = run(text)
    assert done.problem is not None
    assert (done.dedicated, done.spot) == (4, 1)


def test_results_are_truncated_for_large_variables() -> None:
    text = "x=vec($ActiveTasks.GetSample(2880));y=vec(" + "x," * 30 + "x);"
    tracemalloc.start()
    done = run(text + "".join(f"y{number}=y;" for number in range(95)), DAY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.problem is None
    assert done.results.startswith("$TargetDedicatedNodes=4;$TargetLowPriorityNodes=1;")
    assert len(done.results) < 70_000
    assert done.results.endswith(";y94=...")
    assert any("results" in warning for warning in done.warnings)
    assert peak < 20_000_000


def test_results_show_a_day_of_samples_in_full() -> None:
    done = run("x=$ActiveTasks.GetSample(2880)", DAY)
    assert done.results.count("5") >= 2878
    assert "..." not in done.results
