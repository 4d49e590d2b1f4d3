"""Keeps the session files of coding agents while they are written, and writes them back."""
