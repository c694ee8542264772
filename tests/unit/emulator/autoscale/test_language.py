"""Results of formulas."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from batch_emulator.autoscale.dialect import DEFAULT, DIALECTS, LENIENT, STRICT
from batch_emulator.autoscale.evaluate import check
from batch_emulator.autoscale.values import FormulaError, FormulaSyntaxError, FormulaTooLongError
from tests.unit.emulator.autoscale.formulas import NOW, PUBLISHED, history, run, value

SAMPLES = history(
    130, ActiveTasks=[3, 5, 10, 2], PendingTasks=7, CurrentDedicatedNodes=3, CPUPercent=0.75
)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("dialect", ["default", "lenient"])
def test_published_formulas_evaluate(name: str, dialect: str) -> None:
    done = run(PUBLISHED[name], SAMPLES, DIALECTS[dialect])
    assert done.problem is None


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("article: tasks", ("$TargetDedicatedNodes=7;$TargetLowPriorityNodes=1;"
         "$NodeDeallocationOption=taskcompletion;$samples=100;$targetVMs=7;$tasks=7")),
        ("article: time of day", ("$TargetDedicatedNodes=20;$TargetLowPriorityNodes=1;"
         "$NodeDeallocationOption=taskcompletion;$curTime=2026-01-05T09:30:00.000Z;"
         "$isWeekday=1;$isWorkingWeekdayHour=1;$workHours=1")),
        ("article: CPU", ("$TargetDedicatedNodes=3;$TargetLowPriorityNodes=1;"
         "$NodeDeallocationOption=requeue;$totalDedicatedNodes=3.3")),
        ("article: parallel tasks", ("$TargetDedicatedNodes=1;$TargetLowPriorityNodes=1;"
         "$NodeDeallocationOption=taskcompletion;$cores=16;$extraVMs=-2.75;$samples=100;"
         "$targetVMs=1.25;$tasks=2")),
        ("SDK samples", ("$TargetDedicatedNodes=1;$TargetLowPriorityNodes=1;"
         "$NodeDeallocationOption=requeue")),
        ("REST reference", ("$TargetDedicatedNodes=4;$TargetLowPriorityNodes=1;"
         "$NodeDeallocationOption=requeue;$targetDedicatedNodes=3;totalNodes=3")),
    ],
)  # fmt: skip
def test_published_formulas_give_the_documented_results(name: str, results: str) -> None:
    assert run(PUBLISHED[name], SAMPLES).results == results


@pytest.mark.parametrize(
    ("text", "result"),
    [
        # precedence and associativity
        ("1 + 2 * 3 - 4 / 2", "5"),
        ("(1 + 2) * 3", "9"),
        ("10 - 4 - 3", "3"),
        ("2 * -3", "-6"),
        ("- - 3", "3"),
        ("!0 + !5", "1"),
        ("1 < 2 == 1", "1"),
        ("1 == 2 || 3 != 4 && 0", "0"),
        ("0 || 7", "1"),
        ("5 && 2", "1"),
        ("0 ? 1 : 0 ? 2 : 3", "3"),
        ("1 ? 0 ? 5 : 6 : 7", "6"),
        # numbers as %.6g
        ("1 / 3", "0.333333"),
        ("1234567", "1.23457e+06"),
        ("1e20", "1e+20"),
        (".5 + 2.", "2.5"),
        ("0.1 + 0.2", "0.3"),
        # functions
        ("avg(1, 2, 3)", "2"),
        ("avg(vec(1, 2, 3), 7)", "3.25"),
        ("max(3, 9, -1)", "9"),
        ("min(3, 9, -1)", "-1"),
        ("sum(1, vec(2, 3), 4)", "10"),
        ("len(vec(1, 2), 3)", "3"),
        ("range(vec(4, 9, 1))", "8"),
        ("norm(vec(3, 4))", "5"),
        ("std(2, 4, 4, 4, 5, 5, 7, 9)", "2.13809"),
        ("lg(8)", "3"),
        ("ln(1)", "0"),
        ("log(1000)", "3"),
        ("log(vec(10, 100))", "[1,2]"),
        ("lg(8, 4)", "[3,2]"),
        ("ceil(1.2) + floor(1.8) + round(2.5)", "6"),
        ("round(-2.5)", "-3"),
        ("round(vec(0.4, 0.5, 1.5))", "[0,1,2]"),
        ("percentile(vec(1, 2, 3, 4), 50)", "2.5"),
        ("percentile(vec(4, 1), 100)", "4"),
        ("val(vec(4, 5, 6), 1)", "5"),
        ("rand()", "0.25"),
        # vectors
        ("vec(1, 2) + vec(10, 20)", "[11,22]"),
        ("vec(1, 2) * 3", "[3,6]"),
        # times
        ('time("2016-10-13T19:18:47.805Z")', "2016-10-13T19:18:47.805Z"),
        ('time("2016-10-13T21:18:47+02:00")', "2016-10-13T19:18:47.000Z"),
        ('time("2016")', "2016-01-01T00:00:00.000Z"),
        ('time("2016-10")', "2016-10-01T00:00:00.000Z"),
        ('time("Thu, 13 Oct 2016 19:18:47 GMT")', "2016-10-13T19:18:47.000Z"),
        ("time()", "2026-01-05T09:30:00.000Z"),
        ('time("")', "2026-01-05T09:30:00.000Z"),
        ("time() + TimeInterval_Day", "2026-01-06T09:30:00.000Z"),
        ("TimeInterval_Hour + time()", "2026-01-05T10:30:00.000Z"),
        ("time() + -6 * TimeInterval_Hour", "2026-01-05T03:30:00.000Z"),
        ('time() - time("2026-01-05T09:00Z") > TimeInterval_Minute * 20', "1"),
        ("TimeInterval_Year == 365 * TimeInterval_Day", "1"),
        ("TimeInterval_Week / 7 == TimeInterval_Day", "1"),
        ("10 * TimeInterval_100ns == TimeInterval_Microsecond", "1"),
        ("TimeInterval_Millisecond * 1000 - TimeInterval_Second == TimeInterval_Zero", "1"),
        ("TimeInterval_Minute * 15", "PT900S"),
        ("TimeInterval_100ns * 3", "PT0.0000003S"),
        ("time().year * 10000 + time().month * 100 + time().day", "2.02601e+07"),
        ("time().hour * 60 + time().minute + time().second", "570"),
        ("time().weekday", "1"),
        # words and strings
        ("$NodeDeallocationOption == requeue", "1"),
        ('"abc" == "abc"', "1"),
        ('"abc" < "abd"', "1"),
        ("1 ? taskcompletion : terminate", "taskcompletion"),
    ],
)  # fmt: skip
def test_expressions_are_evaluated(text: str, result: str) -> None:
    assert value(text) == result


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 + requeue", "Operator '+' cannot be applied to double and word"),
        ('"a" + "b"', "Operator '+' cannot be applied to string and string"),
        ("3 * vec(1, 2)", "Operator '*' cannot be applied to double and doubleVec"),
        ("time() - TimeInterval_Hour", "Operator '-' cannot be applied to timestamp and timein"),
        ("TimeInterval_Day / TimeInterval_Hour", "Operator '/' cannot be applied to timeinterval"),
        ("-vec(1, 2)", "Operator '-' cannot be applied to doubleVec"),
        ("-time()", "Operator '-' cannot be applied to timestamp"),
        ("vec(1) < 2", "Operator '<' cannot be applied to doubleVec and double"),
        ("1 == requeue", "Operator '==' cannot be applied to double and word"),
        ("vec(1, 2) + vec(1)", "Operator '+': the vectors have 2 and 1 elements"),
        ("1 / 0", "Division by zero"),
        ("1e308 * 10", "The result is not a finite number"),
        ("0 * (1e308 * 10)", "The result is not a finite number"),
        ("TimeInterval_Year * 1e9", "Operator '*': the timeinterval is too long"),
        ("time() + TimeInterval_Year * 9000", "Operator '+': the timestamp is out of range"),
        ("ln(0)", "ln has no value there"),
        ("time() ? 1 : 2", "A condition must be a double and is a timestamp"),
        ("!requeue", "A condition must be a double and is a word"),
        ("undefined", "Undefined symbol: undefined"),
        ("$activetasks", "Undefined symbol: activetasks; did you mean $ActiveTasks?"),
        ("sqrt(4)", "There is no function 'sqrt'"),
        ("val(vec(1))", "val cannot take 1 arguments"),
        ("avg()", "avg cannot take 0 arguments"),
        ("stop(1)", "stop cannot take 1 arguments"),
        ("time().week", "A timestamp has no member 'week'"),
        ("vec(1).year", "A doubleVec has no member 'year'"),
        ("$ActiveTasks.GetSamples(1)", "A metric has no method 'GetSamples'"),
        ("$ActiveTasks.GetSample()", "GetSample cannot take 0 arguments"),
        ("$ActiveTasks.GetSample(-1)", "GetSample of less than no samples"),
        ('$ActiveTasks.GetSample("now")', "A window needs a timestamp or a timeinterval and got"),
        ('time("13 Oct 2016")', "time cannot read '13 Oct 2016'"),
        ('time("2016-13-01")', "time cannot read '2016-13-01'"),
        ('time("2024-10-30T00:00:00.123456789Z")', "time cannot read"),
        ("percentile(vec(1), 101)", "percentile wants 0 to 100"),
    ],
)
def test_unsupported_operations_are_evaluation_errors(text: str, reason: str) -> None:
    done = run(f"x = {text};")
    assert done.problem is not None
    assert done.problem.code == "AutoScalingFormulaEvaluationError"
    assert reason in done.problem.detail
    assert done.results == (
        "$TargetDedicatedNodes=4;$TargetLowPriorityNodes=1;$NodeDeallocationOption=requeue"
    )


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "Line 1, Col 1:"),
        ("// nothing", "Line 1, Col 11:"),
        ("x = ;", "Line 1, Col 5:"),
        ("x = 1;\n\n  y = 2 +;", "Line 3, Col 10:"),
        ("x = 1 y = 2", "Line 1, Col 7:"),
        ("x = 1;; y = 2", "Line 1, Col 7:"),
        ("x = (1", "Line 1, Col 7:"),
        ("x = [1,2]", "Line 1, Col 5:"),
        ('x = "open', "Line 1, Col 5:"),
        ("x = 7 % 2", "Line 1, Col 7:"),
        ("/* no */ x = 1", "Line 1, Col 1:"),
        ("1 = x", "Line 1, Col 3:"),
        ("x = a.", "Line 1, Col 7:"),
        ("x = f(1,)", "Line 1, Col 9:"),
        ("x = 1 ? 2", "Line 1, Col 10:"),
        ("x = $", "Line 1, Col 5:"),
        ("x = 1e999", "Line 1, Col 5:"),
        ("x = \u00e4", "Line 1, Col 5:"),
    ],
)
def test_syntax_errors_are_refused_with_their_position(text: str, where: str) -> None:
    with pytest.raises(FormulaSyntaxError) as caught:
        check(text)
    assert caught.value.detail(text).startswith(where)


def test_limits_of_a_formula_are_enforced() -> None:
    check("x=1;" * 100)
    check("x=1" + " " * 8189)
    with pytest.raises(FormulaSyntaxError, match="More than 100 statements"):
        check("x=1;" * 101)
    with pytest.raises(FormulaTooLongError):
        check("x=1" + " " * 8190)


def test_comment_extends_to_the_end_of_the_line() -> None:
    assert run("x = 1; // why\ny = 2;").results.endswith("x=1;y=2")
    assert run("x = 1; // why y = 2;").results.endswith("x=1")


def test_results_are_sorted_by_bytes() -> None:
    results = run("b=1;$z=2;B=3;$A=4;a1=5;_=6").results
    assert results.split(";")[3:] == ["$A=4", "$z=2", "B=3", "_=6", "a1=5", "b=1"]


def test_variable_can_have_the_name_of_a_function() -> None:
    assert run("$round = 3; round = round($round + 0.4);").results.endswith("$round=3;round=3")


def test_full_name_wins_over_the_alias() -> None:
    assert run("$TargetDedicatedNodes = 2; $TargetDedicated = 9;").dedicated == 2
    assert run("$TargetDedicated = 9; $TargetLowPriority = 8;").dedicated == 9
    assert run("$TargetLowPriority = 8;").spot == 8


def test_targets_are_truncated_and_at_least_zero() -> None:
    done = run("$TargetDedicatedNodes = 2.9; $TargetLowPriorityNodes = 0.5 - 3;")
    assert (done.dedicated, done.spot) == (2, 0)
    assert done.results.startswith("$TargetDedicatedNodes=2;$TargetLowPriorityNodes=0;")
    assert done.warnings == ("$TargetLowPriorityNodes is below 0, 0 is taken",)


def test_stop_keeps_the_values_so_far() -> None:
    done = run("$TargetDedicatedNodes = 7; time().hour > 8 ? stop() : 0; x = undefined;")
    assert (done.dedicated, done.problem) == (7, None)


def test_only_the_chosen_branch_is_evaluated() -> None:
    assert value("1 ? 2 : undefined") == "2"
    assert value("0 && undefined") == "0"
    assert value("1 || undefined") == "1"


def test_documented_result_of_the_article_is_reproduced() -> None:
    """The article is older than spot nodes, so its output lacks them."""
    formula = PUBLISHED["article: time of day"].replace(
        "$NodeDeallocationOption = taskcompletion;", ""
    )
    moment = datetime(2016, 10, 13, 19, 18, 47, 805_000, tzinfo=UTC)
    assert run(formula, dialect=replace(DEFAULT, spot_in_results=False), now=moment).results == (
        "$TargetDedicatedNodes=10;$NodeDeallocationOption=requeue;"
        "$curTime=2016-10-13T19:18:47.805Z;$isWeekday=1;$isWorkingWeekdayHour=0;$workHours=0"
    )


def test_published_result_of_a_user_is_reproduced() -> None:
    """The source is Azure/doAzureParallel#215 (read 2026-11-22)."""
    done = run(
        """$samples = $PendingTasks.GetSamplePercent(TimeInterval_Minute * 15);
        $tasks = $samples < 70 ? max(0, $PendingTasks.GetSample(1)) :
            max($PendingTasks.GetSample(1), avg($PendingTasks.GetSample(TimeInterval_Minute * 15)));
        $maxTasksPerNode = 4;
        $round = $maxTasksPerNode - 1;
        $targetVMs = $tasks > 0 ? ($tasks + $round) / $maxTasksPerNode : 1;
        $TargetDedicatedNodes = max(2, $targetVMs);
        $TargetLowPriorityNodes = max(5, $targetVMs);
        $NodeDeallocationOption = taskcompletion;""",
        history(60),
    )
    assert done.results == (
        "$TargetDedicatedNodes=2;$TargetLowPriorityNodes=5;$NodeDeallocationOption=taskcompletion;"
        "$maxTasksPerNode=4;$round=3;$samples=100;$targetVMs=1;$tasks=0"
    )


