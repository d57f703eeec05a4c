"""Where spans go: by OTLP to where the OTEL_* variables say, or to the provider that somebody has set already."""

from __future__ import annotations

import threading
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider, TracerProvider

from duly.model.errors import InvalidInputError

_FLUSH_S = 3.0


def provider(service_name: str) -> tuple[TracerProvider, Callable[[], None]]:
    """A provider, and what to call at the end: it sends what is left, within a few seconds whoever answers.

    One that was set by `opentelemetry-instrument`, say, is used as it is. Raises InvalidInputError without the SDK.
    """
    given = trace.get_tracer_provider()
    if not isinstance(given, ProxyTracerProvider):
        return given, lambda: None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider as Sdk
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidInputError("traces need OpenTelemetry's SDK: pip install 'duly[traces]'") from error
    resource = Resource({SERVICE_NAME: service_name}).merge(OTELResourceDetector().detect())
    sdk = Sdk(resource=resource, shutdown_on_exit=False)
    sdk.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    def end() -> None:
        closing = threading.Thread(target=sdk.shutdown, name="duly-traces", daemon=True)
        closing.start()
        closing.join(_FLUSH_S)

    return sdk, end
