import pytest
import torch
import transcription as slow
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmsda.errors import UserError
from graphmsda.graphs import constraints
from graphmsda.graphs import prototypes as proto
from graphmsda.graphs import relation as fast

small = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 20)
normalisations = st.sampled_from(fast.NORMALISATIONS)
SIGMA, SCALE = 0.8, 2.0


def assert_same(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def make_layers(seed, size, hidden=4, second=3, classes=3, own_classifier=True):
    shapes = [(size, hidden), (hidden,), (hidden, second), (second,), (second, classes), (classes,)]
    if not own_classifier:
        shapes = [(size, hidden), (hidden,), (hidden, classes), (classes,)]
    return fast.Layers(*(slow.make(seed + i, *shape) for i, shape in enumerate(shapes)))


def connect(queries, prototypes, seen):
    return fast.connect(queries, prototypes, seen, sigma=SIGMA, scale=SCALE)


def predict(queries, prototypes, seen, layers, **options):
    return fast.node_logits(queries, connect(queries, prototypes, seen), layers, **options)[0]


def predict_prototypes(prototypes, seen, layers, normalise, queries=None):
    queries = prototypes[:0] if queries is None else queries
    graph = connect(queries, prototypes, seen)
    return fast.node_logits(queries, graph, layers, normalise=normalise, two_way=True)[1]


@small
@given(seeds, st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_adjacency_is_eq_4(seed, rows, columns, size):
    a, b = slow.make(seed, rows, size), slow.make(seed + 1, columns, size)
    expected = torch.stack([torch.stack([slow.edge_weight(u, v, SIGMA, SCALE) for v in b]) for u in a])
    seen = slow.make_mask(seed, columns)
    graph = fast.connect(a, b, seen, sigma=SIGMA, scale=torch.tensor(SCALE))
    assert_same(graph.edges, expected * seen)
    assert_same(fast.adjacency(graph.distances, sigma=SIGMA), expected)


@small
@given(seeds, st.integers(1, 8), st.integers(1, 4))
def test_graphs_of_prototypes_mask_and_have_unit_diagonals(seed, count, size):
    prototypes, seen = slow.make(seed, count, size), slow.make_mask(seed, count)
    expected = slow.full_adjacency(prototypes, seen, SIGMA, SCALE)
    assert_same(fast.prototype_graph(prototypes, sigma=SIGMA, scale=SCALE, seen=seen), expected)
    assert_same(connect(slow.make(seed, 2, size), prototypes, seen).among, expected)
    assert (fast.prototype_graph(prototypes, sigma=1e-6, scale=1.0).diagonal() == 1).all()
    every = torch.ones(count, dtype=torch.bool)
    assert (fast.connect(prototypes, prototypes, every, sigma=1e-6, scale=1.0).among.diagonal() == 1).all()


@small
@given(
    seeds,
    st.integers(2, 6),
    st.integers(2, 7),
    st.integers(1, 3),
    st.integers(1, 4),
    normalisations,
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 0, 1, 2]),
)
def test_query_logits_equal_the_explicit_graph(seed, domains, classes, batch, size, normalise, two_way, own, chunk):
    queries, prototypes = slow.make(seed, batch, size), slow.make(seed + 1, domains * classes, size)
    seen = slow.make_mask(seed + 2, domains * classes)
    layers = make_layers(seed + 3, size, classes=classes, own_classifier=own)
    logits = predict(queries, prototypes, seen, layers, normalise=normalise, two_way=two_way, chunk=chunk)
    for q in range(batch):
        nodes = slow.query_logits(queries[q], prototypes, seen, SIGMA, SCALE, layers, normalise, two_way)
        assert_same(logits[q], nodes[-1])


@pytest.mark.parametrize("normalise", fast.NORMALISATIONS)
@pytest.mark.parametrize("two_way", [True, False])
def test_what_is_prepared_serves_any_queries(normalise, two_way):
    prototypes, layers = slow.make(1, 6, 4), make_layers(2, 4)
    seen = torch.tensor([True] * 5 + [False])
    graph = fast.prototype_graph(prototypes, sigma=SIGMA, scale=SCALE, seen=seen)
    prepared = fast.prepare(prototypes, graph, layers, normalise=normalise)
    kept = [tensor.clone() for tensor in (prepared.degree, prepared.messages, prepared.shared)]
    for seed in (10, 11):
        queries = slow.make(seed, 5, 4)
        edges = connect(queries, prototypes, seen).edges
        expected = predict(queries, prototypes, seen, layers, normalise=normalise, two_way=two_way)
        assert_same(fast.prepared_logits(queries, edges, prepared, two_way=two_way), expected, 1e-12)
    assert all(map(torch.equal, kept, (prepared.degree, prepared.messages, prepared.shared)))


