-- A worker process says that it is there. Its leases are good while its row is.
create function duly.register(p_name text, p_kinds text[], p_queues text[], p_concurrency integer, p_lease_seconds real) returns bigint
language sql
begin atomic
    insert into duly.worker (name, kinds, queues, concurrency, lease_seconds, lease_expires_at)
    values (p_name, p_kinds, p_queues, p_concurrency, p_lease_seconds, clock_timestamp() + make_interval(secs => p_lease_seconds))
    returning id;
end;

-- Renew all leases of a worker at once. No row: it is not registered (any more) and must register anew. A worker that comes
-- back late goes on: of what it held, whatever was rescued meanwhile is refused lease by lease.
-- abort_ids, abort_attempts: what it was asked to stop.
create function duly.heartbeat(p_worker bigint) returns table (abort_ids uuid[], abort_attempts integer[])
language plpgsql
set enable_seqscan = off set jit = off
as $$
begin
    update duly.worker w
    set heartbeat_at = clock_timestamp(), lease_expires_at = clock_timestamp() + make_interval(secs => w.lease_seconds)
    where w.id = p_worker;
    if found then
        return query
        select coalesce(array_agg(l.job_id), '{}'), coalesce(array_agg(l.attempt), '{}')
        from duly.lease l where l.worker_id = p_worker and l.abort_requested;
    end if;
end $$;

-- A worker that holds nothing any more goes. What it still holds is rescued as soon as its row is gone.
create function duly.deregister(p_worker bigint) returns void
language sql
begin atomic
    delete from duly.worker w where w.id = p_worker;
end;
