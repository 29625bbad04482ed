"""Studies: many runs in one folder, made by any number of workers, and the paper's tables out of them."""
