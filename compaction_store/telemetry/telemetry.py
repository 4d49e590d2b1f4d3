"""Spans and metrics for OpenTelemetry, for a store's operations, their statements, and the model calls inside them.

The module `conventions` has the names of the attributes. Attributes never contain the content of a message, a summary
or a prompt, except on model-call spans with `content=True`. A failed span has the type of the error; it has the error's
text only for an error of this package, which never contains content. A store without a `Telemetry` does not import
OpenTelemetry and makes no spans.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from compaction_store.errors import Conflict, InvalidInput, MissingExtra, own_text
from compaction_store.telemetry import conventions
from compaction_store.telemetry.conventions import Attributes

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

_NAME = "compaction_store"
_SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"

Observer = Callable[[str], AbstractContextManager["OpenSpan"]]

# The active Telemetry and the thread's attributes, for model-call spans. Operations of a store with one set them.
_current: ContextVar[tuple[Telemetry, Attributes] | None] = ContextVar("compaction_store.telemetry", default=None)


class OpenSpan:
    """A span that has not ended, and the labels of its measurements."""

    def __init__(self, telemetry: Telemetry, span: Span, labels: Attributes) -> None:
        self._telemetry, self._span, self.labels = telemetry, span, labels
        self._retries = 0

    def set_attributes(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def fail(self, error: Attributes, text: str | None = None) -> None:
        """Marks the span as failed. The text must not contain content."""
        self.labels |= error
        self._span.set_attributes(error)
        self._span.set_status(self._telemetry.error, text)

    def retried(self, sqlstate: str | None) -> None:
        """Records a retry of the statement. `sqlstate` is None if the failed attempt got no answer."""
        self._retries += 1
        error: Attributes = {} if sqlstate is None else {"db.response.status_code": sqlstate}
        self._span.add_event("compaction_store.retry", error)
        self._span.set_attribute("compaction_store.retries", self._retries)
        self._telemetry.retries.add(1, {"db.query.summary": self.labels["db.query.summary"], **error})


class Telemetry:
    """Reports spans and metrics of a store to OpenTelemetry. Pass it to the store's `open`.

    Without providers, OpenTelemetry's global providers are used. With `content=True`, model-call spans contain the
    requests to models and the answers. These are whole conversations in clear text, sent wherever the spans go.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        content: bool = False,
    ) -> None:
        try:
            from opentelemetry import metrics, trace  # noqa: PLC0415 — an extra
        except ImportError:
            raise MissingExtra("Telemetry", "otel") from None
        if type(content) is not bool:
            raise InvalidInput(f"content must be True or False, not {type(content).__name__}")
        self._content = content
        self._kinds = trace.SpanKind
        self.error = trace.StatusCode.ERROR
        self._tracer = trace.get_tracer(_NAME, version("compaction-store"), tracer_provider, _SCHEMA_URL)
        meter = metrics.get_meter(_NAME, version("compaction-store"), meter_provider, _SCHEMA_URL)

        self._histograms = {name: meter.create_histogram(**given) for name, given in conventions.HISTOGRAMS.items()}
        self._messages = meter.create_counter("compaction_store.messages", "{message}", "Messages appended.")
        self._records = meter.create_counter("compaction_store.compactions", "{record}", "Compaction records.")
        self._conflicts = meter.create_counter("compaction_store.conflicts", "{conflict}", "Writes refused.")
        #: The counter of retries, which OpenSpan increments.
        self.retries = meter.create_counter("compaction_store.retries", "{retry}", "Statements sent again.")

    @contextmanager
    def _span(
        self, name: str, kind: Any, labels: Attributes, attributes: Attributes, duration: str
    ) -> Iterator[OpenSpan]:
        """Opens a span and records its duration in a histogram. All spans are made by this method."""
        start = time.perf_counter()
        # Do not let OpenTelemetry record exceptions: their texts and tracebacks may contain content.
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes={**labels, **attributes}, record_exception=False, set_status_on_exception=False
        ) as span:
            opened = OpenSpan(self, span, dict(labels))
            try:
                yield opened
            except BaseException as error:
                opened.fail(conventions.error_attributes(error), own_text(error))
                raise
            finally:
                self._histograms[duration].record(time.perf_counter() - start, opened.labels)

    def instrument(self, owner: object, tenant: str, group: str = "") -> None:
        """Wraps the methods of one store, or of one of its groups, in spans. Those of other stores stay unchanged."""
        for name in conventions.OPERATIONS[group]:
            if (method := getattr(owner, name, None)) is not None:
                setattr(owner, name, self._instrumented(f"{group}.{name}" if group else name, method, tenant))

    def _instrumented(self, name: str, method: Callable[..., Any], tenant: str) -> Callable[..., Any]:
        is_async = inspect.iscoroutinefunction(method)
        is_async = is_async or "Coroutine[" in str(inspect.signature(method).return_annotation)

        @functools.wraps(method)
        def called(*arguments: Any, **keywords: Any) -> Any:
            if is_async:
                # An iterator has no span, and a coroutine has one while it is awaited.
                started = method(*arguments, **keywords)
                given = started, name, tenant, arguments, keywords
                return self._awaited(*given) if inspect.iscoroutine(started) else started
            with self._operation(name, tenant, arguments, keywords) as span:
                result = method(*arguments, **keywords)
                self._record_result(span, name, result)
                return result

        return called

    async def _awaited(
        self, started: Any, name: str, tenant: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        with self._operation(name, tenant, arguments, keywords) as span:
            result = await started
            self._record_result(span, name, result)
            return result

    @contextmanager
    def _operation(
        self, name: str, tenant: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Iterator[OpenSpan]:
        given = arguments[0] if arguments else keywords.get("thread_id")
        thread_id = given if isinstance(given, str) else getattr(given, "thread_id", None)
        thread: Attributes = {}
        if isinstance(thread_id, str):
            thread["gen_ai.conversation.id"] = conventions.plain(thread_id)
        labels: Attributes = {"compaction_store.operation": name}
        attributes: Attributes = {"compaction_store.tenant": conventions.plain(tenant), **thread}
        token = _current.set((self, thread))
        try:
            with self._span(f"compaction_store.{name}", self._kinds.INTERNAL, labels, attributes, "operations") as span:
                yield span
        finally:
            _current.reset(token)

    def _record_result(self, span: OpenSpan, name: str, result: Any) -> None:
        if isinstance(result, Iterator):
            return
        span.set_attributes(conventions.result_attributes(name, result))
        if name == "append":
            self._messages.add(len(result))
        elif name in {"compact", "repair"}:
            for (outcome, kind), count in Counter((record.outcome, record.kind) for record in result).items():
                self._records.add(count, {"compaction_store.outcome": outcome, "compaction_store.kind": kind})
            for side, tokens in zip(("before", "after"), conventions.tokens_of_run(result) or (), strict=False):
                self._histograms["tokens"].record(tokens, {"compaction_store.side": side})

    def observer(self, host: str | None, port: int | None, database: str | None) -> Observer:
        """Returns a function that opens the span of a query on this server. A span covers all attempts of the query."""
        return functools.partial(self._statement, conventions.server(host, port, database))

    @contextmanager
    def _statement(self, server: Attributes, name: str) -> Iterator[OpenSpan]:
        summary = f"SELECT compaction_store.{name}"
        labels: Attributes = {"db.system.name": "postgresql", "db.query.summary": summary, **server}
        with self._span(summary, self._kinds.CLIENT, labels, {}, "statements") as span:
            try:
                yield span
            except Conflict as error:
                self._conflicts.add(1, {"db.query.summary": summary, **conventions.error_attributes(error)})
                raise

    @contextmanager
    def model_call(
        self, client: Any, parameters: Mapping[str, Any], thread: Attributes
    ) -> Iterator[Callable[[Any], Any]]:
        """Opens the span of a request. Yields a function that must get the answer or the error, and returns it."""
        labels = conventions.request_attributes(client, parameters)
        attributes = {**thread, **conventions.request_settings(parameters)}
        if self._content:
            attributes |= conventions.request_content(parameters)
        name = " ".join(str(labels[key]) for key in ("gen_ai.operation.name", "gen_ai.request.model") if key in labels)
        with self._span(name, self._kinds.CLIENT, labels, attributes, "calls") as span:
            yield functools.partial(self._record_answer, span)

    def _record_answer(self, span: OpenSpan, answer: Any) -> Any:
        if isinstance(answer, Exception):
            # The HTTP status of an API's error, or the type of any other exception.
            status = getattr(answer, "status_code", None)
            span.fail({"error.type": str(status) if isinstance(status, int) else type(answer).__qualname__})
            return answer
        fields: Mapping[str, Any] = answer.to_dict(mode="json", warnings=False)
        attributes = conventions.answer_attributes(fields)
        if (model := attributes.get("gen_ai.response.model")) is not None:
            span.labels["gen_ai.response.model"] = model
        for kind, count in conventions.token_usage(fields).items():
            attributes[f"gen_ai.usage.{kind}_tokens"] = count
            self._histograms["usage"].record(count, {**span.labels, "gen_ai.token.type": kind})
        if self._content:
            attributes |= conventions.answer_content(fields)
        span.set_attributes(attributes)
        return answer


def model_call(client: Any, parameters: Mapping[str, Any]) -> AbstractContextManager[Callable[[Any], Any]]:
    """Opens a span for a request to a model, if an operation of a store with telemetry makes the request.

    Yields a function that must be called with the answer or the exception, and returns it.
    """
    if (current := _current.get()) is None:
        return nullcontext(lambda answer: answer)
    telemetry, thread = current
    return telemetry.model_call(client, parameters, thread)
