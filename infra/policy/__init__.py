"""Rules that every stack keeps, and the policy pack that Pulumi runs them in. Start in `rules`."""
