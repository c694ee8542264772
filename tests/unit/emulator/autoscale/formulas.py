"""Functions that evaluate formulas, and formulas that are published for the service."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from batch_emulator.autoscale.dialect import DEFAULT, Dialect
from batch_emulator.autoscale.evaluate import Evaluation, Inputs, evaluate
from batch_emulator.autoscale.samples import PERIOD, SampleHistory
from batch_emulator.autoscale.values import Timestamp

NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)  # a Monday


def history(count: int, **metrics: Sequence[float] | float) -> SampleHistory:
    """Return `count` samples up to now. The sample of now is not visible yet.

    A metric with a list has these last visible values; with a number, it always has this value.
    """
    made = SampleHistory()
    newest = Timestamp.of(NOW).ticks
    for age in range(count - 1, -1, -1):
        values: dict[str, float] = {}
        for name, given in metrics.items():
            if isinstance(given, int | float):
                values[f"${name}"] = given
            elif 1 <= age < len(given) + 1:
                values[f"${name}"] = given[len(given) - age]
        made.fill(newest - age * PERIOD, 1, values)
    return made


def run(
    text: str, samples: SampleHistory | None = None, dialect: Dialect = DEFAULT, now: datetime = NOW
) -> Evaluation:
    """Evaluate a formula on a pool with the targets of 4 dedicated nodes and 1 spot node."""
    inputs = Inputs(samples or SampleHistory(), now, 4, 1, lambda: 0.25, dialect)
    return evaluate(text, inputs)


def value(text: str, samples: SampleHistory | None = None, dialect: Dialect = DEFAULT) -> str:
    """Return the value of an expression as `results` show it, or the detail of the problem."""
    done = run(f"x = {text};", samples, dialect)
    if done.problem is not None:
        return done.problem.detail
    return done.results.partition(";x=")[2]


# From the article "Create a formula to automatically scale compute nodes in a Batch pool", the REST
# reference, and public projects. Names of variables and numbers are unchanged.
PUBLISHED: dict[str, str] = {
    "article: first": """
        $averageActiveTaskCount = avg($ActiveTasks.GetSample(TimeInterval_Minute * 15));
        $TargetDedicatedNodes = min(10, $averageActiveTaskCount);
        $NodeDeallocationOption = taskcompletion;""",
    "article: sample": """
        startingNumberOfVMs = 1;
        maxNumberofVMs = 25;
        pendingTaskSamplePercent = $PendingTasks.GetSamplePercent(180 * TimeInterval_Second);
        pendingTaskSamples = pendingTaskSamplePercent < 70
            ? startingNumberOfVMs
            : avg($PendingTasks.GetSample(180 * TimeInterval_Second));
        $TargetDedicatedNodes=min(maxNumberofVMs, pendingTaskSamples);
        $NodeDeallocationOption = taskcompletion;""",
    "article: preempted nodes": """
        maxNumberofVMs = 25;
        $TargetDedicatedNodes = min(maxNumberofVMs, $PreemptedNodeCount.GetSample(180 *
        TimeInterval_Second));
        $TargetLowPriorityNodes = min(maxNumberofVMs , maxNumberofVMs - $TargetDedicatedNodes);
        $NodeDeallocationOption = taskcompletion;""",
    "article: time of day": """
        $curTime = time();
        $workHours = $curTime.hour >= 8 && $curTime.hour < 18;
        $isWeekday = $curTime.weekday >= 1 && $curTime.weekday <= 5;
        $isWorkingWeekdayHour = $workHours && $isWeekday;
        $TargetDedicatedNodes = $isWorkingWeekdayHour ? 20:10;
        $NodeDeallocationOption = taskcompletion;""",
    "article: tasks": """
        // Get pending tasks for the past 15 minutes.
        $samples = $PendingTasks.GetSamplePercent(TimeInterval_Minute * 15);
        // If we have fewer than 70 percent data points, we use the last sample point,
        // otherwise we use the maximum of last sample point and the history average.
        $tasks = $samples < 70 ? max(0,$PendingTasks.GetSample(1)) :
        max( $PendingTasks.GetSample(1), avg($PendingTasks.GetSample(TimeInterval_Minute * 15)));
        $targetVMs = $tasks > 0? $tasks:max(0, $TargetDedicatedNodes/2);
        $TargetDedicatedNodes = max(0, min($targetVMs, 20));
        $NodeDeallocationOption = taskcompletion;""",
    "article: parallel tasks": """
        $samples = $ActiveTasks.GetSamplePercent(TimeInterval_Minute * 15);
        $tasks = $samples < 70 ? max(0,$ActiveTasks.GetSample(1)) :
            max( $ActiveTasks.GetSample(1),avg($ActiveTasks.GetSample(TimeInterval_Minute * 15)));
        $cores = $TargetDedicatedNodes * 4;
        $extraVMs = (($tasks - $cores) + 3) / 4;
        $targetVMs = ($TargetDedicatedNodes + $extraVMs);
        $TargetDedicatedNodes = max(0,min($targetVMs,3));
        $NodeDeallocationOption = taskcompletion;""",
    "article: initial size": """
        string = "a name that says nothing";
        $TargetDedicatedNodes = 4;
        lifespan         = time() - time("2026-01-05T09:00:00Z");
        span             = TimeInterval_Minute * 60;
        startup          = TimeInterval_Minute * 10;
        ratio            = 50;
        $TargetDedicatedNodes = (lifespan > startup ? (max($RunningTasks.GetSample(span, ratio),
            $ActiveTasks.GetSample(span, ratio)) == 0 ? 0 : $TargetDedicatedNodes) : 4);
        $NodeDeallocationOption = taskcompletion;""",
    "article: CPU": """
        $totalDedicatedNodes =
            (min($CPUPercent.GetSample(TimeInterval_Minute * 10)) > 0.7) ?
            ($CurrentDedicatedNodes * 1.1) : $CurrentDedicatedNodes;
        $totalDedicatedNodes =
            (avg($CPUPercent.GetSample(TimeInterval_Minute * 60)) < 0.2) ?
            ($CurrentDedicatedNodes * 0.9) : $totalDedicatedNodes;
        $TargetDedicatedNodes = min(400, $totalDedicatedNodes);""",
    "article: guarded window": """
        $runningTasksSample = $RunningTasks.GetSample(60 * TimeInterval_Second,
            120 * TimeInterval_Second);
        x = avg($runningTasksSample);""",
    "article: six hours ago": """
        $CurTime = time() + (-6 * TimeInterval_Hour);
        $TargetDedicatedNodes = $CurTime.hour >= 4 ? 2 : 0;""",
    "article: .NET sample": """
        $CurTime = time();
        $WorkHours = $CurTime.hour >= 8 && $CurTime.hour < 18;
        $IsWeekday = $CurTime.weekday >= 1 && $CurTime.weekday <= 5;
        $IsWorkingWeekdayHour = $WorkHours && $IsWeekday;
        $TargetDedicatedNodes = $IsWorkingWeekdayHour ? 20 : 10;""",
    "REST reference": "totalNodes=($CPUPercent.GetSamplePercent(TimeInterval_Minute*0,"
    "TimeInterval_Minute*10)<0.7?5:(min($CPUPercent.GetSample(TimeInterval_Minute*0,"
    " TimeInterval_Minute*10))>0.8?($CurrentDedicated*1.1):$CurrentDedicated));"
    "$targetDedicatedNodes=min(100,totalNodes);",
    "SDK samples": "$TargetDedicated = 1;",
    "Nextflow": """
        // Get pool lifetime since creation.
        lifespan = time() - time("2024-10-30T00:00:00.880011Z");
        interval = TimeInterval_Minute * 5;
        $samples = $PendingTasks.GetSamplePercent(interval);
        $tasks = $samples < 70 ? max(0, $PendingTasks.GetSample(1)) :
            max( $PendingTasks.GetSample(1), avg($PendingTasks.GetSample(interval)));
        $targetVMs = $tasks > 0 ? $tasks : max(0, $TargetDedicatedNodes/2);
        targetPoolSize = max(0, min($targetVMs, 8));
        // For first interval deploy 1 node, for other intervals scale up/down as per tasks.
        $TargetDedicatedNodes = lifespan < interval ? 1 : targetPoolSize;
        $NodeDeallocationOption = taskcompletion;""",
    "task execution service": """$NodeDeallocationOption = taskcompletion;
        lifespan = time() - time("Mon, 05 Jan 2026 09:00:00 GMT");
        span = TimeInterval_Second * 90;
        startup = TimeInterval_Minute * 2;
        ratio = 10;
        $TargetLowPriorityNodes = (lifespan > startup ?
            min($PendingTasks.GetSample(span, ratio)) : 3);""",
    "weekend": """
        $curTime = time();
        $isWeekend = $curTime.weekday >= 6 && $curTime.weekday <= 7;
        $TargetDedicated = $isWeekend ? 1:2;""",
    "queue": """
        $samples = $ActiveTasks.GetSamplePercent(TimeInterval_Minute * 15);
        $tasks = $samples < 70 ? max(0,$ActiveTasks.GetSample(1)) :
            max( $ActiveTasks.GetSample(1), avg($ActiveTasks.GetSample(TimeInterval_Minute * 15)));
        $targetVMs = $tasks > 0? $tasks : max(0, $TargetDedicated/2) + 0.5;
        $TargetDedicated = max(1, min($targetVMs, 9));
        $NodeDeallocationOption = taskcompletion;""",
    "pipelines": "samples = $PendingTasks.GetSamplePercent(TimeInterval_Minute * 5);\r\n"
    "cappedPoolSize = 1;\r\nAvgActiveTask = samples< 70 ? max(0,$ActiveTasks.GetSample(1)) :"
    " avg($ActiveTasks.GetSample(1 * TimeInterval_Minute, 2 * TimeInterval_Minute));\r\n"
    "$TargetDedicatedNodes = 0;\r\nActiveTask = AvgActiveTask > 0 ? 1 : 0;\r\n"
    "$TargetLowPriorityNodes = min(cappedPoolSize,ActiveTask);\r\n"
    "$NodeDeallocationOption = taskcompletion;",
}
