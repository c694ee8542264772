"""Tests of runner.node.inputs."""
