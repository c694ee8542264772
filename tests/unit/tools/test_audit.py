"""The audit of pinned packages and of the sources: what it finds, and what it admits it cannot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tools import audit
from tools.audit import Advisory, Pin

LOCK = """\
urllib3==1.26.4 ; python_full_version < '3.12' \\
    --hash=sha256:00
Ruamel_YAML==0.19.1 \\
    --hash=sha256:11
"""
PACKAGE_LOCK: dict[str, Any] = {
    "packages": {
        "": {"version": "1.0.0"},
        "node_modules/azurite": {"version": "3.37.0"},
        "node_modules/azurite/node_modules/axios": {"version": "0.21.4"},
        "node_modules/alias": {"name": "other", "version": "2.0.0"},
    }
}


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the lock files that the audit reads, without a way to ask online."""
    monkeypatch.setattr(
        audit, "lock_files", lambda: sorted((*tmp_path.glob("*.lock"), *tmp_path.glob("*.json")))
    )
    monkeypatch.setattr(audit.shutil, "which", lambda _: None)
    return tmp_path


def test_pins_of_every_kind_of_lock_are_read(locks: Path) -> None:
    (locks / "a.lock").write_text(LOCK)
    (locks / "package-lock.json").write_text(json.dumps(PACKAGE_LOCK))
    assert audit.read_pins(locks / "a.lock") == {
        Pin("PyPI", "urllib3", "1.26.4"), Pin("PyPI", "ruamel-yaml", "0.19.1"),
    }  # fmt: skip
    assert audit.read_pins(locks / "package-lock.json") == {
        Pin("npm", "azurite", "3.37.0"), Pin("npm", "axios", "0.21.4"),
        Pin("npm", "other", "2.0.0"),
    }  # fmt: skip
    (locks / "empty.lock").write_text("# nothing\n")
    with pytest.raises(ValueError, match="pins nothing"):
        audit.read_pins(locks / "empty.lock")


def test_lock_files_of_this_repository_are_found() -> None:
    names = {path.name for path in audit.lock_files()}
    assert {"dev.lock", "infra.lock", "audit.lock", "package-lock.json"} <= names


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.lock", LOCK, "urllib3 1.26.4 (PyPI) is affected by PYSEC-2023-192"),
        ("package-lock.json", json.dumps(PACKAGE_LOCK), "axios 0.21.4 (npm) is affected by GHSA-"),
    ],
)
def test_known_vulnerable_pin_fails_the_audit_offline(
    locks: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, expected: str
) -> None:
    """With the advisories of this repository."""
    (locks / name).write_text(text)
    assert audit.main([str(locks / "no-programs")]) == 1
    printed = capsys.readouterr().err
    assert f"[audit] error: {expected}" in printed
    assert "not checked online: bandit and pip-audit are not installed" in printed


def test_offline_machine_is_told_what_was_not_checked_and_passes(
    locks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (locks / "a.lock").write_text("nothing-known==1.0\n")
    (locks / "package-lock.json").write_text('{"packages": {"node_modules/a": {"version": "1"}}}')
    assert audit.main([str(locks / "no-programs")]) == 0
    printed = capsys.readouterr().err
    assert printed.count("not checked online") == 2
    assert "2 pins compared with" in printed


def test_python_packages_of_this_repository_have_no_recorded_advisory() -> None:
    locks = [path for path in audit.lock_files() if path.suffix == ".lock"]
    pins = {pin for path in locks for pin in audit.read_pins(path)}
    advisories, sources = audit.read_recorded()
    assert len(advisories) > 100
    assert "pypa advisory-database of 20" in sources
    assert audit.find_recorded(pins, advisories) == []


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("0.9", False), ("1.0", True), ("1.5.0", True), ("2.0rc1", True), ("2.0", False),
        ("3.0", True), ("4!1.0", True), ("of-a-fork", True),
    ],
)  # fmt: skip
def test_advisory_affects_its_ranges(version: str, affected: bool) -> None:
    one = Advisory("A-1", (), "PyPI", "p", (("1.0", "2.0"), ("3.0", None)))
    assert one.affects(Pin("PyPI", "p", version)) is affected
    assert not one.affects(Pin("npm", "p", version))
    assert not one.affects(Pin("PyPI", "other", version))


VULNERABLE = {"name": "p", "version": "1", "vulns": [{"id": "A-1", "fix_versions": ["2"]}]}
CLEAN = {"name": "q", "version": "1", "vulns": []}
SKIPPED = {"name": "r", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("entries", "found", "unchecked"),
    [
        ([CLEAN], 0, ""),
        ([VULNERABLE, CLEAN], 1, ""),
        ([CLEAN, SKIPPED], 0, "the index has no advisories for 1 of 2 packages"),
        ([VULNERABLE, SKIPPED], 1, "the index has no advisories for 1 of 2 packages"),
        ([], 0, "the index has no advisories for 2 of 2 packages"),
    ],
)
def test_package_that_pip_audit_skips_is_not_called_checked(
    entries: list[Mapping[str, Any]], found: int, unchecked: str
) -> None:
    """It exits with 0 then."""
    count = len(entries) or 2
    answer = audit.parse_pip_audit(json.dumps({"dependencies": entries}), "", count)
    assert (len(answer.found), answer.unchecked) == (found, unchecked)


@pytest.mark.parametrize("output", ["", "[]", "{}", "no json"])
def test_failure_of_an_online_check_is_not_a_pass(output: str) -> None:
    assert audit.parse_pip_audit(output, "ConnectionError: no route\n", 1).unchecked.endswith(
        "no route"
    )
    assert audit.parse_npm_audit(output).unchecked == "npm audit: no answer"


