"""What `bench.soak` is made of: the journal, the orders that jobs carry, the processes and who starts them, the
troubles, and the audit.

Must hold: the audit trusts nobody but the journals and the database; whatever it cannot explain is a violation.

Reading order: `journal`, `orders`, `worker_process`, `client_process`, `fleet`, `troubles`, `audit`.
"""
