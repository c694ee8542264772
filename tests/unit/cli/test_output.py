from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from runner.cli.main import main
from runner.cli.ui.output import Output, OutputFormat, show_error, why_declined
from runner.cli.ui.terminal import mark, shown_log, styled, wrapped
from runner.core.progress import Progress
from runner.flows.local import lifecycle
from runner.flows.local.lifecycle import LocalStatus, ServiceStatus
from runner.protocol.errors import RunnerError

ROWS = [
    {"name": "a", "score": 0.123456789, "ok": True, "note": None, "more": {"x": 1}},
    {"name": "longer", "score": 12.0, "ok": False, "note": "tab\there\nand", "more": []},
]


def test_table_aligns_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    Output().rows(ROWS, ("name", "score", "ok", "note"))
    head, first, _second, *_ = capsys.readouterr().out.splitlines()
    assert head == "NAME       SCORE  OK   NOTE"
    assert first == "a       0.123457  yes  -"


@pytest.mark.feature(26)
def test_json_contains_whole_rows(capsys: pytest.CaptureFixture[str]) -> None:
    Output(OutputFormat.JSON).rows(ROWS, ("name",))
    assert json.loads(capsys.readouterr().out) == ROWS


def test_tsv_has_one_line_per_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output(OutputFormat.TSV).rows(ROWS, ("name", "note", "more"))
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name\tnote\tmore", 'a\t\t{"x": 1}', "longer\ttab\\there\\nand\t[]"]


@pytest.mark.parametrize(
    ("fmt", "out", "err"),
    [
        (OutputFormat.TABLE, "", "no runs\n"),
        (OutputFormat.JSON, "[]\n", ""),
        (OutputFormat.TSV, "name\n", ""),
    ],
)
def test_empty_table_prints_nothing_on_stdout(
    capsys: pytest.CaptureFixture[str], fmt: OutputFormat, out: str, err: str
) -> None:
    Output(fmt).rows([], ("name",), empty="no runs")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (out, err)


def test_record_and_panel_go_to_their_streams(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.record({"state": "running", "pid": 7}, title="batch")
    out.panel("done", {"accuracy": "0.99"}, commands=["runner show @last"])
    shown = capsys.readouterr()
    assert shown.out == "batch\nstate  running\npid    7\n"
    assert "accuracy  0.99" in shown.err
    assert "runner show @last" in shown.err


def test_stages_are_plain_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Output().stages() as view:
        view.on_progress(Progress("upload", "start", "3 files", 0, 2_000_000, "bytes"))
        view.on_progress(Progress("upload", "progress", "3 files", 1_000_000, 2_000_000, "bytes"))
        view.on_progress(Progress("upload", "end", "3 files", 2_000_000, 2_000_000, "bytes"))
        view.log("epoch 1")
        view.log("warned", error=True)
        view.on_progress(Progress("boot", "failed", "no node"))
    shown = capsys.readouterr()
    assert shown.out == "epoch 1\n"
    assert "\x1b" not in shown.err
    lines = shown.err.splitlines()
    assert [line for line in lines if line.startswith(("✓ upload", "+ upload"))]
    assert "2.0 MB" in shown.err
    assert "warned" in lines
    assert lines[-1].endswith("no node")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_stage_of_one_file_counts_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().stages() as view:
        view.on_progress(Progress("delete", "end", "", 1, 1, "files"))
        view.on_progress(Progress("upload", "end", "", 2, 2, "files"))
    shown = capsys.readouterr().err
    assert re.search(r"delete +1 file( |$)", shown, re.MULTILINE)
    assert re.search(r"upload +2 files( |$)", shown, re.MULTILINE)


def test_log_lines_pass_through_the_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with Output().stages() as view:
        view.on_progress(Progress("command", "start", "training"))
        view.log("loss [red] 0.5")  # not markup
        view.on_progress(Progress("command", "end", "trained"))
    text = screen.getvalue()
    assert "loss [red] 0.5" in text
    assert "trained" in text
    assert text.index("loss") < text.index("trained")


@pytest.mark.parametrize(
    ("length", "between"), [(1, 12 * " "), (12, " "), (13, f"\n{15 * ' '}"), (64, f"\n{15 * ' '}")]
)
def test_messages_of_stages_begin_in_one_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], length: int, between: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("runner.cli.ui.terminal.is_terminal", lambda _: True)
    with Output().stages() as view:
        view.on_progress(Progress("sizes", "end", "offered"))
        view.on_progress(Progress("p" * length, "failed", "unknown size " * 12))
        view.on_progress(Progress("q" * length, "end", ""))
    shown = capsys.readouterr().err
    assert shown.startswith(f"✓ sizes        offered\n✗ {'p' * length}{between}unknown size ")
    assert shown.endswith(f"\n✓ {'q' * length}\n")
    assert max(map(len, shown.splitlines())) <= 80


