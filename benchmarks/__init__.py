"""Benchmarks, which are not part of the tests. `python -m benchmarks --help` shows how to run them."""
