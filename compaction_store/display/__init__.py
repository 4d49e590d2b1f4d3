"""Shows content to people: safe text for terminals and pages, messages as text, marked summaries, and charts."""
