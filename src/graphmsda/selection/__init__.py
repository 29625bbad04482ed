"""Without target labels: which model is the best, and how good is it?

- ``estimate(run, task=None, *, second=None, rehearsals=(), ...) -> Estimate``: the accuracy on the target with an
  interval that is to hold the truth 9 times out of 10. `run` is a `Run` or its folder, `task` its data
  (`Task` or `NamedTask`; by default they are read from where the run had them), `second` a run of the same task with
  another seed, `rehearsals` a folder of ``graphmsda tune``. The result has ``accuracy``, ``low``, ``high`` (fractions),
  ``parts`` (each estimator's own figure), ``calibrated_on`` (a phrase for people) and ``told`` (the sentence to print).
- ``SCORES``: name -> `Score`, a function of `Evidence` with ``higher`` (whether more is better), ``text``, ``paper``.
- ``score_run(run, task=None) -> dict[str, float]``: all of them for a finished run.
- ``gather(run, task=None) -> Evidence``: what a model says of the sources' held-out parts and of the unlabelled target,
  in one pass, for those who want both scores and estimate: both take ``evidence=``.
"""

from graphmsda.selection.estimate import Estimate, estimate
from graphmsda.selection.evidence import Evidence, Mixed, Seen
from graphmsda.selection.gather import gather
from graphmsda.selection.scores import SCORES, Score, score_run

__all__ = ["SCORES", "Estimate", "Evidence", "Mixed", "Score", "Seen", "estimate", "gather", "score_run"]
