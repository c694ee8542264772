"""The only home of typer and rich."""
