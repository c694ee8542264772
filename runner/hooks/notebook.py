"""Execute a notebook with papermill. The agent starts this file with the path of the notebook.

The parameters come from `$RUNNER_PARAMS`, with their types. Further arguments are ignored. The
executed notebook is in `$RUNNER_OUTPUT_DIR`. It is replaced as a whole after each cell, and every
few seconds while a cell prints. The output of cells also goes to stdout and stderr.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple, cast  # noqa: UP035 - the script's Python may be 3.8

SAVE_EVERY_S = 3.0  # while a cell prints
SAVE_PAUSE_FACTOR = 10  # after a save that took 1 s, the next one is at least 10 s later
CELL_BYTES = 5 << 20  # maximum size of the outputs that the notebook keeps for one cell
NOTEBOOK_BYTES = 50 << 20  # maximum size of the outputs of all cells
MAX_ERROR_CHARS = 100_000
STOPPED = "runner: the notebook stopped: "  # NOTEBOOK_STOPPED of runner.protocol.task
MAX_SHOWN = 200  # characters of a source line and of an error
MIN_SECRET_CHARS = 6  # shorter values could occur in any text by chance
KERNEL = "python3"  # the name of ipykernel's kernel in the environment of this interpreter
EXPECTS_ERROR = "raises-exception"  # the tag of a cell that may fail, as for nbclient
IDLE_S = 600  # how long to wait for the outputs of a cell after it ended
TERMINATED = 128 + signal.SIGTERM
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_FAILED_LINE = re.compile(r"^-+>[ ]*(\d+) ", re.MULTILINE)
_NAMED_LINE = re.compile(r"\bline (\d+)")


class OutputLimit:
    """The limit of the outputs that the notebook keeps: at most `cell_bytes` per cell."""

    def __init__(self, cell_bytes: int = CELL_BYTES, notebook_bytes: int = NOTEBOOK_BYTES) -> None:
        self._cell_bytes = cell_bytes
        self._left = notebook_bytes
        self._used = 0
        self.is_exceeded = False

    def start_cell(self) -> None:
        """Start to count the outputs of the next cell."""
        self._left -= self._used
        self._used = 0
        self.is_exceeded = False

    def clear(self) -> None:
        """Reset the count of this cell after it has cleared its outputs."""
        self._used = 0

    def take(self, size: int) -> int:
        """Return how many of these bytes are kept. After the limit was exceeded, none are kept."""
        if self.is_exceeded:
            return 0
        kept = max(min(size, self._cell_bytes - self._used, self._left - self._used), 0)
        self._used += kept
        self.is_exceeded = kept < size
        return kept

    def notice(self, run_id: str) -> str:
        """Return the text that replaces the rest of the outputs."""
        whole = self._left - self._used <= 0
        what = "outputs of this notebook are" if whole else "output of this cell is"
        size = NOTEBOOK_BYTES if whole else self._cell_bytes
        return (
            f"\n[runner: the {what} longer than {size >> 20} MB, so the rest is left out here; what"
            f" was printed is in the log: runner logs {run_id}]\n"
        )


def limit_message(message: Dict[str, Any], limit: OutputLimit, run_id: str) -> bool:  # noqa: UP006
    """Shorten an output to the limit. Return False if none of it is kept."""
    kind, content = message["msg_type"], message["content"]
    if kind == "clear_output":
        limit.clear()
    if kind == "error":
        content["evalue"] = content["evalue"][:MAX_ERROR_CHARS]
        content["traceback"] = [line[:MAX_ERROR_CHARS] for line in content["traceback"]]
    if kind not in ("stream", "display_data", "execute_result", "update_display_data"):
        return True
    had_room = not limit.is_exceeded
    if kind == "stream":
        kept = limit.take(len(content["text"]))
        content["text"] = content["text"][:kept]
    else:
        size = sum(len(str(data)) for data in content["data"].values())
        kept = limit.take(size)
        if kept < size:
            content["data"] = {"text/plain": ""}
    if limit.is_exceeded and had_room:
        if kind == "stream":
            content["text"] += limit.notice(run_id)
        else:
            content["data"] = {"text/plain": limit.notice(run_id)}
        return True
    return kept > 0 or not limit.is_exceeded


def describe_failure(
    name: str,
    count: Optional[int],  # noqa: UP045
    source: str,
    error: str,
    traceback: List[str],  # noqa: UP006
) -> str:
    """Return a text with the cell that failed, the line of its source, and the error.

    Args:
        name: the file name of the notebook.
        count: the execution number of the cell, as in `In [3]`.
        source: the source of the cell.
        error: for example `ValueError: no data`.
        traceback: the parts of IPython's traceback; the first arrow marks the line of the cell.
    """
    text = _ESCAPES.sub("", "\n".join(traceback))
    found = _FAILED_LINE.search(text) or _NAMED_LINE.search(text)
    lines = source.splitlines()
    number = int(found.group(1)) if found else 0
    where = ""
    if 1 <= number <= len(lines):
        where = f" at line {number}, `{lines[number - 1].strip()[:MAX_SHOWN]}`"
    first = error.strip().splitlines()
    said = (first[0] if first else "")[:MAX_SHOWN]
    return f"cell In [{count if count is not None else '-'}] of {name} failed{where}: {said}"


def _secrets() -> List[str]:  # noqa: UP006
    names = os.environ.get("RUNNER_SECRET_NAMES", "").split()
    values = (os.environ.get(name, "") for name in names)
    return [value for value in values if len(value) >= MIN_SECRET_CHARS]


def _hide(value: Any, secrets: List[str]) -> Any:  # noqa: UP006
    """Return an output without the values of secrets."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "***")
        return value
    if isinstance(value, dict):
        document = cast("dict[str, Any]", value)
        return {key: _hide(each, secrets) for key, each in document.items()}
    if isinstance(value, list):
        return [_hide(each, secrets) for each in cast("list[Any]", value)]
    return value


