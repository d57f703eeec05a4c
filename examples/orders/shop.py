"""The shop: `python shop.py 2 lamps`."""

import os
import sys

import psycopg
from shop_tasks import book_order


def place_order(connection: psycopg.Connection, item: str, quantity: int) -> int:
    """The order and its job are one transaction: both exist once the caller commits, or neither."""
    row = connection.execute(
        "insert into orders (item, quantity) values (%s, %s) returning id", [item, quantity]
    ).fetchone()
    assert row is not None
    book_order.enqueue(connection, row[0])
    if quantity > 100:
        raise ValueError("more than 100 are not for sale")  # rolls the order back, and its job with it
    return int(row[0])


if __name__ == "__main__":
    with psycopg.connect(os.environ["DULY_DATABASE_URL"]) as connection:
        number = place_order(connection, sys.argv[2], int(sys.argv[1]))
    print(f"order {number} is placed")
