"""Tests of runner.flows.costs."""
