"""Search the text of a script for the places that it writes to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

CREATED = ("outputs", "logs")  # folders that exist before the script starts, as in Azure ML
MAX_SOURCES, MAX_SOURCE_BYTES = 500, 1 << 20  # files of code that are searched
MAX_TEXT_BYTES = 16 << 20

# Arguments with folders that a script writes to.
_FOLDER_ARGUMENT = re.compile(
    r"--?(?:(?:out|output|outputs|save|log|logs|logging|result|results|tensorboard|tb|summary|work"
    r"|run|runs|exp|experiment|artifacts?|snapshots?|plots?|figures?|samples)"
    r"[-_]?(?:dir|folder|directory)|job-dir|default_root_dir)"
)
# Arguments with folders that a script writes to, unless its code reads from them: a model to start
# from, or its name in a registry. `--export-dir` is not one, because exporters create it.
_STATE_ARGUMENT = re.compile(
    r"--?(?:save[-_])?(?:model|models|checkpoint|checkpoints|ckpt|ckpts|weights|params)"
    r"[-_]?(?:save[-_]?)?(?:dir|folder|directory)"
)
_READS = re.compile(r"load|restore|from_pretrained|resume|\bread|latest_checkpoint")
# Exporters that fail if the folder exists.
_EXPORTS = re.compile(r"SavedModelBuilder|simple_save|export_saved_model|mlflow\.\w+\.save_model")
# Arguments with a path that is rather a file, so only the folder of the file is created.
_OUTPUT_ARGUMENT = re.compile(
    r"--?(?:o|(?:out|output|outputs|save|result|results)(?:[-_]?(?:to|path|file))?)"
)
# Variables of Batch AI and Azure ML for the folders of named outputs.
_NAMED_OUTPUT = re.compile(r"\b(AZ_BATCHAI_OUTPUT_|AZURE_ML_OUTPUT_)([A-Za-z0-9_]+)")
# The folder of the log files of a Batch AI job (the documentation of its variables, 2026-11-23).
_LOGS = "AZ_BATCHAI_STDOUTERR_DIR"
# Variables of Batch AI and Azure ML for named inputs.
_NAMED_INPUT = re.compile(
    r"\b(?:AZ_BATCHAI_INPUT_|AZURE_ML_INPUT_|AZUREML_DATAREFERENCE_)([A-Za-z0-9_]+)"
)
_MAKES_FOLDER = re.compile(r"(?<![A-Za-z_])(?:mkdir|makedirs|copytree)\b")
# Follows a call that succeeds if the folder exists: `(name, exist_ok=True)`, ` -p name`.
_ACCEPTS_FOLDER = re.compile(
    r"\s*\((?:[^()]|\([^()]*\))*exist_ok\s*=\s*True|\W{1,6}?(?:-[a-z]*p|--parents)\b"
)
# Matches `("runs/" + date)` and `("runs")`, but neither `("run" + date)` nor `(folder)`.
_PLAIN_FOLDER = re.compile(r"""\s*\(\s*["'](?:\./)?([\w-][\w.-]*)(?:/|["']\s*[),])""")
_IMPORT = re.compile(r"^[ \t]*(?:from|import)\s[^;\n]*", re.MULTILINE)
_CHECKS_FOLDER = re.compile(r"exists\b|isdir\b|is_dir\b|listdir\b|(?:\[|test)\s+(?:!\s+)?-[de]\s")
# A script that saves checkpoints itself, or by calling hooks.
_SAVES = re.compile(r"RUNNER_CHECKPOINT_DIR|runner\.hooks")
# Frameworks that `runner.hooks.automatic` supports, and the part of each that a script must use.
_SAVED_FRAMEWORKS = (
    ("keras", ".fit("), ("transformers", "Trainer"), ("lightning", "Trainer"),
    ("chainer", "Trainer"), ("tensorflow", "CheckpointManager"),
)  # fmt: skip
_TRAINS = re.compile(r"\bepochs?\b|\.backward\(|\btrain_on_batch\(|\bGradientTape\(")
_PROGRAMS = frozenset({".py", ".sh", ".r", ".jl", ".lua", ".pl", ".bs"})
_SETTINGS = frozenset({".ipynb", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini"})
# Absolute paths, in quotes or as words of a shell command.
_ABSOLUTE_PATH = re.compile(
    r"""["'](/[^"'\n]+)["']|(?:^|[\s=>(])(/[^\s"'`,;()<>|&]+)""", re.MULTILINE
)


class CodeText:
    """The text of a script: its code, its configuration files and its command."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self.text = "\n".join((*words, *_read_sources(folder)))

    def named_outputs(self) -> Mapping[str, str]:
        """Return the variables of named outputs that the code mentions, with their folder names."""
        named = {found[0]: found[2].lower() for found in _NAMED_OUTPUT.finditer(self.text)}
        return named | ({_LOGS: "logs"} if _LOGS in self.text else {})

    def named_inputs(self) -> Mapping[str, str]:
        """Return the variables of named inputs that the code mentions, with the input names."""
        return {found[0]: found[1].upper() for found in _NAMED_INPUT.finditer(self.text)}

    @property
    def saves_checkpoints(self) -> bool:
        """Return True if the code mentions the checkpoint folder or `runner.hooks`."""
        return _SAVES.search(self.text) is not None

    @property
    def trains_without_checkpoints(self) -> bool:
        """Return True for a script that trains, but whose state neither it nor a hook saves."""
        if self.saves_checkpoints or _TRAINS.search(self.text) is None:
            return False
        return not self.is_saved_by_hooks

    @property
    def is_saved_by_hooks(self) -> bool:
        """Return True if the script trains with a framework that hooks support (on one node)."""
        uses = any(name in self.text and what in self.text for name, what in _SAVED_FRAMEWORKS)
        return uses and not self.saves_checkpoints

    def absolute_paths(self) -> Iterator[str]:
        """Return each path once: first those of the command, then of programs, then of settings."""
        seen: set[str] = set()
        found = (match[1] or match[2] for match in _ABSOLUTE_PATH.finditer(self.text))
        for path in (*(word for word in self._words if word.startswith("/")), *found):
            if path not in seen:
                seen.add(path)
                yield path

    def folders(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the folders of arguments such as `--output_dir`."""
        named = (*_values(command, _FOLDER_ARGUMENT.fullmatch), *self._state_folders(command))
        return tuple(folder for _, folder in named)

    def _state_folders(self, command: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Return the arguments such as `--model-dir` whose folders the code does not read."""
        if _EXPORTS.search(self.text):
            return
        for option, path in _values(command, _STATE_ARGUMENT.fullmatch):
            name = _variable(option)
            lines = (line for line in self.text.splitlines() if name in line)
            is_file = PurePosixPath(path).suffix and not path.endswith("/")
            if not is_file and not any(_READS.search(line) for line in lines):
                yield option, path

    def _is_joined(self, option: str) -> bool:
        """Return True if the code appends a name to the value of an option, as to a folder."""
        name = re.escape(_variable(option))
        joined = rf"(?:join\(\s*(?:\w+\.)*{name}\b|\b{name}\)?\s*/|\{{(?:\w+\.)*{name}\}}/)"
        return len(name) > 1 and re.search(joined, self.text) is not None

    def expected_folders(self, command: Sequence[str]) -> Iterator[str]:
        """Return the folders that the script writes to and seems to expect to exist.

        The result does not contain folders whose existence the code checks, or that it creates with
        a call that fails if they exist. It is empty if such a call creates a folder whose name is
        not a plain string.
        """
        text = _IMPORT.sub("", "\n".join((self.text, *command)))
        ends = (match.end() for match in _MAKES_FOLDER.finditer(text))
        made = {_made_folder(text, end) for end in ends if not _ACCEPTS_FOLDER.match(text, end)}
        if "" in made:
            return
        checked = {
            word
            for line in text.splitlines()
            if _CHECKS_FOLDER.search(line)
            for word in re.findall(r"\w+", line)
        }
        wanted = [("", name) for name in CREATED]
        wanted += _values(command, _FOLDER_ARGUMENT.fullmatch)
        wanted += self._state_folders(command)
        for option, path in _values(command, _OUTPUT_ARGUMENT.fullmatch):
            if path.endswith("/") or self._is_joined(option):
                wanted.append((option, path))
            elif "/" in path:
                wanted.append((option, str(PurePosixPath(path).parent)))
        for option, name in wanted:
            last = PurePosixPath(name).name
            # Repetitions are bounded, because data in code may have lines of a million characters.
            variable = (
                r"\b(\w{1,100})\s{0,20}(?::[^=\n]{0,100})?=[^=\n]{0,500}"
                rf"(?<!\w){re.escape(last)}(?!\w)"
            )
            known_as = {last, option.strip("-").replace("-", "_"), *re.findall(variable, text)}
            known_as |= {*re.findall(r"\w+", last), *(["argv"] if option else [])}
            if known_as.isdisjoint(checked) and made.isdisjoint(PurePosixPath(name).parts[:1]):
                yield name


def _variable(option: str) -> str:
    """Return the name that argparse gives to an option."""
    return option.lstrip("-").replace("-", "_")


def _made_folder(text: str, start: int) -> str:
    """Return the first folder of the path in a call, or "" if the path is not a plain string."""
    found = _PLAIN_FOLDER.match(text, start)
    return found[1] if found else ""


def _read_sources(folder: Path) -> Iterator[str]:
    """Return the texts of programs and then of configuration files, within limits of size."""
    found: list[tuple[bool, str]] = []
    for parent, _, names in os.walk(folder):
        for name in names:
            suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 - of a name, not of a path
            if suffix in _PROGRAMS or suffix in _SETTINGS:
                found.append((suffix in _SETTINGS, f"{parent}/{name}"))
    room = MAX_TEXT_BYTES
    for _, path in sorted(found)[:MAX_SOURCES]:
        with suppress(OSError, ValueError):
            source = Path(path)
            if source.is_file() and source.stat().st_size <= min(MAX_SOURCE_BYTES, room):
                text = source.read_text(encoding="utf-8", errors="replace")
                room -= len(text)
                yield text


def _values(words: Sequence[str], names: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    """Return arguments whose name matches, with their values (`--name VALUE`, `--name=VALUE`)."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        found = value if equals else following
        if names(name) and found and found[0] not in "-$":
            yield name, found