def test_queries_are_taken_in_the_type_of_what_was_prepared():
    prototypes, layers, queries = slow.make(1, 6, 4), make_layers(2, 4), slow.make(0, 3, 4)
    _, _, edges, graph = connect(queries, prototypes, torch.ones(6, dtype=torch.bool))
    prepared = fast.prepare(prototypes.half(), graph.half(), fast.Layers(*(w.half() for w in layers)), normalise="row")
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        logits = fast.prepared_logits(queries.to(dtype), edges.to(dtype), prepared, two_way=True)
        assert logits.dtype == torch.float32


@small
@given(seeds, st.integers(2, 6), st.integers(2, 7), st.integers(0, 3), st.integers(1, 4), normalisations, st.booleans())
def test_prototype_logits_equal_the_explicit_graph(seed, domains, classes, batch, size, normalise, own):
    prototypes, seen = slow.make(seed, domains * classes, size), slow.make_mask(seed + 2, domains * classes)
    layers = make_layers(seed + 3, size, classes=classes, own_classifier=own)
    expected = slow.prototype_logits(prototypes, seen, SIGMA, SCALE, layers, normalise)
    queries = slow.make(seed + 9, batch, size)
    assert_same(predict_prototypes(prototypes, seen, layers, normalise, queries), expected)


@pytest.mark.parametrize("normalise", fast.NORMALISATIONS)
@pytest.mark.parametrize("two_way", [True, False])
def test_a_query_does_not_depend_on_other_queries(normalise, two_way):
    queries, prototypes, layers = slow.make(0, 5, 4), slow.make(1, 6, 4), make_layers(2, 4)
    seen = torch.ones(6, dtype=torch.bool)
    together = predict(queries, prototypes, seen, layers, normalise=normalise, two_way=two_way)
    for q in range(5):
        alone = predict(queries[q : q + 1], prototypes, seen, layers, normalise=normalise, two_way=two_way)
        assert_same(together[q], alone[0], 1e-12)


def test_one_graph_for_the_whole_batch_is_something_else():
    queries, prototypes, layers = slow.make(0, 3, 4), slow.make(1, 6, 4), make_layers(2, 4)
    own = predict(queries, prototypes, torch.ones(6, dtype=torch.bool), layers, normalise="none", two_way=True)
    nodes = torch.cat((prototypes, queries))
    matrix = slow.full_adjacency(nodes, [True] * 9, SIGMA, SCALE)
    matrix[6:, 6:] = torch.eye(3, dtype=torch.float64)  # queries do not even talk to each other directly
    batch = slow.network(matrix, nodes, layers)[6:]
    assert (own - batch).abs().max() > 1e-3


@pytest.mark.parametrize("normalise", fast.NORMALISATIONS)
@pytest.mark.parametrize(("two_way", "chunk"), [(True, 2), (True, 0), (False, None)])
def test_query_logits_gradients(normalise, two_way, chunk):
    inputs = [slow.make(0, 3, 2), slow.make(1, 4, 2), *make_layers(2, 2, hidden=3, second=3)]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    seen = torch.tensor([True, True, False, True])

    def logits(queries, prototypes, *layers):
        return predict(
            queries, prototypes, seen, fast.Layers(*layers), normalise=normalise, two_way=two_way, chunk=chunk
        )

    assert torch.autograd.gradcheck(logits, inputs)


@pytest.mark.parametrize("normalise", fast.NORMALISATIONS)
def test_other_gradients(normalise):
    inputs = [tensor.requires_grad_() for tensor in (slow.make(1, 4, 2), *make_layers(2, 2))]
    seen = torch.tensor([True, True, False, True])

    def logits(prototypes, *layers):
        return predict_prototypes(prototypes, seen, fast.Layers(*layers), normalise)

    assert torch.autograd.gradcheck(logits, inputs)
    a, b = inputs[0], slow.make(9, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: connect(y, x, seen)[1:], (a, b))


@pytest.mark.parametrize("normalise", fast.NORMALISATIONS)
def test_chunks_with_dropout_agree_in_value_and_gradient(normalise):
    queries, prototypes, layers = slow.make(0, 5, 4).requires_grad_(), slow.make(1, 6, 4), make_layers(2, 4)
    seen = torch.tensor([True] * 5 + [False])
    results = []
    for chunk in (0, 1, 2, None):
        torch.manual_seed(0)
        logits = predict(
            queries,
            prototypes,
            seen,
            layers,
            normalise=normalise,
            two_way=True,
            dropout=0.5,
            training=True,
            chunk=chunk,
        )
        results.append((logits, *torch.autograd.grad(logits.square().sum(), queries)))
    for other in results[1:]:
        assert_same(other[0], results[0][0])
        assert_same(other[1], results[0][1])
    plain = predict(queries, prototypes, seen, layers, normalise=normalise, two_way=True)
    assert (plain - results[0][0]).abs().max() > 1e-3
    still = predict(queries, prototypes, seen, layers, normalise=normalise, two_way=True, dropout=0.5)
    assert_same(plain, still)


