"""skada's methods and ours on the same feature arrays: accuracy on the target and seconds to fit.

    python benchmarks/skada_comparison.py [--data digits clouds] [--targets 5] [--seeds 1] [--out results/skada.json]

``digits`` are scikit-learn's handwritten digits (64 pixels as features), cut into five domains: as they are, turned,
blurred, faint and noisy, and stretched. ``clouds`` are 5 domains x 500 x 64 numbers: five Gaussian classes, each domain
turned, scaled and shifted. Each of the first ``--targets`` domains is the target in turn, the others are sources; its
labels are used to count right predictions alone. skada's networks are ours (64-256-128, batch norms, dropout) and
trained as long, with the same optimiser; all run on one thread. Needs skada and, for its networks, skorch.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.ndimage
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

import record
from graphmsda import METHODS, GraphMSDAClassifier

Array = NDArray[Any]
EPOCHS, RATE, BATCH = 30, 3e-3, 32  # the estimator's own defaults for feature vectors
OURS = ("source-only", "adabn", "coral", "dann", "crf", "mrf", "mrf-plus")


def digits(seed: int) -> Iterator[tuple[Array, Array]]:
    """Yield five domains of scikit-learn's digits."""
    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    pictures, labels = found.images[order] / 16, found.target[order]
    rng = np.random.default_rng(seed + 1)
    changes: list[Callable[[Array], Array]] = [
        lambda x: x,
        lambda x: scipy.ndimage.rotate(x, 25, axes=(1, 2), reshape=False, order=1),
        lambda x: scipy.ndimage.gaussian_filter(x, (0, 0.9, 0.9)),
        lambda x: 0.4 * x + 0.3 + 0.1 * rng.normal(size=x.shape),
        lambda x: scipy.ndimage.affine_transform(x, np.diag([1, 1, 0.65]), offset=(0, 0, 1.3), order=1),
    ]
    for number, change in enumerate(changes):
        part = slice(number, None, len(changes))
        yield change(pictures[part]).reshape(-1, 64).astype(np.float32), labels[part]


