"""The other end of a delivery, in Python: is this request from Duly, and was this job done already?

May import: model, and the callers' connections of `tasks`. Knows no framework and no driver: FastAPI, Flask and
Django are recognized, never imported. Table: `duly_processed`, in the receiver's own database.
Must hold: nothing of a request is believed before its signature was checked over the exact body bytes; the record
that a job was done is part of the transaction that did it.
"""

from duly.receiving.once import create_processed_table, processed_once
from duly.receiving.requests import delivery, receive
from duly.receiving.verification import Delivery, VerificationError, verify

__all__ = [
    "Delivery",
    "VerificationError",
    "create_processed_table",
    "delivery",
    "processed_once",
    "receive",
    "verify",
]
