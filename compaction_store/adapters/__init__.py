"""Adapters for agent frameworks. Only these modules import a framework, and each framework is an optional extra."""
