"""Getting data that are not there yet: downloads, and stand-ins made on the spot."""
