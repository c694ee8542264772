"""Azure Batch, data plane: jobs, tasks, pools, nodes and schedules. Start in `jobs`."""
