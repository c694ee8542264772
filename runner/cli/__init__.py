"""The command line, and the only home of typer and rich. Start in `main`."""
