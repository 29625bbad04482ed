"""graphmsda: multi-source domain adaptation with graphical models.

>>> from graphmsda import Task, fit
>>> task = Task.load(sources=["data/a", "data/b"], target="data/c")  # doctest: +SKIP
>>> run = fit(task, method="mrf", out="runs/c")  # doctest: +SKIP
>>> run.predict("new-images/").labels  # doctest: +SKIP
"""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

from graphmsda.domains import Domain, EvalSet, Task, Unlabelled
from graphmsda.engine.fit import fit
from graphmsda.errors import UserError
from graphmsda.methods import METHODS
from graphmsda.run import Evaluation, Predictions, Run

if TYPE_CHECKING:
    from graphmsda.estimator import GraphMSDAClassifier

__all__ = [
    "METHODS",
    "Domain",
    "EvalSet",
    "Evaluation",
    "GraphMSDAClassifier",
    "Predictions",
    "Run",
    "Task",
    "Unlabelled",
    "UserError",
    "__version__",
    "fit",
]


def __getattr__(name: str) -> Any:
    """Import the estimator when it is asked for: scikit-learn takes a second, which other uses save."""
    if name == "GraphMSDAClassifier":
        from graphmsda.estimator import GraphMSDAClassifier

        return GraphMSDAClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
