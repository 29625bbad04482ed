"""Whatever schemathesis makes of the OpenAPI page, the answers are those that the page promises."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from graphmsda.run import Run
from graphmsda.serve.app import create_app
from graphmsda.serve.limits import Limits
from tests.serve.conftest import picture

schemathesis = pytest.importorskip("schemathesis")

PATHS = ["/predict", "/healthz", "/metrics", "/model", "/examples/{place}"]


@pytest.fixture(scope="module")
def api(run: Run) -> Any:
    app = create_app(run, Limits(most_megabytes=0.1, most_images=8), {0: picture()})
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def test_all_paths_are_tested(api: Any) -> None:
    assert {found.ok().path for found in api.get_all_operations()} == set(PATHS)


@pytest.mark.parametrize(
    ("path", "mode"),
    [*((path, "positive") for path in PATHS), ("/predict", "negative"), ("/examples/{place}", "negative")],
)
def test_every_answer_is_as_promised(api: Any, path: str, mode: str) -> None:
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    operation = next(found.ok() for found in api.get_all_operations() if found.ok().path == path)

    @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    @settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        # No schema can say that bytes are a picture, nor which numbers have an example: those answers are 4xx.
        statuses.append(case.call_and_validate(excluded_checks=[positive_data_acceptance]).status_code)

    statuses: list[int] = []
    check()
    assert (200 in statuses) == (path != "/examples/{place}")  # some of what it makes are pictures
    assert max(statuses) < 500