class ForwardedSignal:
    """Forwards SIGTERM to the kernel, whose code may save its state, and saves the notebook."""

    def __init__(self) -> None:
        self.is_requested = False
        self.client: Any = None
        signal.signal(signal.SIGTERM, self._forward)

    def _forward(self, *_: object) -> None:
        self.is_requested = True
        pid = getattr(getattr(getattr(self.client, "km", None), "provisioner", None), "pid", None)
        if pid is None:
            raise SystemExit(TERMINATED)
        os.kill(pid, signal.SIGTERM)


def _client_class(base: Any, run_sync: Callable[[Any], Any]) -> Any:
    """Return a subclass of papermill's client that limits outputs and saves while a cell runs."""

    class Client(base):
        limit = OutputLimit()
        secrets: List[str] = []  # noqa: UP006, RUF012
        termination: Any = None
        saver: Any = None
        run_id = ""

        def process_message(self, message: Any, cell: Any, cell_index: int) -> Any:
            if self.secrets:
                message["content"] = _hide(message["content"], self.secrets)
            if message["msg_type"] == "stream":
                content = message["content"]
                out = sys.stderr if content["name"] == "stderr" else sys.stdout
                out.write(content["text"])
                out.flush()
            self.saver.is_due = True
            if not limit_message(message, self.limit, self.run_id):
                return None
            return base.process_message(self, message, cell, cell_index)

        async def async_execute_cell(self, cell: Any, cell_index: int, **options: Any) -> Any:
            self.limit.start_cell()
            saving = asyncio.ensure_future(self.saver.save_regularly(self.termination))
            try:
                return await base.async_execute_cell(self, cell, cell_index, **options)
            finally:
                saving.cancel()

        execute_cell = run_sync(async_execute_cell)

    return Client


class Saver:
    """Saves the notebook, less often if saving is slow."""

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._next_at: float | None = None  # now
        self.is_due = False

    def save(self, **_: object) -> None:
        """Save now. If the last save was a moment ago, let `save_regularly` do it later."""
        began = time.monotonic()
        if self._next_at is not None and began < self._next_at:
            self.is_due = True
            return
        self.is_due = False
        self._save()
        took_s = time.monotonic() - began
        self._next_at = time.monotonic() + min(took_s * SAVE_PAUSE_FACTOR, SAVE_EVERY_S)

    async def save_regularly(self, termination: ForwardedSignal) -> None:
        """Save every few seconds and once on termination, until cancelled."""
        saved_at, was_requested = time.monotonic(), False
        while True:
            await asyncio.sleep(0.2)
            urgent = termination.is_requested and not was_requested
            if urgent or (self.is_due and time.monotonic() - saved_at >= SAVE_EVERY_S):
                was_requested = termination.is_requested
                self._next_at = None
                self.save()
                saved_at = time.monotonic()


class _WholeFiles:
    """Papermill's writer, which replaces a file only once the new one is complete."""

    def __init__(self, part: Path) -> None:
        self._part = part

    def write(self, text: str, path: str) -> None:
        self._part.write_text(text, encoding="utf-8")
        os.replace(self._part, path[len(_SCHEME) :])  # noqa: PTH105 - both are strings

    def pretty_path(self, path: str) -> str:
        return path[len(_SCHEME) :]


_SCHEME = "whole:"


def allows_errors(notebook: Dict[str, Any]) -> bool:  # noqa: UP006
    """Return True if the metadata of a notebook lets all cells fail, as for Jupyter Book."""
    metadata = _object(notebook, "metadata")
    execution = _object(metadata, "execution")
    return True in (execution.get("allow_errors"), metadata.get("allow_errors"))


