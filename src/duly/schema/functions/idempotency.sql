-- Take an idempotency key for the request that this transaction carries out: first (it is ours; write the answer before the commit, with
-- note_answer), in_progress (somebody carries it out just now), other (the key was used for another request) or replay, with the answer.
-- Nobody waits: who does not get the lock is told so. The row is seen if its transaction committed before the lock was taken.
create function duly.take_idempotency_key(
    p_project integer, p_endpoint text, p_key text, p_fingerprint bytea, out result text, out status smallint, out answer bytea, out headers jsonb)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_row duly.idempotency;
begin
    if not pg_try_advisory_xact_lock(hashtextextended(format('duly.idempotency %s %s %s', p_project, p_endpoint, p_key), 0)) then
        result := 'in_progress';
        return;
    end if;
    select * into v_row from duly.idempotency i where i.project_id = p_project and i.endpoint = p_endpoint and i.key = p_key;
    if found and v_row.made_at > clock_timestamp() - interval '24 hours' then
        result := case when v_row.fingerprint = p_fingerprint then 'replay' else 'other' end;
        status := v_row.status;
        answer := v_row.answer;
        headers := v_row.headers;
        return;
    end if;
    insert into duly.idempotency (project_id, endpoint, key, fingerprint, made_at)
    values (p_project, p_endpoint, p_key, p_fingerprint, clock_timestamp())
    on conflict (project_id, endpoint, key) do update
    set fingerprint = excluded.fingerprint, status = null, answer = null, headers = null, made_at = excluded.made_at;
    result := 'first';
end $$;

create function duly.note_answer(p_project integer, p_endpoint text, p_key text, p_status integer, p_answer bytea, p_headers jsonb) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    update duly.idempotency i set status = p_status, answer = p_answer, headers = p_headers
    where i.project_id = p_project and i.endpoint = p_endpoint and i.key = p_key;
end $$;

-- Forget keys that are more than a day old, up to p_limit made after p_after; returns when the last one was made, null if there are no more. The
-- caller goes on from there, so that what was forgotten before is not walked again.
create function duly.forget_idempotency(p_after timestamptz, p_limit integer) returns timestamptz
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_count integer;
    v_last  timestamptz;
begin
    with gone as (
        delete from duly.idempotency i where i.ctid = any (array(
            select x.ctid from duly.idempotency x
            where x.made_at >= p_after and x.made_at < clock_timestamp() - interval '24 hours'
            order by x.made_at limit p_limit for update skip locked))
        returning i.made_at
    )
    select count(*), max(g.made_at) into v_count, v_last from gone g;
    return case when v_count = p_limit then v_last end;
end $$;
