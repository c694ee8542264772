"""`runner ui`: what it refuses before it listens."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main
from runner.page.verbs import _checked_url


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path))
    monkeypatch.delenv("RUNNER_UI_PASSWORD", raising=False)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--host", "0.0.0.0"], "R-PAGE-TLS"),
        (["--host", "0.0.0.0", "--tls-cert", "c.pem"], "R-PAGE-TLS"),
        (["--host", "0.0.0.0", "--tls-cert", "c.pem", "--tls-key", "k.pem"], "R-PAGE-TLS"),
        (["--host", "0.0.0.0", "--url", "http://runs.example.org"], "R-PAGE-TLS"),
        (["--host", "0.0.0.0", "--url", "https://runs.example.org"], "R-PAGE-PASSWORD"),
        (["--host", "0.0.0.0", "--url", "http://localhost:80"], "R-PAGE-PASSWORD"),
        (["--url", "https://runs.example.org"], "R-PAGE-PASSWORD"),
        (["--url", "https://runs.example.org/path"], "R-PAGE-URL"),
        (["--url", "ftp://runs.example.org"], "R-PAGE-URL"),
        (["--url", "https://a@runs.example.org"], "R-PAGE-URL"),
        (["--url", "runs.example.org"], "R-PAGE-URL"),
        (["--url", "https://a:b"], "R-PAGE-URL"),
        (["--host", "192.0.2.1", "--api-only", "--url", "https://a"], "R-PAGE-PORT"),
    ],
)
def test_page_for_others_needs_password_and_encryption(
    options: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", "--no-open", *options]) == 2
    assert f"error[{code}]" in capsys.readouterr().err


def test_short_password_is_refused_and_not_inherited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNNER_UI_PASSWORD", "short")
    assert main(["ui", "--url", "https://a"]) == 2
    said = capsys.readouterr().err
    assert "too short" in said
    assert "'short'" not in said


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("https://Runs.Example.org", "https://runs.example.org"),
        ("https://runs.example.org:443/", "https://runs.example.org"),
        ("https://runs.example.org:8443", "https://runs.example.org:8443"),
        ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
        ("http://localhost:80", "http://localhost"),
    ],
)
def test_url_is_what_browsers_send(given: str, url: str) -> None:
    assert _checked_url(given) == url


@pytest.mark.parametrize("missing", ["jinja2", "starlette", "uvicorn"])
def test_missing_extra_is_named_with_its_install_line(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.import_module

    def module_without(name: str, package: str | None = None) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", module_without)
    assert main(["ui"]) == 3
    said = capsys.readouterr().err
    assert f"error[R-EXTRA-MISSING]: {missing} is not installed" in said
    assert "azure-batch-runner[ui]" in said
