"""The Azure environment: plan, check, deploy and take it down. Start in `plan`."""
