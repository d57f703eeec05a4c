"""Tables (numbered migrations), functions (re-created on every migrate), install, verify.

May import: model. Touches every table, by DDL only.
Must hold: migrating is serialized by a lock, repeatable, and all or nothing; the schema's name is a setting, so the SQL
says `duly.` everywhere and `named` puts the real name in its place.
"""

from duly.schema.install import Migrated, migrate
from duly.schema.naming import DEFAULT_SCHEMA, checked_name, named
from duly.schema.verify import verify

__all__ = ["DEFAULT_SCHEMA", "Migrated", "checked_name", "migrate", "named", "verify"]
