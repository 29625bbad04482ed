"""What `graphmsda.tune` is made of: the grid of settings, the runs on disk, processes, the ranking."""
