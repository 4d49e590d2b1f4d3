"""The promises under faults: what breaks, and what holds all the same."""
