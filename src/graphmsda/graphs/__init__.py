"""The paper's mathematics as pure functions on tensors, one equation each.

`prototypes` (eqs. 1-3), `pseudo` (pseudo-labels), `relation` (CRF-MSDA, eqs. 4-6) with `gather` (its costly step),
`constraints` (the losses of eqs. 7-9, 13 and 14), `markov` (MRF-MSDA, eqs. 16-22) and `draws` (random numbers).

What all of them keep to, so that a training step can be captured and replayed on an accelerator: shapes are static,
nothing is read back to the host, and a class that is absent is a zero weight, never a missing row. Everything but the
linear maps of graph convolutions runs in at least float32, also under automatic mixed precision, because distances are
differences of large numbers.
"""
