"""The web application: ``POST /predict``, ``/healthz``, ``/metrics``, ``/model`` and a page to drop images on."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.resources import files
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from graphmsda import __version__
from graphmsda.data.images import Unreadable, quiet_decoding
from graphmsda.run import Run
from graphmsda.serve import schema
from graphmsda.serve.answers import Speaker
from graphmsda.serve.batcher import Batcher
from graphmsda.serve.limits import Limits, Refusal
from graphmsda.serve.metrics import Metrics
from graphmsda.serve.uploads import Upload, read_uploads

# The page loads nothing from elsewhere; browsers see to it.
POLICY = "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
ASSETS = {"page.css": "text/css", "page.js": "text/javascript"}
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": schema.Problem, "description": "there is none"}}


class Service:
    """A run at work: pictures in, predictions out."""

    def __init__(self, run: Run, limits: Limits, examples: Mapping[int, bytes]) -> None:
        self.run, self.limits, self.examples = run, limits, examples
        about = {"version": __version__, "method": run.about["method"], "backbone": run.about["backbone"]}
        self.metrics = Metrics(about)
        self.speaker = Speaker(run)
        self.batcher = Batcher(self.speaker, note=self.metrics.batches.add)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Be ready to predict meanwhile."""
        with quiet_decoding(), ThreadPoolExecutor(os.cpu_count(), "graphmsda-decode") as self.threads:
            work = asyncio.create_task(self.batcher.run())
            try:
                yield
            finally:
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """Count a request among those at work, or refuse it."""
        if self.metrics.in_flight >= self.limits.most_requests:
            raise Refusal(503, f"{self.limits.most_requests} requests are at work already; try again in a second")
        self.metrics.in_flight += 1
        begin = time.monotonic()
        try:
            yield
        finally:
            self.metrics.in_flight -= 1
            self.metrics.seconds.add(time.monotonic() - begin)

    async def predict(self, request: Request, top: int) -> list[dict[str, Any]]:
        """Answer one request."""
        with self._admitted():
            uploads = await read_uploads(request, self.limits)
            try:
                async with asyncio.timeout(self.limits.timeout):
                    return await self._predict(uploads, top)
            except TimeoutError:
                late = f"the answer took more than {self.limits.timeout:g} s; try again later or send fewer images"
                raise Refusal(503, late) from None

    async def _predict(self, uploads: list[Upload], top: int) -> list[dict[str, Any]]:
        decoded = await asyncio.gather(*(self._decode(upload.data) for upload in uploads))
        pixels = [x for x in decoded if isinstance(x, Tensor)]
        self.metrics.images[(("outcome", "refused"),)] += len(uploads) - len(pixels)
        if not pixels:
            first = uploads[0]
            others = "" if len(uploads) == 1 else f", nor any of the {len(uploads) - 1} others"
            raise Refusal(
                422, f"image {first.name!r} could not be read ({decoded[0]}){others}; send pictures such as JPEG or PNG"
            )
        told = iter(self.speaker.tell(await self.batcher(torch.cat(pixels)), top, self.examples))
        answers: list[dict[str, Any]] = []
        for upload, x in zip(uploads, decoded, strict=True):
            read = isinstance(x, Tensor)
            answers.append({"name": upload.name, "error": None if read else x} | (next(told) if read else {}))
        self._count(answers)
        return answers

    async def _decode(self, data: bytes) -> Tensor | str:
        """Return a picture's pixels, or why it has none."""
        try:
            most = self.limits.most_megapixels * 1e6
            return await asyncio.get_running_loop().run_in_executor(self.threads, self.speaker.decode, data, most)
        except Unreadable as error:
            return str(error)

    def _count(self, answers: list[dict[str, Any]]) -> None:
        for answer in answers:
            if answer["error"] is None:
                self.metrics.images[(("outcome", "predicted"),)] += 1
                self.metrics.predicted[(("class", answer["label"]),)] += 1
                self.metrics.leaning[(("source", answer["nearest_source"]),)] += 1

    def about(self) -> dict[str, Any]:
        """Return what is served."""
        return {
            "run": self.run.path.name,
            "method": self.run.about["method"],
            "backbone": self.run.about["backbone"],
            "classes": self.run.classes,
            "domains": self.run.domains,
            "image_size": self.speaker.size,
            "examples": bool(self.examples),
            "limits": dataclasses.asdict(self.limits),
        }