def test_stage_with_a_long_name_is_one_line_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Output().stages() as view:
        view.on_progress(Progress("pool vision-t4-spot", "end", "at most 2 spot"))
    assert capsys.readouterr().err.endswith(" pool vision-t4-spot at most 2 spot\n")


def test_note_during_stages_is_printed_above_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    out = Output()
    with out.stages() as view:
        view.on_progress(Progress("upload", "start", "sending"))
        start = len(screen.getvalue())
        out.note("take note")
        drawn = screen.getvalue()[start:]
        assert "sending" in drawn[drawn.index("take note") :], "the bar is drawn again below it"
        assert drawn.index("\r") < drawn.index("take note"), "and was wiped away before"
    out.note("later")
    assert screen.getvalue().endswith("later\n")


@pytest.mark.parametrize("columns", [40, 60, 92])
def test_time_and_spinner_are_whole_beside_a_long_message(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    with Output().stages() as view:
        view.on_progress(Progress("command", "start", "val_accuracy 0.9891  " * 8))
        view.on_progress(Progress("upload", "start", "data", 1.0, 2.0, "files"))
    drawn = [line for line in re.split(r"[\r\n]", screen.getvalue()) if "command " in line]
    assert drawn
    for line in drawn:
        shown = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", line)
        assert re.search(r"^\S command .+… .*0:00:0\d$", shown), shown
        assert len(shown) <= columns


def test_json_has_no_nan_or_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    values = {"metrics": {"loss": float("nan"), "all": [float("inf"), -float("inf"), 1.5]}}
    Output(OutputFormat.JSON).record(values)
    read = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert read == {"metrics": {"loss": "NaN", "all": ["Infinity", "-Infinity", 1.5]}}


def test_colour_needs_a_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert styled("x", "bold red", Terminal()) == "\x1b[1;31mx\x1b[0m"
    assert styled("x", "bold", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("x", "bold", Terminal()) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert styled("x", "bold", Terminal()) == "x"


def test_symbols_fall_back_to_ascii() -> None:
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert mark("✓", "+", ascii_stream) == "+"
    assert mark("✓", "+", Terminal()) == "✓"


def test_confirm_without_a_terminal_is_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert Output().confirm("sure?") is False
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert Output().confirm("sure?") is True


@pytest.mark.parametrize(("stdin", "fix"), [(Terminal("n\n"), ""), (io.StringIO(), "rm x --yes")])
def test_refused_deletion_names_a_command_only_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO, fix: str
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(RunnerError) as refused:
        Output().confirm_deletion("Delete x?", yes=False, again="rm x --yes")
    assert (refused.value.code, refused.value.fix) == ("R-NOT-CONFIRMED", fix)


@pytest.mark.parametrize(
    ("stdin", "why"),
    [(Terminal("n\n"), "not answered with y"), (io.StringIO("y\n"), "no terminal")],
)
def test_refusal_says_whether_there_was_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO, why: str
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    assert not Output().confirm("sure?")
    assert why in why_declined()


def test_control_characters_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = Output(OutputFormat.TABLE)
    out.rows([{"metric": "a\nb\x1b[2J", "value": "ü 💥"}], ("metric", "value"))
    out.record({"c\x1b[31m": 1, "lines": "one\ntwo\x07"})
    out.panel("run", {"d\x1b[0m": "1"})
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1] == "a\\nb\\x1b[2J  ü 💥"
    assert "lines   one\n        two\\x07" in shown.out
    assert "\x1b" not in shown.out + shown.err


RUN = {"run": "cats-1", "recipe": "cats", "status": "failed", "error": "could not " * 9}


def _table_lines(monkeypatch: pytest.MonkeyPatch, width: int, **run: str) -> list[str]:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [{**RUN, **run}]
    Output().rows(rows, tuple(rows[0]), spare=("recipe", "error"))
    return screen.getvalue().splitlines()


def test_endpoints_of_local_services_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    url, log = "http://127.0.0.1:30178/runnerlocal", "/home/someone/.local/share/runner/azurite.log"
    found = LocalStatus(True, (ServiceStatus("blob", "running", 10832, url, log),), 2, 1, "/home")
    monkeypatch.setattr(lifecycle, "status", lambda _: found)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["local", "status"]) == 0
    assert screen.getvalue().splitlines()[1:] == [f"blob     running  10832  {url}"]


@pytest.mark.parametrize("words", [["skus"], ["skus", "--gpu", "T4"]])
def test_vm_sizes_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(words) == 0
    head, *rows = screen.getvalue().splitlines()
    assert re.findall(r"\w+(?: \w+)*", head)[-2:] == ["SPOT USD", "USEFUL USD"]
    assert "QUOTA" not in head, "only --live knows it"
    assert all(row.startswith("Standard_") and len(row) <= 80 for row in rows)


