"""What a run did, as HTML: nothing is fetched, nothing is remembered between calls."""