@pytest.mark.parametrize("name", ["$ActiveTasks", "TimeInterval_Day", "requeue"])
def test_service_defined_variables_are_read_only(name: str) -> None:
    done = run(f"{name} = 1;")
    assert done.problem is not None
    assert done.problem.detail == f"Line 1, Col 1: '{name}' cannot be assigned to"


def test_targets_must_be_doubles_and_the_option_an_identifier() -> None:
    for text in ("$TargetDedicatedNodes = requeue;", "$NodeDeallocationOption = 1;"):
        assert run(text).problem is not None


def test_variable_in_another_case_is_another_with_a_warning() -> None:
    done = run("$targetDedicatedNodes = 9;")
    assert done.dedicated == 4
    assert "$TargetDedicatedNodes is the service's" in done.warnings[0]
    assert run("$targetDedicatedNodes = 9;", dialect=LENIENT).dedicated == 9


def test_dialects_differ_in_the_documented_switches() -> None:
    assert value("max($ActiveTasks.GetSample(1))") == "0"
    assert "has no value" in value("max($ActiveTasks.GetSample(1))", dialect=STRICT)
    assert value("val(vec(1), 3)") == "0"
    assert value("$PendingTasks + 1", SAMPLES) == "8"
    assert "GetSample" in value("$PendingTasks + 1", SAMPLES, STRICT)
    assert value("3 * vec(1, 2)", dialect=LENIENT) == "[3,6]"
    assert value("time() - TimeInterval_Hour", dialect=LENIENT) == "2026-01-05T08:30:00.000Z"
    assert value("TimeInterval_Day / TimeInterval_Hour", dialect=LENIENT) == "24"
    assert value("-vec(1)", dialect=LENIENT) == "[-1]"
    assert value("$DiskBytes.GetSample(1)", SAMPLES) == "[0]"
    assert "Undefined" in value("$DiskBytes.GetSample(1)", SAMPLES, STRICT)
    assert "Undefined" in value("$UsableNodeCount", SAMPLES, STRICT)
    assert "no function" in value("ceil(1.5)", dialect=replace(DEFAULT, rounding=False))
    assert value("ln(vec(8))", dialect=replace(DEFAULT, log2_of_vectors=True)) == "[3]"
    sunday = datetime(2026, 1, 4, tzinfo=UTC)
    for given, day in ((7, "7"), (0, "0")):
        done = run("x = time().weekday", dialect=replace(DEFAULT, sunday=given), now=sunday)
        assert done.results.endswith(f"x={day}")
    assert "LowPriority" not in run("x=1", dialect=replace(DEFAULT, spot_in_results=False)).results


def test_seven_digits_after_the_second_are_read_in_full() -> None:
    later = 'time("2014-09-02T17:04:50.0818057Z") > time("2014-09-02T17:04:50.0818056Z")'
    assert value(later) == "1"


def test_nine_digits_after_the_second_are_not_read() -> None:
    """The source is nextflow-io/nextflow#3866 (read 2026-11-30)."""
    problem = run('x = time("2023-04-14T10:00:00.123456789Z")').problem
    assert problem is not None
    assert problem.code == "AutoScalingFormulaEvaluationError"


def test_errors_carry_line_and_column() -> None:
    text = "x = 1;\ny = 2 +\n    nothing;"
    done = run(text)
    assert done.problem is not None
    assert done.problem.detail == "Line 3, Col 5: Undefined symbol: nothing"
    assert FormulaError(len(text), "r").detail(text) == "Line 3, Col 13: r"


def test_evaluation_is_pure() -> None:
    text = "x = $ActiveTasks.GetSample(9); y = x * 2; $TargetDedicatedNodes = max(y);"
    assert run(text, SAMPLES, now=NOW) == run(text, SAMPLES, now=NOW)
