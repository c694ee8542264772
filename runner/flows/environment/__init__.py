"""The Azure environment: plan, check, deploy and delete it. Start in `plan`."""
