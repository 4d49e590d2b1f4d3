"""The promises under faults: each rig breaks something, counts, and holds the store to what it told its callers."""