def create_app(run: Run, limits: Limits | None = None, examples: Mapping[int, bytes] | None = None) -> FastAPI:
    """Return the application for a finished run on images.

    Args:
        run: The run.
        limits: What it takes at most.
        examples: PNG files of the training images nearest to prototypes, by the prototypes' places.
    """
    service = Service(run, limits or Limits(), examples or {})

    # The usual documentation pages load scripts from elsewhere; /openapi.json is there for any viewer.
    about = f"Predictions of {run.about['method']}, run {run.path.name}."
    app = FastAPI(
        title="graphmsda",
        version=__version__,
        description=about,
        docs_url=None,
        redoc_url=None,
        lifespan=lambda app: service.working(),
    )
    add_answers(app, service)
    add_page(app)
    add_manners(app, service.metrics)
    return app


def add_answers(app: FastAPI, service: Service) -> None:
    """Add what programs ask."""

    @app.post(
        "/predict",
        summary="Classify images",
        response_model=schema.Predictions,
        responses=schema.REFUSALS,
        openapi_extra={"requestBody": schema.BODY},
    )
    async def predict(
        request: Request, top: Annotated[int, Query(ge=1, le=10_000, description="classes told of each image")] = 5
    ) -> Response:
        return JSONResponse({"predictions": await service.predict(request, top)})

    @app.get("/healthz", summary="Is it up?", response_model=schema.Health)
    async def healthz() -> Response:
        return JSONResponse({"status": "ok", "graphmsda": __version__})

    @app.get("/metrics", summary="Counts for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/model", summary="What is served", response_model=schema.Model)
    async def model() -> Response:
        return JSONResponse(service.about())

    picture: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}, **NOT_FOUND}

    @app.get("/examples/{place}", summary="The training image nearest to a prototype", response_class=Response,
             responses=picture | {422: {"model": schema.Problem}})  # fmt: skip
    async def example(place: int) -> Response:
        if place not in service.examples:
            raise Refusal(404, f"prototype {place} has no example; see the field example of a prediction")
        return Response(service.examples[place], media_type="image/png", headers={"Cache-Control": "max-age=3600"})


def add_page(app: FastAPI) -> None:
    """Add the page and what it is made of."""
    folder = files("graphmsda.serve")
    page = (folder / "page.html").read_text(encoding="utf-8")
    assets = {name: (folder / name).read_text(encoding="utf-8") for name in ASSETS}

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> Response:
        return HTMLResponse(page)

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in assets:
            raise HTTPException(404)
        return Response(assets[name], media_type=ASSETS[name])


def add_manners(app: FastAPI, metrics: Metrics) -> None:
    """Add how every answer is counted and every refusal told."""
    app.add_middleware(Counted, metrics=metrics, known={getattr(route, "path", "") for route in app.routes})

    @app.exception_handler(Refusal)
    async def refuse(request: Request, error: Refusal) -> Response:
        later = {"Retry-After": "1"} if error.status == 503 else None
        return JSONResponse({"error": error.sentence}, error.status, later)

    @app.exception_handler(HTTPException)
    async def tell(request: Request, error: HTTPException) -> Response:
        sentence = (
            f"{request.method} {request.url.path}: {str(error.detail).lower()}; see /openapi.json for what there is"
        )
        return JSONResponse({"error": sentence}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where, reason = first["loc"][-1], first["msg"][:1].lower() + first["msg"][1:]
        return JSONResponse({"error": f"{where}: {reason}; see /openapi.json"}, 422)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        metrics.requests[("path", request.url.path), ("status", "500")] += 1
        return JSONResponse({"error": "the server failed at this request; its log says why"}, 500)


class Counted:
    """Counts each answer and puts the headers of all answers to it; plain, since it is on the way of every request."""

    def __init__(self, app: ASGIApp, metrics: Metrics, known: set[str]) -> None:
        self.app, self.metrics, self.known = app, metrics, known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self.known else "other"
                self.metrics.requests[("path", path), ("status", str(message["status"]))] += 1
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await self.app(scope, receive, counted)
