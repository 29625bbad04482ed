"""A finished run behind HTTP: predictions for programs, and a page to drop images on."""
