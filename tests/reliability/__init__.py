"""The promises under faults."""
