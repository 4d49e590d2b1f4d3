"""The promises under faults: each rig breaks something, counts, and compares the store with what its callers saw."""
