"""Record where a Python process of the script writes outside of the task's folder.

Every Python that the script starts imports this, under another name, as its `sitecustomize`. It is
therefore short, and valid in every Python 3. A program in another language records nothing, nor
does a library that opens files by itself; of these, the folder counts if the script made it.
"""

import os
import sys

MAX_PATHS = 1000  # of one process
MAX_OF_FOLDER = 50  # then the folder is recorded, and everything new in it counts
MORE = "more"  # the last line where there are more paths
_EVENTS = frozenset(("open", "os.mkdir", "os.rename", "sqlite3.connect"))
# Folders of everybody, which are never recorded as a whole.
_SHARED = frozenset(
    ("/", "/tmp", "/var", "/var/tmp", "/home", "/root", "/opt", "/mnt", "/media", "/srv")  # noqa: S108
)
# Of other interpreters and of the system; a folder of caches is hidden, or has such a name.
_NEVER = ("/dev/", "/proc/", "/sys/")
_CACHES = ("/.", "/__pycache__/", "/site-packages/", "/dist-packages/")


def install(record: str, ignored: "list[str]") -> None:
    """Append to the file `record` each path that is opened for writing, made, or renamed to.

    Args:
        record: a file, whose lines are paths, and MORE.
        ignored: folders of which nothing is recorded, beside those of Python itself.
    """
    if not hasattr(sys, "addaudithook"):
        return  # before Python 3.8
    ignored = [folder for folder in (sys.prefix, sys.base_prefix, *ignored) if folder]
    below = tuple(os.path.join(folder, "") for folder in ignored) + _NEVER  # noqa: PTH118
    events = _EVENTS  # also when the interpreter ends
    seen = {""}
    counts = {"": 0}  # of files, by folder

    def note(path: object, must_be_new: bool = False) -> None:
        if isinstance(path, int) or len(seen) > MAX_PATHS + 1:
            return
        text = os.fsdecode(path) if isinstance(path, (str, bytes)) else str(path)
        if text[:1] != "/" or ".." in text:
            text = os.path.abspath(text)  # noqa: PTH100
        if text in seen or text.startswith(below) or any(each in text + "/" for each in _CACHES):
            return
        if must_be_new and os.path.lexists(text):
            return
        folder = os.path.dirname(text)  # noqa: PTH120
        counts[folder] = counts.get(folder, 0) + 1
        is_shared = folder in _SHARED or os.path.dirname(folder) == "/home"  # noqa: PTH120
        if counts[folder] > MAX_OF_FOLDER and not is_shared:
            text = folder
            if text in seen:
                return
        seen.add(text)
        if len(seen) > MAX_PATHS + 1:
            text = MORE
        # Opened anew, as the script may close descriptors that it does not know.
        file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, os.fsencode(text.replace("\n", "?")) + b"\n")
        finally:
            os.close(file)

    def on_event(event: str, args: "tuple[object, ...]") -> None:
        if event not in events:
            return  # first, as there may be millions
        try:
            if event == "open":
                if isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
                    note(args[0])
            elif event == "os.mkdir":
                if args[2] == -1:
                    note(args[0], must_be_new=True)
            elif event == "os.rename":
                if args[3] == -1:
                    note(args[1])
            elif event == "sqlite3.connect" and args[0] != ":memory:":
                note(args[0])
        except (OSError, ValueError, TypeError, AttributeError):
            pass  # nothing may fail because of this; others may be of a handler of the script

    sys.addaudithook(on_event)
