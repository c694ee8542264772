"""Rules for every stack, and the policy pack with which Pulumi runs them. Start in `rules`."""
