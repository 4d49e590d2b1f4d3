"""Benchmarks, which are never part of the tests: `python -m benchmarks --help`."""
