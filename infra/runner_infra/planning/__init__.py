"""Plans of pools and images, as plain data and without Pulumi. Start in `pool_plan`."""
