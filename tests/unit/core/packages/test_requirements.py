"""What the text of a requirements file shows: encodings, paths, addresses, and lines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runner.core.packages.requirements import check_lines, read_requirements_file
from runner.protocol.errors import RunnerError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a project, a wheel, and further requirements files."""
    root = tmp_path / "code"
    for name in ("lib/setup.py", "pyproject.toml", "empty/data.txt", "one-1-py3-none-any.whl"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "base.txt").write_text("scipy\n")
    (root / "nested").mkdir()
    (root / "nested/more.txt").write_text("-r ../base.txt\nTorch_Vision[x]>=0.1\n")
    (root / "pins.txt").write_text("scipy<2\n")
    (tmp_path / "outside.txt").write_text("numpy\n")
    return root


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("numpy\n", {"numpy"}),
        ("\ufeffnumpy==1.26\r\nscipy >= 1, < 2  # why\r\n", {"numpy", "scipy"}),
        ("torch[cuda] ~= 2.1 ; python_version < '3.13'\n", {"torch"}),
        ("numpy \\\n  ==1.26 \\\n  --hash=sha256:00\n", {"numpy"}),
        ("torch==2.5.1+cpu\nx===weird\ny==1.*\n", {"torch", "x", "y"}),
        ("-r nested/more.txt\n-c pins.txt\n", {"scipy", "torch-vision"}),
        ("--index-url http://127.0.0.1/a\n--extra-index-url=http://127.0.0.1/b\n--pre\n", set()),
        ("./lib\nlib/\n-e .\n./lib[extra]\n", set()),
        ("one-1-py3-none-any.whl\n", {"one"}),
        ("x @ git+https://github.com/a/b@main#subdirectory=c\n", {"x"}),
        ("-e git+ssh://git@github.com/a/b.git#egg=b\n", {"b"}),
        ("x @ ./lib\ny @ https://127.0.0.1/y-1.tar.gz\n", {"x", "y"}),
        ("https://${USER_NAME}:${PASSWORD}@127.0.0.1/z.whl\n${WHAT}\n", set()),
        ("-f http://127.0.0.1/links\n--no-binary :all:\n", set()),
        ("", set()),
        ("# only a comment \\\n", set()),
    ],
)
def test_lines_that_pip_installs_are_accepted(folder: Path, text: str, names: set[str]) -> None:
    (folder / "requirements.txt").write_text(text)
    assert read_requirements_file(folder, "requirements.txt").names == names


@pytest.mark.parametrize(
    ("line", "message", "fix"),
    [
        ("numpy=1.26", "line 2, column 6: 'numpy=1.26' is not a requirement", "numpy==1.26"),
        ("numpy=1.26=py311_0", "column 6", "numpy==1.26"),
        ("numpy 1.26", "column 7", "numpy==1.26"),
        ("pip install numpy", "column 5", "write numpy"),
        ("!pip install -q numpy", "column 1", "write -q numpy"),
        ("conda install numpy", "column 7", "one per line: numpy"),
        ("- numpy", "column 1", "write numpy"),
        ("numpy, pandas", "column 6", "one package per line: numpy, pandas"),
        ("numpy>=1.*", "column 10", "write numpy>=1"),
        ("numpy==", "column 6", "NAME==VERSION"),
        ("<!DOCTYPE html>", "column 1", "NAME==VERSION"),
        ("numpy; python_version", "is not a requirement", "NAME==VERSION"),
        ("base.txt", "is not a requirement", "write -r base.txt"),
        ("./base.txt", "neither a folder nor an archive", "write -r ./base.txt"),
        ("-U numpy", "unknown option -U", "remove -U"),
        ("--user", "unknown option --user", "remove the line"),
        ("../shared_pkg", "line 2: ../shared_pkg is outside of the folder", "copy it into"),
        ("-e ../shared_pkg", "../shared_pkg is outside", "copy it into"),
        ("-r ../outside.txt", "../outside.txt is outside", "copy it into"),
        ("-c ../outside.txt", "../outside.txt is outside", "copy it into"),
        ("-f ../wheels", "../wheels is outside", "copy it into"),
        ("lib/../../x", "lib/../../x is outside", "copy it into"),
        ("/opt/pkg", "/opt/pkg is outside", "NAME==VERSION"),
        ("x @ file:///tmp/build/x", "/tmp/build/x is outside", "NAME==VERSION"),
        ("C:\\work\\pkg", "is outside", "NAME==VERSION"),
        ("-r absent.in", "no file or folder absent.in", "create it"),
        ("-c pin.txt", "no file or folder pin.txt", "did you mean pins.txt?"),
        ("./one-2-py3-none-any.whl", "no file or folder", "one-1-py3-none-any.whl"),
        ("./libs", "no file or folder ./libs", "did you mean lib?"),
        ("./empty", "a folder without a Python project", "pyproject.toml"),
        ("x @ https://github.com/a/b", "is not a requirement", "x @ git+https://github.com/a/b"),
        ("https://127.0.0.1/b.git", "is not a requirement", "write git+https://127.0.0.1/b.git"),
        ("git@github.com:a/b.git", "is not a requirement", "git+ssh://git@github.com/a/b.git"),
        ("git+git@host:a/b.git", "is not a requirement", "git+ssh://git@host/a/b.git"),
        ("ssh://git@host/a/b.git", "is not a requirement", "git+ssh://git@host/a/b.git"),
        ("~/lib", "~/lib is outside", "NAME==VERSION"),
        ("x @ git@host:a/b", "is not a requirement", "x @ git+ssh://git@host/a/b"),
        ("--index-url", "--index-url has no value", "add it"),
    ],
)
def test_line_that_cannot_be_installed_is_named(
    folder: Path, line: str, message: str, fix: str
) -> None:
    (folder / "requirements.txt").write_text(f"tqdm\n{line}\n")
    with pytest.raises(RunnerError) as caught:
        read_requirements_file(folder, "requirements.txt")
    assert caught.value.code == "R-REQUIREMENTS"
    assert caught.value.what.startswith("requirements.txt, line 2")
    assert message in caught.value.what
    assert fix in (caught.value.fix or "")


