"""Plan and submit single runs, groups and repetitions. Start in `pipeline`."""
