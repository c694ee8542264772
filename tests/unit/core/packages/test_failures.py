"""Each message is that of `runner.node.environment.uv` for what uv 0.13 printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.packages.failures import advise_on_packages
from runner.core.states import advice_for_result
from runner.node.environment.uv import find_uv
from runner.node.failures import StageFailedError

_FIRST = "`uv pip install` exited with code 1: "
_NONE = f"{_FIRST}error: No solution found when resolving dependencies: "
_HINT = (
    "\nhint: You require CPython 3.11 (`cp311`), but we only found wheels for `torch` (v1.4.0) "
    "with the following Python ABI tags: `cp27m`, `cp37m`, `cp38`"
)

_NO_MATCH = (
    "`python -m pip` exited with code 1: ERROR: Could not find\n"
    "ERROR: No matching distribution found for cv2"
)
_UNAUTHORIZED = (
    "Because privpkg was not found in the package registry\nhint: An index URL (x) could not be "
    "queried due to a lack of valid authentication credentials (401 Unauthorized)"
)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("chainer==7.8.1 cannot be built: ModuleNotFoundError: No module named 'pkg_resources'",
         'build-constraint-dependencies = ["setuptools<81"]'),
        ("a==1 cannot be built: ModuleNotFoundError: No module named 'setuptools.command.test'",
         'build-constraint-dependencies = ["setuptools<81"]'),
        ("a==1 cannot be built: error in a setup command: use_2to3 is invalid.", "setuptools<58"),
        ("a==1 cannot be built: ModuleNotFoundError: No module named 'imp'", 'python: "3.11"'),
        ("flash-attn==2.7 cannot be built: ModuleNotFoundError: No module named 'torch'",
         'extra-build-dependencies = {"flash-attn" = ["torch"]}'),
        ("a==1 cannot be built: ModuleNotFoundError: No module named 'yaml'", '["PyYAML"]'),
        ("./pkg cannot be built: ModuleNotFoundError: No module named 'numpy'",
         "add numpy to `requires` in [build-system] of the pyproject.toml of ./pkg"),
        ("./a or ./b cannot be built: ModuleNotFoundError: No module named 'numpy'", "./a or ./b"),
        ("tensorflow-gpu==2.12.0 cannot be built: x.Invalid: y", "write `tensorflow` in"),
        ("sklearn==0.0.post12 cannot be built: deprecated", "write `scikit-learn` instead"),
        ("apex==0.1 cannot be built: REAL CAUSE: nvcc not found", "an `image` with the compilers"),
        ("./pkg cannot be built: bw.c:1:10: fatal error: nosuch.h: No such file", "build of ./pkg"),
        ("box2d-py==2.3.8 cannot be built: error: command 'swig' failed: No such file or directory",
         'extra-build-dependencies = {"box2d-py" = ["swig"]}'),
        ("a==1 cannot be built: FileNotFoundError: [Errno 2] No such file or directory: 'cmake'",
         '{"a" = ["cmake"]}'),
        ("./a cannot be built: sh: 1: ninja: not found", "add ninja to `requires`"),
        ("a==1 cannot be built: error: command 'g++' failed: No such file or directory",
         "has wheels for this Python"),
        ("a==1 cannot be built: RuntimeError: no", "use another version of a==1"),
        ("x cannot be fetched: fatal: couldn't find remote ref nobranch", "branch of x"),
    ],
)  # fmt: skip
def test_failed_build_has_a_fix_by_name(said: str, advice: str) -> None:
    assert advice in advise_on_packages(_FIRST + said)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Because there is no version of six==99 and you require six==99", "a version of six"),
        ("Because only numpy<=2.5.5 is available and you require numpy>=99", "a version of numpy"),
        ("Because nosuch was not found in the package registry and", "name or version of nosuch"),
        ("Because skimage was not found in the package registry and", "write `scikit-image`"),
        (f"Because torch==1.4.0 has no wheels with a matching Python ABI tag{_HINT}", '"3.8"'),
        ("Because scipy==1.5.0 has no usable wheels and", "another version of scipy"),
        ("Because the current Python version (3.11.7) does not satisfy Python<3.9 and", '"3.8"'),
        ("Because the current Python version (3.11.7) does not satisfy Python>=3.13 and a==1",
         'set `python: "3.13"` in'),
        ("Because a==2 depends on b>=1 and you require b==0, they are incompatible.", "loosen"),
        (_UNAUTHORIZED, "secret"),
    ],
)  # fmt: skip
def test_missing_solution_has_a_fix(said: str, advice: str) -> None:
    assert advice in advise_on_packages(_NONE + said)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (_NO_MATCH, "write `opencv-python` instead of cv2"),
        (f"{_FIRST}error: Failed to download `six==1.16.0`: Hash mismatch", "correct the hash"),
        (f"{_FIRST}error: Distribution not found at: file:///x", "starts at the folder"),
        ("uv is not installed on this node", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_other_failures(message: str, advice: str) -> None:
    found = advise_on_packages(message)
    assert advice in found
    assert bool(found) == bool(advice)


def test_advice_names_the_log_of_the_build() -> None:
    known = advice_for_result(
        "EnvironmentFailed", f"{_FIRST}a==1 cannot be built: RuntimeError: no"
    )
    assert known.endswith("`runner logs RUN --build` has the whole output")
    assert "--build" in advice_for_result("EnvironmentFailed", "unknown")
    assert advice_for_result("EnvironmentFailed") == advice_for_result(
        "EnvironmentFailed", "unknown"
    )


def test_pool_without_uv_is_no_mistake_of_the_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StageFailedError) as caught:
        find_uv(Path("/nowhere"))
    advice = advice_for_result(caught.value.code, caught.value.message)
    assert "start task" in advice
    assert "requirements" not in advice
