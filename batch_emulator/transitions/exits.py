"""What the end of a task means to its job and to the tasks that depend on it."""

from __future__ import annotations

from batch_emulator.model import Json, part, parts


def exit_options(body: Json, code: int | None, failure: Json | None) -> Json:
    """The ExitOptions that match an end: exit codes, then ranges, then the kinds of error.

    An exit code that is listed beats a failed upload; `default` never covers exit code 0 (docs:
    ExitConditions). Codes over overlapping ranges is our choice, and so is that `default` covers
    a task that was ended by request or by its wall clock [S].
    """
    conditions = part(body, "exitConditions")
    for mapping in parts(conditions, "exitCodes"):
        if code is not None and mapping["code"] == code:
            return part(mapping, "exitOptions")
    for span in parts(conditions, "exitCodeRanges"):
        if code is not None and span["start"] <= code <= span["end"]:
            return part(span, "exitOptions")
    if failure is None:
        return {}
    kind = str(failure["code"])
    if kind.startswith("FileUpload") and "fileUploadError" in conditions:
        return part(conditions, "fileUploadError")
    if code is None and kind != "TaskEnded" and "preProcessingError" in conditions:
        return part(conditions, "preProcessingError")
    return part(conditions, "default")


def satisfies(body: Json, code: int | None, failure: Json | None) -> bool:
    """Whether dependent tasks may go on: by default only after success (docs: ExitOptions)."""
    action = exit_options(body, code, failure).get("dependencyAction")
    return failure is None if action is None else action == "satisfy"


def job_action(body: Json, code: int | None, failure: Json | None) -> str:
    """By default none after success and terminate after any other end (docs: ExitOptions)."""
    action = exit_options(body, code, failure).get("jobAction")
    return action or ("none" if failure is None else "terminate")
