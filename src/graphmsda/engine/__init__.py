"""The engine: one training loop, devices, checkpoints, the run directory."""
