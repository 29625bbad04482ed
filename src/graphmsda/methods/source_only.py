"""Source-only and AdaBN: the two baselines that do not train on the target."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from graphmsda.domains import Batch
from graphmsda.graphs.constraints import source_risk
from graphmsda.methods.base import LinearMethod, Phase


class SourceOnly(LinearMethod):
    r"""Source-only: cross-entropy on all sources, the target never seen.

    .. math:: L = -\tfrac{1}{M} \sum_m E_{(q,y) \in S_m} \log \hat y_q[y]

    The paper's eq. 8 with a linear classifier. All sources are one batch with common batch statistics, as if they were
    one domain, and a target image is read with those.
    """

    version = 2  # in the first one every source had statistics of its own

    def losses(self, batch: Batch) -> Phase:
        """The source risk."""
        embedded = self.embed_batch(batch, target=False, pooled=True)
        labels = [part.y for part in embedded.sources]
        predictions = torch.split(self.predict(embedded.flat()[0]), [len(y) for y in labels])
        return Phase({"source": source_risk(predictions, labels)})

    def read_with(self, domain: int = -1) -> int:
        """Return whose running statistics read a domain; the sources' common ones are those of domain 0."""
        return self.domains - 1 if domain % self.domains == self.domains - 1 else 0


class AdaBN(SourceOnly):
    """AdaBN: Source-only read with the target's batch statistics (Li et al., Adaptive Batch Normalization, 2018).

    The weights are those of Source-only with the same seed, to the bit; only the statistics with which a target image
    is normalised differ.
    """

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """Source-only's step, then a look at the target that touches nothing but its running statistics."""
        yield from super().phases(batch)
        self.observe_target(batch)  # without dropout, which would draw random numbers that Source-only does not
