"""graphmsda: multi-source domain adaptation with graphical models.

>>> from graphmsda import Task, fit
>>> task = Task.load(sources=["data/a", "data/b"], target="data/c")  # doctest: +SKIP
>>> run = fit(task, method="mrf", out="runs/c")  # doctest: +SKIP
>>> run.predict("new-images/").labels  # doctest: +SKIP
"""

__version__ = "0.1.0"

from graphmsda.domains import Domain, EvalSet, Task, Unlabelled
from graphmsda.engine.fit import fit
from graphmsda.errors import UserError
from graphmsda.methods import METHODS
from graphmsda.run import Evaluation, Predictions, Run

__all__ = [
    "METHODS",
    "Domain",
    "EvalSet",
    "Evaluation",
    "Predictions",
    "Run",
    "Task",
    "Unlabelled",
    "UserError",
    "__version__",
    "fit",
]
