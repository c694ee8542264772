"""What pools and images will be, as plain data and without Pulumi. Start in `pool_plan`."""
