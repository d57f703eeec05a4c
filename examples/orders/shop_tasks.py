"""What follows from an order. `duly worker --app shop_tasks` runs it."""

import json
import os
import urllib.request

import psycopg

import duly


@duly.task(queue="orders", max_attempts=10)
def book_order(job: duly.Context, order_id: int) -> str:
    """Book the order, and have the partner told. May run twice, does it once."""
    with psycopg.connect(os.environ["DULY_DATABASE_URL"]) as connection:
        row = connection.execute(
            "update orders set booked = true where id = %s returning item, quantity", [order_id]
        ).fetchone()
    if row is None:
        raise duly.Bury(f"there is no order {order_id}")
    tell_partner({"order_id": order_id, "item": row[0], "quantity": row[1]})
    job.log.info("order %s is booked", order_id)
    return f"booked {row[1]} {row[0]}"


def tell_partner(order: dict[str, object]) -> None:
    """A job for Duly's HTTP side: delivered later, signed, retried. The unique key makes a second call of this task
    harmless.
    """
    job = {
        "url": os.environ["PARTNER_URL"],
        "json": order,
        "unique_key": f"order-{order['order_id']}-to-partner",
        "unique_for": "7d",
        "on_conflict": "keep",
    }
    request = urllib.request.Request(
        f"{os.environ['DULY_API']}/v1/jobs",
        json.dumps(job).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['DULY_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=10):
        pass
