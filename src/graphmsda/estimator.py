"""The scikit-learn face: `GraphMSDAClassifier`, the same task, engine and run behind ``fit`` and ``predict``."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, check_random_state, column_or_1d, validate_data
from torch import Tensor

from graphmsda import estimator_files
from graphmsda.domains import Task
from graphmsda.engine.fit import fit
from graphmsda.engine.settings import Settings
from graphmsda.errors import UserError
from graphmsda.estimator_arrays import MASKED, InputError, arrange, image_tensor, is_images, join, source_numbers
from graphmsda.graphs import markov
from graphmsda.methods import find_method
from graphmsda.methods.mrf import MRF
from graphmsda.run import Run
from graphmsda.streaming import chunk_size, embed

LEAST_STEPS = 200  # of training with epochs="auto": thirty passes over a dozen rows would be a dozen steps
# As in skada, sample_domain goes wherever it is known, and allow_source, which its scorers send, does no harm.
PASSED = {"sample_domain": True, "allow_source": True}
ARGUMENTS = ("method", "backbone", "epochs", "parameters", "seed")  # settings that are arguments by themselves
# Training draws from PyTorch's one random generator and a network remembers the batch it reads: one thread at a time.
_ALONE = threading.RLock()


def _tells_domains(estimator: GraphMSDAClassifier) -> bool:
    if issubclass(find_method(estimator.method), MRF):
        return True
    raise AttributeError(f"method {estimator.method!r} gives no posterior over domains; mrf and mrf-plus do")


class GraphMSDAClassifier(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Multi-source domain adaptation as a scikit-learn classifier, for feature vectors and images.

    Args:
        method: What to train; `graphmsda.METHODS` lists them.
        backbone: ``auto``: ``mlp`` for feature vectors, a convolutional network for images; else one by its name.
        epochs: Passes over the largest source; ``auto``: 30, and more where that makes fewer than 200 steps.
        params: The method's hyper-parameters by name, such as ``{"tau": 0.1}``; others keep their defaults.
        settings: Other fields of `graphmsda.engine.settings.Settings` by name, such as ``{"batch_size": 64}``.
        random_state: Seed of everything random; None draws one.
        verbose: Show a progress bar on standard error.

    Attributes:
        classes_: The labels of the sources, sorted.
        source_domains_: The ``sample_domain`` of each source, sorted.
        domains_: Names of the domains, the target last: the columns of `predict_domain_proba`.
        history_: What happened in training, a dictionary of loss terms for each interval.
        run_: The trained `graphmsda.Run`; its folder was a temporary one (`save` writes a lasting one).
        n_features_in_: Length of feature vectors, where there are some.

    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(90) % 2
    >>> sample_domain = np.repeat([0, 1, -1], 30)  # two sources, and the target, whose labels are not looked at
    >>> X = rng.normal(size=(90, 4)) + 3 * y[:, None] + sample_domain[:, None]
    >>> model = GraphMSDAClassifier(epochs=10, random_state=0).fit(X, np.where(sample_domain < 0, -1, y), sample_domain)
    >>> model.predict(X[60:]).shape, model.classes_.tolist()
    ((30,), [0, 1])
    """

    __metadata_request__fit: ClassVar = {"sample_domain": True, "sources": UNUSED, "target": UNUSED}
    __metadata_request__predict: ClassVar = PASSED
    __metadata_request__predict_proba: ClassVar = PASSED
    __metadata_request__predict_log_proba: ClassVar = PASSED
    __metadata_request__transform: ClassVar = PASSED
    __metadata_request__score: ClassVar = PASSED | {"sample_weight": True}

    def __init__(
        self,
        method: str = "mrf",
        backbone: str = "auto",
        epochs: int | str = "auto",
        params: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.epochs = epochs
        self.params = params
        self.settings = settings
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Any = None, y: Any = None, sample_domain: Any = None, *, sources: Any = None, target: Any = None
    ) -> GraphMSDAClassifier:
        """Adapt from labelled sources to an unlabelled target.

        Args:
            X: Feature vectors ``(N, F)``, or images ``(N, H, W, C)``, ``(N, C, H, W)`` or ``(N, H, W)``, uint8 or
                floating-point from 0 to 1.
            y: Labels, numbers or strings; those of target rows are ignored whatever they hold.
            sample_domain: Domain of each row: 0 or above for a source, below 0 for the target, which may have several.
                Without it, rows labelled -1 are the target; where there are none, all rows are one source and the
                target is taken to be like it.
            sources: In place of these three, ``[(X1, y1), (X2, y2), ...]``, which become domains 0, 1, ...
            target: With `sources`, the target's samples.
        """
        if sources is not None or target is not None:
            if X is not None or y is not None or sample_domain is not None:
                raise InputError("fit: X, y or sample_domain came with sources and target; give one or the other")
            X, y, sample_domain = join(sources, target)
        elif X is None:
            raise InputError("fit: no samples were given; give X, y and sample_domain, or sources and target")
        arrays = arrange(self._samples(X, reset=True), y, sample_domain)
        task = arrays.task()
        with _ALONE, TemporaryDirectory(prefix="graphmsda-") as out, _few_threads(task.is_images):
            self._keep(fit(task, out=out, progress=self.verbose, **self._settings(task)))
        self.classes_, self.source_domains_ = arrays.labels, arrays.sources
        return self

    def predict(self, X: Any, sample_domain: Any = None, *, allow_source: bool = True) -> NDArray[Any]:
        """Return the most probable label of each row.

        Args:
            X: Samples like those in `fit`.
            sample_domain: Rows of a source known from `fit` are read as that source's, others as the target's.
            allow_source: Sent by skada; rows of sources are always allowed.
        """
        best = self.predict_log_proba(X, sample_domain).argmax(1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any, sample_domain: Any = None, *, allow_source: bool = True) -> NDArray[np.float64]:
        """Return the probability of each class, ``(N, K)`` in the order of `classes_`; arguments as in `predict`."""
        probabilities: NDArray[np.float64] = np.exp(self.predict_log_proba(X, sample_domain))
        return probabilities

    def predict_log_proba(self, X: Any, sample_domain: Any = None, *, allow_source: bool = True) -> NDArray[np.float64]:
        """Return the logarithm of `predict_proba`."""
        return self._read(X, sample_domain, lambda run, x: run.method.predict(x).double().log_softmax(1))

    @available_if(_tells_domains)  # type: ignore[untyped-decorator]
    def predict_domain_proba(self, X: Any, sample_domain: Any = None) -> NDArray[np.float64]:
        r"""Return the posterior over domains, eq. 18 summed over classes: ``(N, D)`` in the order of `domains_`.

        .. math:: p(y_d = m \mid q) = \sum_k p(y_d = m, y = k \mid q)

        It tells which domain's prototypes a sample lies near: the source its prediction leans on, or the target itself.
        """

        def posterior(run: Run, x: Tensor) -> Tensor:
            return markov.domain_posterior(run.method.log_joint(x)).double().softmax(1)  # type: ignore[operator]

        return self._read(X, sample_domain, posterior)

    def transform(self, X: Any, sample_domain: Any = None, *, allow_source: bool = True) -> NDArray[np.float64]:
        """Return the embedding of each row, ``(N, d)``; arguments as in `predict`."""
        return self._read(X, sample_domain, lambda run, x: x.double())

    def fit_transform(self, X: Any, y: Any = None, sample_domain: Any = None) -> Any:
        """Fit, then embed the same rows, each as its own domain's."""
        return self.fit(X, y, sample_domain).transform(X, sample_domain)

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, sample_domain: Any = None, *, allow_source: bool = True
    ) -> float:
        """Return the share of right predictions; rows whose label is masked by -1 are left out.

        Args:
            X: Samples like those in `fit`.
            y: Their labels.
            sample_weight: How much each row counts.
            sample_domain: As in `predict`.
            allow_source: As in `predict`.
        """
        predicted = self.predict(X, sample_domain)
        truth = column_or_1d(y)
        kept = np.ones(len(truth), dtype=bool)
        if truth.dtype.kind in "if" and MASKED not in self.classes_.tolist():
            kept = truth != MASKED
        if not kept.any():
            raise InputError("y: every label is masked by -1; give true labels to score against")
        weight = None if sample_weight is None else column_or_1d(sample_weight)[kept]
        return float(accuracy_score(truth[kept], predicted[kept], sample_weight=weight))

    def save(self, path: str | Path) -> None:
        """Write a run directory, which `load` reads and ``graphmsda predict`` too; there is no code in it."""
        check_is_fitted(self)
        estimator_files.write(self, self._texts, Path(path))

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> GraphMSDAClassifier:
        """Read what `save` wrote, or the run directory of any ``graphmsda fit``; no code in it is executed."""
        run = Run.load(path, device=device)
        about = estimator_files.read(Path(path), run)
        try:
            estimator = cls(**about["arguments"])
        except TypeError as error:
            raise UserError(f"{path}: the saved estimator has other arguments ({error}); save it anew") from error
        estimator._keep(run)
        estimator.classes_, estimator.source_domains_ = about["classes"], about["source_domains"]
        if about["feature_names"] is not None:
            estimator.feature_names_in_ = np.array(about["feature_names"], dtype=object)
        if len(run.about["shape"]) == 1:
            estimator.n_features_in_ = run.about["shape"][0]
        return estimator

    def _settings(self, task: Task) -> dict[str, Any]:
        """Return the settings of the run that this estimator's arguments ask for."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        own = {"method": self.method, "backbone": self.backbone, "parameters": dict(self.params or {})}
        chosen: dict[str, Any] = own | {"seed": int(seed)} | dict(self.settings or {})
        known = [name for name in Settings.__dataclass_fields__ if name not in ARGUMENTS]
        for name in self.settings or ():
            if name not in known:
                raise InputError(f"settings: unknown name {name!r}; there are {', '.join(known)}")
        if not task.is_images:
            chosen.setdefault("accelerate", "off")  # compiling takes longer than training on a few thousand rows
        if self.epochs == "auto":
            usual = Settings(**chosen).resolved(task)
            return chosen | {"epochs": max(usual.epochs, math.ceil(LEAST_STEPS / usual.steps_per_epoch))}
        if not isinstance(self.epochs, int | np.integer):
            raise InputError(f"epochs: found {self.epochs!r}; give a whole number from 1, or 'auto'")
        return chosen | {"epochs": int(self.epochs)}

    def _samples(self, X: Any, *, reset: bool) -> Tensor:
        """Check samples and return them as a `Task` holds them."""
        if not is_images(X):
            if not reset and len(self.run_.about["shape"]) != 1:
                raise InputError(f"X: found an array of shape {np.shape(X)}; this estimator was fitted on images")
            return torch.tensor(validate_data(self, X, reset=reset, dtype=np.float32))
        x = image_tensor(X)
        if reset:
            for name in {"n_features_in_", "feature_names_in_"} & set(vars(self)):  # an earlier fit's
                delattr(self, name)
        elif list(x.shape[1:]) != (expected := self.run_.about["shape"]):
            raise InputError(f"X: found images {list(x.shape[1:])}; this estimator was fitted on samples {expected}")
        return x

    def _read(self, X: Any, sample_domain: Any, answer: Any) -> NDArray[np.float64]:
        """Embed rows, each domain's with its own statistics, and return what `answer` makes of the embeddings."""
        check_is_fitted(self)
        run: Run = self.run_
        x = self._samples(X, reset=False)
        domain = source_numbers(sample_domain, len(x), self.source_domains_)
        found = np.empty((len(x), 0))
        with _ALONE, torch.inference_mode(), _few_threads(x.ndim == 4):
            for number in np.unique(domain):
                rows = torch.from_numpy(np.flatnonzero(domain == number))
                for part in torch.split(rows, chunk_size(x.shape[1:], run.device)):
                    values = answer(run, embed(run.method, x[part].to(run.device), int(number))).cpu().numpy()
                    found = found if found.size else np.empty((len(x), values.shape[1]))
                    found[part.numpy()] = values
        return found

    def _keep(self, run: Run) -> None:
        """Take in a finished run, whose folder may go."""
        self._texts, self.history_, self.domains_ = estimator_files.texts_of(run), run.history(), run.domains
        self.run_ = estimator_files.in_full(run)

    @property
    def _n_features_out(self) -> int:
        return self.run_.method.backbone.features

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "run_" in state:  # as files hold it: no class of ours or PyTorch's is in a pickle, and any device reads it
            state["_weights"] = estimator_files.pack(state.pop("run_"))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "_weights"})
        device = "cpu" if (self.settings or {}).get("device") == "cpu" else "auto"
        if "_weights" in state:
            self.run_ = estimator_files.unpack(self._texts, state["_weights"], device)


@contextmanager
def _few_threads(images: bool) -> Iterator[None]:
    """Let small matrices be multiplied by one thread: more gain little, and beside other jobs wait for each other."""
    before = torch.get_num_threads()
    if not images:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
