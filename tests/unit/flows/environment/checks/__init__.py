"""Tests of runner.flows.environment."""
