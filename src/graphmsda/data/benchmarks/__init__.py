"""The published benchmarks, one file each, and what they share."""
