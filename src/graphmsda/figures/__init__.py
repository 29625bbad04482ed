"""Figures of finished runs, one file each, as a paper would print them; the extra `figures` brings matplotlib."""
