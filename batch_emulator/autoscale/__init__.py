"""The autoscale formula language and its samples: no account, no clock. Start in `evaluate`."""