def clouds(seed: int) -> Iterator[tuple[Array, Array]]:
    """Yield five domains of 500 x 64 numbers."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(5, 64))
    for _ in range(5):
        y = np.arange(500) % 5
        turned = np.linalg.qr(np.eye(64) + 0.1 * rng.normal(size=(64, 64)))[0]
        x = (centres[y] + 1.5 * rng.normal(size=(500, 64))) @ turned
        yield (x * np.exp(0.3 * rng.normal(size=64)) + rng.normal(size=64)).astype(np.float32), y


class Network(nn.Module):
    """The backbone `mlp` with a linear head, as skada takes networks."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm1d(64),
            *(nn.Linear(64, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.Linear(256, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU()),
        )
        self.head = nn.Linear(128, classes)

    def forward(self, x: torch.Tensor, sample_weight: object = None) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.head(self.body(x))
        return logits


class Discriminator(nn.Module):
    """skada's domain classifier with a sigmoid at its end, where skada 0.6 has a softmax of one value, always 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(128, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 1))

    def forward(self, x: torch.Tensor, sample_weight: object = None) -> torch.Tensor:
        """Return the probability of the target."""
        from skada.deep.modules import GradientReversalLayer

        return torch.sigmoid(self.layers(GradientReversalLayer.apply(x, 1.0))).squeeze(1)


def contenders(classes: int, sources: int, seed: int) -> dict[str, Callable[[], Any]]:
    """Return what makes each estimator, by name."""
    import skada

    def network(kind: str, **more: Any) -> Any:
        from skada import deep

        torch.manual_seed(seed)
        net = getattr(deep, kind)(
            Network(classes),
            layer_name="body",
            max_epochs=EPOCHS,
            batch_size=BATCH * (sources + 1),  # as many samples a step as ours
            optimizer=torch.optim.Adam,
            optimizer__lr=RATE,
            optimizer__weight_decay=5e-4,
            train_split=None,
            verbose=0,
            **more,
        )
        return skada.make_da_pipeline(StandardScaler(), net)

    found: dict[str, Callable[[], Any]] = {
        "skada logistic regression": lambda: skada.make_da_pipeline(
            StandardScaler(), LogisticRegression(max_iter=1000)
        ),
        "skada CORAL": lambda: skada.make_da_pipeline(
            StandardScaler(), skada.CORALAdapter(), LogisticRegression(max_iter=1000)
        ),
        # What batch norms per domain do for networks, a scaler per domain does for others.
        "skada scaled per domain": lambda: skada.make_da_pipeline(
            skada.PerDomain(StandardScaler()), LogisticRegression(max_iter=1000)
        ),
    }
    try:
        import skada.deep
    except ImportError:
        print("skorch is not installed: skada's networks are left out")
    else:
        found |= {
            "skada network, source-only": lambda: network("SourceOnly"),
            "skada DeepCoral": lambda: network("DeepCoral", reg=1),
            "skada DANN as it comes": lambda: network("DANN", reg=1, num_features=128),
            "skada DANN with a sigmoid": lambda: network("DANN", reg=1, domain_classifier=Discriminator()),
        }
    for name in OURS:
        if name in METHODS:
            found[f"graphmsda {name}"] = lambda name=name: GraphMSDAClassifier(name, random_state=seed)
    return found


def measure(make: Callable[[int], Iterator[tuple[Array, Array]]], targets: int, seeds: int) -> list[dict[str, Any]]:
    """Return a row for each estimator."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(seeds):
        domains = list(make(seed))
        for target in range(targets):
            order = [number for number in range(len(domains)) if number != target] + [target]
            X = np.concatenate([domains[number][0] for number in order])
            y = np.concatenate([domains[number][1] for number in order])
            where = np.repeat([1, 2, 3, 4, -5], [len(domains[number][1]) for number in order])
            for name, create in contenders(int(y.max()) + 1, 4, seed).items():
                estimator = create()
                wall, own = time.perf_counter(), time.process_time()
                estimator.fit(X, np.where(where < 0, -1, y), sample_domain=where)
                seconds = time.perf_counter() - wall, time.process_time() - own
                right = estimator.predict(X[where < 0], sample_domain=where[where < 0]) == y[where < 0]
                found.setdefault(name, []).append((float(right.mean()), *seconds))
                print(f"target {target}, seed {seed}: {name} {right.mean():.1%}, {seconds[1]:.1f} s", flush=True)
    rows = []
    for name, results in found.items():
        accuracy, wall, own = ([result[place] for result in results] for place in range(3))
        rows.append(
            {
                "what": name,
                "accuracy": statistics.mean(accuracy),
                "by_target_and_seed": accuracy,
                "seconds": statistics.mean(wall),
                "processor_seconds": statistics.mean(own),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=("digits", "clouds"), default=["digits", "clouds"])
    parser.add_argument("--targets", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="what was measured, where there is no git")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # skada's networks warn of softmax without a dimension at every step
    command = f"python benchmarks/skada_comparison.py --targets {given.targets} --seeds {given.seeds}"
    for name in given.data:
        rows = measure({"digits": digits, "clouds": clouds}[name], given.targets, given.seeds)
        print(f"\n{name:28} {'accuracy':>9} {'seconds':>8} {'of processor':>13}")
        for row in sorted(rows, key=lambda row: -row["accuracy"]):
            print(f"{row['what']:28} {row['accuracy']:9.1%} {row['seconds']:8.2f} {row['processor_seconds']:13.2f}")
        if given.out is not None:
            made = {"section": name, "command": f"{command} --data {name}", **record.origin(given.commit)}
            record.merge(given.out, [{**made, "rows": record.rounded(rows)}])


if __name__ == "__main__":
    main()
