"""An emulator of the Azure Batch data plane: `python -m batch_emulator`.

Start reading in `http.app`, which handles a request, and in `loop`, which does everything else.

In docstrings and comments, "docs" are Microsoft's pages about Batch. `[S]` marks our choice,
because the sources are silent. `[X]` marks a statement on which the sources disagree. The page
docs/emulator-coverage.md lists both.
"""

__version__ = "0.1.0"