def test_answers_of_npm_are_read() -> None:
    via = {"url": "https://example.org/GHSA-1"}
    affected = {"axios": {"range": "<1", "via": [via]}, "user": {"via": ["axios"]}}
    answer = audit.parse_npm_audit(json.dumps({"vulnerabilities": affected}))
    assert answer.found == ("axios <1 (npm) is affected by https://example.org/GHSA-1",)
    assert audit.parse_npm_audit(json.dumps({"vulnerabilities": {}})) == audit.Online(())
    refused = audit.parse_npm_audit(json.dumps({"message": "405 Method Not Allowed"}))
    assert refused.unchecked == "npm audit: 405 Method Not Allowed"


_STUB = """\
#!/usr/bin/env python3
import json, pathlib, sys
text = pathlib.Path(sys.argv[sys.argv.index("-r") + 1]).read_text()
pins = [line.split("==") for line in text.split()]
assert len({name for name, _ in pins}) == len(pins), "pip-audit refuses this"
vulns = lambda version: [{"id": "A-1", "fix_versions": []}] if version == "2" else []
found = [{"name": name, "version": each, "vulns": vulns(each)} for name, each in pins]
print(json.dumps({"dependencies": found}))
"""


def test_every_version_of_a_package_is_asked_about(tmp_path: Path) -> None:
    program = tmp_path / "pip-audit"
    program.write_text(_STUB)
    program.chmod(0o755)
    pins = [Pin("PyPI", name, version) for name in "ab" for version in "12"]
    answer = audit.run_pip_audit(program, [*pins, Pin("npm", "c", "2")])
    assert [line.split(" (")[0] for line in answer.found] == ["a 2", "b 2"]
    assert answer.unchecked == ""


def finding(name: str, first: int, test: str = "B314") -> dict[str, Any]:
    return {"filename": f"./{name}", "line_range": [first], "test_id": test, "issue_text": "XML"}


def test_finding_of_bandit_needs_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "parse()  # noqa: S314 - our own text\n"
        "parse()  # noqa: S314\n"
        "parse()  # noqa: S310 - another rule\n"
        "parse()\n"
        "parse()  # noqa: S110, S314 - nothing may fail\n"
    )
    results = [finding("a.py", line) for line in range(1, 6)]
    judged = audit.judge_bandit(results, tmp_path, {})
    assert [line.split(" ")[0] for line in judged] == ["a.py:2:", "a.py:3:", "a.py:4:"]
    assert audit.judge_bandit(results, tmp_path, {"B314 *.py": "scripts"}) == []
    assert audit.judge_bandit([], tmp_path, {"B314 *.py": "gone"}) == [
        "pyproject.toml: no finding for 'B314 *.py'"
    ]


def test_accepted_findings_have_reasons() -> None:
    accepted = audit.accepted_findings()
    assert accepted
    assert all(len(reason) > 15 and len(key.split()) == 2 for key, reason in accepted.items())


_YAML = """\
id: PYSEC-1
aliases: [CVE-1]
affected:
- package: {ecosystem: PyPI, name: Urllib3}
  ranges:
  - {type: GIT, events: [{introduced: "0"}]}
  - type: ECOSYSTEM
    events: [{introduced: "0"}, {fixed: "1.5"}, {introduced: "2.0"}]
"""


def test_advisories_of_pinned_packages_are_recorded(locks: Path, tmp_path: Path) -> None:
    (locks / "a.lock").write_text("urllib3==1.2.4\n")
    (locks / "package-lock.json").write_text(json.dumps(PACKAGE_LOCK))
    clone, recorded = tmp_path / "clone", tmp_path / "recorded" / "advisories.json"
    recorded.parent.mkdir()
    kept = {
        "id": "CVE-9", "aliases": [], "ecosystem": "npm", "package": "axios",
        "affected": [["0", "0.1"]],
    }  # fmt: skip
    recorded.write_text(json.dumps({"sources": {"x": "2026-01-01"}, "advisories": [kept]}))
    osv = {
        "id": "GHSA-1",
        "affected": [
            {
                "package": {"ecosystem": "npm", "name": "axios"},
                "ranges": [
                    {"type": "SEMVER", "events": [{"introduced": "0"}, {"last_affected": "0.21.4"}]}
                ],
            }
        ],
    }
    gone = {**osv, "id": "GHSA-2", "withdrawn": "2026-01-01"}
    for name, text in {
        "vulns/urllib3/PYSEC-1.yaml": _YAML,
        "vulns/other/PYSEC-2.yaml": _YAML.replace("Urllib3", "other-urllib3"),
        "advisories/github-reviewed/GHSA-1.json": json.dumps(osv),
        "advisories/github-reviewed/GHSA-2.json": json.dumps(gone),
    }.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(text)
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b.c commit -qm c"):
        subprocess.run(["git", "-C", str(clone), *words.split()], check=True)
    assert audit.record([clone], recorded) == 3
    advisories, sources = audit.read_recorded(recorded)
    assert [one.id for one in advisories] == ["CVE-9", "GHSA-1", "PYSEC-1"]
    assert "clone of 20" in sources
    pins = {pin for path in audit.lock_files() for pin in audit.read_pins(path)}
    assert [
        line.split(", ")[0].split(";")[0] for line in audit.find_recorded(pins, advisories)
    ] == [
        "urllib3 1.2.4 (PyPI) is affected by PYSEC-1",
        "axios 0.21.4 (npm) is affected by GHSA-1",
    ]
