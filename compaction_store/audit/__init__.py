"""The facts for auditors: safe text, events in words, marks on what a summary kept or added, costs, and charts."""
