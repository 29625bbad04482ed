"""What the server answers: the same as `graphmsda predict`, within its limits, and one sentence where it refuses."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from graphmsda.data.task import load_task
from graphmsda.engine.fit import fit
from graphmsda.errors import UserError
from graphmsda.figures.runs import embed_samples
from graphmsda.run import Run
from graphmsda.serve.answers import Speaker, prototypes_of
from graphmsda.serve.app import create_app
from graphmsda.serve.examples import find_examples
from graphmsda.serve.limits import Limits
from tests.conftest import QUICK, feature_task
from tests.serve.conftest import picture
from tests.test_cli import make_domain

GOOD = ("a.png", picture())
BAD = ("bad.png", b"\x89PNG\r\n\x1a\n and no more")


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[TestClient]:
    with TestClient(create_app(run), base_url="http://localhost") as found:
        yield found


def client_with(run: Run, **limits: Any) -> TestClient:
    return TestClient(create_app(run, Limits(**limits)), base_url="http://localhost")


def post(client: TestClient, *files: tuple[str, bytes], **more: Any) -> Any:
    return client.post("/predict", files=[("images", file) for file in files], **more)


def refusal(answer: Any, status: int) -> str:
    """Return the one sentence of an answer."""
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert list(content) == ["error"]
    assert "\n" not in content["error"]
    assert not content["error"].endswith(".")
    return str(content["error"])


# --- the same as predict ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mrf", "crf", "source-only", "mcd", "dctn"])
def test_answers_equal_predict(method: str, runs: Callable[[str], Run], pictures: list[Path]) -> None:
    run = runs(method)
    expected = run.predict([str(path) for path in pictures])
    with TestClient(create_app(run)) as client:
        together = post(client, *((path.name, path.read_bytes()) for path in pictures)).json()["predictions"]
        alone = [post(client, (path.name, path.read_bytes())).json()["predictions"][0] for path in pictures]
    for found in (together, alone):
        assert [one["name"] for one in found] == [path.name for path in pictures]
        assert [one["label"] for one in found] == expected.labels
        assert [one["nearest_source"] for one in found] == expected.nearest_source
        assert [one["confidence"] for one in found] == pytest.approx(expected.confidence.tolist(), abs=1e-5)
        for one, top in zip(found, expected.top(5), strict=True):
            assert one["error"] is None
            assert [(share["name"], pytest.approx(share["probability"], abs=1e-5)) for share in one["classes"]] == top
            assert sum(share["probability"] for share in one["domains"]) == pytest.approx(1, abs=1e-5)


def test_nearest_prototypes(run: Run, pictures: list[Path]) -> None:
    nodes, seen = prototypes_of(run)
    with TestClient(create_app(run)) as client:
        found = post(client, *((path.name, path.read_bytes()) for path in pictures)).json()["predictions"]
    x = torch.cat([Speaker(run).decode(path.read_bytes(), 1e9) for path in pictures])
    distances = torch.cdist(run.embed(x), nodes.flatten(0, 1)).square().masked_fill(~seen.flatten(), torch.inf)
    for one, row in zip(found, distances, strict=True):
        expected = [divmod(place, len(run.classes)) for place in row.argsort()[:3].tolist()]
        told = [(p["domain"], p["label"]) for p in one["prototypes"]]
        assert told == [(run.domains[domain], run.classes[label]) for domain, label in expected]
        lengths = [p["distance"] for p in one["prototypes"]]
        assert lengths == sorted(lengths)
        assert all(p["example"] is None for p in one["prototypes"])


def test_methods_without_prototypes_tell_class_means_of_sources(runs: Callable[[str], Run]) -> None:
    run = runs("source-only")
    with TestClient(create_app(run)) as client:
        (one,) = post(client, GOOD).json()["predictions"]
    assert {p["domain"] for p in one["prototypes"]} <= set(run.domains[:-1])
    assert [share["name"] for share in one["domains"]] == list(run.domains[:-1])


def test_the_nearest_source_where_all_sources_are_next_to_impossible(runs: Callable[[str], Run]) -> None:
    """Probabilities below 1e-38 are zero; the nearest source is still that of `predict`."""
    run = Run.load(runs("mrf").path, device="cpu")
    with torch.no_grad():
        run.method.tau = 1e-4  # type: ignore[assignment]
    x = torch.cat([Speaker(run).decode(picture(shade), 1e9) for shade in range(0, 160, 10)])
    told = Speaker(run).tell(Speaker(run)(x), 1, {})
    expected = run.predict(x.permute(0, 2, 3, 1).numpy())
    assert [one["nearest_source"] for one in told] == expected.nearest_source


def test_base64_is_the_same_as_files(client: TestClient, pictures: list[Path]) -> None:
    encoded = [base64.b64encode(path.read_bytes()).decode() for path in pictures]
    encoded[0] = f"data:image/png;base64,{encoded[0]}"
    found = client.post("/predict", json={"images": encoded}).json()["predictions"]
    files = post(client, *((path.name, path.read_bytes()) for path in pictures)).json()["predictions"]
    assert [one["name"] for one in found] == [str(place) for place in range(1, len(pictures) + 1)]
    for one, other in zip(found, files, strict=True):
        assert one["label"] == other["label"]
        assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-6)


def test_how_many_classes_are_told(client: TestClient, run: Run) -> None:
    for top, count in ((1, 1), (2, 2), (500, len(run.classes))):
        (one,) = post(client, GOOD, params={"top": top}).json()["predictions"]
        assert len(one["classes"]) == count
    assert refusal(post(client, GOOD, params={"top": 0}), 422).startswith("top: input should be greater than")


def test_clients_at_once_are_batched_and_get_their_own_answers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [picture(shade) for shade in range(0, 150, 5)]
    usual = Speaker.__call__

    def slow(self: Speaker, x: torch.Tensor) -> Any:
        time.sleep(0.05)
        return usual(self, x)

    monkeypatch.setattr(Speaker, "__call__", slow)
    with client_with(run, most_requests=100) as client, ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda content: post(client, ("x.png", content)).json(), contents))
        text = client.get("/metrics").text
    x = np.concatenate([Speaker(run).decode(content, 1e9).permute(0, 2, 3, 1).numpy() for content in contents])
    expected = run.predict(x)
    assert [answer["predictions"][0]["label"] for answer in answers] == expected.labels
    told = [answer["predictions"][0]["confidence"] for answer in answers]
    assert told == pytest.approx(expected.confidence.tolist(), abs=1e-5)
    assert value(text, "batch_images_sum") == len(contents)
    assert value(text, "batch_images_count") < len(contents)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_bad_image_alone_is_refused(client: TestClient) -> None:
    sentence = "image 'bad.png' could not be read (not a picture or damaged); send pictures such as JPEG or PNG"
    assert refusal(post(client, BAD), 422) == sentence
    assert "nor any of the 1 others" in refusal(post(client, BAD, BAD), 422)
    assert "(empty file)" in refusal(post(client, ("empty.png", b"")), 422)
    assert "(truncated)" in refusal(post(client, ("half.png", picture(size=(90, 90))[:9000])), 422)
    text = base64.b64encode(b"hello").decode()
    assert "image '1' could not be read" in refusal(client.post("/predict", json={"images": [text]}), 422)


def test_a_bad_image_among_good_ones_is_told_in_its_place(client: TestClient) -> None:
    answer = post(client, GOOD, BAD, GOOD)
    assert answer.status_code == 200
    first, bad, last = answer.json()["predictions"]
    assert bad == {"name": "bad.png", "error": "not a picture or damaged"}
    assert first["label"] == last["label"] is not None


@pytest.mark.parametrize(
    ("body", "kind", "status", "sentence"),
    [
        (b"", None, 415, "the content type is not given; send files as multipart/form-data, or JSON"),
        (picture(), "image/png", 415, "the content type is image/png; send files"),
        (b"{", "application/json", 400, "the body is not JSON"),
        (b"[" * 100_000, "application/json", 400, "the body is not JSON"),
        (b"\xff\xfe\x00", "application/json", 400, "the body is not JSON"),
        (b"[]", "application/json", 422, "the JSON has no list of texts called images"),
        (b'{"images": [1]}', "application/json", 422, "the JSON has no list of texts called images"),
        (b'{"images": []}', "application/json", 422, "there is no image in the request"),
        (b'{"images": [], "more": 1}', "application/json", 422, "the JSON has an unknown name 'more'"),
        (b'{"images": ["%%%"]}', "application/json; charset=utf-8", 422, "image 1 is not base64"),
        ('{"images": ["ä"]}'.encode(), "application/json", 422, "image 1 is not base64"),
        (b"no form", "multipart/form-data", 400, "the form could not be read (Missing boundary in multipart)"),
        (b"no form", "multipart/form-data; boundary=x", 400, "the form could not be read"),
        (b"--x--\r\n", "multipart/form-data; boundary=x", 422, "there is no image in the request"),
    ],
)
def test_bodies_that_hold_no_images(
    client: TestClient, body: bytes, kind: str | None, status: int, sentence: str
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    assert refusal(client.post("/predict", content=body, headers=headers), status).startswith(sentence)


def test_fields_that_are_no_files_are_not_images(client: TestClient) -> None:
    answer = client.post("/predict", data={"note": "hello"}, files={"anything": GOOD})
    assert len(answer.json()["predictions"]) == 1


@pytest.mark.parametrize(("name", "told"), [(rb"\ud800.png", "?.png"), (b"a" * 999, "a" * 255), (b"", "1")])
def test_odd_names(client: TestClient, name: bytes, told: str) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="a"; filename="' + name + b'"\r\n\r\n'
    headers = {"content-type": "multipart/form-data; boundary=x; charset=raw_unicode_escape"}
    answer = client.post("/predict", content=head + picture() + b"\r\n--x--\r\n", headers=headers)
    assert [one["name"] for one in answer.json()["predictions"]] == [told]


def test_size_of_the_body(run: Run) -> None:
    with client_with(run, most_megabytes=0.01) as client:
        sentence = "the request is larger than 0.01 MB; send fewer or smaller images"
        assert refusal(post(client, ("a.png", bytes(20_000))), 413) == sentence
        # Without a length that is told first:
        head = b'--x\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n'
        for kind, start in (("multipart/form-data; boundary=x", head), ("application/json", b'{"images": ["')):
            answer = client.post(
                "/predict", content=iter([start, *([b"a" * 1000] * 20)]), headers={"content-type": kind}
            )
            assert refusal(answer, 413) == sentence
        assert post(client, ("a.png", picture())).status_code == 200


def test_number_of_images(run: Run) -> None:
    with client_with(run, most_images=2) as client:
        sentence = "the request has more than 2 images; send them in several requests"
        assert refusal(post(client, *[GOOD] * 3), 413) == sentence
        assert refusal(client.post("/predict", json={"images": ["aGVsbG8="] * 3}), 413) == sentence
        assert post(client, *[GOOD] * 2).status_code == 200


def test_number_of_pixels(run: Run) -> None:
    with client_with(run, most_megapixels=0.001) as client:
        told = refusal(post(client, ("a.png", picture(size=(50, 40)))), 422)
        assert "(40 x 50 pixels, more than 0.001 million)" in told
        assert post(client, ("a.png", picture(size=(20, 24)))).status_code == 200


def test_requests_at_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Speaker.__call__

    def slow(self: Speaker, x: torch.Tensor) -> Any:
        time.sleep(0.5)
        return usual(self, x)

    monkeypatch.setattr(Speaker, "__call__", slow)
    with client_with(run, most_requests=2) as client, ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: post(client, GOOD), range(6)))
        assert sorted({answer.status_code for answer in answers}) == [200, 503]
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert refusal(refused, 503) == "2 requests are at work already; try again in a second"
        assert refused.headers["retry-after"] == "1"
        assert post(client, GOOD).status_code == 200
        assert value(client.get("/metrics").text, "requests_in_flight") == 0


def test_an_answer_that_takes_too_long(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Speaker.__call__
    waits = iter([0.5])

    def slow(self: Speaker, x: torch.Tensor) -> Any:
        time.sleep(next(waits, 0))
        return usual(self, x)

    monkeypatch.setattr(Speaker, "__call__", slow)
    with client_with(run, timeout=0.2) as client:
        assert refusal(post(client, GOOD), 503).startswith("the answer took more than 0.2 s")
        time.sleep(0.5)
        assert post(client, GOOD).status_code == 200


def test_a_model_that_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Speaker, x: torch.Tensor) -> Any:
        raise RuntimeError("out of memory")

    with TestClient(create_app(run), raise_server_exceptions=False) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Speaker, "__call__", fail)
            assert refusal(post(client, GOOD), 500) == "the server failed at this request; its log says why"
        assert post(client, GOOD).status_code == 200  # and the next one has more luck


def test_places_that_there_are_not(client: TestClient) -> None:
    assert refusal(client.get("/nowhere"), 404) == "GET /nowhere: not found; see /openapi.json for what there is"
    answer = client.get("/predict")
    assert refusal(answer, 405).startswith("GET /predict: method not allowed")
    assert answer.headers["allow"] == "POST"
    assert refusal(client.get("/assets/../app.py"), 404)
    assert refusal(client.get("/examples/3"), 404).startswith("prototype 3 has no example")
    assert client.get("/docs").status_code == 404  # it would load scripts from elsewhere


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"timeout": 0}, "--timeout 0: out of range; give a number above 0"),
        ({"most_images": -1}, "--most-images -1: out of range"),
        ({"most_megabytes": float("nan")}, "--most-megabytes nan: out of range"),
        ({"most_megapixels": 1000}, "--most-megapixels 1000: larger images are never read; give up to 64"),
    ],
)
def test_limits_out_of_range(limits: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        Limits(**limits)


def test_models_that_read_no_images(tmp_path: Path) -> None:
    run = fit(feature_task(), "mrf", out=tmp_path / "run", **QUICK)
    with pytest.raises(UserError, match=r"reads feature vectors of length 5, which cannot be served; give a run on"):
        create_app(run)


# --- the rest ---------------------------------------------------------------------------------------------------------


def value(text: str, name: str) -> float:
    (found,) = re.findall(rf"^graphmsda_{name} (\S+)$", text, re.MULTILINE)
    return float(found)


def test_metrics(run: Run) -> None:
    with TestClient(create_app(run)) as client:
        label = post(client, GOOD).json()["predictions"][0]["label"]
        post(client, GOOD, BAD)
        post(client, BAD)
        client.get("/wp-login.php")
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'graphmsda_requests_total{path="/predict",status="200"} 2' in lines
    assert 'graphmsda_requests_total{path="/predict",status="422"} 1' in lines
    assert 'graphmsda_requests_total{path="other",status="404"} 1' in lines
    assert 'graphmsda_images_total{outcome="predicted"} 2' in lines
    assert 'graphmsda_images_total{outcome="refused"} 2' in lines
    assert f'graphmsda_predicted_total{{class="{label}"}} 2' in lines
    assert value(answer.text, "request_seconds_count") == 3
    assert value(answer.text, "resident_bytes") > 1e7
    form = re.compile(r'(# (HELP|TYPE) graphmsda_\w+ .+)|(graphmsda_\w+({\w+="[^"]*"(,\w+="[^"]*")*})? [\d.e+-]+)')
    assert all(form.fullmatch(line) for line in lines)


def test_health_model_and_openapi(client: TestClient, run: Run) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    about = client.get("/model").json()
    assert about["classes"] == list(run.classes)
    assert about["domains"] == list(run.domains)
    assert about["limits"]["most_images"] == 64
    assert str(run.path.parent) not in str(about)  # paths of this machine are nobody's business
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths["/predict"]["post"]["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
    assert {"/healthz", "/metrics", "/model"} <= paths.keys()


def test_the_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    for link in links:
        assert link == "data:," or client.get(f"/{link}").status_code == 200
    texts = [page.text, *(client.get(f"/{link}").text for link in links if link.startswith("assets/"))]
    assert len(texts) == 3
    assert not any("http://" in text or "https://" in text for text in texts)


def test_examples_are_the_training_images_nearest_to_prototypes(tmp_path: Path) -> None:
    paths = [str(make_domain(tmp_path / name, 40 * n, seed=n)) for n, name in enumerate(("a", "b", "c"))]
    task = load_task(paths[:2], paths[2], image_size=16)
    origin = {"sources": paths[:2], "target": paths[2], "reading": {"image_size": 16}}
    run = fit(task, "mrf", out=tmp_path / "run", backbone="small", origin=origin, **QUICK | {"batch_size": 24})
    examples = find_examples(run)
    nodes, seen = prototypes_of(run)
    assert sorted(examples) == torch.nonzero(seen.flatten()).flatten().tolist()
    for number in (0, 1):
        distances = torch.cdist(embed_samples(run, task.sources[number].x, number), nodes[number])
        for label, nearest in enumerate(distances.argmin(0).tolist()):
            pixels = np.asarray(Image.open(BytesIO(examples[number * len(run.classes) + label])))
            assert (pixels.transpose(2, 0, 1) == task.sources[number].x[nearest].numpy()).all()
    with TestClient(create_app(run, examples=examples)) as client:
        (one,) = post(client, ("x.png", examples[3])).json()["predictions"]
        assert client.get("/model").json()["examples"] is True
        for found in one["prototypes"]:
            place = run.domains.index(found["domain"]) * len(run.classes) + run.classes.index(found["label"])
            answer = client.get(f"/{found['example']}")
            assert answer.headers["content-type"] == "image/png"
            assert answer.content == examples[place]
