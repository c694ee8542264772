"""Moves of jobs between pools; `fallback` moves runs that name several, start in `job_steps`."""
