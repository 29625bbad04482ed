"""The printed equations, transcribed as loops over samples, nodes and edges. Slow and obvious on purpose."""

import math

import torch


def make(seed, *shape, spread=1.0):
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_integers(seed, high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def make_mask(seed, *shape, share=0.7):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


def squared(u, v):
    return sum((u[i] - v[i]) ** 2 for i in range(len(u)))


# Eqs. 1-3


def class_mean(embedding, labels, weight, k):
    total, mass = torch.zeros(embedding.shape[1], dtype=embedding.dtype), 0.0
    for i in range(len(labels)):
        if labels[i] == k:
            total, mass = total + weight[i] * embedding[i], mass + float(weight[i])
    return (total / mass if mass > 0 else total), mass


def mean_distance(prototypes, seen):
    points = [prototypes[m, k] for m in range(seen.shape[0]) for k in range(seen.shape[1]) if seen[m, k]]
    pairs = [float(squared(u, v)) for i, u in enumerate(points) for v in points[:i]]
    return sum(pairs) / len(pairs) if pairs else 1.0


# Eqs. 4-7: an explicit graph for each query


def edge_weight(u, v, sigma, scale):
    return torch.exp(-squared(u, v) / (2 * sigma**2 * scale))


def full_adjacency(nodes, present, sigma, scale):
    """Adjacency matrix over all nodes; those not present have no edges."""
    matrix = torch.zeros(len(nodes), len(nodes), dtype=torch.float64)
    for u in range(len(nodes)):
        for v in range(len(nodes)):
            if present[u] and present[v]:
                matrix[u, v] = edge_weight(nodes[u], nodes[v], sigma, scale)
    return matrix


def normalise_matrix(matrix, normalise, degrees):
    result = matrix.clone()
    for u in range(len(matrix)):
        for v in range(len(matrix)):
            if matrix[u, v] != 0 and normalise == "row":
                result[u, v] = matrix[u, v] / degrees[u]
            if matrix[u, v] != 0 and normalise == "symmetric":
                result[u, v] = matrix[u, v] / torch.sqrt(degrees[u] * degrees[v])
    return result


def network(matrix, nodes, layers):
    hidden = torch.relu(matrix @ nodes @ layers.w1 + layers.b1)
    second = matrix @ hidden @ layers.w2 + layers.b2
    return second if layers.w is None else torch.relu(second) @ layers.w + layers.b


def query_logits(query, prototypes, present, sigma, scale, layers, normalise, two_way):
    """Logits of all nodes of one query's graph; the query is the last node."""
    nodes = torch.cat((prototypes, query[None]))
    matrix = full_adjacency(nodes, [*present, True], sigma, scale)
    if not two_way:
        matrix[:-1, -1] = 0
    degrees = matrix.sum(1)
    if normalise == "symmetric":  # the documented departure: prototypes' degrees without the query
        degrees[:-1] = matrix[:-1, :-1].sum(1)
    return network(normalise_matrix(matrix, normalise, degrees), nodes, layers)


def prototype_logits(prototypes, present, sigma, scale, layers, normalise):
    matrix = full_adjacency(prototypes, present, sigma, scale)
    return network(normalise_matrix(matrix, normalise, matrix.sum(1)), prototypes, layers)


def softmax(row):
    total = sum(math.exp(float(x)) for x in row)
    return [math.exp(float(x)) / total for x in row]


def prototype_risk(logits, classes, seen):
    terms = [-math.log(softmax(row)[int(k)]) for row, k, s in zip(logits, classes, seen, strict=True) if s]
    return sum(terms) / len(terms) if terms else 0.0


# Eqs. 8 and 9


def source_risk(log_probabilities, labels):
    parts = []
    for rows, y in zip(log_probabilities, labels, strict=True):
        if len(y):
            parts.append(-sum(float(row[k]) for row, k in zip(rows, y, strict=True)) / len(y))
    return sum(parts) / len(parts)


def entropy(probabilities):
    return -sum(float(p) * math.log(float(p)) for p in probabilities if p > 0)


# Eqs. 13 and 14


def global_alignment(graph, domains, seen):
    classes = len(graph) // domains
    total = 0.0
    everyone = range(domains)
    for i, j, m, n in ((i, j, m, n) for i in everyone for j in everyone for m in everyone for n in everyone):
        square = 0.0
        for k in range(classes):
            for l in range(classes):  # noqa: E741
                if seen[i, k] and seen[j, l] and seen[m, k] and seen[n, l]:
                    one = graph[i * classes + k, j * classes + l]
                    square += float(one - graph[m * classes + k, n * classes + l]) ** 2
        total += math.sqrt(square)
    return total / domains**4


# Eqs. 16-20 and 22: explicit networks as lists of edges


def clique_edge_list(domains, classes, seen=None):
    """Edges (u, v), u < v, between prototypes u = m K + k of one class."""
    return [
        (m * classes + k, n * classes + k)
        for k in range(classes)
        for m in range(domains)
        for n in range(m + 1, domains)
        if seen is None or (seen[m, k] and seen[n, k])
    ]


def energy(nodes, edges, tau):
    return sum((squared(nodes[u], nodes[v]) for u, v in edges), torch.zeros((), dtype=torch.float64)) / tau


def joint(query, prototypes, tau, seen):
    """Eqs. 18 and 19 as probabilities (D, K), by networks G^m_k."""
    domains, classes, _ = prototypes.shape
    nodes = [*prototypes.reshape(domains * classes, -1), query]
    cliques = clique_edge_list(domains, classes)
    table = torch.zeros(domains, classes, dtype=torch.float64)
    for m in range(domains):
        for k in range(classes):
            if seen[m, k]:
                table[m, k] = torch.exp(-energy(nodes, [*cliques, (len(nodes) - 1, m * classes + k)], tau))
    return table / table.sum()


def negative_networks(query_node, m, y, domains, classes, wrong):
    cliques = clique_edge_list(domains, classes)
    positive = [*cliques, (query_node, m * classes + y)]
    first_kind = [[*cliques, (query_node, m * classes + k)] for k in range(classes) if k != y]
    second_kind = [[*positive, (int(u), int(v))] for u, v in wrong]
    return positive, first_kind + second_kind


def likelihood(embedding, prototypes, domain, label, weight, wrong, tau, reading):
    domains, classes, _ = prototypes.shape
    cliques = clique_edge_list(domains, classes)
    total = 0.0
    for q in range(len(embedding)):
        nodes = [*prototypes.reshape(domains * classes, -1), embedding[q]]
        positive, negatives = negative_networks(
            len(nodes) - 1, int(domain[q]), int(label[q]), domains, classes, wrong[q]
        )
        shared = float(energy(nodes, cliques, tau))
        # The cliques' energy enters as a mean over their edges in this one reading.
        surplus = shared - shared / max(len(cliques), 1) if reading == "mean-clique" else 0.0
        plus = math.exp(-float(energy(nodes, positive, tau)) + surplus)
        minus = [math.exp(-float(energy(nodes, edges, tau)) + surplus) for edges in negatives]
        count = len(minus)
        if reading == "log":
            term = -math.log(plus / (plus + sum(minus)))
        elif reading == "logistic":
            noise = count * (1 / (count + 1))
            term = -math.log(plus / (plus + noise)) - sum(math.log(1 - p / (p + noise)) for p in minus)
        else:
            term = -(plus - sum(minus) / count)
        total += float(weight[q]) * term
    return total / len(embedding)
