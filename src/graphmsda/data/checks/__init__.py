"""What is in data before anybody trains on it: counts, copies, leaks, contact sheets."""
