"""Plans for people: as text, and as a page of charts."""
