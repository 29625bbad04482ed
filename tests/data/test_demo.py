import hashlib
import itertools
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch

from graphmsda.data import demo
from graphmsda.errors import UserError

PARTS = list(itertools.product(demo.DOMAINS, demo.SPLITS))

# Rendering uses exactly rounded arithmetic only, so these hold on every machine. They change when a style changes,
# and then every figure measured on the demo has to be measured again.
HASHES = {
    ("plain", "train"): "dee2348b9857f5aa",
    ("plain", "test"): "81831e22556880bb",
    ("neon", "train"): "49b06aaec111172b",
    ("neon", "test"): "798a9a8eeb496374",
    ("texture", "train"): "414b241b4237d66a",
    ("texture", "test"): "137738ea9e5303d3",
    ("camera", "train"): "71336cebf6502d4f",
    ("camera", "test"): "c7aadc63897eb764",
    ("chalk", "train"): "31744725eae403c0",
    ("chalk", "test"): "500d8421317887d5",
}


@pytest.mark.parametrize(("domain", "split"), PARTS)
def test_shapes_and_types(domain, split):
    x, y, originals = demo.render(domain, split)
    assert x.shape == (len(y), 3, 32, 32)
    assert (x.dtype, y.dtype, originals.dtype) == (np.uint8, np.int64, np.int64)
    assert len(originals) == len(y)
    assert not x.flags.writeable


@pytest.mark.parametrize(("domain", "split"), PARTS)
def test_pixels_are_the_same_on_every_machine(domain, split):
    assert hashlib.sha256(demo.render(domain, split)[0].tobytes()).hexdigest()[:16] == HASHES[domain, split]


def test_pixels_do_not_depend_on_what_was_rendered_before():
    code = "from graphmsda.data import demo; import zlib; print(zlib.crc32(demo.render('chalk', 'test')[0].tobytes()))"
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(alone) == zlib.crc32(demo.render("chalk", "test")[0].tobytes())


def test_no_original_is_in_two_parts_and_none_is_left_out():
    sets = [set(demo.render(*part)[2].tolist()) for part in PARTS]
    for one, other in itertools.combinations(sets, 2):
        assert not one & other
    assert set().union(*sets) == set(range(1797))


def test_labels_are_those_of_the_originals():
    from sklearn.datasets import load_digits

    truth = load_digits().target
    for part in PARTS:
        _, y, originals = demo.render(*part)
        assert (y == truth[originals]).all()


@pytest.mark.parametrize("domain", demo.DOMAINS)
def test_classes_are_balanced_and_originals_repeat_in_training_alone(domain):
    _, y, originals = demo.render(domain, "train")
    assert np.bincount(y).tolist() == [72] * 10
    assert set(np.unique(originals, return_counts=True)[1]) == {demo.RENDERINGS}
    _, y, originals = demo.render(domain, "test")
    assert len(set(originals.tolist())) == len(originals)
    assert len(y) >= 110
    assert np.bincount(y).min() >= 10
    assert np.bincount(y).max() <= 14


@pytest.mark.parametrize("domain", demo.DOMAINS)
def test_renderings_of_one_original_differ(domain):
    x, _, originals = demo.render(domain, "train")
    assert (originals[0], originals[1]) == (originals[2], originals[2])
    assert np.abs(x[0].astype(int) - x[1]).mean() > 2


def test_domains_look_different():
    mean = {domain: demo.render(domain, "train")[0].mean(axis=(0, 2, 3)) for domain in demo.DOMAINS}
    for one, other in itertools.combinations(demo.DOMAINS, 2):
        assert np.abs(mean[one] - mean[other]).max() > 15
    assert mean["plain"].min() > 150 > 60 > mean["neon"].max()


@pytest.mark.parametrize("target", demo.DOMAINS)
def test_load(target):
    task, test = demo.load(target)
    assert task.domains == (*(domain for domain in demo.DOMAINS if domain != target), target)
    assert task.classes == tuple("0123456789")
    assert test.name == target
    assert (test.x.numpy() == demo.render(target, "test")[0]).all()
    assert (test.y.numpy() == demo.render(target, "test")[1]).all()
    assert (task.target.x.numpy() == demo.render(target, "train")[0]).all()
    assert task.sources[0].x.dtype == torch.uint8
    assert task.fingerprint() == demo.load(target)[0].fingerprint()


def test_supervised_adds_the_labelled_target_openly():
    plain, test = demo.load("neon")
    task, same = demo.supervised("neon")
    assert task.domains == ("plain", "texture", "camera", "chalk", "neon (labelled)", "neon")
    assert torch.equal(task.sources[-1].y, torch.tensor(demo.render("neon", "train")[1]))
    assert torch.equal(task.target.x, plain.target.x)
    assert torch.equal(test.x, same.x)


def test_what_callers_do_to_a_task_does_not_reach_the_next():
    task, _ = demo.load("plain")
    before = task.fingerprint()
    task.target.x.zero_()
    assert demo.load("plain")[0].fingerprint() == before


@pytest.mark.parametrize("call", [demo.load, demo.supervised, lambda name: demo.render(name, "train")])
def test_unknown_domain(call):
    with pytest.raises(UserError, match="no domain 'sepia'; choose one of plain, neon"):
        call("sepia")


def test_unknown_split():
    with pytest.raises(UserError, match="no split 'valid'; choose one of train, test"):
        demo.render("plain", "valid")
