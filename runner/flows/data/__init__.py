"""Data sets of recipes (`datasets`), and what `runner data` does (`commands`)."""
