"""Submit files: several tasks, their order and when they repeat. Start in `submit_file`."""
