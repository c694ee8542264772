"""What uv gets: files of requirements as pip reads them, and variables of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.node.environment.install_variables import (
    InstallVariables,
    named_files,
    with_pip_variables,
)
from runner.node.environment.virtual_env import Requirements

SHA = "0123456789abcdef0123456789abcdef01234567"
COMMITS = {"https://h/g.git@main": SHA, "https://h/e.git@HEAD": SHA, "https://h/n.git@v1": SHA}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "sub" / "wheels").mkdir(parents=True)
    return folder


def read(code: Path, text: str, name: str = "requirements.txt") -> Requirements:
    (code / name).write_text(text)
    return Requirements(code / name, code)


def test_file_without_branches_is_installed_as_it_is(code: Path, tmp_path: Path) -> None:
    found = read(code, "six --hash=sha256:0\n-e .\n./a.whl\n")
    assert found.install_arguments(COMMITS, tmp_path) == ["-r", code / "requirements.txt"]
    assert found.local


def test_branches_are_replaced_in_all_files(code: Path, tmp_path: Path) -> None:
    (code / "sub" / "more.txt").write_text("-f wheels\n-c pins.txt\ngit+https://h/n.git@v1\nsix\n")
    (code / "sub" / "pins.txt").write_text("six<2\n")
    found = read(
        code,
        "--extra-index-url https://i/packages\n-r sub/more.txt\n-r sub/more.txt\n"
        "g[x] @ git+https://u:${P}@h/g.git@main#subdirectory=a ; os_name \\\n == 'posix' # why\n"
        "-e git+https://h/e.git#egg=e[y]&subdirectory=b\n-e ./lib\n",
    )
    arguments = found.install_arguments(COMMITS, tmp_path)
    assert arguments == ["-r", tmp_path / "requirements.txt"]
    assert (tmp_path / "requirements.txt").read_text().splitlines() == [
        "--extra-index-url https://i/packages",
        f"-f {code}/sub/wheels",
        f"-c {code}/sub/pins.txt",
        f"git+https://h/n.git@{SHA}",
        "six",
        f"g[x] @ git+https://u:${{P}}@h/g.git@{SHA}#subdirectory=a ; os_name  == 'posix'",
        f"e[y] @ git+https://h/e.git@{SHA}#subdirectory=b",
        "-e ./lib",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('dependencies = ["g[x] @ git+https://h/g.git@main"]', f"g[x] @ git+https://h/g.git@{SHA}"),
        (
            """dependencies = ['G[x]>1']
