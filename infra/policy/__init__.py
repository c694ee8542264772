"""Rules that every stack keeps: plain functions, and the policy pack that Pulumi runs them in."""
