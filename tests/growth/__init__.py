"""What an operation costs on large threads and logs, and long runs against a model."""
