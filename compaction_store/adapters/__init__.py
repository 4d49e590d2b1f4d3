"""Adapters, one module for each framework. Nothing else imports the framework, which is an extra of the same name."""
