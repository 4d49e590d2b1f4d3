"""Reads human language: names, words, sentences, quotations, orders, decisions and credentials in a text.

Everything is decided by fixed patterns, without a model, so the same text always gives the same answer. The time is
linear in the length of the text.
"""
