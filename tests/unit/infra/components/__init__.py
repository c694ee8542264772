"""Tests of runner_infra.components."""
