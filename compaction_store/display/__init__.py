"""Shows content to people: safe text, messages as text, summaries with marks on what they kept or added, and charts."""
