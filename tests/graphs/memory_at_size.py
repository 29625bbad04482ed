"""Run one forward and backward pass of both models at a given size; print the process's peak memory in bytes.

Started as a process of its own by `test_memory.py`, so that the peak is of this work alone.
"""

import resource
import sys
import time

import torch

from graphmsda.graphs import constraints, markov, prototypes, relation


def crf(embedding, c, seen, labels, domain, layers, normalise):
    domains, classes, _ = c.shape
    scale = prototypes.distance_scale(c, seen, reading="relative")
    flat = c.flatten(0, 1)
    graph = relation.connect(embedding, flat, seen.flatten(), sigma=0.5, scale=scale)
    logits, own = relation.node_logits(
        embedding, graph, layers, normalise=normalise, two_way=True, dropout=0.5, training=True
    )
    members = prototypes.one_hot(domain * classes + labels, len(flat))
    return (
        constraints.source_risk([logits.log_softmax(1)], [labels])
        + constraints.target_entropy(logits.log_softmax(1))
        + constraints.prototype_risk(own, torch.arange(classes).repeat(domains), seen.flatten())
        + constraints.global_alignment(graph.among, domains, seen=seen)
        + constraints.local_alignment(graph.distances, members)
    )


def mrf(embedding, c, labels, domain, seed):
    domains, classes, _ = c.shape
    scale = prototypes.distance_scale(c, torch.ones(domains, classes, dtype=torch.bool), reading="relative")
    clique, edges = markov.clique_edges(c, temperature=0.1 * scale)
    pairs = markov.sample_wrong_edges(len(labels), 6, domains=domains, classes=classes, seed=seed)
    energies, wrong = markov.network_energies(embedding, c, pairs, temperature=0.1 * scale)
    posterior = markov.label_posterior(markov.log_joint(energies))
    loss = constraints.source_risk([posterior], [labels]) + constraints.target_entropy(posterior)
    for reading in markov.READINGS:
        loss = loss + markov.likelihood(
            energies,
            domain,
            labels,
            torch.ones(len(labels)),
            clique=clique / edges,
            wrong=wrong,
            reading=reading,
        )
    return loss


def main(classes: int, domains: int, size: int, batch: int) -> None:
    torch.manual_seed(0)
    embedding = torch.randn(batch, size, requires_grad=True)
    c = torch.randn(domains, classes, size, requires_grad=True)
    labels, domain = torch.randint(classes, (batch,)), torch.randint(domains, (batch,))
    shapes = [(size, size), (size,), (size, size), (size,), (size, classes), (classes,)]
    layers = relation.Layers(*((torch.randn(shape) / size**0.5).requires_grad_() for shape in shapes))
    seen = torch.rand(domains, classes) > 0.1
    for name, loss in (
        ("crf", lambda: crf(embedding, c, seen, labels, domain, layers, "row")),
        ("mrf", lambda: mrf(embedding, c, labels, domain, torch.tensor(1))),
    ):
        start = time.perf_counter()
        value = loss()
        value.backward()
        leaves = [embedding, c, *(layers if name == "crf" else ())]
        assert all(torch.isfinite(leaf.grad).all() for leaf in leaves), name
        print(name, f"{value.item():.4f} in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
