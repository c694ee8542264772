"""Compare the runs of sweeps and experiments (`experiments`), and move their jobs (`moves`)."""
