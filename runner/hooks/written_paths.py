"""Record the paths outside of the task's folder to which a Python process of the script writes.

The `sitecustomize` of every Python process of the script imports this module under another name. It
is therefore short, and valid in every Python 3. The paths come from audit events, from arguments of
libraries that do not write through Python (WRITERS), and from arguments of other programs.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_PATHS = 1000  # per process
MAX_OF_FOLDER = 50  # if a folder has more paths, the folder is recorded instead
MORE = "more"  # the last line if there are more paths than MAX_PATHS
ARGUMENT = "argument "  # precedes a path that comes from the arguments of a program
# Limits: words in a command, characters in a word, and characters in a path.
MAX_WORDS, MAX_TEXT, MAX_PATH = 200, 100000, 1000
# Functions that do not write through Python, by module: the function, the position and name of its
# path argument, and the suffixes that it adds to the path.
_TF_SUFFIXES = (".index", ".data-00000-of-00001")
WRITERS = {
    "torch.serialization": (("save", 1, "f", ("",)),),
    "safetensors.torch": (("save_file", 1, "filename", ("",)),),
    "safetensors.numpy": (("save_file", 1, "filename", ("",)),),
    "h5py._hl.files": (("File.__init__", 1, "name", ("",)),),
    "tables.file": (("File.__init__", 1, "filename", ("",)),),
    "pyarrow.parquet.core": (("ParquetWriter.__init__", 1, "where", ("",)),),
    "xgboost.core": (("Booster.save_model", 1, "fname", ("",)),),
    "lightgbm.basic": (("Booster.save_model", 1, "filename", ("",)),),
    "cv2": (("imwrite", 0, "filename", ("",)),),
    "tensorflow.python.lib.io.file_io": (
        ("FileIO.__init__", 1, "name", ("",)),
        ("recursive_create_dir_v2", 0, "path", ("",)),
        ("rename_v2", 1, "dst", ("",)),
        ("copy_v2", 1, "dst", ("",)),
    ),
    "tensorflow.python.checkpoint.checkpoint": (
        ("TrackableSaver.save", 1, "file_prefix", _TF_SUFFIXES),
    ),
}
_EVENTS = frozenset((
    "open", "os.mkdir", "os.rename", "sqlite3.connect", "subprocess.Popen", "os.exec",
    "os.posix_spawn", "os.system",
))  # fmt: skip
_SHELL = {ord(each): " " for each in ";|&()<>`\n\t"}
_SHELL.update((ord(each), "") for each in "\"'")
# Shared folders, which are never recorded as a whole.
_SHARED = frozenset(
    ("/", "/tmp", "/var", "/var/tmp", "/home", "/root", "/opt", "/mnt", "/media", "/srv")  # noqa: S108
)
# Files of interpreters and of the system. Folders of caches are hidden or have one of these names.
_NEVER = ("/dev/", "/proc/", "/sys/")
_CACHES = ("/.", "/__pycache__/", "/site-packages/", "/dist-packages/")


def install(record: str, ignored: "list[str]") -> None:
    """Append each path that is opened for writing, created or renamed to, to the file `record`.

    Args:
        record: the file. Its lines are paths, in which NUL stands for a line end. Paths from
            arguments follow ARGUMENT. The last line is MORE if there were too many.
        ignored: folders whose paths are not recorded, in addition to those of Python itself.
    """
    if not hasattr(sys, "addaudithook"):
        return  # before Python 3.8
    paths = WrittenPaths(record, [sys.prefix, sys.base_prefix] + ignored)  # noqa: RUF005
    events = _EVENTS  # a local name remains while the interpreter ends

    def on_event(event: str, args: "tuple[object, ...]") -> None:
        if event not in events:
            return  # checked first, because there may be millions of events
        try:  # noqa: SIM105 - contextlib would have to be imported
            paths.on_event(event, args)
        except (OSError, ValueError, TypeError, AttributeError):
            pass  # the script must not fail because of this

    sys.addaudithook(on_event)
    sys.meta_path.insert(0, WriterFinder(paths.note))


class WrittenPaths:
    """Writes the record of one process."""

    def __init__(self, record: str, ignored: "list[str]") -> None:
        self._record = record
        folders = [os.path.join(each, "") for each in ignored if each]  # noqa: PTH118
        self._below = tuple(folders) + _NEVER
        self._seen = {""}
        self._counts = {"": 0}  # the number of paths in each folder

    def on_event(self, event: str, args: "tuple[Any, ...]") -> None:
        """Record the paths of an event."""
        if event == "open":
            if isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
                self.note(args[0])
        elif event == "os.mkdir":
            if args[2] == -1:
                self.note(args[0], must_be_new=True)
        elif event == "os.rename":
            if args[3] == -1:
                self.note(args[1])
        elif event == "sqlite3.connect":
            if args[0] != ":memory:":
                self.note(args[0])
        elif event == "os.system":
            self._note_command(["sh", args[0]], None)
        else:
            self._note_command(args[1], args[2] if event == "subprocess.Popen" else None)

    def note(self, path: object, must_be_new: bool = False, mark: str = "") -> None:
        """Record a path, preceded by `mark`."""
        if isinstance(path, int) or len(self._seen) > MAX_PATHS + 1:
            return
        text = os.fsdecode(path) if isinstance(path, (str, bytes)) else str(path)
        if text[:1] != "/" or ".." in text:
            text = os.path.abspath(text)  # noqa: PTH100
        if mark + text in self._seen or text.startswith(self._below):
            return
        if any(each in text + "/" for each in _CACHES) or (must_be_new and os.path.lexists(text)):
            return
        folder = os.path.dirname(text)  # noqa: PTH120
        self._counts[folder] = self._counts.get(folder, 0) + 1
        is_shared = folder in _SHARED or os.path.dirname(folder) == "/home"  # noqa: PTH120
        if self._counts[folder] > MAX_OF_FOLDER and not is_shared:
            text = folder
            if mark + text in self._seen:
                return
        text = mark + text
        self._seen.add(text)
        if len(self._seen) > MAX_PATHS + 1:
            text = MORE
        # Opened each time, because the script may close all descriptors.
        file = os.open(self._record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, os.fsencode(text.replace("\n", "\0")) + b"\n")
        finally:
            os.close(file)

    def _note_command(self, words: "list[Any]", folder: "Any") -> None:
        """Record arguments of a program that may be paths, including those in a shell command."""
        here = os.path.abspath(os.fsdecode(folder or os.getcwd()))  # noqa: PTH100, PTH109
        is_elsewhere = not os.path.join(here, "").startswith(self._below)  # noqa: PTH118
        is_shell = os.fsdecode(words[0]).endswith("sh")
        for word in words[1:MAX_WORDS]:
            whole = os.fsdecode(word)[:MAX_TEXT]
            parts = whole.translate(_SHELL).split()[:MAX_WORDS]
            alone = whole.partition("=")[2] or whole  # not in the code of `python -c`
            for text in [alone] + parts:  # noqa: RUF005
                path = os.path.expandvars(text) if "$" in text else text
                is_path = path[:1] == "/" or (is_elsewhere and (is_shell or text is alone))
                if is_path and path[:1] != "-" and len(path) < MAX_PATH:
                    self.note(os.path.join(here, path), mark=ARGUMENT)  # noqa: PTH118


class WriterFinder:
    """Finds the modules of WRITERS by the other finders, and wraps their functions after import."""

    def __init__(self, note: "Any") -> None:
        self._note = note

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec of such a module, or None."""
        if name not in WRITERS:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                try:  # noqa: SIM105 - this imports nothing
                    self._change_when_run(spec, name)
                except Exception:  # noqa: S110, BLE001 - of a loader that cannot be changed
                    pass
                return spec
        return None

    def _change_when_run(self, spec: "Any", name: str) -> None:
        run = spec.loader.exec_module

        def run_and_change(module: "Any") -> None:
            run(module)
            for where, position, keyword, suffixes in WRITERS[name]:
                owner, _, function = where.rpartition(".")
                try:
                    changed = getattr(module, owner) if owner else module
                    original = getattr(changed, function)
                    call = self._noting(original, position, keyword, suffixes)
                    setattr(changed, function, call)
                except Exception:  # noqa: S110, BLE001 - another version lacks it
                    pass

        spec.loader.exec_module = run_and_change

    def _noting(
        self, original: "Any", position: int, keyword: str, suffixes: "tuple[str, ...]"
    ) -> "Any":
        note = self._note

        def call(*args: "Any", **kwargs: "Any") -> "Any":
            try:
                path = args[position] if len(args) > position else kwargs[keyword]
                for suffix in suffixes:
                    note(os.fsdecode(path) + suffix)
            except Exception:  # noqa: S110, BLE001 - nothing may fail because of this
                pass
            return original(*args, **kwargs)

        # The same as `functools.wraps`, which would have to be imported.
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(call, attribute, getattr(original, attribute, None))
        call.__dict__.update(getattr(original, "__dict__", {}), __wrapped__=original)
        return call
