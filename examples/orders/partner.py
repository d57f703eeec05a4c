"""The partner's web application: `python partner.py PORT`."""

import json
import os
import sys

import psycopg
from flask import Flask, request

import duly

app = Flask(__name__)


@app.post("/orders")
def take_order() -> str:
    """A request that Duly did not sign is answered 401; one that arrives twice is taken once."""
    delivery = duly.receive(request, os.environ["PARTNER_SECRET"])
    order = json.loads(delivery.body)
    with psycopg.connect(os.environ["DULY_DATABASE_URL"]) as connection:
        if duly.processed_once(connection, delivery.job_id):
            connection.execute(
                "insert into partner_orders (order_id, item, quantity) values (%s, %s, %s)",
                [order["order_id"], order["item"], order["quantity"]],
            )
    return "taken"


if __name__ == "__main__":
    app.run(port=int(sys.argv[1]))
