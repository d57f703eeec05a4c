"""A private PostgreSQL for development and trials: found, made, started, watched and stopped by Duly itself.

May import: the standard library and `duly.model.errors`; no driver, nothing else of ours. Touches no table.
Must hold: one owner per home folder (a file lock); a cluster is whole or absent (made aside, then renamed); a committed
row survives any kill (fsync and synchronous_commit are on); the server ends with its owner and listens on no TCP port
unless the settings ask for one; nothing outside the home folder is changed, except a short socket folder in /tmp
when the home's path is too long for a Unix socket.
"""

from duly.embedded.binaries import Binaries, find_binaries
from duly.embedded.home import passable
from duly.embedded.server import EmbeddedPostgres

__all__ = ["Binaries", "EmbeddedPostgres", "find_binaries", "passable"]