@pytest.mark.parametrize("two_way", [True, False])
def test_dropout_of_one_query_is_ordinary_dropout(two_way):
    """With the linear part as the identity and all positive, the mean over masks is the value without dropout."""
    queries, prototypes = slow.make(0, 1, 3).abs(), slow.make(1, 4, 3).abs()
    one, nothing = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    layers = fast.Layers(one, nothing, one, nothing, one, nothing)
    seen = torch.ones(4, dtype=torch.bool)
    options = {"normalise": "row", "two_way": two_way}
    torch.manual_seed(0)
    draws = torch.stack(
        [predict(queries, prototypes, seen, layers, dropout=0.5, training=True, **options) for _ in range(3000)]
    )
    expected = predict(queries, prototypes, seen, layers, **options)
    assert (draws.mean(0) - expected).abs().max() < 5 * draws.std(0).max() / 3000**0.5


@pytest.mark.parametrize("normalise", fast.NORMALISATIONS)
@pytest.mark.parametrize("two_way", [True, False])
def test_nothing_seen_is_finite(normalise, two_way):
    queries, prototypes = slow.make(0, 2, 4).requires_grad_(), slow.make(1, 6, 4).requires_grad_()
    seen, layers = torch.zeros(6, dtype=torch.bool), make_layers(2, 4)
    logits = predict(queries, prototypes, seen, layers, normalise=normalise, two_way=two_way)
    own = predict_prototypes(prototypes, seen, layers, normalise)
    assert constraints.prototype_risk(own, torch.arange(3).repeat(2), seen) == 0
    (logits.sum() + own.sum()).backward()
    assert torch.isfinite(queries.grad).all()
    assert torch.isfinite(prototypes.grad).all()


def test_empty_batch_and_mixed_precision():
    queries, prototypes = slow.make(0, 0, 4).float(), slow.make(1, 6, 4).float()
    layers = fast.Layers(*(tensor.float() for tensor in make_layers(2, 4)))
    seen = torch.ones(6, dtype=torch.bool)
    assert predict(queries, prototypes, seen, layers, normalise="row", two_way=True).shape == (0, 3)
    queries = slow.make(0, 2, 4).float().requires_grad_()
    plain = predict(queries, prototypes, seen, layers, normalise="row", two_way=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = predict(queries, prototypes, seen, layers, normalise="row", two_way=True)
        apart = connect(queries, prototypes, seen)
    assert mixed.dtype == torch.float32
    assert not torch.equal(mixed, plain)  # the layers' own products are taken in fewer bits,
    torch.testing.assert_close(mixed, plain, rtol=0.02, atol=0.02)
    # and nothing else is: edges are differences of large numbers.
    torch.testing.assert_close(apart, connect(queries, prototypes, seen))


def test_unknown_normalisation_is_named():
    queries, prototypes, layers = slow.make(0, 2, 4), slow.make(1, 6, 4), make_layers(2, 4)
    with pytest.raises(UserError, match="choose one of none, row, symmetric"):
        predict(queries, prototypes, torch.ones(6, dtype=torch.bool), layers, normalise="column", two_way=True)


def test_any_batch_size_can_be_exported():
    class Predict(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.prototypes = torch.nn.Buffer(slow.make(1, 6, 4))
            self.layers = torch.nn.ParameterList(make_layers(2, 4))

        def forward(self, queries):
            graph = fast.prototype_graph(self.prototypes, sigma=SIGMA, scale=SCALE)
            prepared = fast.prepare(self.prototypes, graph, fast.Layers(*self.layers), normalise="row")
            edges = fast.adjacency(proto.squared_distances(queries, self.prototypes) / SCALE, sigma=SIGMA)
            return fast.prepared_logits(queries, edges, prepared, two_way=True, chunk=0)

    model = Predict()
    batch = torch.export.Dim("batch", max=4096)
    program = torch.export.export(model, (slow.make(0, 3, 4),), dynamic_shapes={"queries": {0: batch}}).module()
    assert_same(program(slow.make(5, 7, 4)), model(slow.make(5, 7, 4)))


def test_scale_makes_the_graph_free_of_units():
    prototypes = slow.make(0, 2, 3, 4)
    seen = torch.ones(2, 3, dtype=torch.bool)

    def graph(points):
        scale = proto.distance_scale(points, seen, reading="relative")
        return fast.prototype_graph(points.flatten(0, 1), sigma=0.5, scale=scale)

    assert_same(graph(prototypes), graph(0.01 * prototypes))
