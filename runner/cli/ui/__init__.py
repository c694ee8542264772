"""All rendering: data on stdout, progress and errors on stderr. Start in `output`."""
