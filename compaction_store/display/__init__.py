"""Text that is safe to show on a terminal and on a page, messages as text, marks and charts."""
