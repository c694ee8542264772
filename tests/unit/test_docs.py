"""Generated pages are what their command makes, and the README's commands exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from operator import attrgetter
from pathlib import Path

import runner
from runner.cli.main import VERBS
from tests.unit.architecture_page import PAGE, main_path, one_run, other_runs
from tests.unit.command_lines import parse
from tests.unit.source_tree import ROOT, TOOLS, assert_none, product, shown, sources, text_of
from tools import cli_reference, docs_site, recipe_table

PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "guides").glob("*.md"))]
# Not "docs/api.md of OWNER/NAME", a page of another repository.
PAGE_IN_CODE = re.compile(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?(?! of [\w-]+/)")
MAX_SUBSYSTEM_LINES = 70  # one screen
SHELL_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def commands_in(page: str) -> list[list[str]]:
    blocks = SHELL_BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("runner ")]


def test_cli_reference_is_current() -> None:
    assert cli_reference.TARGET.read_text(encoding="utf-8") == cli_reference.reference()


def test_pages_show_commands() -> None:
    assert len(commands_in("README.md")) > 8


def test_commands_of_the_pages_parse() -> None:
    refused: list[str] = []
    for page in PAGES:
        for words in commands_in(page):
            try:
                parse(words)
            except LookupError as err:
                refused.append(f"{page}: {shlex.join(words)}: {err}")
    assert_none(refused, "commands that `runner` does not understand")


def test_python_page_has_a_row_for_every_verb() -> None:
    """Each name in the table exists in `runner`; a verb without a name has a reason."""
    page = (ROOT / "docs/guides/python.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", page, re.MULTILINE))
    assert list(rows) == list(VERBS)
    for verb, said in rows.items():
        named = re.findall(r"`(?:with )?runner((?:\.\w+)+)", said)
        assert said.startswith("not: ") or named or "`run." in said, verb
        for path in named:
            attrgetter(path[1:])(runner)
        for method in re.findall(r"`run\.(\w+)", said):
            assert hasattr(runner.Run, method), method


def test_links_between_pages_have_existing_targets() -> None:
    assert_none(docs_site.check_pages(), "links to a file or a heading that does not exist")


def test_pages_named_in_code_have_the_named_heading() -> None:
    """Errors and docstrings refer to pages, some of them with a heading."""
    dead: list[str] = []
    for path in sources(*product(), *TOOLS):
        for name, anchor in PAGE_IN_CODE.findall(text_of(path)):
            page = ROOT / name
            if not page.is_file():
                dead.append(f"{shown(path)}: {name}")
            elif anchor and anchor not in docs_site.anchors(page.read_text(encoding="utf-8")):
                dead.append(f"{shown(path)}: {name}#{anchor}")
    assert_none(dead, "pages or headings that do not exist")


def test_readme_is_read_in_two_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_first_test_of_a_contributor_fails_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = SHELL_BLOCK.search(page)
    assert block is not None
    assert len(block[1].splitlines()) <= 10
    code = block[1].split("<<'END'\n", 1)[1].split("END\n", 1)[0]
    expected = re.search(r"# fails: (.+)$", block[1], re.MULTILINE)
    assert expected is not None
    (tmp_path / "test_mine.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_mine.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout
    assert f"assert {expected[1]}" in done.stdout


def test_architecture_page_names_existing_files() -> None:
    rows = one_run()
    assert [int(row[0]) for row in rows] == [*range(1, len(rows) + 1)]
    assert {len(row) for row in rows} == {4}, "cells of a row"
    known = {*main_path(), *other_runs()}
    assert_none([name for name in sorted(known) if not (ROOT / name).is_file()], "no such file")
    twice = [name for name, count in Counter(main_path()).items() if count > 1]
    assert_none(twice, "named in one row only")
    page = PAGE.read_text(encoding="utf-8")
    whole = re.findall(r"`((?:runner|infra|tests|tools|images|docs)/[\w./-]+)`", page)
    assert len(whole) > 100
    assert_none([name for name in whole if not (ROOT / name).exists()], "no such file")


_SUBSYSTEM_HEADINGS = (
    "## What it promises", r"## (?:Its|Their) states", "## Where to start", "## Test it alone",
)  # fmt: skip


def test_every_subsystem_has_a_page_of_one_screen_with_the_same_headings() -> None:
    pages = set((ROOT / "docs" / "subsystems").glob("*.md")) - {ROOT / "docs/subsystems/README.md"}
    listed = set(re.findall(r"\]\((\w[\w-]*\.md)\)", text_of(ROOT / "docs/subsystems/README.md")))
    assert listed == {page.name for page in pages}
    for page in pages:
        lines = text_of(page).splitlines()
        assert len(lines) <= MAX_SUBSYSTEM_LINES, shown(page)
        headings = [line for line in lines if line.startswith("## ")]
        assert len(headings) == len(_SUBSYSTEM_HEADINGS), shown(page)
        for heading, pattern in zip(headings, _SUBSYSTEM_HEADINGS, strict=True):
            assert re.fullmatch(pattern, heading), shown(page)


def test_subsystem_pages_name_tests_and_folders_that_exist() -> None:
    for page in (ROOT / "docs" / "subsystems").glob("*.md"):
        words = text_of(page).replace("`", " ").split()
        named = {word.strip('",.;:') for word in words if re.match(r"(tests|runner|infra)/", word)}
        assert_none({path for path in named if not (ROOT / path).exists()}, shown(page))


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    described = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert set(phony.group(1).split()) == described


def test_scripts_of_make_and_ci_pass_shellcheck() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    scripts = [*sorted((ROOT / "tools").glob("*.sh")), ROOT / ".ci/run"]
    assert len(scripts) > 4
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_step_of_the_azure_guide_states_its_cost() -> None:
    guide = (ROOT / "docs/guides/azure.md").read_text(encoding="utf-8")
    steps = [part for part in guide.split("\n## ") if part[0].isdigit()]
    assert len(steps) == 9
    silent = [step.partition("\n")[0] for step in steps if "**Cost:" not in step]
    assert silent == ["4. Deploy"], "add a sentence that begins with **Cost:"
    assert "cost per month while nothing trains" in steps[3]


# Third-party clients that a README may name, each with the test that runs it.
CLIENTS = {
    "Snakemake": "e2e/test_azure_names_on_nodes.py::test_executor_of_snakemake_runs_a_workflow",
    "Airflow": "e2e/test_azure_names.py::test_operator_of_airflow_runs_a_task",
    "quickstart": "e2e/test_azure_names.py::test_program_for_azure_runs_unchanged",
    "az batch": "clients/test_clients.py::test_client_passes_every_check_of_the_resource",
    "SDK for Python": "clients/test_clients.py::test_client_passes_every_check_of_the_resource",
    "| Java |": "clients/test_languages.py::test_program_passes_every_check",
    "| JavaScript |": "clients/test_languages.py::test_program_passes_every_check",
    "| Go |": "clients/test_languages.py::test_program_passes_every_check_with_azure_names",
    "`azure-identity`": "e2e/test_azure_names.py::test_java_program_signs_in_and_uses_blobs",
    "from azure.batch import": "e2e/test_azure_names.py::test_client_of_the_guide_connects",
    "Java": "contract/test_image.py::test_example_runs_a_task",
}
UNTESTED = re.compile(r"\b(TypeScript|C#|Nextflow|Cromwell|AzCopy|R package)\b|\.NET")


def test_every_client_named_in_a_readme_has_a_test() -> None:
    pages = ("README.md", "docs/guides/local.md", "batch_emulator/README.md")
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    assert_none(UNTESTED.findall(text), "clients without a test")
    for client, test in CLIENTS.items():
        path, _, name = test.partition("::")
        assert client in text
        assert f"def {name}" in (ROOT / "tests" / path).read_text(encoding="utf-8")


def test_table_of_recipes_has_a_row_for_each() -> None:
    page = recipe_table.TARGET.read_text(encoding="utf-8")
    named = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert [f"{name}:small" for name in named] == list(recipe_table.small_refs())
    assert page.startswith(recipe_table.HEAD)