[tool.uv.sources]
g = {git = "https://h/g.git", branch = "main", subdirectory = "a"}""",
            f"g[x] @ git+https://h/g.git@{SHA}#subdirectory=a",
        ),
    ],
)
def test_branches_of_a_table_are_overridden(
    code: Path, tmp_path: Path, text: str, line: str
) -> None:
    found = read(code, f"[project]\n{text}\n", "pyproject.toml")
    arguments = found.install_arguments(COMMITS, tmp_path)
    assert arguments[2:] == ["--override", tmp_path / "commits.txt"]
    assert (tmp_path / "commits.txt").read_text() == line
    assert found.install_arguments({}, tmp_path) == ["-r", code / "pyproject.toml"]


def test_options_that_uv_ignores_in_a_file_become_arguments(code: Path, tmp_path: Path) -> None:
    found = read(code, "--pre\n--trusted-host h:8080\n--prefer-binary\nsix\n")
    options = ["--prerelease=allow", "--allow-insecure-host", "h:8080"]
    assert found.install_arguments({}, tmp_path)[:-2] == options
    assert found.install_arguments({}, tmp_path, for_pip=True)[:-2] == []


def uv_variables(
    given: dict[str, str], code: Path, text: str = "", settings: str = ""
) -> tuple[dict[str, str], list[str], list[str]]:
    found = read(code, text)
    return with_pip_variables(
        given, code, settings, has_index=found.has_index, has_extra_index=found.has_extra_index
    )


def uv(code: Path, given: dict[str, str], text: str = "", settings: str = "") -> dict[str, str]:
    found = uv_variables(given, code, text, settings)[0]
    return {name: value for name, value in found.items() if name not in given}


BEST = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


def test_several_indexes_of_pip_are_chosen_from_as_pip_does(code: Path) -> None:
    text = "--extra-index-url=https://i\nsix\n"
    assert uv(code, {}, text) == BEST
    assert uv(code, {}, "-i https://i\nsix\n") == {}
    extra = {"UV_EXTRA_INDEX_URL": "https://a https://b"}
    assert uv(code, {"PIP_EXTRA_INDEX_URL": "https://a https://b"}) == BEST | extra
    assert uv(code, {}, text, 'index-strategy = "first-index"') == {}, "the setting of uv wins"
    chosen = uv_variables({"UV_INDEX_STRATEGY": "first-index"}, code, text)
    assert chosen[0] == {"UV_INDEX_STRATEGY": "first-index"}


def test_variables_of_pip_become_those_of_uv(code: Path) -> None:
    assert uv(code, {"PIP_INDEX_URL": "https://i"}) == {"UV_DEFAULT_INDEX": "https://i"}
    assert uv(code, {"PIP_INDEX_URL": "https://i"}, "--index-url https://j\n") == {}
    assert uv(code, {"PIP_FIND_LINKS": "a b"}) == {"UV_FIND_LINKS": "a,b"}
    assert uv(code, {"PIP_TRUSTED_HOST": "a b"}) == {"UV_INSECURE_HOST": "a b"}
    assert uv(code, {"PIP_CONSTRAINT": "pins.txt"}) == {"UV_CONSTRAINT": "pins.txt"}
    assert uv(code, {"PIP_CERT": "c"}) == {"SSL_CERT_FILE": "c"}
    assert uv(code, {"PIP_PROXY": "http://p"}) == {
        "HTTP_PROXY": "http://p",
        "HTTPS_PROXY": "http://p",
    }
    both = {"PIP_INDEX_URL": "https://i", "UV_DEFAULT_INDEX": "https://u"}
    assert uv_variables(both, code)[0]["UV_DEFAULT_INDEX"] == "https://u"


def test_flags_of_pip_become_arguments_and_the_rest_is_named(code: Path) -> None:
    given = {"PIP_PRE": "1", "PIP_NO_INDEX": "true", "PIP_NO_DEPS": "0", "PIP_NO_BINARY": "a,b"}
    more = {"PIP_NO_BUILD_ISOLATION": "false", "PIP_GLOBAL_OPTION": "x", "PIP_NO_CACHE_DIR": "1"}
    _, arguments, notes = uv_variables({**given, **more}, code)
    assert arguments == [
        *("--no-index", "--prerelease=allow", "--no-binary=a", "--no-binary=b"),
        "--no-build-isolation",
    ]
    assert notes == ["PIP_GLOBAL_OPTION has no meaning for uv, which installs"]


def test_configuration_file_of_pip_counts_less_than_variables(code: Path) -> None:
    (code / "pip.conf").write_text(
        "[global]\nindex-url = https://i\nextra-index-url =\n  https://a\n  https://b\n"
        "[install]\nno-index = yes\n"
    )
    found = uv(code, {"PIP_CONFIG_FILE": "pip.conf", "PIP_INDEX_URL": "https://mine"})
    assert found["UV_DEFAULT_INDEX"] == "https://mine"
    assert found["UV_EXTRA_INDEX_URL"] == "https://a https://b"
    (code / "pip.conf").write_text("no section\n")
    assert uv(code, {"PIP_CONFIG_FILE": "pip.conf"}) == {}
    assert uv(code, {"PIP_CONFIG_FILE": "/dev/null"}) == {}


ENV = {
    **{"UV_INDEX_URL": "https://i", "PIP_PRE": "1", "CFLAGS": "-O1", "IDX": "x", "SEED": "1"},
    **{
        "UV_CACHE_DIR": "/x",
        "UV_PYTHON": "3.9",
        "PATH": "/x",
        "https_proxy": "p",
        "DS_BUILD_OPS": "1",
    },
}


def test_only_variables_that_steer_the_installation_are_used() -> None:
    variables = InstallVariables(
        ENV, {"PW": "hunter2secret", "OTHER": "o", "UV_INDEX_A_PASSWORD": "q"}
    )
    chosen = {"UV_INDEX_URL", "PIP_PRE", "CFLAGS", "https_proxy", "DS_BUILD_OPS"}
    assert set(variables.values("")) == {*chosen, "UV_INDEX_A_PASSWORD"}
    assert set(variables.values("http://${IDX}:${PW}@h")) == {
        *chosen,
        *("UV_INDEX_A_PASSWORD", "IDX", "PW"),
    }
    assert "hunter2secret" not in repr(variables)


def test_identity_follows_the_variables_and_hides_secrets() -> None:
    text = "${PW}"
    first = InstallVariables({"PIP_PRE": "1"}, {"PW": "hunter2secret"}).identity(text)
    assert first == InstallVariables(
        {"PIP_PRE": "1", "SEED": "2"}, {"PW": "hunter2secret"}
    ).identity(text)
    assert first != InstallVariables({"PIP_PRE": "0"}, {"PW": "hunter2secret"}).identity(text)
    assert first != InstallVariables({"PIP_PRE": "1"}, {"PW": "hunter3secret"}).identity(text)
    assert "hunter2secret" not in repr(first)
    assert InstallVariables({"SEED": "1"}, {"PW": "hunter2secret"}).identity("") == {}


def test_files_that_variables_name_are_found() -> None:
    given = {"UV_CONSTRAINT": "a.txt b.txt", "PIP_FIND_LINKS": "wheels https://h/w", "UV_X": "c"}
    assert named_files(given) == ["a.txt", "b.txt", "wheels"]


def test_variable_may_contain_a_secret_by_reference() -> None:
    env = {"PIP_EXTRA_INDEX_URL": "http://${WHO}:${PW}@h/${GONE}", "WHO": "joe", "SEED": "1"}
    variables = InstallVariables(env, {"PW": "hunter2secret"})
    chosen = variables.values("")
    assert chosen["PIP_EXTRA_INDEX_URL"] == "http://joe:hunter2secret@h/${GONE}"
    assert set(chosen) == {"PIP_EXTRA_INDEX_URL", "WHO", "PW"}
    assert variables.identity("") != InstallVariables(env, {"PW": "other-secret"}).identity("")
