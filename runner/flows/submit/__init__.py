"""Plan and submit runs: one, a group, or an earlier one again. Start in `prepare`."""
