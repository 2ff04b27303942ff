"""Side-by-side measurements, one script a question."""
