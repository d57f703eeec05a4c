"""The REST service: parse, authorize, call `duly.service`, render. No rules of its own.

May import: `duly.service`, `duly.http` (the egress policy), `duly.queue`, `duly.schema` (is it ours?), `duly.model`.
Tables: none; reads and writes go through `duly.service` and `duly.queue`.
Must hold: 201 means committed; every route but health and the OpenAPI document asks for a key; no answer repeats a
rejected value or shows a credential; a foreign id answers like an unknown one.
"""

from duly.api.app import create_app
from duly.api.serve import ApiServer, PortTakenError
from duly.api.settings import ApiSettings

__all__ = ["ApiServer", "ApiSettings", "PortTakenError", "create_app"]
