"""MRF+ step by step: who teaches, what is believed, and what its loss is by hand."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import class_imbalance
from graphmsda.methods import complete_parameters
from graphmsda.methods.mrf_plus import MRFPlus
from graphmsda.norm import DomainBatchNorm
from tests.methods.steps import CLASSES, DOMAINS, batch, one_phase, step, values


def new(**given: Any) -> MRFPlus:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), DOMAINS, dropout=0.0)
    return MRFPlus(backbone, CLASSES, DOMAINS, **complete_parameters("mrf-plus", given)).double()


def views(seed: int = 0, progress: float = 0.5) -> Batch:
    """A batch whose strong view of the target is another sample altogether."""
    given = batch(seed)
    sources = tuple(dataclasses.replace(part, x=part.x.double()) for part in given.sources)
    strong = given.target.double() + torch.randn(given.target.shape, generator=torch.Generator().manual_seed(seed))
    return Batch(sources, given.target.double(), torch.tensor(progress), given.seed, strong)


def met(**given: Any) -> MRFPlus:
    """A method that has met every prototype."""
    method = new(**{**given, "confidence": 0.0})
    for seed in range(3):
        step(method, views(seed))
    method.confidence = complete_parameters("mrf-plus", given)["confidence"]
    return method


def average_of(method: MRFPlus) -> dict[str, Tensor]:
    """A teacher that differs from its student."""
    generator = torch.Generator().manual_seed(7)
    return {
        name: (parameter + 0.2 * torch.randn(parameter.shape, generator=generator)).detach()
        for name, parameter in method.named_parameters()
    }


def test_the_loss_is_the_formula_by_hand() -> None:
    """Eq. 20 of the teacher on the weak view labels, eq. 20 of the student on the strong view learns."""
    method, given = met(confidence=0.4, target_weight=3.0, ramp=0.8), views(5)
    method.teacher = average_of(method)
    by_hand = met(confidence=0.4, target_weight=3.0, ramp=0.8)
    teacher = met(confidence=0.4)
    teacher.load_state_dict(method.state_dict() | method.teacher)

    with torch.no_grad():
        weak = teacher.predict(teacher.embed(given.target))  # in training: by the statistics of this very batch
    phase = one_phase(method, given)
    assert given.strong is not None
    chunks = [*(part.x for part in given.sources), given.strong]
    student = by_hand.backbone(torch.cat(chunks), [len(x) for x in chunks], range(len(chunks)))[-len(given.strong) :]
    expected, believed = 0.0, 0
    for row, guess in enumerate(weak):
        if float(guess.max().exp()) > 0.4:
            believed += 1
            expected -= float(by_hand.predict(student[row : row + 1]).detach()[0, int(guess.argmax())])
    assert 0 < believed < len(weak)
    assert values(phase)["target"] == pytest.approx(3.0 * (0.5 / 0.8) * expected / len(weak), rel=1e-6)
    assert float((phase.shown or {})["pseudo-labelled"]) == pytest.approx(believed / len(weak))


def test_the_teacher_is_the_average_or_the_model_itself() -> None:
    given = views(5)
    one, two = met(average_teaches=True), met(average_teaches=False)
    before = [values(one_phase(method, given)) for method in (one, two)]
    assert before[0] == before[1]  # nobody gave an average
    one.teacher = two.teacher = average_of(one)
    one.confidence = two.confidence = 0.0
    labels = [method.teach(given)[0] for method in (one, two)]
    assert not torch.equal(*labels)
    assert torch.equal(labels[1], two.predict(two.embed(given.target)).argmax(1))


def test_only_weak_views_touch_the_statistics_of_the_target() -> None:
    one, two = met(), met()
    given = views(5)
    one_phase(one, given)
    one_phase(two, dataclasses.replace(given, strong=given.target * 9 + 4))
    for a, b in zip(one.modules(), two.modules(), strict=True):
        if isinstance(a, DomainBatchNorm):
            torch.testing.assert_close(a.running_mean, b.running_mean)
            torch.testing.assert_close(a.running_var, b.running_var)
            assert a.count.tolist() == b.count.tolist()
            assert len(set(a.count.tolist())) == 1  # the target's are those of as many batches as the sources'


def test_without_strong_views_the_student_sees_the_weak_ones() -> None:
    given = views(5)
    found = values(one_phase(met(strong_views=False), given))
    assert found == values(one_phase(met(strong_views=False), dataclasses.replace(given, strong=None)))
    assert found != values(one_phase(met(), given))


def test_with_no_weight_nothing_is_learnt_from_the_target() -> None:
    given = views(5)
    control = met(target_weight=0.0, balance_weight=0.0)
    phase = one_phase(control, given)
    assert values(phase)["target"] == 0
    assert float((phase.shown or {})["pseudo-labelled"]) == 0
    assert not control.seen[-1].any()  # its prototypes were never met
    other = dataclasses.replace(given, strong=given.target * 2)
    assert values(phase) == pytest.approx(values(one_phase(met(target_weight=0.0, balance_weight=0.0), other)))


def test_predictions_on_the_strong_views_are_balanced_by_default() -> None:
    given, method = views(5, 0.05), met()  # halfway up the ramp
    plain, reader = copy.deepcopy(method), copy.deepcopy(method)
    plain.balance_weight = 0.0
    with torch.no_grad():
        predictions = reader.predict(reader.embed_batch(given, strong=True).target)
        imbalance, _ = class_imbalance(predictions, reader.shares)
    one, two = values(one_phase(plain, given)), values(one_phase(method, given))
    assert set(two) == {*one, "balance"}
    assert {name: two[name] for name in one} == pytest.approx(one)
    assert two["balance"] == pytest.approx(0.5 * 3 / CLASSES * float(imbalance))


def test_nothing_is_believed_before_a_prototype_is_met() -> None:
    method = new(confidence=0.0)
    assert float((one_phase(method, views()).shown or {})["pseudo-labelled"]) == 0
    assert float((one_phase(method, views()).shown or {})["pseudo-labelled"]) == 1


def test_pseudo_labels_come_in_slowly() -> None:
    full, half = (values(one_phase(met(ramp=0.4), views(5, progress)))["target"] for progress in (0.4, 0.2))
    assert half == pytest.approx(full / 2)
    assert values(one_phase(met(ramp=0.0), views(5, 0.0)))["target"] == pytest.approx(full)


def test_rare_classes_have_a_lower_threshold_when_balanced() -> None:
    method, plain = met(balance=True, confidence=0.9), met(confidence=0.9)
    for some in (method, plain):
        some.believed.copy_(torch.tensor([0.6, 0.05, 0.0]))
    (label, believed, shares), (_, strict, _) = (some.teach(views(5)) for some in (method, plain))
    more = believed.bool() & ~strict.bool()
    assert more.any()
    assert (label[more] > 0).all()
    assert (strict <= believed).all()
    sure = (method.predict(method.embed(views(5).target)).amax(1).exp() > 0.9).double()
    now = torch.zeros(CLASSES, dtype=torch.float64).index_add(0, label, sure / len(label))
    torch.testing.assert_close(shares, 0.99 * method.believed + 0.01 * now)


@pytest.mark.parametrize(("name", "value"), [("confidence", 1.0), ("target_weight", -1.0), ("ramp", 1.5), ("tau", 0.0)])
def test_values_out_of_range_are_refused(name: str, value: float) -> None:
    from graphmsda import UserError

    with pytest.raises(UserError, match=f"--set {name}="):
        new(**{name: value})