def test_error_names_the_included_file(folder: Path) -> None:
    (folder / "base.txt").write_text("\n\nnumpy=1\n")
    (folder / "requirements.txt").write_text("-r nested/more.txt\n")
    with pytest.raises(RunnerError, match=r"base\.txt, line 3, column 6"):
        read_requirements_file(folder, "requirements.txt")


def test_files_that_include_each_other_are_read_once(folder: Path) -> None:
    (folder / "a.txt").write_text("-r b.txt\n")
    (folder / "b.txt").write_text("-r a.txt\n")
    assert read_requirements_file(folder, "a.txt").files == ("a.txt", "b.txt")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_other_encoding_is_refused(folder: Path, encoding: str) -> None:
    (folder / "requirements.txt").write_bytes("six==1.16.0  # é\r\n".encode(encoding))
    with pytest.raises(RunnerError, match=r"requirements\.txt is not UTF-8 text"):
        read_requirements_file(folder, "requirements.txt")


def test_command_that_converts_utf_16_works(folder: Path, tmp_path: Path) -> None:
    file = folder / "requirements.txt"
    file.write_bytes("six==1.16.0\r\n".encode("utf-16"))
    with pytest.raises(RunnerError) as caught:
        read_requirements_file(folder, "requirements.txt")
    subprocess.run(["sh", "-c", caught.value.fix or ""], cwd=tmp_path, check=True)
    assert read_requirements_file(folder, "requirements.txt").names == {"six"}


def test_requirements_of_another_file_are_named_with_their_place(folder: Path) -> None:
    with pytest.raises(RunnerError, match=r"pyproject\.toml, dependencies: \.\./x is outside"):
        check_lines(folder, "pyproject.toml", [("dependencies", "../x")])


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ('"numpy>=1.2"', "numpy>=1.2"),
        ("'numpy',", "numpy"),
        ("numpy^1.2.3", "numpy>=1.2.3,<2"),
        ("numpy ^0.3", "numpy>=0.3,<0.4"),
        ("numpy~1.2.3", "numpy>=1.2.3,<1.3"),
        ("numpy~=1", "numpy~=1.0"),
        ("numpy\u20131.2", "numpy==1.2"),
        ("numpy \u2265 1.2", "numpy>=1.2"),
        ("numpy<2.*", "numpy<2"),
        ("numpy>=1.2:latest", "numpy>=1.2"),
        ("numpy==1.2;", "numpy==1.2"),
    ],
)
def test_fix_is_the_requirement_that_was_meant(tmp_path: Path, line: str, fix: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(line, encoding="utf-8")
    with pytest.raises(RunnerError) as caught:
        read_requirements_file(tmp_path, file.name)
    assert caught.value.fix == f"write {fix}"
    file.write_text(fix)
    assert read_requirements_file(tmp_path, file.name).names == {"numpy"}


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (["numpy==1.2", "numpy==1.3"], "line 1"),
        (["NumPy ==1.2", "six", "num.py", "numpy== 2"], "line 1"),
        (["-c pins.txt", "numpy==9"], "pins.txt, line 1"),
    ],
)
def test_two_versions_of_a_package_are_refused(
    tmp_path: Path, lines: list[str], first: str
) -> None:
    (tmp_path / "pins.txt").write_text("numpy==1.2\n")
    (tmp_path / "requirements.txt").write_text("\n".join(lines))
    with pytest.raises(RunnerError, match="contradicts") as caught:
        read_requirements_file(tmp_path, "requirements.txt")
    assert caught.value.why == f"{first} asks for it"


@pytest.mark.parametrize(
    "lines",
    [
        ["numpy==1.2", "numpy==1.2.0"],
        ["numpy==1.2 ; python_version < '3.9'", "numpy==2 ; python_version >= '3.9'"],
        ["numpy==1.*", "numpy==1.2"],
        ["numpy>=1", "numpy==1.2"],
    ],
)
def test_lines_that_agree_about_a_package_are_installed(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "requirements.txt").write_text("\n".join(lines))
    assert read_requirements_file(tmp_path, "requirements.txt").names == {"numpy"}
