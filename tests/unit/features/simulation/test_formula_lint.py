"""Each rule finds its formula, and accepts the corrected one."""

from __future__ import annotations

from typing import Any

import pytest

from runner.features.simulation.formula_lint import lint

GOOD = """
percent = $PendingTasks.GetSamplePercent(5 * TimeInterval_Minute);
tasks = percent < 70 ? max(0, $PendingTasks.GetSample(1)) : avg($PendingTasks.GetSample(5 * TimeInterval_Minute));
$TargetLowPriorityNodes = min(10, tasks);
$NodeDeallocationOption = taskcompletion;
"""  # noqa: E501
SPOT = "$TargetLowPriorityNodes"
END = "$NodeDeallocationOption = taskcompletion;"
SIMPLE = f"$TargetLowPriorityNodes = min(4, $PendingTasks.GetSample(1)); {END}"


def rules(text: str, **settings: Any) -> set[str]:
    return {finding.rule for finding in lint(text, **settings)}


@pytest.mark.parametrize("text", [GOOD, SIMPLE])
def test_a_good_formula_has_no_findings(text: str) -> None:
    assert rules(text, interval_s=300, boot_s=240) == set()


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("syntax", "$TargetLowPriorityNodes = ;"),
        ("target-never-set", f"nodes = $PendingTasks.GetSample(1); {END}"),
        ("other-case", f"$targetLowPriorityNodes = 1; {SIMPLE}"),
        ("no-upper-bound", f"$TargetLowPriorityNodes = sum($PendingTasks.GetSample(1)); {END}"),
        (
            "never-zero",
            f"$TargetLowPriorityNodes = min(4, max(1, $PendingTasks.GetSample(1))); {END}",
        ),
        ("no-taskcompletion", "$TargetLowPriorityNodes = min(4, $PendingTasks.GetSample(1));"),
        ("no-taskcompletion", SIMPLE.replace("taskcompletion", "requeue")),
        ("no-taskcompletion", SIMPLE.replace("taskcompletion", "terminate")),
        (
            "removes-working-nodes",
            f"{SPOT} = min(4, $ActiveTasks.GetSample(1)); $NodeDeallocationOption = requeue;",
        ),
        (
            "removes-working-nodes",
            "$TargetDedicatedNodes = min(4, $ActiveTasks.GetSample(1));",
        ),
        (
            "spot-target-not-set",
            f"$TargetDedicatedNodes = min(4, $PendingTasks.GetSample(1)); {END}",
        ),
        (
            "never-enough-samples",
            f"{SPOT} = min(4, avg($PendingTasks.GetSample(TimeInterval_Second * 5))); {END}",
        ),
        (
            "fails-on-new-pools",
            f"{SPOT} = min(4, avg($PendingTasks.GetSample(TimeInterval_Minute * 5))); {END}",
        ),
        (
            "fails-sometimes",
            f"{SPOT} = min(4, 8 / sum($CurrentLowPriorityNodes.GetSample(1))); {END}",
        ),
        (
            "reads-nothing",
            f"$TargetLowPriorityNodes = min(4, $WallClockSeconds.GetSample(1)); {END}",
        ),
    ],
)
def test_each_rule_finds_its_formula(rule: str, text: str) -> None:
    assert rule in rules(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("formula", "found"),
    [
        (f"{SPOT} = max(0, $PendingTasks.GetSample(1)) > 0 ? 1000000 : 0;", {"no-upper-bound"}),
        (f"{SPOT} = sum($PendingTasks.GetSample(1)) > 0 ? 4 : {SPOT} / 2;", set()),
        (f"{SPOT} = sum($PendingTasks.GetSample(1)) > 0 ? 4 : max(0, {SPOT} - 1);", set()),
        (f"{SPOT} = {SPOT} * 2 + 1;", {"no-upper-bound", "never-zero"}),
    ],
)
def test_findings_depend_on_the_result_of_the_formula(formula: str, found: set[str]) -> None:
    assert rules(f"{formula} {END}") == found


@pytest.mark.parametrize("option", ["taskcompletion", "retaineddata"])
def test_waiting_tasks_may_be_counted_if_removed_nodes_finish_theirs(option: str) -> None:
    text = f"{SPOT} = min(4, $ActiveTasks.GetSample(1)); $NodeDeallocationOption = {option};"
    assert rules(text) == set()


def test_one_node_per_task_is_found_on_nodes_with_several_slots() -> None:
    assert rules(SIMPLE.replace("4", "100"), slots=4) == {"tasks-not-slots"}
    divided = SIMPLE.replace("$PendingTasks.GetSample(1)", "sum($PendingTasks.GetSample(1)) / 4")
    assert rules(divided, slots=4) == set()


def test_an_interval_below_the_boot_time_is_found() -> None:
    assert rules(SIMPLE, interval_s=300, boot_s=600) == {"interval-below-boot"}


def test_a_formula_above_8_kilobytes_is_an_error() -> None:
    [finding] = lint(f"{SIMPLE} // {'x' * 9000}")
    assert (finding.rule, finding.level) == ("syntax", "error")


def test_a_pool_of_dedicated_nodes_needs_no_spot_target() -> None:
    text = SIMPLE.replace("LowPriority", "Dedicated")
    assert rules(text, spot=False) == set()


def test_a_finding_names_the_line() -> None:
    [finding] = lint(f"// all\n\n$TargetLowPriorityNodes = sum($PendingTasks.GetSample(1));\n{END}")
    assert (finding.rule, finding.line) == ("no-upper-bound", 3)


@pytest.mark.parametrize(
    "text",
    ["", "$", "a" * 100, f"{SPOT} = 1/0;", f"{SPOT} = 1e308*1e308;"],
)
def test_every_text_gets_findings_and_no_exception(text: str) -> None:
    assert lint(text)


def test_every_finding_about_the_formula_names_its_line() -> None:
    text = f"// all\nx = $WallClockSeconds.GetSample(1);\n{SPOT} = sum($PendingTasks.GetSample(1));"
    lines = {finding.rule: (finding.line, finding.better) for finding in lint(text)}
    assert lines["reads-nothing"][0] == 2
    assert lines["no-taskcompletion"][0] == 3
    assert lines["no-upper-bound"] == (3, f"{SPOT} = min(10, sum($PendingTasks.GetSample(1)));")
    [never] = lint("// all\nx = 1;")
    assert (never.rule, never.line) == ("target-never-set", 2)
