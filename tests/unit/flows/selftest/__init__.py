"""Tests of runner.flows.selftest."""