def test_narrow_table_drops_spare_columns_in_order_and_names_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _table_lines(monkeypatch, 40)[0] == "RUN     RECIPE  STATUS  ERROR"
    assert capsys.readouterr().err == ""
    assert _table_lines(monkeypatch, 39)[0] == "RUN     STATUS  ERROR"
    assert capsys.readouterr().err == "not shown at this width: recipe\n"
    assert _table_lines(monkeypatch, 31)[0] == "RUN     RECIPE  STATUS", "recipe fits again"
    assert capsys.readouterr().err == "not shown at this width: error\n"
    assert _table_lines(monkeypatch, 21) == ["RUN     STATUS", "cats-1  failed"]
    assert capsys.readouterr().err == "not shown at this width: recipe, error\n"


def test_sentences_are_wrapped_and_ids_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = "cats-and-dogs-20261121-143005-k3f9"
    lines = _table_lines(monkeypatch, 80, run=run_id)
    assert run_id in lines[1]
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(" ".join(line[-25:].split()) for line in lines).count("could not") == 9


def test_table_that_is_too_wide_folds_other_columns_than_ids_of_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_id = "a-rather-long-name-20261121-143005-k3f9"
    words = {"recipe": "another-long-name-of-a-folder", "status": "failed"}
    row = {"run": run_id, **words, "error": "FileNotFoundError: 'data/x.csv' does not exist"}
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    Output().rows([row], tuple(row))
    lines = screen.getvalue().splitlines()
    assert lines[1].startswith(f"{run_id}  another-lo")
    assert all(len(line) <= 80 for line in lines)
    screen.truncate(0)
    Output().rows([row], tuple(row), spare=("recipe",))
    shown = screen.getvalue()
    assert run_id in shown
    assert "FileNotFoundError:" in shown, "a word of a sentence is not cut"


def test_id_wider_than_the_terminal_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _table_lines(monkeypatch, 20, run="x" * 30)
    assert sum(line.count("x") for line in lines) == 30


def test_piped_table_is_never_cut_or_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    Output().rows([{**RUN, "run": "x" * 300}], tuple(RUN), spare=("recipe", "error"))
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith("x" * 300 + "  cats    failed  could not")
    assert line.count("could not") == 9


def test_wide_characters_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    Output().rows([{"path": "モデル.bin", "size": "1 B"}], ("path", "size"))
    assert capsys.readouterr().out.splitlines() == ["PATH        SIZE", "モデル.bin  1 B"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


HOSTILE = (
    "\x1b]0;title\x07a\x1b[2Jb\x1b[31mred\x1b[0m\x1b[6n\x9b5Ac\x1bPq\x1b\\d\x07\u202ee\x1bc\x1b"
)


def test_script_lines_keep_colours_and_nothing_else_on_a_terminal() -> None:
    assert shown_log(HOSTILE, _Terminal()) == "ab\x1b[31mred\x1b[0mcde\x1b[0m"
    assert shown_log(HOSTILE, io.StringIO()) == HOSTILE
    assert shown_log("epoch 1\t\u2588 100%", _Terminal()) == "epoch 1\t\u2588 100%"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["\x1b]0;", "\x1b[", "\x1b[1;", "\x9b 0", "\x1bP\x1b", "\x1b "])
def test_long_lines_of_sequences_without_an_end_are_read_quickly(part: str) -> None:
    shown = shown_log(part * 100_000, _Terminal())
    assert "\x1b]" not in shown
    assert "\x9b" not in shown


def test_messages_are_shown_with_their_escape_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    with out.stages() as view:
        view.log(f"run {HOSTILE}", error=True)
        view.on_progress(Progress("boot", "end", HOSTILE))
    out.note(HOSTILE)
    out.warning(HOSTILE)
    show_error(RunnerError("R-X", HOSTILE, why=HOSTILE, fix=HOSTILE))
    err = capsys.readouterr().err
    assert re.sub(r"\x1b\[(31|0)m", "", err).isprintable() is False  # line ends
    assert all(line.isprintable() for line in re.sub(r"\x1b\[(31|0)m", "", err).splitlines())
    assert err.count(r"\x1b[2Jb") == 7


