"""Data sets of recipes (`datasets`), and the commands of `runner data` (`commands`)."""
