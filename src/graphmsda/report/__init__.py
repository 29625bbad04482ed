"""What happened, for people: a run or a study as one HTML file that needs no network."""
