"""Measure how many small faults the tests detect: `python -m tools.mutation`.

Draws points (tools/mutants.py) from the functions that tools/mutation_core.txt names, changes each
in a copy of the last commit, and runs the tests nearest to it: first unit tests that import the
module, the slow ones too, then a few wider ones. A test that fails, or takes longer than its limit,
kills the mutant. Its file is then run once without the change; if that fails, too, the file is
ignored from then on.
The same seed draws the same points wherever the functions lie, so two trees can be compared: with
`--before`, the test that detected a point in an earlier report is run first.

    python -m tools.mutation --result mutation.json          # 200 points, an hour of one core
    python -m tools.mutation --result mutation.json -o json  # continues where it was stopped
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tools.mutants import Point, find_points, mutated, read_groups
from tools.nearest_tests import Tests

ROOT = Path(__file__).parents[1]
PRODUCT = ("runner", "batch_emulator", "infra")
SHARES = {"core": 0.28, "node": 0.25, "emulator": 0.35, "infra": 0.07, "azure": 0.05}
PYTEST = (
    *("-m", "pytest", "-x", "-q", "-rfE", "-n", "0", "-p", "no:cacheprovider", "--timeout", "90"),
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py)", re.MULTILINE)
Json = dict[str, Any]


class Copy:
    """A copy of the last commit, in which one file at a time is changed."""

    def __init__(self, folder: Path, limit_s: float) -> None:
        self.folder = folder
        self._limit_s = limit_s
        self._written = int(time.time())
        self._clean: dict[Path, bool] = {}

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file, with another time each: Python compares byte code by size and seconds."""
        path.write_bytes(content)
        self._written += 1
        os.utime(path, (self._written, self._written))

    def is_sound(self, test: Path) -> bool:
        """Return True if a file passes without a change. It is run once."""
        if test not in self._clean:
            self._clean[test] = self.run([test])[0]
        return self._clean[test]

    def usable(self, tests: Sequence[Path]) -> list[Path]:
        """Return the files that do not fail without a change."""
        return [test for test in tests if self._clean.get(test, True)]

    def run(self, tests: Sequence[Path]) -> tuple[bool, Path | None]:
        """Return whether the files pass and, if not, the first file that fails.

        Slow tests run only if all files are unit tests. The file is None if the limit was reached.
        """
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            names = [str(test.relative_to(self.folder)) for test in tests]
            are_units = all(name.startswith("tests/unit/") for name in names)
            chosen = () if are_units else ("-m", "not slow")
            output = Path(scratch) / "output.txt"
            with output.open("wb") as out:
                process = subprocess.Popen(
                    [sys.executable, *PYTEST, *chosen, *names],
                    cwd=self.folder,
                    env={
                        **os.environ,
                        "PYTHONPATH": str(self.folder),
                        "TMPDIR": scratch,
                        "RUNNER_HOME": f"{scratch}/home",
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            with _ended_with(process):
                try:
                    if process.wait(self._limit_s * len(tests)) in (
                        0,
                        5,
                    ):  # 5 if all tests are slow
                        return True, None
                except subprocess.TimeoutExpired:
                    return False, None
            failed = _FAILED.search(output.read_text(encoding="utf-8", errors="replace"))
            return False, self.folder / failed[1] if failed else None


@contextmanager
def _ended_with(process: subprocess.Popen[bytes]) -> Generator[None]:
    """Kill the process and its descendants at the end of the block."""
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid)
            for one in (*family.children(recursive=True), family):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        process.wait()


def draw(points: Sequence[Point], count: int, seed: int) -> list[Point]:
    """Choose the share of points of each layer, in the order of the seed."""
    chosen: list[Point] = []
    for layer, share in SHARES.items():
        there = sorted((p for p in points if p.layer == layer), key=lambda p: p.order(seed))
        chosen += there[: round(count * share)]
    return sorted(chosen, key=lambda p: p.order(seed))


def noticed_before(report: Path | None, folder: Path) -> dict[str, Path]:
    """Return the test files of `folder` that detected the points of an earlier report."""
    if report is None:
        return {}
    before = json.loads(report.read_text(encoding="utf-8"))
    renamed = subprocess.run(
        ["git", "-C", str(folder), "diff", "-M", "--diff-filter=R", "--name-status",
         before["commit"], "HEAD", "--", "tests"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    now = {old: new for _, old, new in (line.split("\t") for line in renamed.splitlines())}
    found: dict[str, Path] = {}
    for one in before["points"]:
        if one["by"]:
            by = str(one["by"])
            found[str(one["id"])] = folder / now.get(by, by)
    return {name: test for name, test in found.items() if test.is_file()}


def check(point: Point, copy: Copy, tests: Tests, before: Path | None = None) -> Json:
    """Change the code, and run test files until one fails."""
    source = point.path.read_bytes()
    began = time.monotonic()
    targeted, wider = tests.near(point)
    if before is not None:
        targeted = [before, *(test for test in targeted if test != before)]
        wider = [test for test in wider if test != before]
    killed_by: str | None = None
    by_set: str | None = None
    for name, group in (("targeted", targeted), ("wider", wider)):
        killed_by = _killer(point, source, copy, copy.usable(group))
        if killed_by:
            by_set = name
            break
    return {
        "id": point.id,
        "layer": point.layer,
        "file": str(point.path.relative_to(copy.folder)),
        "line": point.line,
        "before": point.before,
        "after": point.after,
        "status": "killed" if killed_by else "survived",
        "by": killed_by,
        "set": by_set,
        "tests": [str(test.relative_to(copy.folder)) for test in (*targeted, *wider)],
        "seconds": round(time.monotonic() - began, 1),
    }


def _killer(point: Point, source: bytes, copy: Copy, tests: list[Path]) -> str | None:
    """Return the test file that detects the change, or None."""
    while tests:
        try:
            copy.write(point.path, mutated(source, point))
            passes, failed = copy.run(tests)
        finally:
            copy.write(point.path, source)
        if passes:
            return None
        suspects = [failed] if failed else tests
        if all(copy.is_sound(test) for test in suspects):
            return str(failed.relative_to(copy.folder)) if failed else "time limit"
        tests = copy.usable(tests)
    return None


def summarise(report: Json) -> Json:
    """Return the numbers of points by layer, and how many were killed."""
    found: Json = {}
    for point in report["points"]:
        for layer in (point["layer"], "all"):
            row = found.setdefault(layer, {"points": 0, "killed": 0, "targeted": 0})
            row["points"] += 1
            row["killed"] += point["status"] == "killed"
            row["targeted"] += point["set"] == "targeted"
    for row in found.values():
        row["score"] = round(row["killed"] / row["points"], 3)
    return found


def show(report: Json) -> None:
    """Print the score by layer and the survivors."""
    print(f"{'layer':10}{'points':>8}{'killed':>8}{'survived':>10}{'score':>8}{'targeted':>10}")
    for layer, row in report["summary"].items():
        survived = row["points"] - row["killed"]
        print(f"{layer:10}{row['points']:8}{row['killed']:8}{survived:10}{row['score']:8.0%}"
              f"{row['targeted']:10}")  # fmt: skip
    for point in report["points"]:
        if point["status"] == "survived":
            print(f"\n{point['file']}:{point['line']}  {point['id']}")
            print(f"  - {point['before']}\n  + {point['after']}")
    if report["missing"]:
        print(f"\nno longer defined: {', '.join(report['missing'])}")


@contextmanager
def _worktree(tree: Path) -> Generator[Path]:
    """Yield a copy of the last commit of `tree` in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        folder = Path(name) / "tree"
        git = ["git", "-C", str(tree), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(folder), "HEAD"], check=True)
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def measure(options: argparse.Namespace) -> Json:
    """Check all points that the file of `--result` does not contain yet. Return the report."""
    commit = subprocess.run(
        ["git", "-C", str(options.tree), "rev-parse", "HEAD"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    head = {"commit": commit, "seed": options.seed, "count": options.points}
    report: Json = {**head, "missing": [], "points": []}
    if options.result and options.result.exists():
        before = json.loads(options.result.read_text(encoding="utf-8"))
        if {key: before[key] for key in head} == head:
            report = before
    done = {point["id"] for point in report["points"]}
    with _worktree(options.tree) as folder:
        sources = sorted(path for name in PRODUCT for path in (folder / name).rglob("*.py"))
        groups = read_groups(options.core.read_text(encoding="utf-8"))
        points, report["missing"] = find_points(groups, sources)
        copy, tests = Copy(folder, options.limit), Tests(folder)
        chosen = draw(points, options.points, options.seed)
        before = noticed_before(options.before, folder)
        for number, point in enumerate(chosen, 1):
            if point.id in done:
                continue
            found = check(point, copy, tests, before.get(point.id))
            report["points"].append(found)
            report["summary"] = summarise(report)
            where = f"{found['file']}:{found['line']} {found['id']}"
            text = f"{number}/{len(chosen)} {found['status']:8} {found['seconds']:6.1f} s {where}"
            print(text, file=sys.stderr, flush=True)
            if options.result:
                options.result.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Run the measurement and print it."""
    parser = argparse.ArgumentParser(description="Measure how many small faults the tests detect.")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a test file")
    parser.add_argument(
        "--tree", type=Path, default=ROOT, help="checkout whose last commit is measured"
    )
    parser.add_argument("--core", type=Path, default=ROOT / "tools" / "mutation_core.txt")
    parser.add_argument("--result", type=Path, help="report to write, and to continue")
    parser.add_argument("--before", type=Path, help="an earlier report, of this tree or another")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _exit)  # so that the copy is removed
    report = measure(options)
    if options.output == "json":
        print(json.dumps(report, indent=1))
    else:
        show(report)


if __name__ == "__main__":
    main()
