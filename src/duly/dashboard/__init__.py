"""Pages for people: what the on-call sees, and what they do about it. Rendered here, whole, as HTML.

May import: `duly.api` (the services of its application), `duly.service`, `duly.queue`, `duly.http`, `duly.model`. Knows
no SQL: it reads through functions of `queue` and `service` that are bounded and asserted to be.
Must hold: nothing is shown without a session, and a session shows its project only, unless it is an operator's; every
change is a POST with the session's own token; no text of a caller's or a target's becomes markup; every page works
without JavaScript; whatever the database does, a page comes within a second, and the pages ask it at a bounded pace,
however many of them are open.
"""

from duly.dashboard.app import create_dashboard, install_dashboard

__all__ = ["create_dashboard", "install_dashboard"]