def _object(document: Dict[str, Any], key: str) -> Dict[str, Any]:  # noqa: UP006
    """Return an object of a document; empty without one."""
    found: Any = document.get(key)
    return cast("Dict[str, Any]", found) if isinstance(found, dict) else {}  # noqa: UP006


def has_failed(notebook: Dict[str, Any]) -> bool:  # noqa: UP006
    """Return True if a cell failed that may not fail."""
    if allows_errors(notebook):
        return False
    cells: List[Dict[str, Any]] = notebook["cells"]  # noqa: UP006
    for cell in cells:
        metadata = _object(cell, "metadata")
        if EXPECTS_ERROR in (metadata.get("tags") or ()):
            continue
        outputs: List[Dict[str, Any]] = cell.get("outputs") or []  # noqa: UP006
        errors = [(one["ename"], one["evalue"]) for one in outputs if one["output_type"] == "error"]
        exits = [error for error in errors if error in (("SystemExit", ""), ("SystemExit", "0"))]
        if len(errors) > len(exits):
            return True
        if not exits and _object(metadata, "papermill").get("exception") is True:
            return True
    return False


def readable(content: bytes) -> Optional[str]:  # noqa: UP045
    """Return a notebook without a byte order mark, and with keys that papermill requires.

    Return None if it can be read as it is.
    """
    document: Dict[str, Any] = json.loads(content.decode("utf-8-sig"))  # noqa: UP006
    before = json.dumps(document)
    if "cells" in document:
        document.setdefault("nbformat", 4)
        document.setdefault("nbformat_minor", 4)
    document.setdefault("metadata", {})
    cells: List[Dict[str, Any]] = document.get("cells") or []  # noqa: UP006
    for cell in cells:
        cell.setdefault("metadata", {})
        if cell.get("cell_type") == "code":
            cell.setdefault("outputs", [])
            cell.setdefault("execution_count", None)
    after = json.dumps(document)
    return after if after != before or content.startswith(b"\xef\xbb\xbf") else None


def choose_kernel(name: str, language: str, installed: Dict[str, str]) -> Optional[str]:  # noqa: UP006, UP045
    """Return the kernel that executes a notebook, or None if none can.

    Args:
        name: the name of its kernel.
        language: the language of its kernel; "" stands for Python.
        installed: the folders of the installed kernels by name.
    """
    if language.lower() in ("", "python"):
        # A kernel of another environment would have other packages.
        is_own = installed.get(name, "").startswith(sys.prefix + os.sep)
        return name if is_own else KERNEL
    return name if name in installed else None


def register_kernel(name: str, language: str, folder: Path) -> None:
    """Describe a kernel to Jupyter whose package is installed without doing so itself.

    Packages such as bash_kernel have a program for it (`python -m bash_kernel.install`), which
    writes to the environment. The command of their kernels follows one convention.

    Args:
        name: the name of the kernel.
        language: its language.
        folder: where the description is written.
    """
    for module in (f"{name}_kernel", name, f"{language.lower()}_kernel"):
        if not re.fullmatch(r"[A-Za-z]\w*", module) or not _is_program(module):
            continue
        argv = ["python", "-m", module, "-f", "{connection_file}"]  # for Jupyter, this interpreter
        described = folder / "kernels" / name / "kernel.json"
        described.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"argv": argv, "display_name": name, "language": language})
        described.write_text(text, encoding="utf-8")
        paths = [str(folder), *filter(None, [os.environ.get("JUPYTER_PATH")])]
        os.environ["JUPYTER_PATH"] = os.pathsep.join(paths)
        return


def _is_program(module: str) -> bool:
    """Return True if `python -m MODULE` can run an installed package."""
    try:
        return importlib.util.find_spec(f"{module}.__main__") is not None
    except ImportError:
        return False


