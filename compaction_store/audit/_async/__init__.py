"""Reads the facts of each page from a store. Every list is bounded and says whether there is more."""
