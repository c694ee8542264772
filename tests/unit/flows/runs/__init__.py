"""Tests of runner.flows.runs."""
