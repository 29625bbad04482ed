"""Distance between the covariances of two samples (Deep CORAL)."""

from __future__ import annotations

from torch import Tensor

from graphmsda.graphs.prototypes import full_precision, wide


def coral(source: Tensor, target: Tensor) -> Tensor:
    r"""CORAL loss: Sun and Saenko, "Deep CORAL: Correlation Alignment for Deep Domain Adaptation".

    ECCV 2016 workshops, eq. 1:

    .. math:: \ell_{CORAL} = \frac{1}{4 d^2} \lVert C_S - C_T \rVert_F^2

    Batches may differ in size; of fewer than two samples there is no covariance, and the loss is 0.

    Shapes: source (n, d), target (m, d) -> 0-dim.
    """
    source, target = wide(source, target)
    if min(len(source), len(target)) < 2:
        return source.new_zeros(())
    return (covariance(source) - covariance(target)).square().sum() / (4 * source.shape[1] ** 2)


def covariance(x: Tensor) -> Tensor:
    r"""Covariance of a sample's rows, divided by n - 1: eqs. 2 and 3 of Deep CORAL.

    .. math:: C = \frac{1}{n-1} \left( X^\top X - \tfrac{1}{n} (1^\top X)^\top (1^\top X) \right)

    Rows are centred first, which is the same and loses nothing where the mean is large.

    Shapes: (n, d) -> (d, d).
    """
    centred = x - x.mean(0)
    with full_precision(x.device):
        return centred.T @ centred / (len(x) - 1)