WORDS = "one two  three four, five-six seven"


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        (WORDS, 80, WORDS),
        (WORDS, 20, "one two  three four,\n  five-six seven"),
        (WORDS, 19, "one two  three\n  four, five-six\n  seven"),
        # Words that are wider than the terminal have a line of their own, and stay whole.
        ("see http://127.0.0.1:1/runs/x/output/ for it", 20, None),
        ("use `runner train mnist --set epochs=1` for it", 20, None),
        ("to list them: runner ps --status failed -a", 20, None),
        # Words after a command, or after what only looks like one, are not part of it.
        (
            "1 failed: python t.py exited with 3   details: runner ps --status failed -a",
            30,
            "1 failed:\n  python t.py exited with 3\n  details:\n  runner ps --status failed -a",
        ),
        (
            "python t.py exited with code 1: ValueError: one two, three four",
            34,
            "python t.py exited with code 1:\n  ValueError: one two, three four",
        ),
        (
            "fix: make it readable, or choose a folder",
            24,
            "fix: make it readable,\n  or choose a folder",
        ),
        ("to list them: runner ps --status failed -a, or not", 20, None),
        ("\x1b[1mone\x1b[0m two three", 13, "\x1b[1mone\x1b[0m two three"),
        ("モデル モデル", 10, "モデル\n  モデル"),
        ("    four columns of it", 14, "    four\n  columns of\n  it"),
        ("", 10, ""),
    ],
)
def test_message_on_a_terminal_breaks_between_words(
    monkeypatch: pytest.MonkeyPatch, text: str, columns: int, expected: str | None
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    found = wrapped(text, _Terminal(), indent=2)
    assert found.replace("\n  ", " ") == text or expected is not None
    if expected is not None:
        assert found == expected
    for whole in (
        "http://127.0.0.1:1/runs/x/output/",
        "`runner train mnist --set epochs=1`",
        "runner ps --status failed -a",
    ):
        assert (whole in found) == (whole in text)
    assert wrapped(text, io.StringIO(), indent=2) == text


LONG = "word " * 30 + "end"


def test_no_message_of_ours_breaks_within_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    stdout, stderr = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    out = Output()
    out.note(LONG)
    out.note(f"  {LONG}")
    out.warning(LONG)
    out.panel(LONG, {"data": LONG, "on disk": "/x"})
    out.record({"data": LONG, "lines": f"{LONG}\n{LONG}"})
    show_error(RunnerError("R-X", LONG, why=f"{LONG}\n{LONG}", fix=f"use {LONG}"))
    with out.stages() as view:
        view.on_progress(Progress("data", "end", LONG))
        view.warning(LONG)
    printed = stdout.getvalue() + stderr.getvalue()
    assert max(map(len, printed.splitlines())) <= 80
    assert printed.count("end\n") == 14  # every line is whole
    assert set(re.findall(r"wo?r?d?(?=\n)", printed)) == {"word"}
    assert f"\n  why: {'word ' * 13}word\n       word" in printed
    assert f"\n  data     {'word ' * 13}word\n           word" in printed


def test_commands_of_a_panel_stay_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys, "stderr", stderr := Terminal())
    command = "runner train mnist --set epochs=3 --set batch_size=16"
    Output().panel("x", {}, commands=[command])
    show_error(RunnerError("R-X", "what", fix=command))
    assert stderr.getvalue().count(command) == 2


def test_data_is_escaped_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Output(OutputFormat.TSV).rows([{"name": "\x9b2J"}], ("name",))
    assert "\x9b2J" in capsys.readouterr().out
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    Output(OutputFormat.TSV).rows([{"name": "\x9b2J"}], ("name",))
    assert r"\x9b2J" in terminal.getvalue()


def test_long_json_has_one_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"run": f"mnist-{number}", "metrics": {"loss": float("nan")}} for number in range(2000)]
    document = {"sweep": "lr", "states": {"succeeded": 2000}, "trials": rows}
    Output(OutputFormat.JSON).record(document)
    text = capsys.readouterr().out
    assert json.loads(text)["trials"][-1] == {"run": "mnist-1999", "metrics": {"loss": "NaN"}}
    assert '    {"run": "mnist-7", "metrics": {"loss": "NaN"}},' in text.splitlines()
    assert text.startswith('{\n  "sweep": "lr",\n  "states": {\n    "succeeded": 2000\n  },\n')


def test_error_names_the_command_that_explains_it(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(RunnerError("R-STACK-MISSING", "stack 'dev' is unknown", fix="runner up"))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "  more: runner explain R-STACK-MISSING"
    assert main(last.partition("runner ")[2].split()) == 0


@pytest.mark.parametrize("code", ["R-USAGE", "R-EXPLAIN-UNKNOWN", "R-MINE"])
def test_error_without_more_to_say_names_no_command(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_error(RunnerError(code, "wrong", fix="correct it"))
    assert "more:" not in capsys.readouterr().err


def test_error_is_printed_where_the_entries_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def closed(*_: object, **__: object) -> str:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "read_text", closed)
    show_error(RunnerError("R-STACK-MISSING", "wrong", fix="correct it"))
    assert capsys.readouterr().err == "error[R-STACK-MISSING]: wrong\n  fix: correct it\n"


def test_json_error_has_no_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(RunnerError("R-STACK-MISSING", "wrong", fix="correct it"), as_json=True)
    assert "more:" not in "".join(capsys.readouterr())
