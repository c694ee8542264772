"""What commands print with `-o json` and `/api/v1` answers: one class for each document.

A module has the documents of one subject, as TypedDicts, with the functions that make them from
what flows return. `runner.cli` and `runner.page` show the same documents, so a program reads the
same from both. Start in `runs.py`.
"""
