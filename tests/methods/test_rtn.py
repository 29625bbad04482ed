"""RTN classifies each source by the target's classifier and a residual of its own."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from graphmsda.errors import UserError
from graphmsda.methods.rtn import RTN
from tests.methods.steps import DOMAINS, batch, one_phase, values
from tests.methods.test_matching import layers_of, new


def disturbed() -> RTN:
    """One whose residuals have left their start at zero."""
    method = new("rtn")
    assert isinstance(method, RTN)
    with torch.no_grad():
        for parameter in method.residuals.parameters():
            parameter.add_(torch.randn_like(parameter))
    return method


def test_the_classifiers_begin_as_one() -> None:
    method = new("rtn")
    assert isinstance(method, RTN)
    scores = torch.randn(4, 3)
    assert len(method.residuals) == DOMAINS - 1
    for source in range(DOMAINS - 1):
        assert torch.equal(method.classify_source(scores, source), scores)


def test_each_source_has_a_residual_of_its_own() -> None:
    method, given = disturbed(), batch()
    *sources, _ = layers_of(method, given)
    risks = []
    for m, ((_, scores), part) in enumerate(zip(sources, given.sources, strict=True)):
        first, _, last = method.residuals[m]
        classified = scores + last(torch.relu(first(scores)))
        risks.append(F.cross_entropy(classified, part.y))
    found = values(one_phase(method, given))["source"]
    assert found == pytest.approx(float(torch.stack(risks).mean().detach()), rel=1e-5)


def test_the_target_is_read_without_residual() -> None:
    method, given = disturbed(), batch()
    plain = copy.deepcopy(method)
    plain.residuals = new("rtn").residuals
    embedding = layers_of(method, given)[-1][0]
    assert torch.equal(method.predict(embedding), plain.predict(embedding))
    one, two = values(one_phase(method, given)), values(one_phase(plain, given))
    assert one["source"] != two["source"]
    assert (one["entropy"], one["discrepancy"]) == (two["entropy"], two["discrepancy"])


def test_the_entropy_is_that_of_the_targets_predictions() -> None:
    method, given = new("rtn", entropy_weight=0.5), batch()
    probabilities = layers_of(method, given)[-1][1].softmax(1)
    entropy = -(probabilities * probabilities.log()).sum(1).mean()
    assert values(one_phase(method, given))["entropy"] == pytest.approx(0.5 * float(entropy.detach()), rel=1e-5)


def test_all_residuals_learn() -> None:
    method = new("rtn")
    assert isinstance(method, RTN)
    terms = one_phase(method, batch()).terms
    lasts = [residual[-1].weight for residual in method.residuals]
    assert all(gradient.abs().sum() > 0 for gradient in torch.autograd.grad(sum(terms.values()), lasts))


def test_a_mistake_is_told_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"^--set entropy_weight=-1.0: out of range; give a number not below 0$"):
        new("rtn", entropy_weight=-1.0)
