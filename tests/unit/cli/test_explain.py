"""`runner explain` and docs/errors.md, compared with the sources."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.cli.autocomplete import complete_error_code
from runner.cli.main import main
from runner.core.explanations import (
    FOLDER,
    SUBJECTS,
    EntryError,
    find_code,
    is_explained,
    load_explanations,
    parse_subject,
    similar_codes,
)
from runner.flows.extras import DISTRIBUTION
from tests.unit.command_lines import OTHERS, commands_in, hidden_commands, parse
from tests.unit.error_codes import KNOWN_SUFFIXES, causes, error_codes, suffixes_of_files
from tests.unit.source_tree import ROOT, assert_none, project
from tools import error_reference

ENTRIES = load_explanations()


def test_every_error_code_has_an_entry() -> None:
    codes = error_codes()
    # One of each way in which the sources name a code.
    assert codes >= {
        "R-RUN-AMBIGUOUS",  # an argument
        "R-AZURE-SIGN-IN",  # a constant
        "R-AZURE-QUOTA",  # a table
        "R-STACK-CONFIG-MISSING",  # a constant and a suffix
        "R-PROJECT-SYNTAX",  # read_document(code=...)
        "R-CONFIG-FIELD",  # check_document(code=...)
        "R-NODE-GPU",  # a shell function
        "R-NODE-PRELOAD",  # a warning
        "R-SETUP-VENV",  # a shell function that adds a suffix
        "R-CLEAN",  # printed by a script
    }
    assert not codes & {"R-RECIPE", "R-STACK-CONFIG", "R-SUBMIT"}, "prefixes are no codes"
    assert_none(codes - ENTRIES.keys(), "codes without an entry: write it in runner/explanations")


def test_every_entry_belongs_to_a_code_or_cause() -> None:
    assert_none(ENTRIES.keys() - error_codes() - causes(), "entries that nothing prints: delete")


def test_every_cause_of_why_has_an_entry() -> None:
    found = causes()
    assert found >= {"StartTaskFailed", "EnvironmentFailed", "GpuOutOfMemory", "JobDisabled"}
    assert_none(found - ENTRIES.keys(), "causes without an entry in runner/explanations/causes.md")


def test_suffixes_of_codes_about_files_are_known() -> None:
    assert suffixes_of_files() == KNOWN_SUFFIXES


def test_every_file_is_a_subject_with_unique_codes() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(SUBJECTS)
    codes = [
        each.code
        for path in FOLDER.glob("*.md")
        for each in parse_subject(path.read_text(encoding="utf-8"))
    ]
    assert sorted(codes) == sorted(ENTRIES)


def test_page_is_current() -> None:
    assert error_reference.TARGET.read_text(encoding="utf-8") == error_reference.reference()


def test_guides_of_entries_exist() -> None:
    dead = [
        f"{each.code}: {each.guide}"
        for each in ENTRIES.values()
        for path, _, section in [each.guide.partition("#")]
        if not (ROOT / path).is_file()
        or (section and section not in error_reference.sections(path))
    ]
    assert_none(dead, "sections that do not exist")


def _refused(words: Sequence[str], *, whole: bool = True) -> str:
    """Return why a command cannot be run; one within a sentence may lack arguments."""
    name = next((" ".join(words[:n]) for n in range(5, 1, -1) if " ".join(words[:n]) in OTHERS), "")
    if words[0] == "runner" and words[1:] != ["--help"]:
        try:
            parse(words)
        except LookupError as err:
            incomplete = str(err).startswith(("MissingParameter", "BadOptionUsage"))
            return "" if incomplete and not whole else str(err)
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        return "" if re.search(rf"^{words[1]}:", makefile, re.MULTILINE) else "no such target"
    elif words[0] == "pip":
        named = re.fullmatch(r"([\w-]+)(?:\[([\w-]+)\])?", words[-1])
        extras = {DISTRIBUTION: project()["project"]["optional-dependencies"], "cryptography": ()}
        known = named and named[1] in extras and named[2] in {None, *extras[named[1]]}
        return "" if known else "no such distribution or extra"
    elif words[0] != "runner":
        options = {word for word in words if word.startswith("-")}
        return "" if name and options <= OTHERS[name] else "not in the table of commands"
    return ""


def test_commands_of_entries_parse() -> None:
    refused: list[str] = []
    for each in ENTRIES.values():
        prose = " ".join((*each.happened, each.why, *(way.text for way in each.ways)))
        named = [c for c in commands_in(prose) if c.startswith("runner ")]
        refused += [
            f"{each.code}: {command}: {why}"
            for commands, whole in (
                ([c for w in each.ways for c in w.commands], True),
                (named, False),
            )
            for command in commands
            if (why := _refused(shlex.split(command), whole=whole))
        ]
        refused += [f"{each.code}: not quoted: {part}" for part in hidden_commands(prose)]
    assert_none(refused, "commands that cannot be run as they are written")


def test_entries_are_specific() -> None:
    """Two entries with the same text, or an entry without a command, help nobody."""
    reasons = [each.why for each in ENTRIES.values()]
    openings = [each.happened for each in ENTRIES.values()]
    assert len(set(openings)) == len(openings)
    assert len(set(reasons)) == len(reasons)
    short = [each.code for each in ENTRIES.values() if len(each.why) < 40]
    assert_none(short, "reasons that say nothing")


@pytest.mark.parametrize(
    "text",
    [
        "R-RUN-UNKNOWN",
        "r-run-unknown",
        "run-unknown",
        "run_unknown",
        "[R-RUN-UNKNOWN]",
        "error[R-RUN-UNKNOWN]:",
        "error[R-RUN-UNKNOWN]: run 'x' not found",
        "  more: runner explain R-RUN-UNKNOWN",
    ],
)
def test_code_is_found_in_what_people_paste(text: str) -> None:
    assert find_code(text, list(ENTRIES)) == "R-RUN-UNKNOWN"


@pytest.mark.parametrize("text", ["starttaskfailed", "StartTaskFailed: the start task failed"])
def test_cause_is_found_in_any_case(text: str) -> None:
    assert find_code(text, list(ENTRIES)) == "StartTaskFailed"


@pytest.mark.parametrize("text", ["", "R-", "R", "unknown", "error", "R-RUN", "--"])
def test_text_without_a_code_finds_nothing(text: str) -> None:
    assert find_code(text, list(ENTRIES)) is None


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("R-RUN-UNKNWON", "R-RUN-UNKNOWN"),
        ("error[R-POOL-FITS]: x", "R-POOL-FIT"),
        ("StartTaskFail", "StartTaskFailed"),
    ],
)
def test_similar_codes_begin_with_the_nearest(text: str, first: str) -> None:
    assert similar_codes(text, list(ENTRIES))[0] == first


def test_unknown_code_of_a_subject_shows_others_of_it() -> None:
    assert "R-SCHEDULE-CRON" in similar_codes("R-SCHEDULE-C", list(ENTRIES))


def test_explain_prints_all_parts_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "R-RUN-AMBIGUOUS"]) == 0
    text = capsys.readouterr().out
    titles = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert titles[1:] == ["What happened", "Why", "What to do", "Guide"]
    assert "\n      runner ps -a\n" in text
    commands = {
        command for each in ENTRIES.values() for way in each.ways for command in way.commands
    }
    for code in ENTRIES:
        main(["explain", code])
    printed = capsys.readouterr().out.splitlines()
    assert_none(
        (line for line in printed if len(line) > 80 and line.strip() not in commands), "wide"
    )


def test_unknown_code_is_a_usage_error_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "R-RUN-UNKNWON"]) == 2
    error = capsys.readouterr().err
    assert "R-EXPLAIN-UNKNOWN" in error
    assert "fix: runner explain R-RUN-UNKNOWN" in error
    assert main(["explain", "zzzzzzzz"]) == 2
    assert "fix: runner explain\n" in capsys.readouterr().err


def test_json_has_the_parts_of_an_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pool-fit", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"code", "subject", "what", "why", "ways", "guide"}
    assert found["code"] == "R-POOL-FIT"
    assert any("runner up" in way["commands"] for way in found["ways"])


def test_without_a_code_everything_is_listed_by_subject(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(ENTRIES)
    assert main(["explain", "-o", "json"]) == 0
    assert [row["code"] for row in json.loads(capsys.readouterr().out)] == list(ENTRIES)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("R-RUN-U", "R-RUN-UNKNOWN"),
        ("r-run-u", "r-run-unknown"),
        ("RUN-U", "RUN-UNKNOWN"),
        ("run-u", "run-unknown"),
        ("StartT", "StartTaskFailed"),
    ],
)
def test_completion_keeps_the_spelling_and_explain_accepts_it(
    typed: str, offered: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["runner", "explain", typed]
    done = subprocess.run(
        [sys.executable, "-m", "runner"],
        env={
            **os.environ,
            "_RUNNER_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == ([offered], "")
    assert main(["explain", offered]) == 0
    assert capsys.readouterr().out.split()[0] == find_code(offered, list(ENTRIES))


def test_completion_of_nothing_offers_every_code() -> None:
    assert complete_error_code("") == list(ENTRIES)


def test_explain_works_without_home_and_network(tmp_path: Path) -> None:
    """With no variable but a PATH, in a folder that is no project."""
    done = subprocess.run(
        [sys.executable, "-m", "runner", "explain", "R-STACK-MISSING"],
        cwd=tmp_path,
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "runner local up" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_explain_loads_neither_an_sdk_nor_settings() -> None:
    code = (
        "import sys; from runner.cli.main import main; main(['explain', 'R-BUG']); "
        "print([m for m in sys.modules if m.startswith(('azure', 'ruamel', 'runner.flows', "
        "'runner.core.settings', 'runner.core.recipe'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_other_commands_do_not_load_the_entries() -> None:
    code = (
        "import sys; from runner.cli.main import main; main(['recipe', 'show', 'mnist']); "
        "print('runner.core.explanations' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_code_of_a_recipe_is_not_explained() -> None:
    assert is_explained("R-RUN-UNKNOWN")
    assert not is_explained("R-MINE")
    assert not is_explained("R-RUN")


@pytest.mark.parametrize(
    ("entry", "missing"),
    [
        ("## R-A\n\nWhy: b.\n\n- c\n\nGuide: cost.md\n", "text"),
        ("## R-A\n\na.\n\n- c\n\nGuide: cost.md\n", "Why:"),
        ("## R-A\n\na.\n\nWhy: b.\n\nGuide: cost.md\n", "list"),
        ("## R-A\n\na.\n\nWhy: b.\n\n- c\n", "Guide:"),
        ("## R-A\n\na.\n\nWhy: b.\n\nmore.\n\n- c\n\nGuide: cost.md\n", "unexpected paragraph"),
    ],
)
def test_incomplete_entry_is_refused(entry: str, missing: str) -> None:
    with pytest.raises(EntryError, match=missing):
        list(parse_subject(f"# Subject\n\n{entry}"))