def execute(notebook: Path, output: Path, params: Dict[str, Any]) -> int:  # noqa: UP006
    """Execute a notebook, and write it to `output`. Return the exit code."""
    papermill: Any = importlib.import_module("papermill")
    engines: Any = importlib.import_module("papermill.engines")
    iorw: Any = importlib.import_module("papermill.iorw")
    wrap: Any = importlib.import_module("papermill.clientwrap")
    steps: Any = importlib.import_module("papermill.execute")
    specs: Any = importlib.import_module("jupyter_client.kernelspec")
    run_sync: Any = importlib.import_module("jupyter_core.utils").run_sync
    termination = ForwardedSignal()
    client_class = _client_class(wrap.PapermillNotebookClient, run_sync)

    class Engine(engines.NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **_: Any) -> Any:
            saver = Saver(nb_man.save)
            nb_man.save = saver.save
            client = client_class(
                nb_man, kernel_name=kernel_name, timeout=None, startup_timeout=120,
                iopub_timeout=IDLE_S, log=engines.logger,
                extra_arguments=["--log-level=ERROR"], allow_errors=allows_errors(nb_man.nb),
            )  # fmt: skip
            client.secrets, client.run_id = _secrets(), os.environ.get("RUNNER_RUN_ID", "RUN")
            client.saver, client.termination, client.limit = saver, termination, OutputLimit()
            termination.client = client
            try:
                return client.execute()
            finally:
                del nb_man.save  # so that the last version is always saved

    engines.papermill_engines.register("runner", Engine)
    # The temporary file is in the folder of the logs, which is not exported as outputs.
    logs = Path(os.environ.get("RUNNER_METRICS_FILE") or output).parent
    iorw.papermill_io.register(_SCHEME, _WholeFiles(logs / f".{output.name}.part"))
    raise_errors = steps.raise_for_execution_errors

    def raise_for_errors(executed: Any, path: str) -> None:
        # The last error is that of the cell that may not fail, because the notebook ended there.
        if has_failed(executed):
            raise_errors(executed, path)

    steps.raise_for_execution_errors = raise_for_errors
    source = notebook
    if (text := readable(notebook.read_bytes())) is not None:
        source = logs / f".{output.name}.read"
        source.write_text(text, encoding="utf-8")
    name, language = _kernel_of(json.loads(text or notebook.read_bytes()))
    if name not in specs.find_kernel_specs():
        register_kernel(name, language, logs / ".jupyter")
    installed = specs.find_kernel_specs()
    kernel = choose_kernel(name, language, installed)
    if kernel is None:
        known = ", ".join(sorted(installed))
        said = f"{notebook.name} needs the kernel {name!r} of {language}, but there is only {known}"
        sys.stderr.write(f"{STOPPED}{said}\n")
        return 1
    try:
        papermill.execute_notebook(
            _plain_path(str(source)), _plain_path(f"{_SCHEME}{output}"), parameters=params,
            engine_name="runner", kernel_name=kernel, language=language or "python",
            progress_bar=False, autosave_cell_every=0, cwd=str(notebook.parent),
        )  # fmt: skip
    except papermill.PapermillExecutionError as err:
        sys.stderr.write(_ESCAPES.sub("", "\n".join(err.traceback)) + "\n")
        error = f"{err.ename}: {err.evalue}" if err.evalue else err.ename
        said = describe_failure(notebook.name, err.exec_count, err.source, error, err.traceback)
    except RuntimeError as err:
        if type(err).__name__ != "DeadKernelError":
            raise
        if termination.is_requested:
            return TERMINATED
        said = _describe_death(notebook.name, output)
    else:
        return 0
    sys.stderr.write(_hide(f"{STOPPED}{said}", _secrets()) + "\n")
    sys.stderr.flush()
    return TERMINATED if termination.is_requested else 1


def _plain_path(path: str) -> str:
    """Return a path for papermill, which replaces names in braces by parameters."""
    return path.replace("{", "{{").replace("}", "}}")


def _kernel_of(document: Dict[str, Any]) -> Tuple[str, str]:  # noqa: UP006
    """Return the name and the language of the kernel that a notebook names."""
    metadata = _object(document, "metadata")
    kernel, about = _object(metadata, "kernelspec"), _object(metadata, "language_info")
    language = kernel.get("language") or about.get("name") or ""
    return str(kernel.get("name") or KERNEL), str(language)


def _describe_death(name: str, output: Path) -> str:
    """Return a text with the cell in which the kernel ended."""
    cells = json.loads(output.read_text(encoding="utf-8"))["cells"]
    begun = [
        cell
        for cell in cells
        if cell["cell_type"] == "code" and cell["metadata"]["papermill"]["start_time"]
    ]
    source = "".join(begun[-1]["source"]) if begun else ""
    first = (source.strip().splitlines() or [""])[0][:MAX_SHOWN]
    return (
        f"the kernel of {name} ended in the cell that begins with `{first}`, as it does if the node"
        " has no memory left"
    )


def main(arguments: List[str]) -> int:  # noqa: UP006
    """Execute the notebook on the command line. Return the exit code."""
    notebook = Path(arguments[0]).resolve()
    params_file = os.environ.get("RUNNER_PARAMS")
    params: Dict[str, Any] = {}  # noqa: UP006
    if params_file:
        params = json.loads(Path(params_file).read_text(encoding="utf-8"))
    output = Path(os.environ.get("RUNNER_OUTPUT_DIR", ".")).resolve() / notebook.name
    return execute(notebook, output, params)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
