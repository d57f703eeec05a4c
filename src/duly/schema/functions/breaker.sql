-- Breakers, as workers share them: a row while deliveries for an account to a host are held. See docs/explanation/breaker.md.

-- closed → open. False: somebody else has opened it, nothing changed.
create function duly.open_breaker(
    p_account integer, p_host text, p_failures integer, p_error text, p_pause_seconds double precision, p_wait_seconds double precision)
returns boolean
language plpgsql
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    insert into duly.breaker (account_id, host, opened_at, failures, last_error, pause_seconds, probe_at)
    values (p_account, p_host, v_now, p_failures, p_error, p_pause_seconds, v_now + make_interval(secs => p_wait_seconds))
    on conflict do nothing;
    return found;
end $$;

-- Be the one delivery that looks whether the target is back, if it is time and nobody else is; for p_seconds nobody else is then.
-- state: probe (and its number) · held (not now; wait_seconds until the next may go, probing_seconds while one is out) · closed.
-- A rival is waited for: the guard is looked at again once it has committed.
create function duly.claim_probe(
    p_account integer, p_host text, p_seconds double precision,
    out state text, out probe integer, out wait_seconds double precision, out probing_seconds double precision, out pause_seconds real)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    update duly.breaker b
    set probe = b.probe + 1, probe_until = v_now + make_interval(secs => p_seconds)
    where b.account_id = p_account and b.host = p_host and b.probe_at <= v_now and (b.probe_until is null or b.probe_until <= v_now)
    returning 'probe', b.probe, 0, p_seconds, b.pause_seconds into state, probe, wait_seconds, probing_seconds, pause_seconds;
    if not found then
        select 'held', b.probe, greatest(0, extract(epoch from b.probe_at - v_now)),
               coalesce(greatest(0, extract(epoch from b.probe_until - v_now)), 0), b.pause_seconds
        into state, probe, wait_seconds, probing_seconds, pause_seconds
        from duly.breaker b where b.account_id = p_account and b.host = p_host;
        if not found then
            state := 'closed';
        end if;
    end if;
end $$;

-- A probe is over and the target is not back (p_failed), or it did not get to ask: open, and the next may go in p_wait_seconds. False: it is
-- not that probe's business any more; another one was sent meanwhile, or it is closed.
create function duly.end_probe(
    p_account integer, p_host text, p_probe integer, p_failed boolean, p_error text,
    p_pause_seconds double precision, p_wait_seconds double precision)
returns boolean
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    update duly.breaker b
    set probe_until = null, pause_seconds = p_pause_seconds, failures = b.failures + p_failed::integer,
        last_error = case when p_failed then p_error else b.last_error end,
        probe_at = clock_timestamp() + make_interval(secs => p_wait_seconds)
    where b.account_id = p_account and b.host = p_host and b.probe = p_probe and b.probe_until is not null;
    return found;
end $$;

-- open → closed: a delivery got through. Returns for how long it was open, in seconds; null: it was closed already.
create function duly.close_breaker(p_account integer, p_host text) returns double precision
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_opened_at timestamptz;
begin
    delete from duly.breaker b where b.account_id = p_account and b.host = p_host returning b.opened_at into v_opened_at;
    return extract(epoch from clock_timestamp() - v_opened_at);
end $$;

-- open → closed for those that nobody has probed for p_seconds since it was time: there is no work for that host any more. Returns how many.
create function duly.forget_breakers(p_seconds double precision) returns integer
language plpgsql
as $$
declare
    v_gone integer;
begin
    delete from duly.breaker b
    where greatest(b.probe_at, b.probe_until) < clock_timestamp() - make_interval(secs => p_seconds);
    get diagnostics v_gone = row_count;
    return v_gone;
end $$;
